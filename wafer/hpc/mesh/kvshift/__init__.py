"""A KV cache that shifts: rows pass their oldest entries up (WaferLLM, arXiv:2502.04563)."""

from typing import NamedTuple

import numpy as np

from wafer.errors import WaferError
from wafer.hpc import host
from wafer.hpc.mesh import blocks
from wafer.spec import WSE2

__all__ = ["Cache", "capacity", "cycles", "run"]

# Cycles on WSE-2, read off runs of up to 8 rows, of an even and an odd number: of a call; of an
# entry and of passing one up in the lowest row, besides their words. An entry in a row that hears
# and passes on, and the words for which one such row more waits while a row grows.
_LOWEST, _BETWEEN, _WAITS = ((13, 54, 20), (17, 48, 23)), 65, (1, 0.5)
_MEMORY = WSE2.sram_bytes


class Cache(NamedTuple):
    """What is in the cache."""

    counts: np.ndarray  #: [height], entries of each row of PEs
    #: [entries, width, words] float32, from the topmost row down, the oldest first
    entries: np.ndarray
    cycles: int  #: of the call


def cycles(entries: int, height: int, words: int) -> int:
    """The closed form of ``run``'s cycles, within 5 %.

    The lowest row stores every entry, two words a cycle, and passes one up unless it grows itself.
    The next one hears a word and sends one. Others do the same at the same time, whatever the
    height; the longer of the two counts. Exact for up to two rows with two entries or more.

    Args:
        entries: that are pushed, one after another.
        height: rows of PEs.
        words: of a PE's part of an entry.
    """
    start, push, passing = _LOWEST[height % 2]
    heard = entries - entries // height
    passed = heard - (entries + 1) // height + entries / height * _WAITS[height % 2]
    lowest = entries * (push + (words + 1) // 2) + heard * (passing + words)
    between = entries * _BETWEEN + (heard + passed) * words if height > 2 else 0
    return round(start + max(lowest, between))


def capacity(rows: int, entries: int, *, shifts: bool = True) -> int:
    """Entries that the cache takes.

    Args:
        rows: of PEs.
        entries: for which a row has room.
        shifts: whether rows pass entries on; otherwise new ones stay in the lowest row.
    """
    return rows * entries if shifts else entries


def run(entries: np.ndarray, height: int) -> Cache:
    """Simulate the program: push entries one after another into an empty cache.

    Args:
        entries: [entries, width, words] of 32 bits; an entry's parts for the PEs of a row.
        height: rows of PEs.

    Raises:
        WaferError: a shape with 0, no rows, or more entries than a PE of the lowest row can hold
            at once.
    """
    _check(entries, height)
    count, width, words = entries.shape
    slots = blocks.ceil(count, height) + 1
    wafer = host.runtime(
        "mesh/kvshift", width=width, height=height, words=words, slots=slots, most=count
    )
    lowest = np.ascontiguousarray(entries.astype(np.float32).swapaxes(0, 1))
    symbol = wafer.get_id("fresh")
    wafer.memcpy_h2d(symbol, lowest, 0, height - 1, width, 1, count * words)
    start = wafer.cycles
    wafer.launch("push", count)
    spent = wafer.cycles - start
    where = host.read(wafer, "where", 3, np.uint32).astype(int)
    held = host.read(wafer, "cache", slots * words, np.float32)
    held = held.reshape(height, width, slots, words)
    rows = []
    for row, (head, there, _) in zip(held, where[:, 0], strict=True):
        rows.append(row[:, (head + np.arange(there)) % slots].swapaxes(0, 1))
    return Cache(where[:, 0, 1], np.concatenate(rows), spent)


def _check(entries: np.ndarray, height: int) -> None:
    if entries.ndim != 3 or 0 in entries.shape:
        raise WaferError(
            f"entries: shape {entries.shape}; expected [entries, width, words], each at least 1"
        )
    if height < 1:
        raise WaferError(f"height: {height}; expected rows of PEs, at least 1")
    count, _, words = entries.shape
    needed = 4 * words * (count + blocks.ceil(count, height) + 1)
    if needed > _MEMORY:
        raise WaferError(
            f"entries: {count} of {words} words take {needed:,} bytes of a PE of the lowest row,"
            f" where all wait to be pushed; a PE has {_MEMORY:,}"
        )
