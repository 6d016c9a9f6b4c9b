"""The scaling model: hand-computed stages, the published curve, and the command."""

import dataclasses

import jax
import pytest
import yaml
from helpers.runs import config

from wafer import models
from wafer.commands.planning.plan import plan
from wafer.errors import ConfigError
from wafer.roofline import (
    MACHINES,
    StageCost,
    SystemRates,
    costs,
    measure_host,
    predict,
    predict_sharded_bytes,
    predict_sharded_seconds,
)

UNIT = SystemRates(
    name="unit", flops=10.0, memory=1e9, fetch=2.0, reduce=4.0, hop=0.5, store=100.0, capacity=1.0
)


def test_two_stages_by_hand():
    """A: 8 bytes, 60 operations; B, the last: 4 bytes, 20 operations; 2 systems share the work."""
    stages = [
        StageCost(name="A", weights=8, flops=60, activations=0, fresh=8),
        StageCost(name="B", weights=4, flops=20, activations=0, fresh=4),
    ]
    one = predict(stages, UNIT, 1, state_ratio=2.0, recompute=True)
    # A: down max(6, 4), up max(18, 4); B: both ways 2 + 4, once.
    assert one.stages == {"A": (6.0, 18.0), "B": (0.0, 6.0)}
    assert one.seconds == pytest.approx(30.0)
    assert one.waited == pytest.approx(0.0)
    two = predict(stages, UNIT, 2, state_ratio=2.0, recompute=False)
    # A: down max(3, 4) waits for its weights, up max(6, 4, 2); B: 1 + max(2, 2, 1); hops of 0.5.
    assert two.stages == {"A": (4.5, 6.5), "B": (0.5, 3.5)}
    assert two.seconds == pytest.approx(15.0)
    assert two.waited == pytest.approx(1.0)
    assert two.latency == pytest.approx(2.0)
    assert two.streamed == 2 * 8 + 8 + 4 + 4


SHARDED = [
    StageCost(name="A", weights=8, flops=60, activations=2, fresh=8, products=6, kept=4),
    StageCost(name="B", weights=4, flops=20, activations=2, fresh=4, products=2, kept=2),
]
STORED = {"weights": 24, "moments": 48}  # twice the bytes that travel


def test_the_time_of_a_sharded_step_of_two_stages_by_hand():
    """Gathers twice, one reduction, hops of 0.5 each."""
    # A: work 3 * 3, traffic 3 * 2 * 8 / 4, 3 hops; B: 3, 3 * 2 * 4 / 4, 3 hops.
    seconds = predict_sharded_seconds(SHARDED, UNIT, 2, **STORED)
    assert seconds == pytest.approx((9 + 12 + 1.5) + (3 + 6 + 1.5))
    assert predict_sharded_seconds(SHARDED, UNIT, 1, **STORED) == pytest.approx(18 + 6)


TWICE = [dataclasses.replace(SHARDED[0], uses=2), SHARDED[1]]


@pytest.mark.parametrize(
    ("stages", "systems", "options", "peak"),
    [
        # A, last: (72 + 24) / 2 of parts, 2 * 16 of A, 2 + 4 kept and 6 of gradients in 2 shares.
        (SHARDED, 2, {}, 48 + 32 + (6 + 6) / 2),
        # B: (72 + 8) / 2 of parts, 2 * 8 and a copy, 10 kept and 2 of gradients.
        (SHARDED, 2, {"transposed": [0, 40]}, 40 + 16 + 40 + (10 + 2) / 2),
        (SHARDED, 1, {}, 96 + 12),
        (SHARDED, 2, {"copied": 0.5}, 96 * 3 / 4 + 16 + 6),
        (SHARDED, 2, {"accumulates": True}, 60 + 32 + 6),
        (TWICE, 2, {}, 48 + 48 + 6),
    ],
)
def test_the_memory_of_a_sharded_step_of_two_stages_by_hand(stages, systems, options, peak):
    assert predict_sharded_bytes(stages, systems, **STORED, **options) == peak


