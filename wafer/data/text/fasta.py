"""FASTA files: named sequences of letters, with errors that name the file and the line."""

import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from wafer.data.text.textfiles import numbered_lines
from wafer.errors import DataError

_OUTSIDE = 255


class Record(NamedTuple):
    """One sequence."""

    where: str  #: 'path, line N' of its header, for errors
    name: str  #: first word of the header
    codes: np.ndarray  #: [n] uint8, one for each letter


def letter_codes(codes: Mapping[str, int]) -> bytes:
    """Make the table that ``read_fasta`` takes; lower case counts as upper case.

    Args:
        codes: letter -> code, from 0 to 254.
    """
    table = bytearray([_OUTSIDE]) * 256
    for letter, code in codes.items():
        table[ord(letter)] = table[ord(letter.lower())] = code
    return bytes(table)


def read_fasta(path: pathlib.Path, table: bytes, alphabet: str) -> list[Record]:
    """Read a whole file.

    Args:
        path: the file, gzipped or not.
        table: of ``letter_codes``.
        alphabet: what the letters are, for errors.

    Raises:
        DataError: no record, one without a name or a letter, a name twice, a letter outside the
            alphabet; names file and line.
    """
    records: dict[str, Record] = {}
    header: tuple[str, str] | None = None
    coded_lines: list[bytes] = []

    def close() -> None:
        if header is None:
            return
        location, name = header
        if not coded_lines:
            raise DataError(f"{location}: {name!r} has no letters; expected them below its header")
        records[name] = Record(location, name, np.frombuffer(b"".join(coded_lines), np.uint8))

    for number, line in numbered_lines(path):
        location = f"{path}, line {number}"
        if line.startswith(b">"):
            close()
            header, coded_lines = (location, _name(line, location, records)), []
        elif line:
            if header is None:
                raise DataError(f"{location}: {_shown(line)}; expected '>' and a name (FASTA)")
            coded_lines.append(_coded(line, table, location, alphabet))
    close()
    if not records:
        raise DataError(f"{path}: the file is empty; expected FASTA, '>' and a name first")
    return list(records.values())


def _name(line: bytes, location: str, records: Mapping[str, Record]) -> str:
    words = [word.decode("utf-8", "replace") for word in line[1:].split()]
    if not words:
        raise DataError(f"{location}: a header without a name; expected one after '>'")
    if words[0] in records:
        raise DataError(f"{location}: {words[0]!r} stands already at {records[words[0]].where}")
    return words[0]


def _coded(line: bytes, table: bytes, location: str, alphabet: str) -> bytes:
    coded = line.translate(table)
    i = coded.find(_OUTSIDE)
    if i >= 0:
        raise DataError(
            f"{location}: {_shown(line[i : i + 1])} at column {i + 1} is no letter of {alphabet}"
        )
    return coded


def _shown(line: bytes) -> str:
    return repr(line[:40].decode("latin-1"))
