"""Files of every layout, written here by hand as the Model Zoo's savers lay them out."""

import json
import pathlib

import h5py
import hdf5plugin
import ml_dtypes
import numpy as np
import pytest
from helpers.paths import GOLDEN

import wafer
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.errors import CheckpointError
from wafer.vendor.mdl.file import MdlFile

WEIGHT = np.asarray([[1.5, np.nan], [-2.0, 0.25]], np.float32)
HALF = np.asarray([1.0, -3.0], ml_dtypes.bfloat16)


def old(path: pathlib.Path, version: float | None, entries: dict) -> pathlib.Path:
    """Layouts 0.1 to 0.4: name -> (data, attributes)."""
    with h5py.File(path, "w") as file:
        if version is not None:
            file.attrs["__version__"] = version
        file.attrs["__spec__"] = "80049"
        for name, (data, attributes) in entries.items():
            file.create_dataset(name, data=data).attrs.update(attributes)
    return path


def modern(path: pathlib.Path, records: dict, arrays: dict, complete: bool = True) -> pathlib.Path:
    """Layout 0.5: name -> record, and the datasets there are."""
    with h5py.File(path, "w") as file:
        file.attrs.update({"__version__": 0.5, "__SUCCESS__": complete, "__spec__": "[null, ''"})
        for name, record in records.items():
            key = f"{name}.__metadata__"
            file.attrs[key] = json.dumps({"__objects__": [name], key: record})
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
    return path


TENSOR = {"__TYPE__": "TorchTensorSerializer", "__NUMPY__": True, "dtypes": ["torch.float32"]}
EMPTY = h5py.Empty("f4")


def the_same(path: pathlib.Path) -> None:
    with MdlFile(path) as stored:
        assert list(stored) == [
            "model.half",
            "model.head/kernel",
            "model.tied",
            "model.weight",
            "optimizer.state.0.exp_avg",
        ]
        np.testing.assert_array_equal(stored["model.weight"], WEIGHT)
        np.testing.assert_array_equal(stored["model.tied"], WEIGHT)
        assert stored["model.half"].dtype == HALF.dtype
        np.testing.assert_array_equal(stored["model.half"], HALF)
        assert stored["optimizer.state.0.exp_avg"].tolist() == [[0, 0, 0], [0, 0, 0]]
        assert stored.scalar("global_step") == 7
        assert stored.scalar("again") == 7
        assert stored.scalar("text") == "LM"
        assert stored.scalar("nothing") is None


def test_layout_04_with_quoted_names_constants_links_and_markers(tmp_path):
    kind = "__H5_TYPE__"
    tensor = {kind: "TorchTensorH5Type", "is_bfloat16": False}
    full = {kind: "FullTensorH5Type", "shape": (2, 3), "fill_value": 0.0, "is_bfloat16": False}
    path = old(
        tmp_path / "a.mdl",
        0.4,
        {
            "model.weight": (WEIGHT, tensor),
            "model.half": (HALF.view(np.int16), tensor | {"is_bfloat16": True}),
            "model.head%2Fkernel": (WEIGHT, tensor),
            "model.tied": (
                EMPTY,
                {kind: "StoredTensorH5Type", "key": "model.weight", "link_to_self": True},
            ),
            "optimizer.state.0.exp_avg": (EMPTY, full),
            "global_step": (7, {kind: "ScalarH5Type"}),
            "again": (EMPTY, {kind: "DeferredH5Tensor", "key": "global_step", "link_to_self": 1}),
            "text": (EMPTY, {kind: "StringH5Type", "string_value": "LM"}),
            "nothing": (EMPTY, {kind: "NoneH5Type"}),
            "function": (EMPTY, {kind: "ObjectH5Type", "object_value": "8004"}),
        },
    )
    the_same(path)
    with MdlFile(path) as stored, pytest.raises(CheckpointError, match="function is a pickled"):
        stored.scalar("function")


