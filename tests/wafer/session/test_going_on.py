"""A loader that fails in the middle of a run: no finished step is lost, and the run goes on."""

import numpy as np
import pytest
from helpers.runs import TINY

import wafer
from wafer.errors import DataError
from wafer.models.paths import named_leaves

BROKEN: list[int] = []  # batches that cannot be read


def batches(batch_size, epoch):
    for index in range(12):
        if index in BROKEN:
            raise OSError("the disk went away")
        ids = np.random.default_rng([epoch, index]).integers(0, 16, (batch_size, 8))
        yield {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": ids}


def train(folder, **runconfig):
    sections = {
        "model": TINY,
        "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.01},
        "train_input": {"data_processor": f"{__name__}:batches", "batch_size": 2},
        "runconfig": {"max_steps": 8, "checkpoint_steps": 3, "seed": 1, "log_steps": 1},
    }
    wafer.train(sections, model_dir=str(folder), **runconfig)
    return dict(named_leaves(wafer.load(folder)[1]))


def steps(folder):
    return sorted(int(p.name) for p in (folder / "checkpoints").iterdir() if p.name.isdigit())


@pytest.fixture
def broken():
    BROKEN[:] = [5]
    yield BROKEN
    BROKEN.clear()


def test_the_last_step_is_saved_and_the_same_command_goes_on(tmp_path, broken):
    with pytest.raises(DataError, match=r"batches.*the disk went away"):
        train(tmp_path / "run")
    assert steps(tmp_path / "run") == [3, 5]
    broken.clear()
    mended, whole = train(tmp_path / "run"), train(tmp_path / "whole")
    for name, leaf in whole.items():
        np.testing.assert_array_equal(mended[name], leaf, err_msg=name)


def test_without_a_step_there_is_nothing_to_save(tmp_path, broken):
    broken[:] = [1]
    with pytest.raises(DataError, match="the disk went away"):
        train(tmp_path / "run", checkpoint_steps=0)
    assert steps(tmp_path / "run") == [1]  # asked for or not


def test_the_first_weights_at_a_store_are_downloaded_once(tmp_path, monkeypatch):
    """A run with checkpoints of its own needs them no more, so that they may be gone."""
    train(tmp_path / "a", max_steps=3)
    own = {"checkpoint_path": "s3://bucket/a/3", "load_checkpoint_states": "model"}
    asked = []

    def downloaded(path):
        asked.append(path)
        return tmp_path / "a" / "checkpoints" / "3"

    monkeypatch.setattr("wafer.session.persist.local_path", downloaded)
    train(tmp_path / "b", max_steps=3, **own)
    assert set(asked) == {"s3://bucket/a/3"}
    asked.clear()
    train(tmp_path / "b", max_steps=6, **own)
    assert steps(tmp_path / "b") == [3, 6]
    assert not asked
