"""Rows by content: JSON lines, lists and documents, packed or not, in files and pipes."""

import gzip
import io
import json
import os
import threading
import zipfile

import pytest
from helpers.records import texts_of

from wafer.commands.generate import _prompts
from wafer.data.preprocess.records import find_inputs
from wafer.data.text import jsonrows
from wafer.data.text.jsonrows import json_records
from wafer.data.text.textfiles import numbered_lines, read_rows
from wafer.errors import DataError

ROWS = [{"text": "a\u2028b", "prompt": "p"}, {"text": 'c"}\n[', "prompt": "q"}]
FORMS = {
    "lines": "".join(json.dumps(row) + "\n" for row in ROWS),
    "blank lines": "\n \n".join(["", *map(json.dumps, ROWS), ""]),
    "list": json.dumps(ROWS),
    "pretty list": json.dumps(ROWS, indent=2) + "\n",
    "pretty objects": "\n".join(json.dumps(row, indent=2) for row in ROWS),
    "compact objects": "".join(json.dumps(row, indent=0) for row in ROWS),
}


def packed(content, ending):
    if ending == ".gz":
        return gzip.compress(content[:9]) + gzip.compress(content[9:])
    if ending == ".zst":
        zstandard = pytest.importorskip("zstandard")
        return zstandard.ZstdCompressor().compress(content)
    return content


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bom", [b"", jsonrows.BOM])
def test_rows_are_told_by_content(tmp_path, form, ending, bom):
    content = packed(bom + FORMS[form].encode(), ending)
    for name in ("x.jsonl", "x.json", f"x.jsonl{ending}", "p.txt", "x", "x.gz"):
        path = tmp_path / name
        path.write_bytes(content)
        assert [row.values for row in read_rows(path)] == ROWS
    assert texts_of([tmp_path / "x.json"]) == [row["text"] for row in ROWS]


@pytest.mark.parametrize("name", ["x.tsv.gz", "x.tsv", "x.csv.gz", "x.csv", "x"])
def test_tables_may_be_packed(tmp_path, name):
    comma = "," if ".csv" in name else "\t"
    (tmp_path / name).write_bytes(gzip.compress(f"a{comma}b\n1{comma}2\n".encode()))
    assert [row.values for row in read_rows(tmp_path / name)] == [{"a": "1", "b": "2"}]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_pipe_is_read_once(tmp_path, ending):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    content = packed(FORMS["lines"].encode(), ending)
    writer = threading.Thread(target=path.write_bytes, args=(content,))
    writer.start()
    assert [row.values for row in read_rows(path)] == ROWS
    writer.join()
    with pytest.raises(DataError, match="pipe: a pipe or a device; expected a file"):
        find_inputs([str(path)], None)


class Options:
    interactive = False

    def __init__(self, path):
        self.input = str(path)


@pytest.mark.parametrize("count", [1, 2])
def test_generate_reads_prompts_of_any_file(tmp_path, count):
    path = tmp_path / "p.txt"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:count]))
    rows = [(f"{path}, row 1", "p"), (f"{path}, row 2", "q")]
    assert list(_prompts(Options(path))) == rows[:count]
    for nothing in ("", "\n", "prompt\n", "[]"):
        path.write_text(nothing)
        with pytest.raises(DataError, match=r"p\.txt.*(no row|is empty|expected a JSON object)"):
            list(_prompts(Options(path)))


def records(content, start=0):
    return [tuple(record) for record in json_records(io.BytesIO(content), start)]


def test_a_first_line_that_is_cut_is_one_bad_record():
    """It might begin a document, and the rest says that it does not."""
    cut = b'{"a": 1,\n{"b": 2}\n\n{"c": 3}\n'
    (number, value, problem), *rest = records(cut)
    assert (number, value) == (0, None)
    assert problem.startswith("not JSON (")
    assert rest == [(1, {"b": 2}, ""), (3, {"c": 3}, "")]
    assert records(cut, 2) == [(3, {"c": 3}, "")]


@pytest.mark.parametrize(
    ("content", "number", "problem"),
    [
        (b'[{"a": 1}, {"a": }]', 1, "Expecting value"),
        (b'[{"a": 1}, 2\n{"a": 2}]', 1, "Expecting ',' delimiter"),
        (b'[{"a": 1}\n{"a": 2}]', 0, "Expecting ',' delimiter"),
        (b'[0, {"a": 1},', 1, "Expecting value"),
        (b'[\n0, {"a": 1}]\n{"a": 2}', 1, "Extra data"),
        (b'[\n{"a": 1}, {"a": "\\ud83d"}]', 1, "surrogates not allowed"),
        (b'[\n{"a": 1}, {"a": "\xff"}]', 1, "surrogates not allowed"),
        (b'{"a":\n 1}\n{"a": ' + b"[" * 100_000, 1, "nested too deeply"),
    ],
)
def test_a_damaged_document_names_the_item(content, number, problem):
    wrong = next(record for record in records(content) if record[2])
    assert wrong[0] == number
    assert problem in wrong[2]


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.tsv", "x"])
def test_a_line_without_end_is_one_error(tmp_path, monkeypatch, name):
    monkeypatch.setattr(jsonrows, "_LONGEST", 1000)
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"{}\n" + b"0" * 5000))
    for read in (read_rows, numbered_lines):
        with pytest.raises(DataError, match=r"line 2 has more than 1,000 bytes; expected one"):
            list(read(path))
    if name == "x.jsonl":
        with pytest.raises(DataError, match=r"x\.jsonl: line 2 has more than 1,000 bytes"):
            texts_of([path], skip_bad=True)


def test_a_document_without_end_is_one_error(monkeypatch):
    monkeypatch.setattr(jsonrows, "_DOCUMENT", 1000)
    with pytest.raises(DataError, match="a JSON document has more than 1,000 bytes"):
        records(b"[\n" + b"0,\n" * 500)


def test_a_zip_is_no_text(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("a"), b"\xff" * 100)  # of no time, and no random bytes
    with pytest.raises(DataError, match=r"x\.zip: not UTF-8"):
        list(read_rows(path))
