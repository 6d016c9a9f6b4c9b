"""Reading input records: every format alike, from any position; damage is named with its place."""

import gzip
import importlib.util
import json

import pytest
from helpers.records import TEXTS, lines, texts_of, write

from wafer.data.preprocess.records import TEXT, Columns, RecordPosition, batches, find_inputs
from wafer.errors import DataError


def has(*modules):
    return all(importlib.util.find_spec(name) for name in modules)


NEEDS = {".zst": ("zstandard",), ".tar": ("zstandard",), ".parquet": ("pyarrow",)}
NEEDS[".arrow"] = ("pyarrow",)


FORMATS = ["x.jsonl", "x.jsonl.gz", "x.jsonl.zst", "x.jsonl.zst.tar", "x.parquet", "x.arrow"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_records_from_any_position(tmp_path, name):
    path = tmp_path / name
    needed = NEEDS.get(path.suffix, ())
    if not has(*needed):  # an extra of the package: the message must say how to get it
        path.write_bytes(b"")
        with pytest.raises(ImportError, match=rf"needs the package {needed[0]}.*pip install"):
            texts_of([path])
        return
    write(path, [{"text": text, "meta": 1} for text in TEXTS])
    assert texts_of([path]) == TEXTS
    assert texts_of([path, path], RecordPosition(0, 2)) == [TEXTS[2], *TEXTS]
    assert texts_of([path, path], RecordPosition(1, 1)) == TEXTS[1:]
    (batch,) = batches([path], TEXT)
    assert batch.bytes_read == path.stat().st_size
    assert batch.end == RecordPosition(1, 0)


def test_text_files_are_one_document_each_in_the_order_of_their_names(tmp_path):
    (tmp_path / "b.txt").write_text("two")
    (tmp_path / "a.txt").write_text("one\nline")
    (tmp_path / "NOTES.MD").write_text("zero")
    assert texts_of(find_inputs([str(tmp_path)], None)) == ["zero", "one\nline", "two"]
    listing = tmp_path / "files.lst"
    listing.write_text(f"{tmp_path / 'b.txt'}\n")
    assert texts_of(find_inputs(None, [str(listing)])) == ["two"]


def test_what_a_folder_holds_besides_is_counted_by_its_endings(tmp_path, caplog):
    for name in ("a.TXT", "b.txt", "c.rst", "d.RST", "e.pdf", "Makefile"):
        (tmp_path / name).write_text("text")
    write(tmp_path / "f.jsonl", [{"text": "text"}])
    names = [path.name for path in find_inputs([str(tmp_path)], None)]
    assert names == ["a.TXT", "b.txt", "f.jsonl"]
    (message,) = caplog.messages
    assert message.startswith(f"{tmp_path}: 4 of 7 files left out by their endings: 2 .rst, ")
    assert all(part in message for part in ("1 .pdf", "1 without an ending", ".txt, .md)"))
    caplog.clear()  # a README beside pairs is no pair
    pairs = find_inputs([str(tmp_path)], None, Columns(("prompt", "completion")))
    assert [path.name for path in pairs] == ["f.jsonl"]
    assert "6 of 7 files left out" in caplog.text
    assert "3 .txt" not in caplog.text
    assert "2 .txt" in caplog.text
    with pytest.raises(DataError, match=r"a\.TXT: a \.txt file is one text, but .* prompt, comp"):
        next(batches([tmp_path / "a.TXT"], Columns(("prompt", "completion"))))


@pytest.mark.parametrize("name", ["x.txt", "x.md", "x.jsonl", "x.jsonl.GZ"])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path, name):
    path = tmp_path / name
    text = b"\xef\xbb\xbf" + (b"a\r\nb" if path.suffix in (".txt", ".md") else b'{"text": "a"}\n')
    path.write_bytes(gzip.compress(text) if path.suffix == ".GZ" else text)
    assert texts_of([path]) == ["a\r\nb" if path.suffix in (".txt", ".md") else "a"]


def test_lists_of_files_are_cut_at_line_feeds_alone(tmp_path):
    path = tmp_path / "a\u2028b.txt"
    path.write_text("text")
    (tmp_path / "files.lst").write_bytes(f"\ufeff{path}\r\n".encode())
    assert find_inputs(None, [str(tmp_path / "files.lst")]) == [path]


def test_hugging_face_dataset_on_disk(tmp_path):
    for part in range(2):
        path = tmp_path / f"data-{part}.arrow"
        path.write_bytes(b"")
        if has("pyarrow"):
            write(path, [{"text": t} for t in TEXTS])
    state = {"_data_files": [{"filename": f"data-{part}.arrow"} for part in (1, 0)]}
    (tmp_path / "state.json").write_text(json.dumps(state))
    paths = find_inputs([str(tmp_path)], None)
    assert [path.name for path in paths] == ["data-1.arrow", "data-0.arrow"]
    if has("pyarrow"):
        assert texts_of(paths) == TEXTS * 2
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(DataError, match=r"holds the splits train, test; name one.*train"):
        find_inputs([str(tmp_path)], None)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"text": "\\ud83d"}', "surrogates not allowed"),
        (b'{"text": "\xed\xa0\xbd"}', "invalid continuation byte"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_text_that_no_tokenizer_takes_is_named(tmp_path, line, problem):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "\\ud83d\\ude00"}\n' + line)
    with pytest.raises(DataError, match=rf"a\.jsonl: record 2: not JSON .*{problem}"):
        texts_of([path])
    assert next(iter(batches([path], TEXT, skip_bad=True))).records[0].values == ("\U0001f600",)


def test_bad_records_are_named_or_left_out(tmp_path, caplog):
    path = tmp_path / "x.jsonl"
    path.write_bytes(lines([{"text": "a"}]) + b'{"text": \n' + lines([{"body": 1}, {"text": "b"}]))
    with pytest.raises(DataError, match=r"x\.jsonl: record 2: not JSON.*skip_bad_records"):
        texts_of([path])
    assert texts_of([path], skip_bad=True) == ["a", "b"]
    assert "record 3: no field 'text'" in caplog.text
    assert sum(batch.skipped for batch in batches([path], TEXT, skip_bad=True)) == 2


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_file_cut_short_is_named(tmp_path, ending):
    if ending == ".zst" and not has("zstandard"):
        return  # without it the file cannot be read at all; the message is tested above
    path = write(tmp_path / f"x.jsonl{ending}", [{"text": "abc " * 99} for _ in range(2000)])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=rf"x\.jsonl{ending}: cannot be read after record \d+"):
        texts_of([path])


@pytest.mark.parametrize(
    ("package", "name"),
    [
        *(("zstandard", name) for name in ("x.jsonl.zst", "x.jsonl.ZST.tar")),
        *(("pyarrow", name) for name in ("x.parquet", "x.arrow")),
    ],
)
def test_a_missing_package_is_told_before_a_file_is_read(tmp_path, monkeypatch, package, name):
    def lacks(module):
        raise ImportError(module)

    monkeypatch.setattr("wafer.models.errors.importlib.import_module", lacks)
    write(tmp_path / "a.jsonl", [{"text": "a"}])
    assert len(find_inputs([str(tmp_path)], None)) == 1
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ImportError, match=rf"reading {name} needs the package {package}, which"):
        find_inputs([str(tmp_path)], None)
