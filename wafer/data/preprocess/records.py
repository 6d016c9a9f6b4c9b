"""The records of input files, one after the other, from any position: text, JSON lines, tables.

Every reader can start at a record number, so that a killed
preprocessing goes on where it was; what cannot be read names its file and line.
"""

import logging
import math
import os
import pathlib
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from wafer.data.text.compressed import decompressed, unpacked
from wafer.data.text.jsonrows import BOM, json_records
from wafer.data.text.tables import arrow_tables, few_rows, rows_at_once
from wafer.data.text.textfiles import ending, read_json, read_text, text_lines
from wafer.errors import DataError
from wafer.models.errors import optional

_LOG = logging.getLogger(__name__)
_SHOWN = 3  # problems of a file that are told
_BATCH_RECORDS, _BATCH_BYTES = 1024, 1 << 20


class Columns(NamedTuple):
    """What is read of a record."""

    names: tuple[str, ...] = ("text",)  #: of its fields
    lists: tuple[str, ...] = ()  #: those that hold lists; the others hold texts
    lenient: bool = False  #: values are taken as they are, missing ones are None
    by_line: bool = False  #: each line of a text file is a record, instead of the whole file

    @property
    def is_one_text(self) -> bool:
        """Whether a record is one text, as a whole file can be."""
        return len(self.names) == 1 and not self.lists


TEXT = Columns()


class InputRecord(NamedTuple):
    """One record."""

    values: tuple[Any, ...]  #: of its columns
    where: str = ""  #: 'path: record N' (from 1), for errors


class RecordPosition(NamedTuple):
    """Where reading stands: the record to read next."""

    file: int = 0  #: index of the file
    record: int = 0  #: index of the record in it (for JSON lines, the line)


BEGINNING = RecordPosition()


class RecordBatch(NamedTuple):
    """Records that are worked on together."""

    records: list[InputRecord]  #: in the order of the files
    end: RecordPosition  #: where the next batch begins
    bytes_read: int  #: bytes of the input that were read so far, for a progress bar
    skipped: int  #: records left out because they could not be read


class _Read(NamedTuple):
    """A record as read: its number, texts, or what is wrong; bytes of the file read so far."""

    number: int
    texts: tuple[Any, ...] | None
    problem: str
    offset: int


def _values(record: Any, columns: Columns) -> tuple[tuple[Any, ...] | None, str]:
    """The columns of a record, and what is wrong with it."""
    names = columns.names
    if not isinstance(record, dict):
        return None, f"expected an object with {', '.join(names)}, got {type(record).__name__}"
    missing = [name for name in names if name not in record]
    if len(missing) == len(names) or (missing and not columns.lenient):
        known = ", ".join(map(str, list(record)[:8]))
        shown = " or ".join(names) if columns.lenient else repr(missing[0])
        hint = "keys that end in _key name the columns"
        return None, f"no field {shown} ({hint}); it has: {known}"
    values = [record.get(name) for name in names]
    if columns.lenient:
        return tuple(str(v) if isinstance(v, int | float) else v for v in values), ""
    for name, value in zip(names, values, strict=True):
        if name not in columns.lists and not isinstance(value, str):
            return None, f"field {name!r} is {type(value).__name__}, expected text"
    return tuple(values), ""


def _size(record: Any) -> int:
    """Bytes of the texts in a record."""
    if isinstance(record, str):
        return len(record.encode())
    if isinstance(record, dict):
        return sum(_size(key) + _size(value) for key, value in record.items())
    return sum(map(_size, record)) if isinstance(record, list | tuple) else 0


def _text(path: pathlib.Path, columns: Columns, start: int) -> Iterator[_Read]:
    if not columns.is_one_text:
        raise DataError(
            f"a {ending(path)} file is one text, but this mode reads the fields "
            f"{', '.join(columns.names)}; use JSON lines, Parquet or a dataset"
        )
    if columns.by_line:
        yield from _text_lines(path, start)
    elif start == 0:
        size = path.stat().st_size
        try:
            yield _Read(0, (read_text(path),), "", size)
        except UnicodeDecodeError as error:
            yield _Read(0, None, f"not UTF-8 text: {error}", size)


