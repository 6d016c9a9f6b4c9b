"""Checkpoints whose record was edited: one error that names the checkpoint and the key, or none."""

import json
import shutil
from zlib import crc32

import pytest
import yaml
from helpers.runs import config

from wafer import sparsity
from wafer.cli import main
from wafer.data.batching.pipeline import require_place
from wafer.errors import DataError
from wafer.models.checkpoint.layout import record_entry
from wafer.models.errors import CheckpointError

META = {
    "parameters": ["a/kernel"],
    "step": 3,
    "indices": [[0, 1]],
    "targets": [0.5],
    "key": [1, 2**32 - 1],
}
NO_COUNTS = [-7, 1.5, True, "7", [7], {"x": 7}, 10**30]


def test_what_a_sparse_record_lacks_or_has_otherwise_is_named():
    assert int(sparsity.from_meta(META, 1).step) == 3
    for key in META:
        with pytest.raises(CheckpointError, match=rf"sparsity\.{key}: missing"):
            sparsity.from_meta({k: v for k, v in META.items() if k != key}, 1)
        for wrong in (*NO_COUNTS, None, [None], [[1, 2, 3]], [float("nan")]):
            if wrong != [7]:  # a list of one number is a key, too: of too few words
                with pytest.raises(CheckpointError, match=rf"sparsity\.{key}"):
                    sparsity.from_meta(META | {key: wrong}, 1)
    for odd in ({"key": [7]}, {"key_impl": "dice"}, {"targets": [0.5, 0.5]}):
        with pytest.raises(CheckpointError, match=r"record was edited: sparsity\.(key|targets): "):
            sparsity.from_meta(META | odd, 1)


def test_entries_of_a_record_are_mappings_and_steps_are_counts():
    record = {"step": 7, "config": {"model": {"name": "x"}}, "data": None}
    assert record_entry(record, "f", "step") == 7
    assert record_entry(record, "f", "config", "model") == {"name": "x"}
    assert record_entry(record, "f", "data") is record_entry(record, "f", "sparsity") is None
    for wrong in NO_COUNTS:
        with pytest.raises(CheckpointError, match=r"f: step of its record is .*expected a number"):
            record_entry({"step": wrong}, "f", "step")
    for wrong in (-7, "x", [], True):
        with pytest.raises(CheckpointError, match=r"f: config of its record is .*a mapping"):
            record_entry({"config": wrong}, "f", "config", "model")


def test_a_place_in_the_data_has_the_keys_and_kinds_of_the_loader():
    own = {"parent": {"next_index": 0}, "next_row": 0}
    require_place({"parent": {"next_index": 9}, "next_row": 2}, own)
    wrong = [{}, None, "x", {"next_index": 8}, {"parent": 3, "next_row": 2}, own | {"more": 1}]
    wrong += [{"parent": {"next_index": n}, "next_row": 0} for n in NO_COUNTS]
    for state in wrong:
        with pytest.raises(DataError, match="not one of this loader"):
            require_place(state, own)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A sparse run of two steps, its run file."""
    folder = tmp_path_factory.mktemp("edited")
    section = {"algorithm": "set", "sparsity": 0.5, "update": {"freq": 2}}
    cfg = config(sparsity=section, runconfig={"max_steps": 2, "checkpoint_steps": 2})
    (folder / "p.yaml").write_text(yaml.safe_dump(cfg))
    assert main(["run", "-p", f"{folder}/p.yaml", "-m", "train", "-o", f"{folder}/run"]) == 0
    return folder


def edited(trained, target, **changes):
    """A copy of the run whose record has other entries and a checksum that fits them."""
    shutil.copytree(trained / "run", target)
    path = target / "checkpoints" / "2" / "meta" / "metadata"
    record = json.loads(path.read_text()) | changes
    del record["record_checksum"]
    sealed = f"{crc32(json.dumps(record, sort_keys=True).encode()):08x}"
    path.write_text(json.dumps(record | {"record_checksum": sealed}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {}}, "checkpoints/2: the checkpoint's place in its data is {}"),
        ({"data": {"next_index": -7}}, "next_index"),
        ({"sparsity": {"x": 1}}, "checkpoints/2: the checkpoint's record was edited: sparsity.par"),
        ({"config": 5}, "checkpoints/2: config of its record is '5'; expected a mapping"),
        ({"config": None}, ""),
    ],
)
def test_a_run_continues_from_an_edited_record_or_says_what_is_wrong(
    trained, tmp_path, capsys, changes, said
):
    edited(trained, tmp_path / "run", **changes)
    flags = ["-m", "train", "-o", f"{tmp_path}/run", "--max_steps", "3"]
    assert main(["run", "-p", f"{trained}/p.yaml", *flags]) == bool(said)
    assert said in capsys.readouterr().err
    assert (tmp_path / "run" / "checkpoints" / "3").exists() == (not said)


@pytest.mark.parametrize("command", [["checkpoint", "info"], ["finalize", "-o", "out", "-i"]])
def test_other_readers_of_a_record_say_it_too(trained, tmp_path, capsys, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    edited(trained, tmp_path / "run", step=[1], config=[2])
    assert main([*command, "run/checkpoints/2"]) == 1
    assert "of its record is '[" in capsys.readouterr().err
