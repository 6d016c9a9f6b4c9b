"""Text files of examples: TSV, CSV and JSON lines, with errors that name the file and the row.

A line of any file ends at LF or CR LF and nowhere else (``str.splitlines`` and text mode cut at CR,
U+2028, ..., too); a byte order mark at the beginning is no part of the text.
"""

import ast
import contextlib
import csv
import pathlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from wafer.data.text.compressed import unpacked
from wafer.data.text.jsonrows import BOM, bounded_lines, json_records, parse_json
from wafer.errors import DataError

_PACKED = (".gz", ".zst")
_CSV_FIELD = 2**27  # a row may hold a whole document


class Row(NamedTuple):
    """One example and where it stands."""

    where: str  #: 'path, row N' (1-based, the header is row 1 of a table), for errors
    values: Mapping[str, Any]  #: column -> value

    def get(self, *names: str) -> Any:
        """Value of the first of these columns that is there.

        Raises:
            DataError: none of them is.
        """
        for name in names:
            value = self.values.get(name)
            if value is not None:
                return value
        wanted = " or ".join(repr(name) for name in names)
        raise DataError(
            f"{self.where}: no column {wanted}; the row has {', '.join(map(str, self.values))}"
        )

    def text(self, *names: str) -> str:
        """As ``get``, and it must be text.

        Raises:
            DataError: missing, or something else.
        """
        value = self.get(*names)
        if not isinstance(value, str):
            raise DataError(f"{self.where}: {names[0]!r} is {value!r}; expected text")
        return value

    def words(self, name: str) -> list[str]:
        """A column of words: a Python list of them, or split at white space.

        Raises:
            DataError: missing, or something else.
        """
        text = self.text(name)
        try:
            words = ast.literal_eval(text) if text.lstrip().startswith("[") else words_of(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return words_of(text)  # [CLS] a b [SEP]
        if not isinstance(words, list):
            raise DataError(f"{self.where}: {name!r} is {text[:40]!r}; expected a list of {name}")
        return [str(word) for word in words]

    def integers(
        self, name: str, low: int = -(2**31), high: int = 2**31 - 1, of: str = "whole numbers"
    ) -> list[int]:
        """A column of whole numbers: a JSON list, a text '[1, 2, 3]', or one number.

        Args:
            name: the column.
            low: least value that the column's meaning allows; int32's by default.
            high: greatest one.
            of: what the numbers are, for errors.

        Raises:
            DataError: missing, or something else (true, 0.5, a number outside).
        """
        value = self.get(name)
        try:
            value = parse_json(value) if isinstance(value, str) else value
        except ValueError:
            shown = str(value)[:60]
            raise DataError(
                f"{self.where}: {name!r} is {shown!r}; expected a list of {of}"
            ) from None
        items = value if isinstance(value, list) else [value]
        for i, item in enumerate(items):
            whole = type(item) is int or (type(item) is float and item.is_integer())  # 1.0
            if not whole or not low <= item <= high:
                raise DataError(
                    f"{self.where}: {name}[{i}] is {str(item)[:60]}; expected {of}, {low} to {high}"
                )
        return [int(item) for item in items]


def find_files(
    places: Sequence[str], names: Iterable[str], key: str = "data_dir"
) -> list[pathlib.Path]:
    """List the files of these names (globs) in folders, or packed ones; a file is itself.

    Args:
        places: folders or files.
        names: globs.
        key: of the section, for errors.

    Raises:
        DataError: a place does not exist or holds no such file.
    """
    files: list[pathlib.Path] = []
    names = tuple(names)
    for path in map(pathlib.Path, places):
        if path.is_file():
            files.append(path)
            continue
        if not path.is_dir():
            raise DataError(f"{key}: {path} does not exist")
        inside = _inside(path, names) or _inside(path, [n + end for n in names for end in _PACKED])
        if not inside:
            raise DataError(f"{key}: {path} holds none of {', '.join(names)}")
        files += inside
    return files


def _inside(folder: pathlib.Path, names: Iterable[str]) -> list[pathlib.Path]:
    return sorted({path for name in names for path in folder.glob(name) if path.is_file()})


def find_described(
    places: Sequence[str], names: Iterable[str], key: str = "data_dir"
) -> list[pathlib.Path]:
    """List the files that a folder's ``meta.dat`` names ("FILE LINES"); without it as find_files.

    Args:
        places: folders or files.
        names: globs, for folders without ``meta.dat``.
        key: of the section, for errors.

    Raises:
        DataError: a place or a named file does not exist, or there is no such file.
    """
    files: list[pathlib.Path] = []
    names = tuple(names)
    for location in places:
        folder = pathlib.Path(location)
        meta = folder / "meta.dat"
        if not meta.is_file():
            files += find_files([location], names, key)
            continue
        named = [folder / words[0] for line in text_lines(meta) if (words := words_of(line))]
        for path in named:
            if not path.is_file():
                raise DataError(f"{meta}: names {path}, which does not exist")
        files += named
    return files


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[BinaryIO]:
    """Unpacked bytes of a file or a pipe; errors name it."""
    try:
        with unpacked(path) as (stream, _):
            yield stream
    except DataError as error:
        named = str(error).startswith(str(path))
        raise DataError(str(error) if named else f"{path}: {error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error})") from None
    except FileNotFoundError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None


def numbered_lines(path: pathlib.Path) -> Iterator[tuple[int, bytes]]:
    """Each line without the white space around it, with its number from 1; packed or not.

    Raises:
        DataError: a file that cannot be read to its end.
    """
    with _opened(path) as stream:
        for number, line in enumerate(bounded_lines(stream), 1):
            yield number, line.strip()


def ending(path: pathlib.Path) -> str:
    """The last ending of a file's name in lower case, '' for none."""
    return path.suffix.lower()


def read_text(path: pathlib.Path) -> str:
    """The text of a file, packed or not, its line ends as they are.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    with unpacked(path) as (stream, _):
        return stream.read().decode("utf-8-sig")


def split_lines(text: str) -> list[str]:
    r"""Lines without their ends; a last one that is empty is none.

    >>> split_lines("a\u2028b\r\n\nc\n")
    ['a\u2028b', '', 'c']
    """
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def text_lines(path: pathlib.Path) -> list[str]:
    """Lines of a file without their ends.

    Raises:
        DataError: it is not UTF-8.
    """
    try:
        return split_lines(read_text(path))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error})") from None


def read_labels(path: pathlib.Path) -> dict[str, int]:
    """Read a label vocabulary: a JSON object of label -> number.

    Raises:
        DataError: it is something else.
    """
    classes = read_json(path)
    if not isinstance(classes, dict) or not all(type(v) is int for v in classes.values()):
        raise DataError(f"label_vocab_file: {path}: expected an object of label -> number")
    return classes


def words_of(line: str) -> list[str]:
    r"""Words between spaces and tabs; other white space is part of a word.

    >>> words_of(" 10\xa0000  tokens")
    ['10\xa0000', 'tokens']
    """
    return [word for word in re.split("[ \t]+", line) if word]


def read_rows(path: pathlib.Path) -> Iterator[Row]:
    """Read a file or a pipe, packed or not: JSON, CSV, or TSV with a header.

    The ending says which (.jsonl, .json, .csv, .tsv); with any other, a text that begins with an
    object or a list is JSON, else it is TSV.

    Raises:
        DataError: a line that is not what the file is, or not UTF-8.
    """
    name = path.name.lower()
    plain = name.removesuffix(pathlib.PurePath(name).suffix if name.endswith(_PACKED) else "")
    with _opened(path) as stream:
        known = {".jsonl": _json, ".json": _json, ".csv": _csv, ".tsv": _tsv}
        read = known.get(pathlib.PurePath(plain).suffix) or _reader_of(stream)
        yield from read(path, stream)


def _reader_of(stream: Any) -> Callable[[pathlib.Path, BinaryIO], Iterator[Row]]:
    begin = stream.peek(64).removeprefix(BOM).lstrip()
    return _json if begin[:1] in (b"{", b"[") else _tsv


def _json(path: pathlib.Path, stream: BinaryIO) -> Iterator[Row]:
    for number, values, problem in json_records(stream):
        location = f"{path}, row {number + 1}"
        if problem:
            raise DataError(f"{location}: {problem}")
        if not isinstance(values, dict):
            raise DataError(f"{location}: expected a JSON object, got {str(values)[:40]!r}")
        yield Row(location, values)


def _tsv(path: pathlib.Path, stream: BinaryIO) -> Iterator[Row]:
    """Rows of a TSV, which quotes nothing (GLUE's files hold single quotation marks)."""
    lines = (line.decode().removesuffix("\n").removesuffix("\r") for line in bounded_lines(stream))
    yield from _table(path, enumerate((line.split("\t") if line else [] for line in lines), 1))


def _csv(path: pathlib.Path, stream: BinaryIO) -> Iterator[Row]:
    csv.field_size_limit(_CSV_FIELD)
    reader = csv.reader(line.decode() for line in bounded_lines(stream))
    try:
        yield from _table(path, ((reader.line_num, cells) for cells in reader))
    except csv.Error as error:
        raise DataError(f"{path}, row {reader.line_num}: not CSV ({error})") from None


def _table(path: pathlib.Path, rows: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
    """Rows by the columns that the first of them names; empty lines are passed over."""
    _, header = next(rows, (0, None))
    if header is None:
        raise DataError(f"{path}: the file is empty; expected a header line")
    for number, cells in rows:
        if not cells:
            continue
        if len(cells) != len(header):
            raise DataError(
                f"{path}, row {number}: {len(cells)} columns, the header has {len(header)} "
                f"({', '.join(header)})"
            )
        yield Row(f"{path}, row {number}", dict(zip(header, cells, strict=True)))


def read_json(path: pathlib.Path) -> Any:
    """Read a whole JSON file.

    Raises:
        DataError: it is not there or not JSON.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist; expected a JSON file")
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from None