def _text_lines(path: pathlib.Path, start: int) -> Iterator[_Read]:
    """Each line that is not blank."""
    with path.open("rb") as stream:
        for number, raw in enumerate(stream):
            if number < start or not raw.strip():
                continue
            try:
                line = raw.removeprefix(BOM if number == 0 else b"").decode().rstrip("\r\n")
                yield _Read(number, (line,), "", stream.tell())
            except UnicodeDecodeError as error:
                yield _Read(number, None, f"not UTF-8 text: {error}", stream.tell())


def _fasta(path: pathlib.Path, columns: Columns, start: int) -> Iterator[_Read]:
    """Each sequence, its lines joined; the names are left out."""
    if not columns.lenient or len(columns.names) != 1:
        raise DataError("a .fasta file has one column, for a read hook with one")
    number, sequence_lines = -1, []
    with path.open("rb") as stream:
        for line in (*stream, b">"):
            if not line.startswith(b">"):
                sequence_lines.append(line.decode("ascii", "replace").strip())
                continue
            if number >= start:
                yield _Read(number, ("".join(sequence_lines),), "", stream.tell())
            number, sequence_lines = number + 1, []


def _json(
    stream: BinaryIO, tell: Callable[[], int], columns: Columns, start: int
) -> Iterator[_Read]:
    for number, value, problem in json_records(stream, start):
        texts, wrong = (None, problem) if problem else _values(value, columns)
        yield _Read(number, texts, wrong, tell())


def _json_lines(path: pathlib.Path, columns: Columns, start: int) -> Iterator[_Read]:
    with unpacked(path) as (stream, tell):
        yield from _json(stream, tell, columns, start)


def _zstd_tar(path: pathlib.Path, columns: Columns, start: int) -> Iterator[_Read]:
    first = 0
    with unpacked(path) as (stream, tell), tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            number = -1
            for read in _json(decompressed(file, member.name), tell, columns, 0) if file else ():
                number = read.number
                if first + number >= start:
                    yield read._replace(number=first + number)
            first += number + 1


def _present(names: Sequence[str], columns: Columns) -> list[str]:
    """The fields that a table has."""
    have = [name for name in columns.names if name in names]
    if len(have) < (1 if columns.lenient else len(columns.names)):
        missing = next(name for name in columns.names if name not in have)
        raise DataError(f"no column {missing!r}; it has: {', '.join(names)}")
    return have


def _rows(table: Any, columns: Columns, first: int, start: int) -> Iterator[_Read]:
    """Records of one Arrow record batch, whose first is number ``first``."""
    have = _present(table.schema.names, columns)
    begin = max(start - first, 0)
    for i, values in enumerate(
        few_rows([table.column(name) for name in have], begin), first + begin
    ):
        texts, problem = _values(dict(zip(have, values, strict=True)), columns)
        yield _Read(i, texts, problem, 0)


