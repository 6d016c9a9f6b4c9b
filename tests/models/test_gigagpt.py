"""The port of gigaGPT's whole job: it trains, continues, evaluates, samples, on several systems."""

import dataclasses
import pathlib

import numpy as np
import pytest
from helpers import gigagpt

TINY = gigagpt.GPTConfig(
    max_position_embeddings=16, hidden_size=16, num_hidden_layers=1, num_heads=2, filter_size=32
)
SHORT = gigagpt.TrainConfig(
    batch_size=4, num_steps=6, warmup_steps=2, checkpoint_steps=3, log_steps=3, eval_steps=2
)


def test_the_port_is_as_short_as_the_original():
    assert len(pathlib.Path(gigagpt.__file__).read_text().splitlines()) < 400


@pytest.mark.slow
def test_train_resume_evaluate_and_sample(tmp_path, capsys):
    whole = gigagpt.train(TINY, SHORT, tmp_path)
    assert [step for step, _ in whole] == [1, 2, 3, 4, 5, 6]
    out = capsys.readouterr().out
    assert "| Train Device=CSX, Step=3, Loss=" in out
    assert "Training completed successfully!" in out
    # From the checkpoint of step 3 on, a different part of the data.
    rest = gigagpt.train(TINY, SHORT, tmp_path, tmp_path / "checkpoint_3")
    assert [step for step, _ in rest] == [4, 5, 6]
    result = gigagpt.evaluate(tmp_path, SHORT)
    assert result["bits_per_byte"] == pytest.approx(np.log2(result["perplexity"]))
    assert 5 < result["bits_per_byte"] < 8.1
    text = gigagpt.sample(tmp_path, "def ", count=3)
    assert text.startswith("def ")
    assert text == gigagpt.sample(tmp_path, "def ", count=3)


@pytest.mark.slow
def test_two_systems_train_the_same_model(tmp_path):
    one = gigagpt.train(TINY, SHORT, tmp_path / "one")
    two = gigagpt.train(TINY, dataclasses.replace(SHORT, num_csx=2), tmp_path / "two")
    np.testing.assert_allclose([x for _, x in two], [x for _, x in one], rtol=1e-4)


@pytest.mark.slow
def test_it_learns_its_text(tmp_path):
    """200 steps of the default model: from 8 bits per byte to well below the order-0 entropy."""
    gigagpt.train(gigagpt.GPTConfig(), gigagpt.TrainConfig(num_steps=200), tmp_path)
    tokens = np.load(tmp_path / "data" / "val.npy")
    share = np.bincount(tokens, minlength=256) / len(tokens)
    order0 = -sum(p * np.log2(p) for p in share if p)
    assert gigagpt.evaluate(tmp_path, gigagpt.TrainConfig())["bits_per_byte"] < 0.75 * order0
