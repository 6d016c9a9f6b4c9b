"""Runs compute in the configured types, whatever the user's flags of JAX."""

import subprocess
import sys

import jax
import numpy as np
import pytest
import yaml
from helpers.flags import environment, strict_flags
from helpers.runs import arrays, config, train

import wafer
from wafer.experiment import Experiment
from wafer.models.paths import named_leaves
from wafer.optim.sections import OPTIMIZERS

SPARSE = {
    "sparsity": {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 2}},
    "model": {"dropout_rate": 0.1},
}
CASES = {
    "dense": {},
    "sparse": SPARSE,
    "csr": {**SPARSE, "sparsity": {**SPARSE["sparsity"], "compute": "csr"}},
    "streamed": {**SPARSE, "runconfig": {"execution_strategy": "weight_streaming"}},
}


def assert_same(got: dict, want: dict) -> None:
    assert {k: v.dtype for k, v in got.items()} == {k: v.dtype for k, v in want.items()}
    for name, value in got.items():
        np.testing.assert_allclose(value, want[name], rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    "case", ["sparse", *(pytest.param(c, marks=pytest.mark.slow) for c in CASES if c != "sparse")]
)
def test_checkpoints_are_the_same_in_a_new_run_and_a_resumed_one(case, tmp_path):
    changes = CASES[case]
    want = train(tmp_path / "plain", **changes)
    settings = changes.get("runconfig", {})
    with strict_flags():
        train(tmp_path / "strict", **{**changes, "runconfig": settings | {"max_steps": 2}})
        assert_same(train(tmp_path / "strict", **changes), want)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_of_optimizers_have_the_configured_types(name):
    cfg = config(optimizer={"optimizer_type": name, "learning_rate": 0.01})

    def state():
        """Types of the first state and of the one after an update."""
        experiment = Experiment.from_config(cfg)
        tx, shapes = experiment.tx, experiment.shapes
        first = jax.eval_shape(tx.init, shapes)
        return [
            named_leaves(tree) for tree in (first, jax.eval_shape(tx.update, shapes, first, shapes))
        ]

    want = state()
    with strict_flags():
        assert state() == want


def test_finalize_and_load_the_same(tmp_path):
    train(tmp_path / "run", **SPARSE)
    wafer.finalize(tmp_path / "run" / "checkpoints" / "4", tmp_path / "plain")
    with strict_flags():
        wafer.finalize(tmp_path / "run" / "checkpoints" / "4", tmp_path / "strict")
        _, params, _ = wafer.load(tmp_path / "strict")
    want = dict(named_leaves(wafer.load(tmp_path / "plain")[1]))
    assert_same(dict(named_leaves(params)), want)


def run_in_a_process(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_jax_that_is_loaded_by_a_command_takes_our_flags():
    program = """
import os
from wafer.models.user.flags import own_flags
with own_flags():
    import jax
    values = jax.config.jax_enable_x64, jax.config.jax_numpy_rank_promotion
    print(*values, os.environ["JAX_ENABLE_X64"])
print(jax.config.jax_debug_nans, os.environ["JAX_ENABLE_X64"])
"""
    assert run_in_a_process("-c", program).splitlines() == ["False allow false", "True 1"]


@pytest.mark.slow
def test_commands_under_the_flags(tmp_path):
    want = train(tmp_path / "plain", **SPARSE)
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump(config(**SPARSE)))
    run = ("run", "-p", str(file), "-o", str(tmp_path / "run"))
    run_in_a_process("-m", "wafer", *run, "--max_steps", "2")
    run_in_a_process("-m", "wafer", *run)
    checkpoint = tmp_path / "run" / "checkpoints" / "4"
    assert_same(arrays(checkpoint), want)
    run_in_a_process("-m", "wafer", "finalize", "-i", str(checkpoint), "-o", str(tmp_path / "fin"))
    section = ("-p", str(file), "-m", "wanda", "-s", "0.5", "-o", str(tmp_path / "pruned"))
    run_in_a_process("-m", "wafer", "prune", "--checkpoint_path", str(tmp_path / "fin"), *section)
