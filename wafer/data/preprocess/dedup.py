"""Near-duplicate removal: MinHash signatures, compared by locality-sensitive hashing.

The first of several similar records is kept. Records go by one after the other; a signature of
every kept one stays in a file, the index of their bands in memory. The standing is saved with the
size of every file, so that a killed run cuts what was half written and goes on.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import string
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from wafer.data.preprocess.records import (
    BEGINNING,
    Columns,
    RecordBatch,
    RecordPosition,
    batches,
    find_inputs,
)
from wafer.errors import DataError
from wafer.models.errors import optional
from wafer.models.files import atomic_write, made_folder, read_json

_KEPT, _REMOVED, _SIGNATURES = "kept.jsonl", "removed.jsonl", ".signatures.bin"
_STANDING, _REPORT = ".dedup.json", "dedup.json"
_FILES = (_KEPT, _REMOVED, _SIGNATURES)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Deduplication(NamedTuple):
    """What counts as the same text."""

    key: str = "text"  #: field of the text
    #: least Jaccard similarity of two records' n-grams that removes the later one
    threshold: float = 0.8
    ngram: int = 13  #: characters of an n-gram, after lower-casing and without punctuation
    num_perm: int = 128  #: values of a signature; the estimate's error is about its root's inverse
    seed: int = 1  #: of the hash functions
    skip_bad_records: bool = False  #: log and leave out records that cannot be read


class DedupReport(NamedTuple):
    """What a run has removed."""

    inputs: int = 0  #: files read
    records: int = 0  #: records read
    skipped: int = 0  #: records that could not be read
    removed: int = 0  #: of them, near duplicates of an earlier one
    identical: int = 0  #: of the removed, those with an estimated similarity of 1
    characters: int = 0  #: of all texts
    characters_removed: int = 0  #: of the removed texts

    def __str__(self) -> str:
        share = self.removed / max(self.records, 1)
        characters = self.characters_removed / max(self.characters, 1)
        return (
            f"{self.records:,} records of {self.inputs} file(s): {self.removed:,} removed "
            f"({share:.1%}; {characters:.1%} of the characters), {self.identical:,} of them "
            f"identical by signature; {self.records - self.removed:,} kept"
            + (f"; {self.skipped:,} could not be read" if self.skipped else "")
        )


class _Standing(NamedTuple):
    """A point between two batches: next record, its number in its file, file sizes, sums."""

    position: RecordPosition = BEGINNING
    number: int = 0
    sizes: tuple[int, ...] = (0, 0, 0)
    report: DedupReport = DedupReport()


def shingles(text: str, size: int) -> set[bytes]:
    """N-grams of characters, lower-cased, without punctuation; a shorter text is one of them."""
    plain = " ".join(text.lower().translate(_PUNCTUATION).split())
    starts = range(max(len(plain) - size + 1, 1))
    return {plain[i : i + size].encode("utf-8", "surrogatepass") for i in starts}


class _Index:
    """Signatures of the kept records: their bands in memory, themselves in a file."""

    def __init__(self, options: Deduplication, file: BinaryIO) -> None:
        self._library = optional("datasketch", "wafer data dedup")
        self.options, self._file = options, file
        self._family: dict[str, Any] = {"num_perm": options.num_perm, "seed": options.seed}
        self._family["permutations"] = self._minhash().permutations  # drawn once
        self._bands = self._library.MinHashLSH(options.threshold, options.num_perm)
        self._row = 4 * options.num_perm
        self._size = os.fstat(file.fileno()).st_size // self._row
        for number in range(self._size):
            self._bands.insert(number, self._read(number), check_duplication=False)

    def _minhash(self, **values: Any) -> Any:
        return self._library.MinHash(scheme="affine32", **self._family, **values)

    def _read(self, number: int) -> Any:
        raw = os.pread(self._file.fileno(), self._row, number * self._row)
        return self._minhash(hashvalues=np.frombuffer(raw, "<u4").astype(np.uint32))

    def nearest(self, text: str) -> tuple[Any, int | None, float]:
        """Signature of a text, the most similar kept record, and their similarity."""
        signature = self._minhash()
        signature.update_batch(shingles(text, self.options.ngram))
        near = [(signature.jaccard(self._read(i)), -i) for i in self._bands.query(signature)]
        best, number = max(near, default=(0.0, 0))
        return signature, -number if best >= self.options.threshold else None, best

    def add(self, signature: Any) -> None:
        """Keep one more record."""
        self._file.write(signature.hashvalues.astype("<u4").tobytes())
        self._file.flush()
        self._bands.insert(self._size, signature, check_duplication=False)
        self._size += 1


def _check(options: Deduplication) -> None:
    if not 0 < options.threshold <= 1:
        raise DataError(f"--threshold: {options.threshold}; expected a share, above 0, at most 1")
    wrong = next((name for name in ("ngram", "num_perm") if getattr(options, name) < 1), None)
    if wrong or options.num_perm < 2:
        name = wrong or "num_perm"
        raise DataError(f"--{name}: {getattr(options, name)} is too small")


def _load(folder: pathlib.Path, mark: str) -> _Standing:
    """The standing of a killed run, or the beginning.

    Raises:
        DataError: the folder holds the output of another run, or a complete one.
    """
    advice = "give another --output_dir, or remove it"
    if (folder / _REPORT).exists():
        raise DataError(f"{folder}: holds a complete run ({_REPORT}); {advice}")
    path = folder / _STANDING
    if not path.is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise DataError(f"{folder}: holds files, but no unfinished run; {advice}")
        return _Standing()
    try:
        stored = read_json(path)
        position, report = RecordPosition(*stored["position"]), DedupReport(*stored["report"])
        standing = _Standing(position, int(stored["number"]), tuple(stored["sizes"]), report)
        sizes = [(folder / name).stat().st_size for name in _FILES if (folder / name).exists()]
        short = any(size < said for size, said in zip(sizes, standing.sizes, strict=False))
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged ({error}); {advice}") from None
    if stored.get("mark") != mark:
        raise DataError(f"{folder}: holds a run with other settings or inputs; {advice}")
    if short or (any(standing.sizes) and len(sizes) < len(_FILES)):
        raise DataError(f"{folder}: files are shorter than {path.name} says; {advice}")
    return standing


def _save(folder: pathlib.Path, mark: str, standing: _Standing) -> None:
    with atomic_write(folder / _STANDING, sync=True) as partial:
        partial.write_text(json.dumps({"mark": mark} | standing._asdict()), encoding="utf-8")


@contextlib.contextmanager
def _opened(folder: pathlib.Path, mark: str, standing: _Standing) -> Iterator[list[BinaryIO]]:
    """The output files, cut to the standing's sizes; an error before any record leaves none."""
    _save(folder, mark, standing)
    paths = [folder / name for name in _FILES]
    try:
        with contextlib.ExitStack() as stack:
            files: list[Any] = []
            for path, size in zip(paths, standing.sizes, strict=True):
                path.touch()
                os.truncate(path, size)
                files.append(stack.enter_context(path.open("ab+")))
            yield files
    except Exception:
        if not any(path.exists() and path.stat().st_size for path in paths):
            for path in (*paths, folder / _STANDING):
                path.unlink(missing_ok=True)
        raise