def _parquet(path: pathlib.Path, columns: Columns, start: int) -> Iterator[_Read]:
    parquet = optional("pyarrow.parquet", f"reading {path.name}")
    with parquet.ParquetFile(path) as file:
        size, total = path.stat().st_size, max(file.metadata.num_rows, 1)
        have, first = _present(file.schema_arrow.names, columns), 0
        for group in range(file.num_row_groups):
            about = file.metadata.row_group(group)
            if first + about.num_rows <= start:
                first += about.num_rows
                continue
            rows = min(rows_at_once(about), _BATCH_RECORDS)
            for table in file.iter_batches(rows, row_groups=[group], columns=have):
                for read in _rows(table, columns, first, start):
                    yield read._replace(offset=size * (read.number + 1) // total)
                first += table.num_rows


def _arrow(path: pathlib.Path, columns: Columns, start: int) -> Iterator[_Read]:
    first = 0
    for table, offset in arrow_tables(path):
        for read in _rows(table, columns, first, start):
            yield read._replace(offset=offset)
        first += table.num_rows


SUFFIXES: dict[str, Callable[..., Iterator[_Read]]] = {
    ".jsonl.zst.tar": _zstd_tar,
    ".jsonl.zst": _json_lines,
    ".json.zst": _json_lines,
    ".jsonl.gz": _json_lines,
    ".json.gz": _json_lines,
    ".jsonl": _json_lines,
    ".json": _json_lines,
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".fasta": _fasta,
    ".txt": _text,
    ".md": _text,
}
"""End of a file's name, in lower case -> its reader; the first that fits counts."""

_MODULES = {".zst": "zstandard", ".parquet": "pyarrow.parquet", ".arrow": "pyarrow"}


def _reader(path: pathlib.Path) -> Callable[..., Iterator[_Read]] | None:
    name = path.name.lower()
    return next((read for end, read in SUFFIXES.items() if name.endswith(end)), None)


def _dataset_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Arrow files of a dataset that Hugging Face's ``save_to_disk`` wrote, in its order."""
    if (folder / "dataset_dict.json").is_file():
        splits = _entry(folder / "dataset_dict.json", "splits", [])
        raise DataError(
            f"{folder}: holds the splits {', '.join(map(str, splits))}; name one, for example "
            f"{folder / str(splits[0]) if splits else folder}"
        )
    state = folder / "state.json"
    names = [_entry(state, "filename", "", file) for file in _entry(state, "_data_files", [])]
    wrong = [name for name in names if pathlib.Path(name).name != name or "\0" in name]
    if wrong:
        raise DataError(f"{state}: names {wrong[0]!r}, no file of its own folder")
    return [folder / name for name in names]


def _entry(path: pathlib.Path, key: str, kind: Any, within: Any = None) -> Any:
    """An entry of a JSON file, of the same kind as ``kind``."""
    content = read_json(path) if within is None else within
    value = content.get(key) if isinstance(content, dict) else None
    if not isinstance(value, type(kind)):
        raise DataError(f"{path}: no {key} as `save_to_disk` of Hugging Face's datasets writes")
    return value


def find_inputs(
    inputs: Sequence[str] | None,
    metadata_files: Sequence[str] | None,
    columns: Columns = TEXT,
    output: str | None = None,
) -> list[pathlib.Path]:
    """List the files to read, in the order of reading.

    What a folder holds besides is counted by its endings in one line of the log.

    Args:
        inputs: files, folders of files (in the order of their names, deep), datasets on disk.
        metadata_files: files that list input files, one to a line; they win over ``inputs``.
        columns: of a record; texts (.txt) in a folder count only where there is one.
        output: folder that is written to. What lies in it, or in another folder of rows below an
            input folder, is no input: the next run would read its JSON files as texts.

    Raises:
        DataError: a path that does not exist, a folder without readable files or that is
            ``output``.
    """
    if metadata_files:
        lists = [pathlib.Path(name) for name in metadata_files]
        missing = [path for path in lists if not path.is_file()]
        if missing:
            raise DataError(f"metadata_files: no such file: {missing[0]}")
        lines = [line.strip() for path in lists for line in text_lines(path)]
        files = [pathlib.Path(line) for line in lines if line]
    else:
        places = [pathlib.Path(name) for name in inputs or ()]
        files = [path for place in places for path in _under(place, columns, output)]
    for path in files:
        if not path.is_file():
            if path.exists():
                raise DataError(
                    f"{path}: a pipe or a device; expected a file, which a run that goes on reads "
                    "again. Write it to a file first"
                )
            raise DataError(f"no such input: {path}")
        if _reader(path) is None:
            raise DataError(f"{path}: unknown kind of file; known: {', '.join(SUFFIXES)}")
    for end, module in _MODULES.items():  # a missing package ends the run now
        ends = (end, f"{end}.tar")
        needs = next((path for path in files if path.name.lower().endswith(ends)), None)
        if needs:
            optional(module, f"reading {needs.name}")
    return files


def _under(path: pathlib.Path, columns: Columns, output: str | None) -> list[pathlib.Path]:
    if not path.is_dir():
        return [path]
    root, target = path.resolve(), pathlib.Path(output or os.devnull).resolve()
    if root == target:
        raise DataError(
            f"output_dir: {output} is the input folder, so the next run would read its files as "
            "texts; name another folder, such as one inside"
        )
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return _dataset_files(path)
    one, hooked = columns.is_one_text, columns.lenient
    wanted = {_text: one, _fasta: one and hooked}
    known = {end: read for end, read in SUFFIXES.items() if wanted.get(read, True)}
    inside = sorted(p for p in path.rglob("*") if p.is_file())
    rows = {p.parent for p in inside if p.name == "data_params.json"} - {path}
    if target.is_relative_to(root):
        rows.add(path / target.relative_to(root))
    inside = [p for p in inside if rows.isdisjoint(p.parents)]
    files = [p for p in inside if p.name.lower().endswith(tuple(known))]
    if not files:
        raise DataError(f"{path}: no file to read in it; known: {', '.join(known)}")
    if len(files) < len(inside):
        out = Counter(ending(p) or "without an ending" for p in set(inside) - set(files))
        _LOG.warning(
            "%s: %s of %s files left out by their endings: %s (known: %s)",
            path,
            f"{len(inside) - len(files):,}",
            f"{len(inside):,}",
            ", ".join(f"{count:,} {end}" for end, count in out.most_common()),
            ", ".join(known),
        )
    return files


def _read(path: pathlib.Path, columns: Columns, start: int, stop: float) -> Iterator[_Read]:
    """Records of a file; damage that ends reading names the file and the last good record."""
    reader = _reader(path)
    last = start - 1
    try:
        for read in reader(path, columns, start) if reader else ():
            if read.number >= stop:
                return
            last = read.number
            yield read
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except (EOFError, OSError, tarfile.TarError, ValueError, zlib.error) as error:
        raise DataError(
            f"{path}: cannot be read after record {last + 1} ({error}); the file is damaged or "
            "cut short"
        ) from error


def batches(
    files: Sequence[pathlib.Path],
    columns: Columns,
    start: RecordPosition = BEGINNING,
    *,
    end: RecordPosition | None = None,
    skip_bad: bool = False,
    chunk: int | None = None,
) -> Iterator[RecordBatch]:
    """Read records in batches whose borders depend on the input alone.

    Args:
        files: from ``find_inputs``.
        columns: of a record.
        start: first record to read.
        end: record after the last; None reads to the end of the files.
        skip_bad: log and leave out records that cannot be read.
        chunk: bytes of a batch, which ends before the record that no longer fits;
            None ends it after the record that fills it.

    Raises:
        DataError: a bad record, unless skipped; names file and record.
    """
    before = sum(path.stat().st_size for path in files[: start.file])
    records: list[InputRecord] = []
    size = skipped = 0
    end = end or RecordPosition(len(files), 0)
    for index in range(start.file, end.file + (end.record > 0)):
        path = files[index]
        bad, left_out = [], 0
        first = start.record if index == start.file else 0
        stop = end.record if index == end.file else math.inf
        for read in _read(path, columns, first, stop):
            if read.texts is None:
                left_out += 1
                if len(bad) < _SHOWN:
                    bad.append(f"record {read.number + 1}: {read.problem}")
                if not skip_bad:
                    raise DataError(
                        f"{path}: {bad[0]}. To leave such records out: --skip_bad_records true"
                    )
                skipped += 1
            else:
                added = _size(read.texts)
                if chunk is not None and size and size + added > chunk:
                    yield RecordBatch(
                        records, RecordPosition(index, read.number), before + read.offset, skipped
                    )
                    records, size, skipped = [], 0, 0
                records.append(InputRecord(read.texts, f"{path}: record {read.number + 1}"))
                size += added
            full = size >= _BATCH_BYTES or len(records) >= _BATCH_RECORDS
            if chunk is None and full:
                after = RecordPosition(index, read.number + 1)
                yield RecordBatch(records, after, before + read.offset, skipped)
                records, size, skipped = [], 0, 0
        if left_out:
            _LOG.warning("%s: %s left out: %s", path, f"{left_out:,} record(s)", "; ".join(bad))
        before += path.stat().st_size
    if records or skipped:
        yield RecordBatch(records, end, before, skipped)
