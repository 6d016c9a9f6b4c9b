"""Checkpoints of format version 1, as commit 0780128 wrote them, are read and continued.

Stored names are the format. ``golden/checkpoints/v1`` holds a run of each engine, dense and
sparse, and one of each optimizer (``make_v1.py`` says how they were made): what is stored, what
today's code would store, and the losses of the next two steps. The names in the states of every
params file of that time are compared by ``tests/wafer/config/test_files.py``.
"""

import json
import pathlib
import tarfile

import jax
import numpy as np
import pytest
from helpers.paths import GOLDEN
from helpers.runs import metrics
from helpers.stored import keys_of, tree_of

from wafer.commands.run import run
from wafer.config import load
from wafer.experiment import Experiment
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.paths import named_leaves

V1 = GOLDEN / "checkpoints" / "v1"
EXPECTED = json.loads((V1 / "expected.json").read_text())
CASES = EXPECTED["cases"]
QUICK = ("resident-rigl_csr", "variant-lora")  # continued in the default suite as well
HALF = ("variant-loss_scale",)  # float16 rounds as the compiler fuses


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """A folder for each case: params.yaml, run/checkpoints/2, perhaps data and run/finalized."""
    folder = tmp_path_factory.mktemp("v1")
    with tarfile.open(V1 / "checkpoints.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 on
        archive.extractall(folder)
    return folder


def kinds(described):
    """The same without the hash."""
    return {name: leaf.rpartition(" ")[0] for name, leaf in described.items()}


def template(cfg):
    """Name -> 'dtype shape' of what a run of this configuration stores."""
    experiment = Experiment.from_config(cfg)
    trees = {
        "params": experiment.shapes,
        "opt_state": jax.eval_shape(experiment.tx.init, experiment.shapes),
        "scale": jax.eval_shape(experiment.scaler.init),
        "step": jax.ShapeDtypeStruct((), np.int32),
        "key": jax.ShapeDtypeStruct((2,), np.uint32),
    }
    return {name: f"{x.dtype} {list(x.shape)}" for name, x in named_leaves(trees)}


def test_the_archive_holds_every_case(unpacked):
    assert {path.name for path in unpacked.iterdir()} == CASES.keys()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if i % 3 and name not in QUICK else [])
        for i, name in enumerate(CASES)
    ],
)
def test_what_is_stored_is_read_and_is_what_would_be_stored(unpacked, name):
    expected, folder = CASES[name], unpacked / name
    stored = folder / "run" / "checkpoints" / "2"
    assert tree_of(stored) == expected["tree"]
    cfg = load(folder / "params.yaml", {"log_steps": 1})  # the default when it was written
    assert template(cfg) == kinds(expected["tree"])
    meta = load_checkpoint(stored)[1]
    assert keys_of(meta) == expected["meta"]
    assert meta["step"] == 2
    since = {"shard_state": False}  # keys of runconfig that the format's first files lack
    config = meta["config"] | {"runconfig": meta["config"]["runconfig"] | since}
    assert config == cfg.to_dict()


@pytest.mark.parametrize("name", QUICK)
def test_the_lazy_reader_reads_the_same(unpacked, name):
    stored = unpacked / name / "run" / "checkpoints" / "2"
    assert tree_of(stored, lazily=True) == CASES[name]["tree"]


@pytest.mark.parametrize("name", [name for name in CASES if "finalized" in CASES[name]])
def test_finalized_checkpoints_are_read(unpacked, name):
    assert tree_of(unpacked / name / "run" / "finalized") == CASES[name]["finalized"]


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES],
)
def test_runs_go_on(unpacked, name, monkeypatch):
    """The same losses as where the run was not moved, and the same names in the next checkpoint."""
    monkeypatch.chdir(unpacked / name)
    assert run(load("params.yaml", {"max_steps": 4, "log_steps": 1})) == 0
    records = metrics(pathlib.Path("run"))
    assert [record["step"] for record in records] == [3, 4]
    rel = 1e-3 if name in HALF else 1e-6
    assert [record["loss"] for record in records] == pytest.approx(CASES[name]["losses"], rel=rel)
    written = pathlib.Path("run/checkpoints/4")
    assert kinds(tree_of(written)) == kinds(CASES[name]["tree"])
    # where a topology changed: none is read as 0; a key of the run
    added = {"sparsity/generation", "config/runconfig/shard_state"}
    assert sorted({*keys_of(load_checkpoint(written)[1])} - added) == CASES[name]["meta"]
