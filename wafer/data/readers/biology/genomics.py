"""DNA with an epigenetic state per base, as rows of EBERT (Trotter et al. 2021, arXiv 2112.07571).

A token is a k-mer, the next one begins behind it. Its second input is the state of its base
(k = 1), or the share of its bases that lie in each state.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.pipeline import Transform
from wafer.data.batching.rowsets import RowSource, fixed, sequence_row
from wafer.data.readers.masked_lm import hiding_states, mask_row
from wafer.data.text.fasta import Record, letter_codes, read_fasta
from wafer.data.text.segments import read_segments
from wafer.data.text.textfiles import find_files
from wafer.errors import DataError

PAD, UNKNOWN, CLS, SEP, MASK = SPECIAL = range(5)
_BASES = "ACGT"
_ANY = len(_BASES)  # code of a base that is not known: N, or one of several
_CODE_OF = {letter: code for code, letter in enumerate(_BASES)}
_CODES = letter_codes(_CODE_OF | dict.fromkeys("NRYSWKMBDHV", _ANY))
_STATES = 36  # of synthetic DNA where no model says how many


def _groups(codes: np.ndarray, k: int) -> np.ndarray:
    """[n // k, k] bases of each token; a rest is dropped."""
    return codes[: len(codes) // k * k].reshape(-1, k)


def _known(codes: np.ndarray, k: int) -> np.ndarray:
    """[n // k] whether every base of a token is known."""
    return (_groups(codes, k) != _ANY).all(axis=1)


def kmer_ids(codes: np.ndarray, k: int) -> np.ndarray:
    """[n // k] int32 ids of bases [n] coded 0 to 4; k-mers of unknown bases are [UNK]."""
    places = 4 ** np.arange(k - 1, -1, -1, dtype=np.int32)
    ids = len(SPECIAL) + _groups(codes, k).astype(np.int32) @ places
    return np.where(_known(codes, k), ids, UNKNOWN).astype(np.int32)


def token_states(bases: np.ndarray, k: int, count: int) -> np.ndarray:
    """What the k-mers over these states of bases are given as second input.

    Args:
        bases: [n] states from 0, -1 for none.
        k: bases of a token.
        count: E.

    Returns:
        [n] int32 for k = 1; else [n // k, E] float32, shares of a token's bases.
    """
    if k == 1:
        return bases.astype(np.int32)
    size = len(bases) // k
    bases = bases[: size * k]
    cells = np.repeat(np.arange(size), k) * count + bases
    shares = np.bincount(cells[bases >= 0], minlength=size * count) / k
    return shares.reshape(size, count).astype(np.float32)


def _features(
    cfg: Any,
    count: int,
    codes: np.ndarray,
    bases: np.ndarray,
) -> dict[str, np.ndarray]:
    """A row: [CLS], the k-mers, [SEP]; special tokens and padding have no state."""
    length, k = cfg.max_sequence_length, cfg.kmer_size
    ids = kmer_ids(codes, k)
    states = token_states(bases, k, count)
    row = sequence_row([CLS, *ids, SEP], length, PAD)
    if k == 1:
        row["epigenetic"] = fixed([-1, *states], length, -1)
    else:
        row["epigenetic"] = np.zeros((length, count), np.float32)
        row["epigenetic"][1 : 1 + len(states)] = states
    return row


def _masking(cfg: Any) -> Transform:
    share = max(1, round(cfg.max_sequence_length * cfg.masked_lm_prob))
    mask = functools.partial(
        mask_row,
        most=cfg.max_predictions_per_seq or share,
        rate=cfg.masked_lm_prob,
        mask_id=MASK,
        vocab_size=cfg.vocab_size,
        special_ids=tuple(SPECIAL),
    )
    return hiding_states(mask) if cfg.mask_epigenetic else mask


def _windows(records: Sequence[Record], k: int, size: int) -> np.ndarray:
    """[n, 2] (record, first token) of windows of ``size`` tokens that hold a known one."""
    windows = []
    for number, record in enumerate(records):
        known = _known(record.codes, k)
        starts = np.arange(0, len(known), size)
        if len(starts):
            kept = starts[np.logical_or.reduceat(known, starts)]
            windows.append(np.stack([np.full_like(kept, number), kept], axis=1))
    return np.concatenate(windows) if windows else np.zeros((0, 2), int)


def _lengths(records: Sequence[Record]) -> dict[str, int]:
    """Bases by name; files may not share a name, which the segments go by."""
    first: dict[str, Record] = {}
    for record in records:
        other = first.setdefault(record.name, record)
        if other is not record:
            raise DataError(f"{record.where}: {record.name!r} stands already at {other.where}")
    return {name: len(record.codes) for name, record in first.items()}


def _packed_or_not(*names: str) -> list[str]:
    return [name + packed for name in names for packed in ("", ".gz")]


def fasta(cfg: Any, context: Context) -> Dataset:
    """Read DNA, and its states in every cell type.

    Raises:
        DataError: files that are not FASTA or BED, or do not belong together; names file and line.
    """
    size = cfg.max_sequence_length - 2
    paths = find_files(cfg.data_dir, _packed_or_not("*.fa", "*.fasta", "*.fna"))
    records = [r for path in paths for r in read_fasta(path, _CODES, "DNA (ACGT, N and the like)")]
    lengths = _lengths(records)
    count = getattr(context.config, "epigenetic_vocab_size", None)
    beds = find_files(cfg.state_dir, _packed_or_not("*.bed"), "state_dir")
    known = {} if count is None else {"count": count}
    cells = [read_segments(path, lengths, **known) for path in beds]
    if count is None:
        count = 1 + max(int(s.states.max()) for cell in cells for s in cell.values())
    windows, k = _windows(records, cfg.kmer_size, size), cfg.kmer_size

    def build(index: int) -> dict[str, np.ndarray]:
        cell, at = divmod(index, len(windows))
        record, first = records[windows[at, 0]], int(windows[at, 1])
        codes = record.codes[first * k : (first + size) * k]
        bases = cells[cell][record.name].of_bases(first * k, first * k + len(codes))
        return _features(cfg, count, codes, bases)

    return Dataset(
        source=RowSource(range(len(cells) * len(windows)), build, paths[0]),
        row_length=cfg.max_sequence_length,
        complete=True,
        transform=_masking(cfg),
        summary=f"DNA: {len(windows):,} windows of up to {size * k:,} bases in {len(cells)} cell "
        f"type(s), {count} states, from {len(paths)} file(s)",
    )


def synthetic(cfg: Any, context: Context) -> Dataset:
    """Make DNA of random lengths whose tokens depend on their states; a function of the seed."""
    k, size = cfg.kmer_size, cfg.max_sequence_length - 2
    count = getattr(context.config, "epigenetic_vocab_size", None) or _STATES
    motifs = np.random.default_rng(0).integers(0, len(_BASES), (count, k))
    run = max(1, cfg.state_length // k)  # tokens of a segment
    seed = (cfg.shuffle_seed or 0, int(context.training))

    def build(index: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng((*seed, index))
        tokens = int(rng.integers(max(1, size // 2), size + 1))
        states = np.repeat(rng.integers(0, count, -(-tokens // run)), run)[:tokens]
        own = rng.random(tokens) < cfg.signal
        kmers = np.where(own[:, None], motifs[states], rng.integers(0, len(_BASES), (tokens, k)))
        return _features(cfg, count, kmers.reshape(-1), np.repeat(states, k))

    return Dataset(
        source=RowSource(range(cfg.num_examples), build, "synthetic"),
        row_length=cfg.max_sequence_length,
        complete=True,
        transform=_masking(cfg),
        summary=f"synthetic DNA: {cfg.num_examples:,} sequences of up to {size * k:,} bases, "
        f"{count} states",
    )