def test_layout_05_where_constants_links_and_numbers_have_no_dataset(tmp_path):
    none = {"__NONE__": True}
    linked = {"__TYPE__": "LinkedObject", "__LINKED__": True, **none}
    full = {"shape": [2, 3], "dtype": "torch.float32", "fill_value": 0.0, **none}
    records = {
        "model.weight": TENSOR,
        "model.half": TENSOR | {"dtypes": ["torch.bfloat16"]},
        "model.head/kernel": TENSOR,
        "model.tied": linked | {"key": "model.weight"},
        "optimizer.state.0.exp_avg": full | {"__TYPE__": "DeferredFullTensor"},
        "global_step": {"scalar_value": 7, "__TYPE__": "ScalarSerializer", **none},
        "again": linked | {"key": "global_step"},
        "text": {"string_value": "LM", "__TYPE__": "StringSerializer", **none},
        "nothing": {"__TYPE__": "NoneSerializer", **none},
    }
    arrays = {"model.weight": WEIGHT, "model.half": HALF.view(np.int16)}
    path = modern(tmp_path / "a.mdl", records | {"model.head": TENSOR}, arrays)
    with pytest.raises(CheckpointError, match=r"a\.mdl: tensor model\.head is missing"):
        MdlFile(path)
    records["model.head_kernel"] = records.pop("model.head/kernel")  # '/' is HDF5's own here
    path = modern(tmp_path / "b.mdl", records, arrays | {"model.head_kernel": WEIGHT})
    with MdlFile(path) as stored:
        assert "model.head_kernel" in list(stored)
        np.testing.assert_array_equal(stored["model.tied"], WEIGHT)
        np.testing.assert_array_equal(stored["model.half"], HALF)
        assert not stored["optimizer.state.0.exp_avg"].any()
        assert (stored.scalar("again"), stored.scalar("text")) == (7, "LM")


def test_layouts_01_and_02_by_their_flags(tmp_path):
    entries = {
        "model.weight": (WEIGHT, {}),
        "optimizer.state.0.exp_avg": (
            EMPTY,
            {"is_constructible": True, "shape": (3,), "fill_value": 2.0},
        ),
        "global_step": (9, {"is_scalar": True}),
        "text": (EMPTY, {"is_string": True, "string_val": "LM"}),
        "lm_head": (EMPTY, {"is_none": True}),
    }
    for version in (None, 0.2):
        with MdlFile(old(tmp_path / f"{version}.mdl", version, entries)) as stored:
            assert list(stored) == ["model.weight", "optimizer.state.0.exp_avg"]
            assert stored["optimizer.state.0.exp_avg"].tolist() == [2.0, 2.0, 2.0]
            assert (stored.scalar("global_step"), stored.scalar("text")) == (9, "LM")
            assert stored.scalar("lm_head") is None


def test_constants_and_tied_tensors_come_through_finalize(tmp_path):
    kind = "__H5_TYPE__"
    full = {kind: "DeferredFullTensor", "shape": (4,), "fill_value": 1.0, "is_bfloat16": True}
    entries = {
        "model.weight": (WEIGHT, {kind: "TorchTensorH5Type"}),
        "model.ones": (h5py.Empty("i2"), full),
    }
    report = wafer.finalize(old(tmp_path / "a.mdl", 0.4, entries), tmp_path / "out")
    tensors = {t.name: (t.shape, t.dtype, t.pruned) for t in report.tensors}
    assert tensors == {
        "model/ones": ((4,), "bfloat16", 0),
        "model/weight": ((2, 2), "float32", 1),
    }