def _line(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def deduplicate(
    inputs: Sequence[str], output_dir: str, options: Deduplication | None = None
) -> DedupReport:
    """Write the records that resemble no earlier one, and a list of the others.

    Files in ``output_dir``: ``kept.jsonl``, one record a line; ``removed.jsonl`` with file, record
    (from 1, of those that can be read), the line of ``kept.jsonl`` it resembles and the estimated
    similarity; ``dedup.json``, the report, when all is done. The same call goes on with a run that
    was killed, and writes the very files it would have written.

    Args:
        inputs: files and folders, as ``wafer data preprocess`` takes them.
        output_dir: a new folder, or that of a killed run.
        options: what counts as the same text.

    Raises:
        DataError: inputs that cannot be read, an output of another run; names the file.
    """
    options = options or Deduplication()
    _check(options)
    optional("datasketch", "wafer data dedup")  # a missing package ends the run now
    paths = find_inputs(inputs, None, output=output_dir)
    folder = pathlib.Path(output_dir)
    seen = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    mark = hashlib.sha256(json.dumps([options, seen]).encode()).hexdigest()
    standing = _load(folder, mark)
    with made_folder(folder), _opened(folder, mark, standing) as files:
        index = _Index(options, files[2])
        for file in range(standing.position.file, len(paths)):
            start = RecordPosition(0, standing.position.record)
            read = batches(
                [paths[file]], Columns((options.key,)), start, skip_bad=options.skip_bad_records
            )
            for batch in read:
                standing = _sift(batch, paths[file], index, files, standing)
                if batch.end.file == 0:  # else the file is at its end
                    position = RecordPosition(file, batch.end.record)
                    standing = standing._replace(position=position)
                    _save(folder, mark, standing)
            report = standing.report._replace(inputs=file + 1)
            standing = standing._replace(position=RecordPosition(file + 1), number=0, report=report)
            _save(folder, mark, standing)
    with atomic_write(folder / _REPORT, sync=True) as partial:
        content = options._asdict() | standing.report._asdict()
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for name in (_SIGNATURES, _STANDING):
        (folder / name).unlink()
    return standing.report


def _sift(
    batch: RecordBatch,
    path: pathlib.Path,
    index: _Index,
    files: Sequence[BinaryIO],
    standing: _Standing,
) -> _Standing:
    """Write each text to the file it belongs to; sums and sizes after it."""
    texts = [record.values[0] for record in batch.records]
    unique: list[bytes] = []
    removed: list[bytes] = []
    identical = lost = 0
    for number, text in enumerate(texts, standing.number + 1):
        signature, earlier, similarity = index.nearest(text)
        if earlier is None:
            index.add(signature)
            unique.append(_line({index.options.key: text}))
            continue
        identical += similarity == 1
        lost += len(text)
        origin = {"file": str(path), "record": number, "line": earlier + 1}
        removed.append(_line(origin | {"similarity": round(similarity, 4)}))
    for file, lines in zip(files, (unique, removed), strict=False):
        file.write(b"".join(lines))
    for file in files:
        file.flush()
        os.fsync(file.fileno())
    before = standing.report
    report = before._replace(
        records=before.records + len(texts),
        skipped=before.skipped + batch.skipped,
        removed=before.removed + len(removed),
        identical=before.identical + identical,
        characters=before.characters + sum(map(len, texts)),
        characters_removed=before.characters_removed + lost,
    )
    sizes = tuple(os.fstat(file.fileno()).st_size for file in files)
    return standing._replace(number=standing.number + len(texts), sizes=sizes, report=report)
