"""Checkpoints at an object store, for which memory stands in: what is never removed or mixed."""

import json
import types

import pytest
import tensorstore as ts

from wafer.cli import main
from wafer.models.checkpoint import stores
from wafer.models.checkpoint.layout import META, RECORD
from wafer.models.checkpoint.stores import Store, synchronize
from wafer.models.checkpoint.writer import Checkpoints
from wafer.models.errors import CheckpointError


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    """The objects of all buckets."""
    objects = ts.KvStore.open({"driver": "memory"}).result()

    class KvStore:
        KeyRange = ts.KvStore.KeyRange

        @staticmethod
        def open(spec, context):
            del context
            place = objects / f"{spec['bucket']}/{spec.get('path', '')}"
            return types.SimpleNamespace(result=lambda: place)

    fake = types.SimpleNamespace(KvStore=KvStore, Context=lambda _: None)
    monkeypatch.setattr(stores, "ts", fake)
    return objects


def checkpoint(folder, arrays="1"):
    """A folder that has the files of a checkpoint, with checksums of its arrays."""
    for name in ("state/d/array", "state/_METADATA", "commit_success.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(arrays)
    (folder / META).mkdir()
    (folder / META / RECORD).write_text(json.dumps({"checksums": {"params/w": arrays}}))
    return folder


def keys(objects):
    return sorted(objects.list().result())


def test_the_place_of_a_run_is_no_checkpoint_to_write_or_delete(tmp_path, memory):
    """``s3://bucket/run`` in place of ``s3://bucket/run/4`` removes nothing."""
    folder = checkpoint(tmp_path / "4")
    Store("s3://bucket/run").upload(folder, "4")
    memory.write("bucket/data/part-0", b"x").result()
    before = keys(memory)
    for name in ("run", "data"):
        with pytest.raises(CheckpointError, match=rf"s3://bucket/{name}: holds other objects"):
            Store("s3://bucket").upload(folder, name)
        assert main(["checkpoint", "delete", f"s3://bucket/{name}"]) == 1
    assert keys(memory) == before
    with pytest.raises(CheckpointError, match=r"complete ones in s3://bucket: run/4$"):
        stores.local_path("s3://bucket/run")
    assert main(["checkpoint", "delete", "s3://bucket/run/4"]) == 0
    assert keys(memory) == [b"bucket/data/part-0"]


def test_a_checkpoint_above_others_is_removed_without_them(tmp_path, memory):
    folder = checkpoint(tmp_path / "4")
    assert main(["checkpoint", "copy", str(folder), "s3://bucket/run"]) == 0
    assert main(["checkpoint", "copy", str(folder), "s3://bucket/run/"]) == 0  # into it
    assert Store("s3://bucket/run").steps() == [4]
    copied = stores.local_path("s3://bucket/run")
    assert not (copied / "4").exists()
    assert main(["checkpoint", "delete", "s3://bucket/run"]) == 0
    assert Store("s3://bucket/run").steps() == [4]
    assert all(key.startswith(b"bucket/run/4/") for key in keys(memory))


def test_the_tokenizer_of_a_run_is_copied_beside_its_checkpoint(tmp_path, memory):
    """Which a command that reads the address needs, and has no folder above it."""
    (tmp_path / "tokenizer.json").write_text("{}")
    folder = checkpoint(tmp_path / "checkpoints" / "4")
    Store("s3://bucket/run").upload(folder, "4")
    copied = stores.local_path("s3://bucket/run/4")
    assert (copied / "tokenizer.json").read_text() == "{}"
    assert main(["checkpoint", "copy", str(folder), "s3://bucket/copy"]) == 0
    assert memory.read("bucket/copy/tokenizer.json").result().value == b"{}"
    assert not (folder / "tokenizer.json").exists()
    (folder / "tokenizer.json").write_text('{"own": 1}')
    Store("s3://bucket/own").upload(folder, "4")  # the nearest
    assert memory.read("bucket/own/4/tokenizer.json").result().value == b'{"own": 1}'


@pytest.mark.parametrize("verb", ["info", "delete", "verify"])
def test_a_bucket_is_no_checkpoint(verb, capsys):
    assert main(["checkpoint", verb, "s3://bucket/"]) == 1
    said = "s3://bucket/: expected a checkpoint, such as s3://bucket/run/500"
    assert said in capsys.readouterr().err


def test_a_copy_from_a_store_names_its_address(tmp_path, memory, capsys):
    Store("s3://bucket/run").upload(checkpoint(tmp_path / "4"), "4")
    assert main(["checkpoint", "copy", "s3://bucket/run/4", str(tmp_path / "copy")]) == 0
    assert capsys.readouterr().out == f"s3://bucket/run/4 -> {tmp_path / 'copy'}\n"


def test_what_a_killed_upload_left_is_removed(tmp_path, memory):
    for name in ("state/d/old", "state/_METADATA", "commit_success.txt"):
        memory.write(f"bucket/run/4/{name}", b"old").result()
    Store("s3://bucket/run").upload(checkpoint(tmp_path / "4"), "4")
    assert b"bucket/run/4/state/d/old" not in keys(memory)
    assert Store("s3://bucket/run").steps() == [4]


@pytest.mark.parametrize("trains", [False, True])
def test_a_folder_and_a_place_of_two_runs_are_not_mixed(tmp_path, memory, trains):
    store = Store("s3://bucket/run")
    for step in ("2", "4"):
        store.upload(checkpoint(tmp_path / "other" / step), step)
    before = keys(memory)
    for step in ("4", "6"):  # one with the same number, one that would be uploaded
        checkpoint(tmp_path / "mine" / step, arrays="2")
    with pytest.raises(CheckpointError, match=r"run/4: has other arrays than .*of another run"):
        synchronize(store.url, tmp_path / "mine", trains=trains)
    assert keys(memory) == before
    synchronize(store.url, tmp_path / "other", trains=trains)


def test_a_checkpoint_that_is_made_again_counts_as_the_one_there(tmp_path, memory, monkeypatch):
    """After damage in ``model_dir``; one with other arrays is an error, and stays as it was."""
    write = lambda path, state, meta: checkpoint(path, state["arrays"])
    monkeypatch.setattr("wafer.models.checkpoint.writer.write_checkpoint", write)
    for name in ("one", "two"):
        Checkpoints(tmp_path / name, root="s3://bucket/run").save(4, {"arrays": "1"}, {})
    before = keys(memory)
    with pytest.raises(CheckpointError, match="run/4: is there already"):
        Checkpoints(tmp_path / "three", root="s3://bucket/run").save(4, {"arrays": "2"}, {})
    assert keys(memory) == before


def test_a_full_disk_is_no_fault_of_the_store(tmp_path, monkeypatch):
    store = Store("s3://bucket/run")
    store.upload(checkpoint(tmp_path / "4"), "4")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tmp_path), "write_bytes", full)
    with pytest.raises(OSError, match=r"No space left on device: .*copy'$"):
        store.download("4", tmp_path / "copy")