def test_a_number_that_divides_no_axis_saves_no_memory():
    """The engine copies such arrays, so that the plan must."""
    wide = {"hidden_size": 64, "filter_size": 128, "vocab_size": 64, "num_hidden_layers": 4}
    file = config(model=wide, train_input={"vocab_size": 64, "max_sequence_length": 4})
    parts = {p.systems: p.sharded_memory for p in plan(file, num_csx=(1, 3, 4)).predictions}
    assert parts[4] < 0.7 * parts[1]
    assert parts[3] == pytest.approx(parts[1])


def test_stage_costs_add_up_to_the_model():
    model = models.build(
        {"name": "gpt2", "vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 3,
         "num_heads": 2, "filter_size": 64, "max_position_embeddings": 32}
    )  # fmt: skip
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    stages = costs(model, shapes, 64, 32, bytes_each=2)
    per_token = models.flops_per_token(model, 32, training=False)
    assert sum(s.flops for s in stages) == pytest.approx(64 * per_token)
    total = 2 * models.parameter_count(model)
    assert sum(s.fresh for s in stages) == total  # the tied table is updated once
    assert sum(s.weights for s in stages) == total + 2 * (100 + 32) * 16  # and read twice


GPT3_SIZES = {  # the vendor's own table of configurations, 256 M to 20 B parameters
    "256M": (14, 1088, 17, 4352),
    "1.3B": (24, 2048, 16, 8192),
    "6.7B": (32, 4096, 32, 16384),
    "20B": (44, 6144, 64, 24576),
}


@pytest.mark.parametrize("size", GPT3_SIZES)
def test_more_systems_are_faster_and_none_beyond_its_share(size):
    layers, width, heads, filters = GPT3_SIZES[size]
    cfg = config(
        model={"num_hidden_layers": layers, "hidden_size": width, "num_heads": heads,
               "filter_size": filters, "vocab_size": 50257, "max_position_embeddings": 2048},
        train_input={"batch_size": 16, "max_sequence_length": 2048, "vocab_size": 50257},
        eval_input={"vocab_size": 50257},
    )  # fmt: skip
    scaling = plan(cfg, [1, 2, 4, 8, 16])
    first, *_, last = scaling.predictions
    speedups = [p.systems * first.seconds / p.seconds for p in scaling.predictions]
    assert speedups == sorted(speedups)
    assert all(s <= p.systems * 1.0001 for s, p in zip(speedups, scaling.predictions, strict=True))
    assert last.memory < MACHINES["cs2"].capacity
    assert scaling.parameters > 2e8


def test_this_host_is_measured_and_shared():
    host = measure_host()
    assert host.shared
    assert 1e8 < host.flops < 1e14
    stages = [StageCost(name="A", weights=1e6, flops=1e9, activations=1e5, fresh=1e6)] * 2
    steady = dataclasses.replace(host, hop=0.0)
    one = predict(stages, steady, 1, state_ratio=2.0, recompute=True)
    two = predict(stages, steady, 2, state_ratio=2.0, recompute=True)
    assert two.seconds >= one.seconds  # two systems of one host have no more cores


def test_the_command_prints_a_row_per_number_of_systems(tmp_path, cli):
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(config()))
    out = cli(f"plan -p {path} --num_csx 1,4 --stages")
    assert all(part in out for part in ("100.0%", "layers_0", "data sheet", "Sharded state"))
    assert "expected whole numbers > 0" in cli(f"plan -p {path} --num_csx 0", 1)
    cfg = config(runconfig={"mode": "eval"})
    del cfg["train_input"]
    with pytest.raises(ConfigError, match="needs train_input"):
        plan(cfg, [1])
    with pytest.raises(ConfigError, match="machine: 'cs3'; there are cs2, h200 and host"):
        plan(config(), machine="cs3")
