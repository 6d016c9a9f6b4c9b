"""Sharded state: the same losses and weights as copied state, in parts on N systems."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.runs import arrays, assert_close, config, losses, same_arrays, train
from safetensors.numpy import load_file

import wafer
from wafer.config import parse_config
from wafer.config.engines import ENGINES, engine_row
from wafer.engines.choose import check, make
from wafer.engines.shards import COPIED, split_axis
from wafer.errors import CheckpointError, ConfigError
from wafer.experiment import Experiment

WIDE = {"hidden_size": 32, "filter_size": 64}


@pytest.mark.parametrize(
    ("shape", "parts", "axis"),
    [((64, 128), 4, 0), ((63, 64), 4, 1), ((50257, 64), 2, 1), ((64, 64), 1, COPIED),
     ((1000,), 2, COPIED), ((1025, 3), 2, COPIED), ((2048,), 8, 0)],
)  # fmt: skip
def test_the_first_axis_that_the_parts_divide_is_split(shape, parts, axis):
    assert split_axis(jax.ShapeDtypeStruct(shape, jnp.float32), parts) == axis


def run(folder, systems, *, sharded, **changes):
    keys = {"num_csx": systems, "shard_state": sharded} | changes.pop("runconfig", {})
    changes["model"] = WIDE | changes.get("model", {})
    return train(folder, runconfig=keys, **changes), losses(folder)


RIGL = {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 2}, "compute": "masked"}
STATIC = {"sparsity": 0.5, "compute": "csr"}
CASES = {
    "rigl": {"sparsity": RIGL, "optimizer": {"max_gradient_norm": 0.5, "grad_accum_steps": 2}},
    "dense": {"runconfig": {"mode": "train_and_eval", "eval_frequency": 2}},
    "csr": {"sparsity": STATIC},
    "csr rigl": {"sparsity": RIGL | {"compute": "csr"}},
    "lora": {"model": {"lora_params": {"r": 32, "alpha": 4, "target_modules": ["ffn/up"]}}},
    "scaled": {
        "model": {"mixed_precision": True, "fp16_type": "float16"},
        "optimizer": {
            "loss_scaling_factor": "dynamic",
            "initial_loss_scale": 2.0**18,
            "max_loss_scale": 2.0**18,
        },
    },
}


def pruned(step):
    """Positions of each parameter of a checkpoint that are NaN."""
    return {name: np.isnan(x) for name, x in step.items() if name.startswith("params/")}


def outputs(folder):
    """Arrays of the finalized last checkpoint and of the export, and what of them is sparse."""
    report = wafer.finalize(folder / "checkpoints" / "4", folder / "dense")
    files = folder.glob("hf/4/*.safetensors")
    written = {f"params/{name}": x for file in files for name, x in load_file(file).items()}
    written |= arrays(folder / "dense")
    assert all(np.isfinite(x).all() for x in written.values() if x.dtype.kind == "f")
    return written, [(tensor.name, tensor.pruned) for tensor in report.sparse]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_sharded_state_trains_like_copied_state_and_goes_on_on_another_number(tmp_path, case):
    """To the order of sums: parts are added over systems first, then over micro-batches."""
    exported = None if case == "lora" else "hf"
    settings = dict(CASES[case])
    settings["runconfig"] = settings.get("runconfig", {}) | {"export": exported}
    atol = 2e-3 if case == "scaled" else 2e-6  # sums of float16 differ in their last bits
    want, told = run(tmp_path / "copied", 4, sharded=False, **settings)
    first = settings | {"runconfig": settings["runconfig"] | {"max_steps": 2}}
    run(tmp_path / "sharded", 4, sharded=True, **first)
    got, tells = run(tmp_path / "sharded", 2, sharded=case != "dense", **settings)
    assert tells == pytest.approx(told, abs=atol)
    assert_close(want, got, atol=atol)
    same_arrays(pruned(got), pruned(want))
    (dense, sparse), (parts, same) = (outputs(tmp_path / form) for form in ("copied", "sharded"))
    assert_close(dense, parts, atol=atol)
    assert sparse == same
    assert bool(sparse) == ("sparsity" in settings)
    assert ("params/transformer.wte.weight" in dense) == bool(exported)
    if case == "dense":
        scores = (losses(tmp_path / name, "eval") for name in ("copied", "sharded"))
        assert next(scores)[-1] == pytest.approx(next(scores)[-1], abs=atol)


CHAINS = {
    "adafactor": {"optimizer": {"optimizer_type": "Adafactor"}},
    "momentum": {"optimizer": {"optimizer_type": "SGD", "momentum": 0.9}},
    "lion": {"optimizer": {"optimizer_type": "Lion", "learning_rate": 0.001}},
    "untied": {"model": {"share_embedding_weights": False}},
    "accumulated": {"optimizer": {"grad_accum_steps": 2}},
    "rigl": {"sparsity": RIGL},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CHAINS)
def test_a_run_on_four_three_one_and_two_systems_is_one_run(tmp_path, case):
    """48 is divided by all numbers; 3 divides neither 32 tokens nor 16 positions.

    The gradient of a key's bias is 0 but for rounding, which Lion and Adafactor scale up.
    """
    sizes = {"hidden_size": 48, "filter_size": 96}
    changes = CHAINS[case] | {"model": sizes | CHAINS[case].get("model", {})}
    changes |= {key: {"batch_size": 12} for key in ("train_input", "eval_input")}
    for step, systems in enumerate((4, 3, 1, 2), 1):
        keys = {"max_steps": 2 * step}
        got, tells = run(tmp_path / "parts", systems, sharded=True, runconfig=keys, **changes)
    want, told = run(tmp_path / "one", 1, sharded=False, runconfig={"max_steps": 8}, **changes)
    assert tells == pytest.approx(told, abs=2e-6)
    same_arrays(pruned(got), pruned(want))
    noise = case in {"adafactor", "lion"}
    compared = {name for name in want if not (noise and name.endswith("attn/key/bias"))}
    assert_close(*({k: tree[k] for k in compared} for tree in (want, got)), atol=2e-5)


def engine(*, sharded, model=WIDE, **changes):
    cfg = config(model=WIDE | model, runconfig={"num_csx": 4, "shard_state": sharded}, **changes)
    return make(Experiment.from_config(parse_config(cfg)), engine_row("resident"))


def rows(length=16):
    ids = np.random.default_rng(0).integers(1, 32, (4, 1, 1, length), np.int32)
    lengths = np.full((4, 1, 1), length, np.int32)
    features = dict.fromkeys(("input_ids", "labels"), ids)
    return features | {"attention_mask": np.ones_like(ids), "lengths": lengths}


MEMORY = """
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", 8)
sys.path.append(sys.argv[1])
import sharded
sizes = 4, 256, 1000, 128
print(json.dumps(sharded.memory(sizes, sys.argv[2], accumulation=int(sys.argv[3]))))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "accumulation"), [("gpt2", 1), ("llama", 1), ("bert", 1), ("t5", 1), ("t5", 2)]
)
def test_the_peak_of_a_step_is_that_of_parts_a_layer_and_activations(name, accumulation):
    """On 2, 4 and 8 systems; also as `wafer plan` predicts it."""
    command = [sys.executable, "-c", MEMORY, str(ROOT / "tests" / "bench"), name, str(accumulation)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = json.loads(told.splitlines()[-1])
    for systems in (2, 4, 8):
        over, planned, parts = (
            found[f"{systems} systems / {form}"] for form in ("over the sum", "planned", "in parts")
        )
        assert over < 1.2
        assert 0.9 < planned / parts < 1.25


def test_a_masked_step_has_the_same_result_in_parts():
    features = rows()
    after = []
    for sharded in (False, True):
        one = engine(sharded=sharded, sparsity={"sparsity": 0.5, "compute": "masked"})
        state = one.init(jax.random.key(0))
        state, metrics = one.step(state, one.place(features), topology=False)
        after.append(jax.device_get((one.export(state), metrics["loss"], metrics["grad_norm"])))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), *after)
    assert any(np.isnan(leaf).any() for leaf in jax.tree.leaves(after))


