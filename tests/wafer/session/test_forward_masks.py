"""Top-KAST and SR-STE before their ``stop``: what is not training computes with the mask, too."""

import numpy as np
import pytest
from helpers.runs import TINY, TINY_ROWS

import wafer
from wafer import cli
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.paths import named_leaves

SECTIONS = {
    "topkast": {"algorithm": "topkast", "sparsity": 0.5, "backward_sparsity": 0.25, "stop": 9},
    "sr-ste": {"algorithm": "sr-ste", "pattern": {"type": "n:m", "n": 2, "m": 4}, "stop": 9},
}


def up_kernel(params):
    return np.asarray(dict(named_leaves(params))["layers_0/ffn/up/kernel"])


@pytest.mark.parametrize("name", [pytest.param("topkast", marks=pytest.mark.slow), "sr-ste"])
def test_a_checkpoint_computes_with_its_forward_mask(name, tmp_path):
    run = {
        "runconfig": {"max_steps": 1, "checkpoint_steps": 1, "model_dir": str(tmp_path)},
        "model": TINY,
        "train_input": TINY_ROWS,
        "eval_input": TINY_ROWS,
        "sparsity": SECTIONS[name],
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.01},
    }
    trained = wafer.train(run)
    stored = up_kernel(load_checkpoint(trained.checkpoints[-1])[0]["params"])
    assert np.count_nonzero(stored) == stored.size  # which training needs

    _, params, _ = wafer.load(tmp_path)
    loaded = up_kernel(params)
    used = loaded != 0
    np.testing.assert_array_equal(loaded, np.where(used, stored, 0))
    rows = used.T.reshape(-1, 4) if name == "sr-ste" else used.reshape(1, -1)
    assert (rows.sum(1) * 2 == rows.shape[1]).all()
    assert abs(stored[used]).min() >= (0 if name == "sr-ste" else abs(stored[~used]).max())
    np.testing.assert_array_equal(up_kernel(trained.params), loaded)

    finalized = wafer.finalize(trained.checkpoints[-1], tmp_path / "finalized").target
    np.testing.assert_array_equal(up_kernel(wafer.load(finalized)[1]), loaded)
    score = lambda checkpoint: wafer.evaluate(run, checkpoint=checkpoint)["loss"]
    assert score(finalized) == pytest.approx(score(trained.checkpoints[-1]), abs=1e-6)

    target = tmp_path / "hf"
    words = "convert convert --model gpt2 --src-fmt wafer --tgt-fmt hf --output-dir"
    assert cli.main([*words.split(), str(target), str(trained.checkpoints[-1])]) == 0
    np.testing.assert_array_equal(up_kernel(wafer.load(target)[1]), loaded)
