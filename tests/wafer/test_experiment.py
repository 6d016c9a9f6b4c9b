"""What an Experiment says before there is data, a device or an array."""

import math
import subprocess
import sys

import jax
import pytest
import yaml
from helpers import runs
from helpers.paths import ROOT

from wafer.config import parse_config
from wafer.data.sections.base import MicroBatchRange
from wafer.errors import ConfigError
from wafer.experiment import BatchShape, Experiment, batch_shape
from wafer.sparsity import SparsityError

FILE = ROOT / "models" / "configs" / "gpt_pystdlib.yaml"
PURE = """
import os, sys
import jax
from jax._src import xla_bridge
from wafer.experiment import Experiment
experiment = Experiment.from_yaml(sys.argv[1], num_csx=2, model_dir=sys.argv[2])
assert experiment.batch("train").systems == 2
assert not xla_bridge.backends_are_initialized(), "a backend was started"
assert not os.path.exists(sys.argv[2])
jax.config.update("jax_num_cpu_devices", 2)  # still open
assert jax.device_count() == 2
"""


def test_an_experiment_starts_no_backend_and_writes_no_file(tmp_path):
    """The file has masks, schedules and a tokenizer that is trained on first use."""
    subprocess.run([sys.executable, "-c", PURE, str(FILE), str(tmp_path / "run")], check=True)


def config(**changes):
    cfg = runs.tiny(
        train_input={"batch_size": 24, "micro_batch_size": 4},
        optimizer={"grad_accum_steps": 3},
        runconfig={"num_csx": 2} | changes,
    )
    del cfg["eval_input"]
    return parse_config(cfg)


def test_a_batch_is_laid_out_once():
    experiment = Experiment.from_config(config())
    section = experiment.section("train")
    assert experiment.batch("train") == BatchShape(systems=2, micro_batches=9, rows=4)
    assert experiment.batch("train").samples == 72
    assert batch_shape(section) == BatchShape(1, 6, 4)
    whole = section.model_copy(update={"micro_batch_size": "auto"})
    assert batch_shape(whole, 2) == BatchShape(2, 1, 12)
    assert batch_shape(whole, most=16) == BatchShape(1, 2, 12)
    with pytest.raises(ConfigError, match="eval_input: missing section; there is nothing to eval"):
        experiment.batch("eval")


@pytest.mark.parametrize(("least", "most", "rows"), [(1, 7, 6), (3, 24, 24), (None, 5, 4)])
def test_a_range_of_micro_batches_bounds_the_size_that_is_chosen(least, most, rows):
    """The largest divisor of 24 rows from ``min`` to ``max``."""
    found = {"explore": {key: n for key, n in (("min", least), ("max", most)) if n}}
    section = config().train_input.model_copy(
        update={"micro_batch_size": MicroBatchRange.model_validate(found)}
    )
    assert batch_shape(section) == BatchShape(1, 24 // rows, rows)
    nothing = MicroBatchRange.model_validate({"explore": {"min": 13, "max": 23}})
    with pytest.raises(ConfigError, match="explore from 13 to 23: no size divides 24 rows"):
        batch_shape(section.model_copy(update={"micro_batch_size": nothing}))


def test_the_seed_is_an_argument():
    seeds = (Experiment.from_config(config(), 3), Experiment.from_config(config(seed=5)))
    assert [e.seed for e in seeds] == [3, 5]
    assert Experiment.from_config(config()).seed == 0


def test_sections_without_inputs_are_an_experiment_but_no_run():
    sections = {name: part for name, part in config().to_dict().items() if name != "train_input"}
    experiment = Experiment.from_config(sections)
    missing = "train_input: missing section"
    with pytest.raises(ConfigError, match=missing):
        experiment.section("train")
    with pytest.raises(ConfigError, match=missing):
        parse_config(sections)


def bytes_of(tree):
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("gpt_pystdlib.yaml", {}),
        ("t5/t5_small.yaml", {}),
        ("bert/bert_base_summarization.yaml", {}),  # a bias of one number
        ("gpt_pystdlib.yaml", {"optimizer": {"optimizer_type": "Adafactor", "learning_rate": 0.1}}),
        ("gpt_pystdlib.yaml", {"optimizer": {"optimizer_type": "Lamb", "learning_rate": 0.1}}),
        ("gpt2/gpt2_small_lora.yaml", {}),
    ],
)
def test_the_optimizer_states_size_is_that_of_the_whole_state(path, changes):
    cfg = yaml.safe_load((ROOT / "models" / "configs" / path).read_text()) | changes
    experiment = Experiment.from_config(parse_config(cfg))
    assert experiment.moment_bytes() == bytes_of(
        jax.eval_shape(experiment.tx.init, experiment.shapes)
    )


def test_layers_that_are_alike_are_traced_once(monkeypatch):
    """10,000 layers are checked in seconds because of this."""
    cfg = runs.config()
    cfg["model"]["num_hidden_layers"] = 400
    experiment = Experiment.from_config(parse_config(cfg))
    traced = []

    def counting(fn, shapes):
        traced.extend(shapes)
        return eval_shape(fn, shapes)

    eval_shape = jax.eval_shape
    monkeypatch.setattr(jax, "eval_shape", counting)
    total = experiment.moment_bytes()
    monkeypatch.undo()
    assert sorted(traced) == ["embed", "layers_0", "norm_f"]
    one = experiment.shapes["layers_0"]
    others = {k: v for k, v in experiment.shapes.items() if not k.startswith("layers")}
    assert total == 2 * (400 * bytes_of(one) + bytes_of(others)) + 12  # three counts of steps


BY_COLUMN = """
import jax, optax

def centered(**keys):
    return optax.centralize()

def plain(**keys):
    return optax.scale_by_adam()
"""


def test_an_optimizer_of_the_users_that_reads_axes_keeps_masks(tmp_path, monkeypatch):
    (tmp_path / "reads_axes.py").write_text(BY_COLUMN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    optimizer = {"optimizer_type": "reads_axes:centered", "learning_rate": 0.1}
    made = lambda optimizer, compute: (
        Experiment.from_config(
            config().to_dict() | {"optimizer": optimizer, "sparsity": {"sparsity": 0.5, **compute}}
        ).sparsifier
    )
    auto = made(optimizer, {"compute": "auto"})
    assert not auto.accepts("layers_0/ffn/up/kernel")
    with pytest.raises(SparsityError, match=r"cannot be stored as csr.*or its optimizer"):
        made(optimizer, {"compute": "csr"})
    optimizer["optimizer_type"] = "reads_axes:plain"
    assert made(optimizer, {"compute": "auto"}).accepts("layers_0/ffn/up/kernel")