def test_nan_in_activations_is_nan_in_the_same_places():
    """The first token of a system is NaN."""
    features = rows()
    features["input_ids"] = features["input_ids"].copy()
    features["input_ids"][0, 0, 0, 0] = 31
    after, heads = [], {"model": {"share_embedding_weights": False}}
    for sharded in (False, True):
        one = engine(sharded=sharded, optimizer={"optimizer_type": "SGD"}, **heads)
        state = one.init(jax.random.key(0))
        table = np.array(state.params["embed"]["token"]["embedding"])
        table[31] = np.nan
        state.params["embed"]["token"]["embedding"] = table
        state, metrics = one.step(one.replicate(state), one.place(features), topology=False)
        after.append(jax.device_get((state.params, metrics["loss"], metrics["grad_norm"])))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), *after)
    assert np.isnan(after[1][1])
    with pytest.raises(CheckpointError, match="are NaN where the state keeps them"):
        one.export(state)


def test_a_teacher_in_parts_gives_the_same_step(tmp_path):
    train(tmp_path, model=WIDE, runconfig={"max_steps": 1, "checkpoint_steps": 1})
    teacher = {"checkpoint_path": str(tmp_path / "checkpoints" / "1"), "weight": 0.5}
    after = []
    for sharded in (False, True):
        one = engine(sharded=sharded, distillation=teacher)
        held = [x.addressable_shards[0].data.size < x.size for x in jax.tree.leaves(one._given)]
        assert any(held) == sharded
        state, metrics = one.step(one.init(jax.random.key(0)), one.place(rows()), topology=False)
        after.append(jax.device_get((state.params, metrics)))
    assert after[1][1]["distillation/kl"] > 1e-4
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), *after)


