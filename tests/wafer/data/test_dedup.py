"""Near-duplicates: who is removed, exact similarities as oracle, kills at every batch."""

import json
import os
import random

import pytest
from helpers.paths import ROOT

from wafer.cli import main
from wafer.data.preprocess import dedup, records
from wafer.data.preprocess.dedup import Deduplication, deduplicate, shingles
from wafer.errors import DataError

pytest.importorskip("datasketch")

WORDS = [line for line in (ROOT / "LICENSE").read_text().split() if line.isalpha()]


def texts(count=60):
    """Texts of 80 random words; every third has one word changed against the one before it."""
    rng = random.Random(0)
    out = []
    for i in range(count):
        words = rng.choices(WORDS, k=80)
        if i % 3 == 2:
            words = out[-1].split()
            words[40] = "Changed"
        out.append(" ".join(words))
    return out


def write(path, rows):
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return str(path)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_shingles_by_hand():
    assert shingles("Ab, c!", 3) == {b"ab ", b"b c"}
    assert shingles("A", 3) == {b"a"}
    assert shingles("", 3) == {b""}


def test_the_later_of_two_similar_texts_goes(tmp_path):
    rows = texts()
    half = len(rows) // 2 + 1
    inputs = [write(tmp_path / "a.jsonl", rows[:half]), write(tmp_path / "b.jsonl", rows[half:])]
    report = deduplicate(inputs, str(tmp_path / "out"))
    kept = [row["text"] for row in lines(tmp_path / "out" / "kept.jsonl")]
    assert kept == [row for i, row in enumerate(rows) if i % 3 != 2]
    removed = lines(tmp_path / "out" / "removed.jsonl")
    assert [(r["file"], r["record"]) for r in removed] == [
        (inputs[i >= half], i % half + 1) for i in range(2, len(rows), 3)
    ]
    for i, row in zip(range(2, len(rows), 3), removed, strict=True):
        a, b = shingles(rows[i], 13), shingles(kept[row["line"] - 1], 13)
        exact = len(a & b) / len(a | b)
        assert exact > 0.8
        assert abs(row["similarity"] - exact) < 0.15  # 4 standard deviations of 128 values
    assert (report.records, report.removed, report.inputs) == (60, 20, 2)
    assert report.characters_removed == sum(len(rows[i]) for i in range(2, 60, 3))
    assert json.loads((tmp_path / "out" / "dedup.json").read_text())["removed"] == 20
    assert sorted(os.listdir(tmp_path / "out")) == ["dedup.json", "kept.jsonl", "removed.jsonl"]


class Killed(BaseException):
    """Ends a run as a signal would."""


@pytest.mark.parametrize("at", range(1, 9))
def test_a_killed_run_writes_the_same_files(tmp_path, monkeypatch, at):
    monkeypatch.setattr(records, "_BATCH_RECORDS", 8)
    rows = texts()
    inputs = [write(tmp_path / "a.jsonl", rows[:30]), write(tmp_path / "b.jsonl", rows[30:])]
    whole = deduplicate(inputs, str(tmp_path / "whole"))
    calls = 0

    def save(*args):
        nonlocal calls
        calls += 1
        if calls == at:  # the files were written, the standing was not
            raise Killed
        original(*args)

    original = dedup._save
    with monkeypatch.context() as patch:
        patch.setattr(dedup, "_save", save)
        with pytest.raises(Killed):
            deduplicate(inputs, str(tmp_path / "out"))
    assert deduplicate(inputs, str(tmp_path / "out")) == whole
    for name in ("kept.jsonl", "removed.jsonl", "dedup.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_cannot_go_on_is_said(tmp_path, monkeypatch):
    source = write(tmp_path / "a.jsonl", ["one text", "one text"])
    out = str(tmp_path / "out")
    monkeypatch.setattr(dedup, "_sift", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        deduplicate([source], out)
    monkeypatch.undo()
    with pytest.raises(DataError, match="other settings or inputs"):
        deduplicate([source], out, Deduplication(threshold=0.5))
    state = tmp_path / "out" / ".dedup.json"
    whole = state.read_text()
    state.write_text(whole.replace("[0, 0, 0]", "[9, 0, 0]"))
    with pytest.raises(DataError, match=r"out: files are shorter than \.dedup\.json says"):
        deduplicate([source], out)
    state.write_text(whole[:20])
    with pytest.raises(DataError, match=r"\.dedup\.json: damaged"):
        deduplicate([source], out)
    state.write_text(whole)
    report = deduplicate([source], out)
    assert str(report) == (
        "2 records of 1 file(s): 1 removed (50.0%; 50.0% of the characters), 1 of them identical "
        "by signature; 1 kept"
    )
    with pytest.raises(DataError, match="holds a complete run"):
        deduplicate([source], out)
    with pytest.raises(DataError, match=r"--threshold: 1.5; expected a share"):
        deduplicate([source], out, Deduplication(threshold=1.5))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").write_text("mine")
    with pytest.raises(DataError, match="holds files, but no unfinished run"):
        deduplicate([source], str(tmp_path / "other"))


def test_command_and_bad_records(tmp_path, capsys):
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "one"}\nnot JSON\n{"text": "One!"}\n')
    arguments = ["data", "dedup", "-i", str(source), "-o"]
    assert main([*arguments, str(tmp_path / "out")]) != 0
    assert "--skip_bad_records true" in capsys.readouterr().err
    assert main([*arguments, str(tmp_path / "new"), "--skip_bad_records", "true"]) == 0
    assert "1 removed" in (said := capsys.readouterr().out)
    assert "1 could not be read" in said
