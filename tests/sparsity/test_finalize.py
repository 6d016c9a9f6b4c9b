"""Finalize at the sizes where writers batch: every array arrives, or the command fails."""

import os
import sys

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import given, settings

from wafer.cli import main
from wafer.models.checkpoint.reader import PIECE, StoredTree, load_checkpoint
from wafer.models.checkpoint.verify import verify
from wafer.models.checkpoint.writer import write_checkpoint, write_params
from wafer.models.errors import CheckpointError
from wafer.models.paths import named_leaves
from wafer.sparsity import finalize as module
from wafer.sparsity.finalize import finalize

FLOATS = PIECE // 4  # that fill a stored piece
CHUNKED = np.arange(3 * FLOATS + 5, dtype=np.float32)  # more than one piece


def pruned(sizes):
    """An array of each size with NaN at two thirds of its positions, integers between them."""
    rng = np.random.default_rng(0)
    tree = {}
    for number, size in enumerate(sizes):
        values = rng.standard_normal(size).astype(np.float32)
        values[rng.random(size) < 2 / 3] = np.nan
        tree[f"layers_{number}"] = {"kernel": values, "step": np.arange(number + 1, dtype=np.int32)}
    return tree


def of_other_types():
    """Half precision of odd sizes and several blocks, -0.0, no axes: NaN at nine of ten."""
    rng = np.random.default_rng(1)
    wide = rng.standard_normal((1001, 601)).astype(ml_dtypes.bfloat16)
    wide[rng.random(wide.shape) < 0.9] = np.nan
    dense = rng.standard_normal((33, 70)).astype(np.float16)
    small = np.float32([1, np.nan, -0.0])
    return {"wide": wide, "dense": dense, "small": small, "count": np.asarray(7, np.int32)}


def save(folder, tree, storage):
    """Save as the training run does, or as any Orbax user may."""
    if storage == "ours":
        write_checkpoint(folder, {"params": tree}, {"step": 1, "config": {}})
        return folder
    handler = ocp.PyTreeCheckpointHandler(use_compression=False, use_ocdbt=storage == "raw")
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(folder / "weights", ocp.args.PyTreeSave({"params": tree}))
    return folder


def read(folder):
    tree = StoredTree(next(path.parent for path in folder.glob("*/_METADATA")))
    return {name: tree.read(name) for name in tree}


def assert_finalized(source, target):
    """Every array of the source is in the target, bit for bit, with 0 for NaN."""
    report = finalize(source, target)
    before, after = read(source), read(target)
    assert before.keys() == after.keys()
    counts = {tensor.name: tensor.pruned for tensor in report.tensors}
    for name, value in before.items():
        nan = np.isnan(np.float32(value))
        assert after[name].dtype == value.dtype
        assert after[name].tobytes() == np.where(nan, value.dtype.type(0), value).tobytes(), name
        assert counts[name] == nan.sum()


@pytest.mark.parametrize(
    "storage", ["ours", *(pytest.param(s, marks=pytest.mark.slow) for s in ("raw", "files"))]
)
def test_ninety_arrays_of_every_threshold(tmp_path, storage):
    near = [n + d for n in (FLOATS // 4, FLOATS, 2 * FLOATS) for d in (-1, 0, 1)]
    small = [100] * 31 + [50_000] * 5
    source = save(tmp_path / "1", pruned([*small, *near]) | of_other_types(), storage)
    assert len(read(source)) == 94
    assert_finalized(source, tmp_path / "dense")
    if storage == "ours":
        assert verify(tmp_path / "dense").checked
        assert main(["checkpoint", "verify", str(tmp_path / "dense")]) == 0


@settings(max_examples=4)
@given(
    sizes=st.lists(st.integers(0, FLOATS + 1), min_size=1, max_size=12),
    storage=st.sampled_from(["ours", "raw"]),
)
def test_any_sizes(tmp_path_factory, sizes, storage):
    folder = tmp_path_factory.mktemp("sizes")
    source = save(folder / "1", pruned([max(size, 1) for size in sizes]), storage)
    assert_finalized(source, folder / "dense")


@pytest.mark.parametrize("repetitions", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_switching_threads_changes_nothing(tmp_path, repetitions):
    source = save(tmp_path / "1", pruned([200_000] * 12), "ours")  # each below 1 MiB, 9 MiB in all
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(repetitions):
            assert_finalized(source, tmp_path / f"dense{number}")
    finally:
        sys.setswitchinterval(interval)


def truncate_largest(item):
    largest = max((p for p in item.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


DAMAGE = {
    "truncated": truncate_largest,
    "removed": lambda item: [data.unlink() for data in item.glob("ocdbt.process_0/d/*")],
    "manifest": lambda item: (item / "manifest.ocdbt").write_bytes(b""),
    "metadata": lambda item: (item / "_METADATA").write_text("{"),
}


@pytest.mark.parametrize("storage", ["ours", "raw"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_nothing_is_written(tmp_path, damage, storage):
    source = save(tmp_path / "run", pruned([4096]), storage)
    DAMAGE[damage](next(source.glob("*/_METADATA")).parent)
    with pytest.raises(CheckpointError, match=str(source)):
        finalize(source, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda arrays, hit: (pair for pair in arrays if pair[0] != hit), "tensor {} is missing"),
        (
            lambda arrays, hit: ((n, v + 1 if n == hit else v) for n, v in arrays),
            r"(?s)1 of 6 arrays.*{} \(expected",
        ),
    ],
    ids=["lost", "changed"],
)
def test_a_lost_or_changed_array_is_noticed_and_nothing_appears(
    tmp_path, monkeypatch, change, says
):
    source = save(tmp_path / "1", pruned([1000] * 3), "ours")
    write_tree, hit = module.write_tree, "params/layers_1/kernel"
    monkeypatch.setattr(
        module, "write_tree", lambda tree, to, arrays: write_tree(tree, to, change(arrays, hit))
    )
    with pytest.raises(CheckpointError, match=says.format(hit)):
        finalize(source, tmp_path / "dense")
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_converted_weights_are_read_back(tmp_path, monkeypatch):
    arrays = {"a": CHUNKED, "b/kernel": np.ones((3, 5), np.float16), "c": np.float32(2)}
    write_params(tmp_path / "whole", {"name": "x"}, list(arrays), arrays.items())
    state, _ = load_checkpoint(tmp_path / "whole")
    for name, value in named_leaves(state["params"]):
        np.testing.assert_array_equal(value, arrays[name])
    from wafer.models.checkpoint import writer

    put = writer._put
    monkeypatch.setattr(writer, "_put", lambda tree, name, value: put(tree, name, value * 2))
    with pytest.raises(CheckpointError, match="3 of 3 arrays read back"):
        write_params(tmp_path / "new", {"name": "x"}, list(arrays), arrays.items())
    assert not (tmp_path / "new" / "state").exists()
