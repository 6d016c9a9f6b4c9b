"""The checkpoint format: what the docs say of it is so, and a newer one is refused."""

import asyncio
import gc
import json
import logging
import re
import shutil
from zlib import crc32

import numpy as np
import pytest
from helpers.paths import ROOT

from wafer.models.checkpoint.layout import FORMAT_VERSION, FormatVersionError, read_record
from wafer.models.checkpoint.pruned import mark
from wafer.models.checkpoint.reader import load_checkpoint, load_params
from wafer.models.checkpoint.writer import Checkpoints, write_checkpoint
from wafer.models.errors import CheckpointError
from wafer.models.files import atomic_write
from wafer.models.paths import named_leaves

PAGE = ROOT / "docs" / "concepts" / "checkpoint-format.md"
KERNEL = np.asarray([[1.0, np.nan, 3.0], [np.nan, 5.0, 6.0]], np.float32)
STATE = {
    "params": {"fc": {"kernel": KERNEL, "bias": np.arange(3, dtype=np.float32)}},
    "opt_state": {"0": {"exp_avg": {"fc": {"kernel": KERNEL * 2}}}},
    "step": np.int32(7),
}
META = {"step": 7, "config": {"model": {"name": "x"}}}


def at_version(path, version):
    """A record of another version that is not damaged."""
    record = path / "meta" / "metadata"
    content = json.loads(record.read_text()) | {"format_version": version}
    content.pop("record_checksum")
    content["record_checksum"] = f"{crc32(json.dumps(content, sort_keys=True).encode()):08x}"
    record.write_text(json.dumps(content))


def test_the_docs_example_reads_a_checkpoint(tmp_path):
    step = tmp_path / "RigL 80 %" / "7"  # a folder's name may hold anything
    write_checkpoint(step, STATE, META)
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert source.count("runs/demo/checkpoints/300") == 1
    scope = {}
    exec(source.replace("runs/demo/checkpoints/300", str(step)), scope)
    assert scope["names"] == [name for name, _ in named_leaves(STATE)]
    checks = {"format_version", "checksums", "record_checksum"}
    assert {key: scope["record"][key] for key in scope["record"].keys() - checks} == META
    assert scope["record"]["format_version"] == FORMAT_VERSION
    assert scope["masks"].keys() == {"fc/kernel"}
    params, record = load_params(step)
    assert record == META
    for name, leaf in named_leaves(params):
        np.testing.assert_array_equal(leaf, scope["dense"][name])
        np.testing.assert_array_equal(np.isnan(scope["params"][name]), np.isnan(load(STATE, name)))


def load(state, name):
    return dict(named_leaves(state["params"]))[name]


def test_marks_are_quiet_nan_as_the_docs_say():
    params, _ = mark({"w": np.ones(2, np.float32)}, {}, {"w": np.asarray([True, False])})
    assert np.asarray(params["w"]).view(np.uint32)[1] == 0x7FC00000


@pytest.mark.parametrize("kept", [(), ("checksums",), ("format_version",), ("record_checksum",)])
def test_a_record_that_lost_the_names_of_its_marks_is_no_old_one(tmp_path, kept):
    step = tmp_path / "7"
    write_checkpoint(step, STATE, META)
    record = step / "meta" / "metadata"
    content = json.loads(record.read_text())
    marks = {"format_version", "checksums", "record_checksum"}
    for key in marks - set(kept):
        content[f"x{key}"] = content.pop(key)
    record.write_text(json.dumps(content))
    if kept:
        with pytest.raises(CheckpointError, match="damaged"):
            load_checkpoint(step)
    else:
        assert load_checkpoint(step)[1].keys() >= META.keys()  # format 1, as far as can be seen