def test_a_mdl_finalized_to_a_mdl_differs_only_where_it_was_pruned(tmp_path):
    none = {"__TYPE__": "LinkedObject", "__NONE__": True, "key": "model.weight"}
    sparse = np.asarray([1.0, np.nan], ml_dtypes.bfloat16)
    records = {
        "model.weight": TENSOR,
        "model.tied": none,
        "model.half": TENSOR | {"dtypes": ["torch.bfloat16"]},
        "model.ids": TENSOR,
    }
    ids = np.asarray([3, 4], np.int64)
    arrays = {"model.weight": WEIGHT, "model.half": sparse.view("i2"), "model.ids": ids}
    source = modern(tmp_path / "a.mdl", records, arrays)
    before = source.read_bytes()
    report = wafer.finalize(source, tmp_path / "b.mdl")
    assert {t.name: t.pruned for t in report.sparse} == {
        "model.half": 1,
        "model.tied": 1,
        "model.weight": 1,
    }
    assert source.read_bytes() == before
    with h5py.File(source) as old_file, h5py.File(tmp_path / "b.mdl") as new_file:
        assert dict(new_file.attrs) == dict(old_file.attrs)
        assert set(new_file) == set(old_file)
    with MdlFile(tmp_path / "b.mdl") as stored:
        np.testing.assert_array_equal(stored["model.tied"], [[1.5, 0], [-2, 0.25]])
        np.testing.assert_array_equal(stored["model.half"].astype("f4"), [1, 0])
        np.testing.assert_array_equal(stored["model.ids"], ids)


@pytest.mark.parametrize("there", [{}, {"config.json": '{"eos_token_id": 7}', "model": "x"}])
def test_beside_a_new_mdl_nothing_is_written(tmp_path, there, caplog):
    """A folder may hold other checkpoints: below it, they would take the tokenizer for theirs."""
    for folder in ("in", "out"):
        (tmp_path / folder).mkdir()
    for name, text in (("tokenizer.json", "{}"), ("special_ids.json", '{"eos_token_id": 1}')):
        (tmp_path / "in" / name).write_text(text)
    for name, text in there.items():
        (tmp_path / "out" / name).write_text(text)
    source = modern(tmp_path / "in" / "a.mdl", {"model.w": TENSOR}, {"model.w": WEIGHT})
    with caplog.at_level("INFO"):
        wafer.finalize(source, tmp_path / "out" / "b.mdl")
    found = {p.name: p.read_text() for p in (tmp_path / "out").iterdir() if p.name != "b.mdl"}
    assert found == there
    assert f"b.mdl is one file: the tokenizer stays in {tmp_path / 'in'}" in caplog.text


@pytest.mark.parametrize("target", ["b.mdl", "folder"])
def test_an_infinite_weight_of_a_mdl_is_refused(tmp_path, target):
    """NaN may mark pruned weights there; an infinity is never one."""
    wrong = np.array(WEIGHT)
    wrong.reshape(-1)[:2] = np.inf, np.nan
    source = modern(tmp_path / "a.mdl", {"model.w": TENSOR}, {"model.w": wrong})
    with pytest.raises(CheckpointError, match=r"a\.mdl: weights model\.w .* \(1 of .*: inf at"):
        wafer.finalize(source, tmp_path / target)
    assert not (tmp_path / target).exists()


def test_a_folder_does_not_become_a_mdl(tmp_path):
    with pytest.raises(ValueError, match=r"b\.mdl: only a \.mdl becomes a \.mdl"):
        wafer.finalize(tmp_path, tmp_path / "b.mdl")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"__TYPE__": "LinkedObject", "key": "model.w"}, r"model\.w is a link to model\.w"),
        ({"__TYPE__": "LinkedObject", "key": "model.x"}, r"model\.w is a link to model\.x"),
        ({"__TYPE__": "LinkedObject"}, r"entry model\.w is damaged: KeyError\('key'\)"),
        ({"__TYPE__": "Mystery"}, r"model\.w is damaged: .*unknown kind of entry 'Mystery'"),
        (
            {"__TYPE__": "DeferredFileTensor", "filepath": "gone.bin"},
            r"model\.w is in another file, gone\.bin",
        ),
        (
            {"__TYPE__": "DeferredFullTensor", "shape": [-1], "fill_value": 0, "dtype": "int8"},
            r"model\.w is damaged: .*shape \(-1,\)",
        ),
    ],
)
def test_hostile_entries_are_one_line_before_any_work(tmp_path, record, message):
    path = modern(tmp_path / "a.mdl", {"model.w": record}, {})
    with pytest.raises(CheckpointError, match=message):
        wafer.finalize(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_huge_constant_is_refused_without_memory(tmp_path):
    record = {"__TYPE__": "DeferredFullTensor", "fill_value": 0, "dtype": "torch.float32"}
    path = modern(tmp_path / "a.mdl", {"model.w": record | {"shape": [1 << 40]}}, {})
    with MdlFile(path) as stored, pytest.raises(CheckpointError, match=r"model\.w .*1099511627776"):
        stored["model.w"]


def test_an_unfinished_file_and_a_record_that_is_no_json_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="__SUCCESS__"):
        MdlFile(modern(tmp_path / "a.mdl", {}, {}, complete=False))
    path = modern(tmp_path / "b.mdl", {}, {})
    with h5py.File(path, "a") as file:
        file.attrs["model.w.__metadata__"] = "{" * 9
    with pytest.raises(CheckpointError, match=r"entry model\.w is damaged"):
        MdlFile(path)


