"""A disk that takes no more: one error that names what was written, and nothing half-written."""

import contextlib
import itertools
import resource
import time

import numpy as np
import pytest

from wafer.models.checkpoint.lazy import LazyArray
from wafer.models.checkpoint.reader import load_params
from wafer.models.checkpoint.writer import Checkpoints, write_checkpoint, write_params
from wafer.models.convert.shards import write_shards
from wafer.models.errors import CheckpointError, disk_full
from wafer.models.files import atomic_write, remove_partials, remove_written, write_text
from wafer.sparsity.finalize import finalize

# Each is a file of 9 kB or more, however Orbax merges them; the other files have at most 1 kB.
WEIGHTS = {f"w{i}": np.random.default_rng(i).normal(size=(64, 64)).astype("f4") for i in range(4)}
ARRAYS = 8192


@contextlib.contextmanager
def limit(size):
    """Let no file grow beyond a size: a write then fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def full(path):
    return pytest.raises(OSError, match=rf"\[Errno 27\] File too large: '{path}'")


def test_finalize_and_convert_name_the_checkpoint_and_leave_nothing(tmp_path, capfd):
    source, dense, new = tmp_path / "a", tmp_path / "dense", tmp_path / "new"
    pruned = {name: np.where(w < 0, np.nan, w) for name, w in WEIGHTS.items()}
    write_params(source, {}, pruned, pruned.items(), pruned)
    for size in (100, 4096, ARRAYS):  # the index, the description, the arrays
        with limit(size), full(dense):
            finalize(source, dense)
    for size in (100, 4096):
        with limit(size), full(new / "state"):
            write_params(new, {}, WEIGHTS, WEIGHTS.items())
    assert [path.name for path in tmp_path.iterdir() if path.name != "new"] == ["a"]
    assert list(new.glob("**/state*")) == []
    assert capfd.readouterr().err == ""  # no stacks of other threads
    finalize(source, dense)
    write_params(new, {}, WEIGHTS, WEIGHTS.items())
    assert np.count_nonzero(load_params(dense)[0]["w0"] == 0) > 1000


def test_a_run_s_checkpoint_takes_no_room_afterwards(tmp_path, capfd, caplog):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"params": WEIGHTS}, {})
    message = r"2 could not be written: File too large\nEarlier checkpoints are intact: \[1\]"
    with limit(ARRAYS), pytest.raises(CheckpointError, match=message):
        checkpoints.save(2, {"params": WEIGHTS}, {})
    assert [path.name for path in checkpoints.folder.iterdir()] == ["1"]
    assert "Traceback" not in caplog.text + capfd.readouterr().err  # of the writing threads
    checkpoints.save(2, {"params": WEIGHTS}, {})


def test_a_checkpoint_is_replaced_by_a_complete_one_only(tmp_path):
    path = tmp_path / "last"
    write_checkpoint(path, {"params": {"w0": WEIGHTS["w0"]}}, {})
    with limit(ARRAYS), pytest.raises(CheckpointError, match="last could not be written: File too"):
        write_checkpoint(path, {"params": WEIGHTS}, {})
    assert load_params(path)[0].keys() == {"w0"}
    write_checkpoint(path, {"params": WEIGHTS}, {})
    assert load_params(path)[0].keys() == WEIGHTS.keys()
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


@pytest.mark.parametrize("config", [{}, {"long": "x" * 40_000}])
def test_no_shard_is_left_without_the_others(tmp_path, config):
    tensors = [LazyArray(w.shape, w.dtype, lambda w=w: w, n) for n, w in WEIGHTS.items()]
    size = 20_000 if config else 10_000
    with limit(size), full(tmp_path / ("config.json" if config else "model-00001-of-00004.saf.*")):
        write_shards(tensors, tmp_path, 16_384, config)
    assert list(tmp_path.iterdir()) == []
    assert len(write_shards(tensors, tmp_path, 16_384, config)) == 5


def test_a_text_is_whole_or_as_it_was(tmp_path):
    path, link = tmp_path / "a.csl", tmp_path / "link.csl"
    path.write_text("before")
    path.chmod(0o750)
    link.symlink_to(path)
    with limit(100), full(path):
        write_text(link, "x" * 200)
    assert path.read_text() == "before"
    write_text(link, "x" * 200)
    assert link.is_symlink()
    assert path.read_text() == "x" * 200
    assert path.stat().st_mode & 0o777 == 0o750


def test_what_a_failed_writers_threads_bring_back_goes_too(tmp_path, monkeypatch):
    writes = iter(["2", "2.tmp/d"])

    def write(_):
        for name in itertools.islice(writes, 1):
            (tmp_path / name).mkdir(parents=True)

    monkeypatch.setattr(time, "sleep", write)
    for name in ("20", "2.tmp/d"):
        (tmp_path / name).mkdir(parents=True)
    remove_written(tmp_path, "2", "2.*")
    assert [path.name for path in tmp_path.iterdir()] == ["20"]
    assert not [*writes]


def test_killed_writers_partials_go_whatever_they_are_called(tmp_path, caplog):
    for name in (".state.partial-99999999", ".state.partial-99999999.orbax-checkpoint-tmp"):
        (tmp_path / name / "d").mkdir(parents=True)
    (tmp_path / ".state.partial-1").mkdir()  # a process that lives
    (tmp_path / ".states.partial-99999999").mkdir()  # of another name
    remove_partials(tmp_path / "state")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".state.partial-1",
        ".states.partial-99999999",
    ]
    assert caplog.text.count("Removed a half-written") == 2


def test_other_errors_stay_what_they_are(tmp_path):
    assert disk_full(ValueError("File name too long"), "a") is None
    with pytest.raises(ValueError, match="of another kind"), atomic_write(tmp_path / "a"):
        raise ValueError("of another kind")
