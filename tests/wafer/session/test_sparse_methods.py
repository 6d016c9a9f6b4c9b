"""Every method of the guide's table from YAML: a few steps of a run, the level that it leaves."""

import numpy as np
import pytest
import yaml
from helpers.paths import ROOT
from helpers.runs import TINY, TINY_ROWS

import wafer
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.paths import named_leaves

FEW = "update: {freq: 2, stop: 5}"
METHODS = {  # name -> (the YAML of its section, share pruned of the kernels at the end)
    "static": ("sparsity: 0.5", 0.5),
    "static erk": ("{sparsity: 0.5, budget: erk, dense_ends: 0}", 0.5),
    "static flops": ("{sparsity: 0.5, budget: flops}", 0.5),
    "gmp": ("{algorithm: gmp, schedule: [0.25, 0.5], update: {steps: [2, 4]}}", 0.5),
    "set": (f"{{algorithm: set, sparsity: 0.5, {FEW}}}", 0.5),
    "rigl": (f"{{algorithm: rigl, sparsity: 0.5, {FEW}}}", 0.5),
    "granet": (
        "{algorithm: rigl, schedule: [0.25, 0.5], drop_fraction: 0.5, update: {steps: [2, 4]}}",
        0.5,
    ),
    "mest": (f"{{algorithm: mest, sparsity: 0.5, gradient_rate: 0.1, {FEW}}}", 0.5),
    "acdc": ("{algorithm: acdc, sparsity: 0.5, update: {freq: 2, start: 2, stop: 4}}", 0.5),
    "topkast": ("{algorithm: topkast, sparsity: 0.5, backward_sparsity: 0.25, stop: 3}", 0.5),
    "sr-ste": ("{algorithm: sr-ste, pattern: {type: 'n:m', n: 2, m: 4}, stop: 3}", 0.5),
    "rigl 1:4": ("{algorithm: rigl, pattern: {type: 'n:m', n: 1, m: 4}, " + FEW + "}", 0.75),
    "rigl blocks": (
        "{algorithm: rigl, sparsity: 0.5, pattern: {type: block, size: 4}, " + FEW + "}",
        0.5,
    ),
    "rigl mean": (f"{{algorithm: rigl, sparsity: 0.5, grown_moments: mean, {FEW}}}", 0.5),
    "gmp fan in": (
        "{algorithm: gmp, schedule: [0.25, 0.5], pattern: {type: constant_fan_in}, "
        "update: {steps: [2, 4]}}",
        0.5,
    ),
}  # fmt: skip
QUICK = {"static flops"}


def section(text):
    value = yaml.safe_load(text)
    return value if "algorithm" in value or "budget" in value else {"algorithm": "static"} | value


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in METHODS]
)
def test_a_few_steps_of_every_method(name, tmp_path):
    text, level = METHODS[name]
    wafer.train(
        {
            "runconfig": {"max_steps": 6, "checkpoint_steps": 6, "model_dir": str(tmp_path)},
            "model": TINY,
            "train_input": TINY_ROWS,
            "sparsity": section(text),
            "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.01},
        }
    )
    tree, _ = load_checkpoint(tmp_path / "checkpoints" / "6")
    kernels = [
        np.asarray(leaf) for n, leaf in named_leaves(tree["params"]) if n.endswith("/kernel")
    ]
    pruned = sum(int(np.isnan(leaf).sum()) for leaf in kernels)
    assert pruned / sum(leaf.size for leaf in kernels) == pytest.approx(level, abs=0.01)


def test_every_method_of_the_guide_is_here():
    page = (ROOT / "docs" / "guides" / "sparsity-methods.md").read_text(encoding="utf-8")
    table = page.split("\n## ")[0]
    named = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    methods = [name for name in named if not name.startswith(("wafer", "-m", "distillation"))]
    assert len(methods) >= 8
    assert set(methods) <= {name.split()[0] for name in METHODS}