def test_mdl_is_read_without_its_pickles_and_turned_into_ours(tmp_path):
    want = np.load(GOLDEN / "sparsity" / "sample_v0.5.npz")
    with MdlFile(GOLDEN / "sparsity" / "sample_v0.5.mdl") as stored:
        assert stored.scalar("global_step") == 5
        assert stored.scalar("nothing") is None
        for name in ("weight", "bias"):
            np.testing.assert_array_equal(stored[f"model.{name}"], want[name])
    report = wafer.finalize(GOLDEN / "sparsity" / "sample_v0.5.mdl", tmp_path / "7")
    state, meta = load_checkpoint(tmp_path / "7")
    np.testing.assert_array_equal(state["model"]["weight"], want["weight"])
    assert meta["converted_from"] == "mdl"
    assert len(report.tensors) == 10


def test_a_truncated_mdl_is_named(tmp_path):
    whole = (GOLDEN / "sparsity" / "sample_v0.5.mdl").read_bytes()
    broken = tmp_path / "broken.mdl"
    broken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"broken\.mdl is no readable"):
        wafer.finalize(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_mdl_knows_bfloat16_by_its_attribute_and_refuses_what_is_not_stored(tmp_path):
    with h5py.File(tmp_path / "a.mdl", "w") as file:
        half = file.create_dataset("half", data=np.array([0x3F80, 0x4000], np.uint16))
        half.attrs["dtypes"] = ["torch.bfloat16"]
        full = file.create_dataset("full", shape=(3,), dtype="f4")
        full.attrs.update({"is_constructible": True, "shape": (3,), "fill_value": 2.0})
        file.create_dataset("huge", shape=(10**9, 10**3), dtype="f4", chunks=(1, 1000))
    with MdlFile(tmp_path / "a.mdl") as opened:
        assert opened["half"].astype(np.float32).tolist() == [1.0, 2.0]
        assert opened["full"].tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(CheckpointError, match=r"a\.mdl: tensor huge .* was never filled"):
            opened["huge"]
    with h5py.File(tmp_path / "a.mdl", "w") as file:
        file["w"] = h5py.ExternalLink("/etc/passwd", "w")
    with pytest.raises(CheckpointError, match="w is a link to elsewhere"):
        MdlFile(tmp_path / "a.mdl")


def test_lz4_is_read(tmp_path):
    repeated, random = (
        np.tile(np.arange(7, dtype=np.int16), 900),
        np.random.default_rng(0).bytes(100),
    )
    with h5py.File(tmp_path / "a.mdl", "w") as file:
        file.create_dataset("packed", data=repeated, chunks=(640,), **hdf5plugin.LZ4(256))
        file.create_dataset("stored", data=np.frombuffer(random, "u1"), **hdf5plugin.LZ4())
        assert file["packed"].id.get_storage_size() < repeated.nbytes / 4
    with MdlFile(tmp_path / "a.mdl") as opened:
        np.testing.assert_array_equal(opened["packed"], repeated)
        assert opened["stored"].tobytes() == random