def test_a_newer_format_is_refused_with_what_to_do(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.save(7, STATE, META | {"wafer_version": "9.1"})
    at_version(path, 3)
    message = (
        r"7 has checkpoint format 3, written by wafer 9\.1; this code reads .* up to 2\. Install"
    )
    with pytest.raises(FormatVersionError, match=message):
        load_checkpoint(path)
    with pytest.raises(FormatVersionError, match=message):  # not taken for a damaged one
        checkpoints.restore_latest()
    for wrong in (0, "two", None):
        at_version(path, wrong)
        with pytest.raises(CheckpointError, match="has checkpoint format"):
            read_record(path)


def test_a_checkpoint_without_a_version_is_of_the_first(tmp_path, caplog):
    write_checkpoint(tmp_path / "7", STATE, META)
    (tmp_path / "7" / "meta" / "metadata").write_text(json.dumps(META))
    with caplog.at_level("INFO"):
        assert load_checkpoint(tmp_path / "7")[1] == META
    assert "7 has checkpoint format 1, without checksums" in caplog.text


def test_the_oldest_go_and_nothing_is_replaced(tmp_path):
    checkpoints = Checkpoints(tmp_path, max_to_keep=2)
    for step in (1, 2, 3):
        checkpoints.save(step, STATE, META)
    assert checkpoints.steps() == [2, 3]
    assert sorted(p.name for p in checkpoints.folder.iterdir()) == ["2", "3"]
    with pytest.raises(CheckpointError, match="is there already"):
        checkpoints.save(3, STATE, META)
    with pytest.raises(ValueError, match="max_to_keep 0: expected 1 or more"):
        Checkpoints(tmp_path, max_to_keep=0)


def test_a_folder_that_is_removed_meanwhile_is_noticed_and_the_work_is_saved(tmp_path):
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.save(7, STATE, META)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"was removed .* Step 8 has been saved as"):
        checkpoints.save(8, STATE, META)
    assert checkpoints.restore_latest()[0] == 8


@pytest.mark.parametrize("turns", range(6))
def test_arrays_that_fail_in_the_loops_last_turn_are_not_reported(tmp_path, monkeypatch, turns):
    """As in Orbax: a gather ends at its first error, whatever fails a few turns later."""

    async def fail(later):
        for _ in range(later):
            await asyncio.sleep(0)
        raise ValueError("File too large [source locations='tensorstore/x.cc']")

    async def gather():
        await asyncio.gather(fail(0), fail(turns))

    def save(*_, **__):
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(gather())
        finally:
            loop.close()

    logged = []
    handler = logging.Handler()
    handler.emit = logged.append
    monkeypatch.setattr(logging.getLogger("asyncio"), "handlers", [handler])
    monkeypatch.setattr("orbax.checkpoint.Checkpointer.save", save)
    with pytest.raises(CheckpointError, match="7 could not be written: File too large"):
        Checkpoints(tmp_path).save(7, STATE, META)
    gc.collect()
    assert not logged


def test_a_damaged_one_gives_its_name_away_when_asked(tmp_path):
    checkpoints = Checkpoints(tmp_path, max_to_keep=1)
    for names in (["7"], ["7", "7.damaged"], ["7", "7.damaged", "7.damaged-2"]):
        path = checkpoints.save(7, STATE, META)
        assert sorted(p.name for p in checkpoints.folder.iterdir()) == names
        (path / "meta" / "metadata").write_text("{")
        assert checkpoints.restore_latest() is None  # somebody who only reads
        assert checkpoints.steps() == [7]
        assert checkpoints.restore_latest(set_aside=True) is None
        assert checkpoints.steps() == []


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_appears_is_whole(tmp_path, kind):
    path = tmp_path / "a" / "out"

    def write(text, *, fails=False):
        with atomic_write(path, sync=kind == "file") as partial:
            if kind == "folder":
                partial.mkdir()
            (partial / "x" if kind == "folder" else partial).write_text(text)
            assert not path.exists() or kind == "file"
            if fails:
                raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write("half", fails=True)
    assert not path.parent.exists()
    write("first")
    if kind == "folder":
        assert (path / "x").read_text() == "first"
        return
    write("second")
    with pytest.raises(OSError, match="disk full"):
        write("half", fails=True)
    assert path.read_text() == "second"
    assert list(path.parent.iterdir()) == [path]
