"""The cache folder: what is kept is what would be made, and damage is made again."""

import os
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest
import yaml
from helpers.runs import config

from wafer.cache import _remove_oldest, cache_folder, cached_arrays, make_ahead
from wafer.commands.run import _make_data_ahead
from wafer.config import load_all
from wafer.data.readers.pystdlib import pystdlib
from wafer.data.sections.text import PyStdlibDataProcessor
from wafer.data.text import functions
from wafer.errors import DataError

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WAFER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_folder_is_the_users_or_below_the_cache_of_the_system(tmp_path, monkeypatch):
    monkeypatch.setenv("WAFER_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv("WAFER_CACHE", "off")
    assert cache_folder() is None
    monkeypatch.delenv("WAFER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == pathlib.Path("/elsewhere/wafer")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == pathlib.Path.home() / ".cache" / "wafer"


def counting(calls):
    def make():
        calls.append(1)
        return {"x": np.arange(1000, dtype=np.int32), "y": np.float64([0.5, np.nan])}

    return make


def test_arrays_are_made_once_for_each_thing_they_depend_on(folder):
    calls = []
    first = cached_arrays("some", {"a": 1}, counting(calls))
    again = cached_arrays("some", {"a": 1}, counting(calls))
    assert len(calls) == 1
    for name, value in first.items():
        np.testing.assert_array_equal(again[name], value)
        assert again[name].dtype == value.dtype
    cached_arrays("some", {"a": 2}, counting(calls))
    assert len(calls) == 2


def test_the_oldest_files_of_a_kind_go(folder):
    for number in range(20):
        cached_arrays("some", number, counting([]))
    assert len(list((folder / "some").iterdir())) == 12


def test_every_flipped_bit_is_seen_and_the_arrays_made_again(folder, caplog):
    calls = []
    want = cached_arrays("some", 0, counting(calls))
    (path,) = (folder / "some").iterdir()
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(len(whole), size=60):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << rng.integers(8)
        path.write_bytes(flipped)
        got = cached_arrays("some", 0, counting(calls))
        assert got.keys() == want.keys()
        for name, value in want.items():
            np.testing.assert_array_equal(got[name], value)
    path.write_bytes(whole[: len(whole) // 2])
    cached_arrays("some", 0, counting(calls))
    assert ": damaged; making it again" in caplog.text


def test_where_nothing_can_be_kept_arrays_are_made_each_time(tmp_path, monkeypatch, caplog):
    calls = []
    monkeypatch.setenv("WAFER_CACHE", "off")
    cached_arrays("some", 0, counting(calls))
    cached_arrays("some", 0, counting(calls))
    assert len(calls) == 2
    assert not caplog.text
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WAFER_CACHE", str(tmp_path / "file"))
    assert cached_arrays("some", 0, counting(calls)).keys() == {"x", "y"}
    assert "could not be kept" in caplog.text


def section(root: pathlib.Path, **changes) -> types.SimpleNamespace:
    keys = {"source_dir": str(root), "max_bytes": 200, "vocab_size": 300, "split": "train"}
    return types.SimpleNamespace(**keys | {"max_sequence_length": 64, "use_vsl": True} | changes)


@pytest.fixture
def root(tmp_path):
    """A folder of Python sources."""
    root = tmp_path / "sources"
    root.mkdir()
    for number in range(40):
        (root / f"m{number}.py").write_text(f"def f{number}(x):\n    return x + {number}\n")
    return root


CONTEXT = types.SimpleNamespace(tokenizer=None)


def unread(*args):
    raise AssertionError("the corpus was read again")


def test_a_corpus_is_read_again_only_when_a_file_or_a_key_changed(folder, root, monkeypatch):
    first = pystdlib(section(root), CONTEXT)
    functions.load_corpus.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(functions, "load_corpus", unread)
        again = pystdlib(section(root), CONTEXT)
        assert again.summary == first.summary
        assert again.tokenizer == first.tokenizer
        for index in range(len(first.source)):
            for name, value in first.source[index].items():
                np.testing.assert_array_equal(again.source[index][name], value)
        for changed in ({"split": "eval"}, {"max_bytes": 20}, {"vocab_size": 280}):
            with pytest.raises(AssertionError, match="read again"):
                pystdlib(section(root, **changed), CONTEXT)
    same_size = (root / "m3.py").read_text().replace("f3", "g3")
    (root / "m3.py").write_text(same_size)
    assert pystdlib(section(root), CONTEXT).summary != first.summary


def test_another_process_makes_what_the_reader_then_waits_for(folder, root, monkeypatch):
    own = pystdlib(section(root), CONTEXT)
    for file in (folder / "pystdlib").iterdir():
        file.unlink()
    monkeypatch.setattr(functions, "load_corpus", unread)
    sections = [vars(section(root, split=split)) for split in ("train", "eval")]
    make_ahead("wafer.data.text.functions:keep_tokens", sections)
    theirs = pystdlib(section(root), CONTEXT)
    assert (theirs.summary, theirs.tokenizer) == (own.summary, own.tokenizer)
    for index in range(len(own.source)):
        np.testing.assert_array_equal(
            theirs.source[index]["input_ids"], own.source[index]["input_ids"]
        )
    assert len([*(folder / "pystdlib").iterdir()]) == 2
    (root.parent / "tokenizer.json").write_text(theirs.tokenizer)  # which the run keeps by now
    resumed = types.SimpleNamespace(tokenizer=root.parent / "tokenizer.json")
    held_out = pystdlib(section(root, split="eval"), resumed)  # the corpus is not read
    assert held_out.tokenizer == theirs.tokenizer
    assert held_out.references


def test_what_another_process_cannot_make_is_made_here(folder, root, monkeypatch):
    make_ahead("wafer.data.text.functions:keep_tokens", [{"source_dir": str(root)}])
    assert pystdlib(section(root), CONTEXT).summary.startswith("Python standard library, train")
    monkeypatch.setenv("WAFER_CACHE", "off")
    monkeypatch.setattr(subprocess, "Popen", unread)  # it could leave nothing
    make_ahead("wafer.data.text.functions:keep_tokens", [vars(section(root))])


def test_a_tokenizer_that_does_not_fit_is_refused_by_the_reader(folder, root):
    sections = [vars(section(root)), vars(section(root, split="eval", vocab_size=280))]
    make_ahead("wafer.data.text.functions:keep_tokens", sections)
    kept = root.parent / "tokenizer.json"
    kept.write_text(pystdlib(section(root), CONTEXT).tokenizer)
    with pytest.raises(DataError, match="vocab_size of the input section is 280"):
        pystdlib(section(root, split="eval", vocab_size=280), types.SimpleNamespace(tokenizer=kept))


def test_a_new_run_begins_its_data_with_all_that_the_reader_reads(folder, tmp_path, monkeypatch):
    begun, file = [], ROOT / "models" / "configs" / "gpt_pystdlib.yaml"
    monkeypatch.setattr("wafer.cache.make_ahead", lambda *call: begun.append(call))
    flags = {"model_dir": str(tmp_path), "mode": "train_and_eval"}
    (cfg,) = load_all(file, flags, _make_data_ahead)
    ((function, sections),) = begun
    assert function == "wafer.data.text.functions:keep_tokens"
    assert [PyStdlibDataProcessor(**keys) for keys in sections] == [cfg.train_input, cfg.eval_input]
    assert all(keys.keys() == PyStdlibDataProcessor.model_fields.keys() for keys in sections)
    load_all(file, flags | {"mode": "eval"}, _make_data_ahead)
    assert [keys["split"] for keys in begun.pop()[1]] == ["eval"]
    load_all(file, flags | {"validate_only": True}, _make_data_ahead)
    (tmp_path / "tokenizer.json").write_text("{}")  # of a run that goes on
    load_all(file, flags, _make_data_ahead)
    assert len(begun) == 1


def test_data_begin_before_jax_is_imported():
    code = (
        "import sys\nfrom wafer.config import load_all\n"
        "load_all(sys.argv[1], {}, lambda *_: print('jax' in sys.modules))\n"
        "print('jax' in sys.modules)"
    )
    file = ROOT / "models" / "configs" / "gpt_pystdlib.yaml"
    command = [sys.executable, "-c", code, str(file)]
    assert subprocess.check_output(command, cwd=ROOT, text=True).split() == ["False", "True"]


def test_programs_that_were_read_longest_ago_go(folder, monkeypatch):
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}-cache").write_bytes(bytes(100))
        os.utime(folder / f"{number}-cache", (1000 + number, 500))
    monkeypatch.setattr("wafer.cache._MOST_PROGRAMS", 800)
    _remove_oldest(folder)
    assert len(list(folder.iterdir())) == 8
    monkeypatch.setattr("wafer.cache._MOST_PROGRAMS", 700)
    _remove_oldest(folder)
    assert sorted(path.name[0] for path in folder.iterdir()) == list("34567")


@pytest.mark.slow
def test_a_second_run_compiles_nothing_and_computes_the_same(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    env |= {"WAFER_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(config()))
    programs, losses = [], []
    for name in ("first", "second"):
        command = ["-m", "wafer", "run", "--params", "params.yaml", "--mode", "train"]
        subprocess.run(
            [sys.executable, *command, "--model_dir", name], cwd=tmp_path, env=env, check=True
        )
        kept = (tmp_path / "cache" / "programs").rglob("*-cache")
        programs.append({path.name for path in kept})
        losses.append((tmp_path / name / "train" / "metrics.jsonl").read_text())
    assert programs[0]
    assert programs[1] == programs[0]
    shown = [[line.split('"loss": ')[1].split(",")[0] for line in t.splitlines()] for t in losses]
    assert shown[0] == shown[1]
