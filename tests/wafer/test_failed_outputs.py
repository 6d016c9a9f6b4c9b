"""Commands that end by an error leave no empty folder, and what was there before."""

import contextlib

import jax
import pytest
from helpers.runs import TINY

from wafer.cli import main
from wafer.commands.checkpoints.prune import prune
from wafer.csl.host.tools.examples import write_example
from wafer.data.make import make_data
from wafer.data.preprocess.convert import convert_dataset_to_hdf5
from wafer.data.preprocess.dedup import deduplicate
from wafer.data.rowfiles.folders import shuffle_folder
from wafer.models.checkpoint.writer import write_params
from wafer.models.convert.shards import write_shards
from wafer.models.files import atomic_write, made_folder
from wafer.models.paths import named_leaves
from wafer.models.registry import build


def broken(*_, **__):
    raise OSError(28, "No space left on device")


def test_made_folders_go_when_they_are_empty(tmp_path):
    """Folders that were there, or that hold something, stay."""
    (tmp_path / "there").mkdir()
    for path in (tmp_path / "a" / "b", tmp_path / "there" / "c"):
        with pytest.raises(KeyError):
            fail_in(made_folder(path))
    with pytest.raises(KeyError):
        fail_in(atomic_write(tmp_path / "d" / "e" / "file"))
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]
    with pytest.raises(KeyError):
        fail_in(made_folder(tmp_path / "f" / "g"), tmp_path / "f" / "kept")
    assert [path.name for path in (tmp_path / "f").iterdir()] == ["kept"]


def fail_in(block, *files):
    with block:
        for file in files:
            file.touch()
        raise KeyError


def _dedup(folder):
    texts = folder.parents[1] / "in.jsonl"
    texts.write_text('{"other": 1}\n')
    deduplicate([str(texts)], str(folder))


def _preprocess(folder):
    texts = folder.parents[1] / "in.jsonl"
    texts.write_text('{"text": "a b c d"}\n')
    flags = ["--input_dir", str(texts), "--tokenizer_type", "NeoXTokenizer"]
    return main(["data", "preprocess", "LMData", "--output_dir", str(folder), *flags])


def _prune(folder):
    leaves = named_leaves(build(TINY).init(jax.random.key(0)))
    source = write_params(folder.parents[1] / "in", TINY, [name for name, _ in leaves], leaves)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wafer.models.checkpoint.writer._put", broken)
        prune(folder, 0.5, method="magnitude", checkpoint=source)


def _csl(folder):
    write_example("hello", folder.parents[1] / "program")
    layout = folder.parents[1] / "program" / "layout.csl"
    return main(["csl", "compile", str(layout), "-o", str(folder)])


WRITERS = {
    "prune": (_prune, None),
    "dedup": (_dedup, None),
    "preprocess": (_preprocess, None),
    "data make": (
        lambda folder: make_data("GptHDF5DataProcessor", folder),
        "wafer.data.make.write_rows",
    ),
    "csl compile": (_csl, "wafer.csl.host.artifacts._replace"),
    "to HDF5": (lambda folder: convert_dataset_to_hdf5([], folder), None),
    "shards": (
        lambda folder: write_shards([], folder, 100, {}),
        "wafer.models.convert.shards._write",
    ),
    "shuffle": (
        lambda folder: shuffle_folder(_rows(folder.parents[1]), folder),
        "wafer.data.rowfiles.folders.write_rows",
    ),
}


def _rows(folder):
    """A folder of rows whose writer is still whole."""
    make_data("GptHDF5DataProcessor", folder / "made")
    return next(path.parent for path in (folder / "made").rglob("*.h5"))


@pytest.mark.parametrize("name", WRITERS)
def test_an_error_leaves_no_folder(tmp_path, monkeypatch, name):
    write, writer = WRITERS[name]
    if name == "dedup":
        pytest.importorskip("datasketch")
    if writer is not None:
        monkeypatch.setattr(writer, broken)
    with contextlib.suppress(OSError, ValueError):
        assert write(tmp_path / "new" / "out") == 1
    assert not (tmp_path / "new").exists()
