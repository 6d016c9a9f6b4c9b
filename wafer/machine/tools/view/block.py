"""The data block of a view, and the page around it: docs/concepts/view-format.md."""

import base64
import contextlib
import gzip
import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wafer.errors import CompileError

FORMAT, VERSION = "wafer-view", 2
_PAGE, _SLOT = Path(__file__).parent / "view.html", "@BLOCK@"


def pack(header: Mapping[str, Any], columns: Mapping[str, np.ndarray] | None = None) -> bytes:
    """Pack a header and its columns into a block.

    Args:
        header: JSON values.
        columns: name -> [n] integers of 32 bits.

    Raises:
        CompileError: a number of more than 32 bits.
    """
    kinds, planes = {}, list[bytes]()
    for name, values in (columns or {}).items():
        numbers = np.asarray(values, np.int64).reshape(-1)
        if len(numbers) and max(-numbers.min(), numbers.max()) >= 1 << 31:
            raise CompileError(
                f"view: a number of '{name}' has more than 32 bits ({numbers.max()}); expected a"
                " shorter run. Name a window of cycles that ends earlier"
            )
        steps = np.diff(numbers, prepend=0)
        delta = bool(np.abs(steps).sum() < np.abs(numbers).sum())
        signed = (steps if delta else numbers).astype("<i4")
        content = (signed << 1 ^ signed >> 31).view("<u4")  # small numbers of either sign are small
        width = next(k for k in range(5) if k == 4 or not (content >> 8 * k).any())
        kinds[name] = {"length": len(numbers), "delta": delta, "width": width}
        planes.append(content.view(np.uint8).reshape(-1, 4)[:, :width].T.tobytes())
    head = {"format": FORMAT, "version": VERSION, **header, "columns": kinds}
    text = json.dumps(head, separators=(",", ":")).encode()
    return gzip.compress(struct.pack("<I", len(text)) + text + b"".join(planes), 6, mtime=0)


def unpack(block: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the header and the columns of a block.

    Raises:
        CompileError: bytes that are no block of this version.
    """
    found = "other bytes"
    with contextlib.suppress(
        OSError, EOFError, ValueError, struct.error, zlib.error, LookupError, TypeError
    ):
        content = gzip.decompress(block)
        (size,) = struct.unpack_from("<I", content)
        header = json.loads(content[4 : 4 + size])
        found = f"{header['format']}, version {header['version']}"
        if (header["format"], header["version"]) == (FORMAT, VERSION):
            found += ", damaged"
            return header, _columns(content, 4 + size, header.pop("columns"))
    raise CompileError(
        f"view: no recording ({found}); expected a file of `wafer csl view"
        f" -o FILE.view`, version {VERSION}. Record the run again"
    )


def _columns(content: bytes, at: int, kinds: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The columns whose planes begin at a byte."""
    columns = {}
    for name, kind in kinds.items():
        length, width = kind["length"], kind["width"]
        planes = np.zeros((length, 4), np.uint8)
        planes[:, :width] = (
            np.frombuffer(content, np.uint8, length * width, at).reshape(width, length).T
        )
        packed = planes.view("<u4").reshape(-1)
        values = (packed >> 1).view("<i4") ^ -(packed & 1).view("<i4")
        columns[name] = np.cumsum(values, dtype=np.int32) if kind["delta"] else values
        at += length * width
    return columns


def page(block: bytes) -> str:
    """Return the HTML page of a block; it needs no other file and no network."""
    return _PAGE.read_text(encoding="utf-8").replace(_SLOT, base64.b64encode(block).decode())