@pytest.mark.parametrize(("level", "whole"), [(0.5, False), (0.5005, True)])
def test_kept_values_are_split_where_the_parts_divide_them_and_named_where_not(
    caplog, level, whole
):
    """Half of 32 x 128 are 2,048 values; 2,045.95, rounded either way, is no multiple of 4."""
    sparse = {"sparsity": level, "compute": "csr"}
    one = engine(sharded=True, model={"filter_size": 128}, sparsity=sparse)
    with caplog.at_level("INFO", "wafer"):
        state = one.init(jax.random.key(0))
    values = state.params["layers_0"]["ffn"]["up"]["kernel"]
    assert (values.addressable_shards[0].data.size == values.size) == whole
    (said,) = (x.getMessage() for x in caplog.records if "Sharded state" in x.getMessage())
    assert ("layers_0/ffn/up/kernel" in said) == whole


def test_every_system_holds_its_part_of_weights_and_moments():
    state = engine(sharded=True).init(jax.random.key(0))
    held = [(x.addressable_shards[0].data.size, x.size) for x in jax.tree.leaves(state)]
    assert all(part == (size // 4 if size >= 1024 else size) for part, size in held)
    assert sum(size >= 1024 for _, size in held) == 3 * 7  # weights and two moments


@pytest.mark.parametrize("name", [name for name, row in ENGINES.items() if not row.shards])
def test_engines_without_parts_refuse_the_key(name):
    cfg = config(runconfig={"shard_state": True, "execution_strategy": name})
    with pytest.raises(ConfigError, match=rf"shard_state: {name} keeps no parts"):
        check(Experiment.from_config(parse_config(cfg)))


def test_an_algorithm_that_computes_from_whole_weights_is_refused():
    sparse = {"algorithm": "sr-ste", "sparsity": 0.5, "stop": 2}
    cfg = config(sparsity=sparse, runconfig={"shard_state": True})
    experiment = Experiment.from_config(parse_config(cfg))
    with pytest.raises(ConfigError, match="is computed from all of its weights"):
        check(experiment, engine_row("resident"))
