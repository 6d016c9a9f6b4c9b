"""Schedulers of a ``trainer``: every key of every nesting has its effect, or is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from helpers.runs import TINY, TINY_ROWS, write_yaml

from wafer.cli import main
from wafer.errors import ConfigError
from wafer.models.paths import named_leaves
from wafer.optim.chain import learning_rates, make_optimizer
from wafer.optim.schedule_sections import parse_schedules
from wafer.vendor.runfile import read
from wafer.vendor.trainer import as_trainer, upgrade

NAMES = ("embed/token/embedding", "layers_0/up/kernel", "layers_0/up/bias")
PARAMS = {
    "embed": {"token": {"embedding": jnp.ones(1)}},
    "layers_0": {"up": {"kernel": jnp.ones(1), "bias": jnp.ones(1)}},
}
KINDS = [("embed", "emb"), ("layers", "rest")]
TAGS = [{"params": "embed/*", "tag": "emb"}, {"params": "layers_0/*", "tag": "rest"}]


def linear(first, last, steps, **keys):
    ends = {"initial_learning_rate": first, "end_learning_rate": last}
    return {"LinearLR": ends | {"total_iters": steps} | keys}


def held(*entries, name="SequentialLR", **keys):
    return {name: {"schedulers": list(entries), **keys}}


def scaled(entry, **keys):
    return {"ScalePerParamLR": {"scheduler": entry, **keys}}


def constant(value, **keys):
    return {"ConstantLR": {"learning_rate": value, **keys}}


def section_of(schedulers, **optimizer):
    keys = {"params": TAGS} | optimizer
    init = {"optimizer": {"SGD": keys}, "schedulers": schedulers}
    return read({"trainer": {"init": init}}).sections["optimizer"]


def rates_at(section, *steps):
    """Return by parameter what SGD subtracts from it at each step, for a gradient of 1."""
    tx = make_optimizer(section, PARAMS)
    state, ones, out = tx.init(PARAMS), PARAMS, {name: [] for name in NAMES}
    for step in range(max(steps) + 1):
        updates, state = tx.update(ones, state, PARAMS)
        if step in steps:
            for name, leaf in named_leaves(updates):
                out[name].append(round(-float(leaf[0]), 6))
    return out


WARM_UP = (linear(0.0, 1.0, 4), linear(1.0, 0.0, 10))


EMB, REST = {"param_group_tags": ["emb"]}, {"param_group_tags": ["rest"]}
NULL = {"param_group_tags": [None, "rest"]}  # parameters without a tag, of which there are none
FALLING = linear(2.0, 1.0, 10)
WARM, PRODUCT = [0.0, 0.25, 0.75, 0.8], [1.0, 0.9 * 0.95, 0.7 * 0.85, 0.4 * 0.7]
EACH_RATE = [
    # the tags of the outer classes
    (
        [held(*WARM_UP, **REST), held(linear(0.0, 0.2, 2), linear(0.2, 0.0, 10), **EMB)],
        {},
        [0.0, 0.1, 0.18, 0.12],
        WARM,
    ),
    # one with tags: the number of the optimizer is for the others
    ([held(*WARM_UP, param_group_tags="emb")], {"lr": 0.5}, WARM, [0.5] * 4),
    ([held(*WARM_UP, **NULL), constant(0.3, **EMB)], {}, [0.3] * 4, WARM),
    # milestones that say the same, and a sequence in a sequence
    (
        held(WARM_UP[0], held(linear(1.0, 0.0, 2), constant(0.1)), milestones=[4]),
        {},
        [0.0, 0.25, 0.75, 0.1],
        [0.0, 0.25, 0.75, 0.1],
    ),
    # a product: 1 - t / 10 times (2 - t / 10) / 2
    (held(linear(1.0, 0.0, 10), FALLING, name="ChainedLR"), {}, PRODUCT, PRODUCT),
    # a product for some, in any case of the names, scaled
    (
        [
            scaled(held(constant(1.0), FALLING, name="chainedscheduler"), **EMB),
            scaled(constant(0.5, **REST), **REST),
        ],
        {"adjust_learning_rate": {"emb": 0.5}},
        [0.5, 0.475, 0.425, 0.35],
        [0.5] * 4,
    ),
]


@pytest.mark.parametrize(("schedulers", "optimizer", "embed", "other"), EACH_RATE)
def test_each_parameter_has_the_rate_of_its_schedulers(schedulers, optimizer, embed, other):
    section = section_of(schedulers, **optimizer)
    expected = dict(zip(NAMES, (embed, other, other), strict=True))
    known = rates_at(section, 0, 1, 3, 6)
    for name in NAMES:
        np.testing.assert_allclose(known[name], expected[name], atol=1e-6, err_msg=name)
    trainer, left = as_trainer({"optimizer": section})  # there and back
    assert not left
    assert rates_at(upgrade(trainer).sections["optimizer"], 0, 1, 3, 6) == known


def test_weight_decay_has_tags_and_products_too():
    decays = [
        held({"LinearWD": {"initial_val": 1, "end_val": 0, "total_iters": 4}},
             {"ConstantWD": {"val": 0.5}}, name="SequentialWD", param_group_tags=["rest"]),
    ]  # fmt: skip
    section = section_of([constant(1.0), *decays], weight_decay=0.25)
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    back = read({"trainer": as_trainer({"optimizer": section})[0]}).sections["optimizer"]
    for own in (section, back):
        tx = make_optimizer(own, PARAMS)
        state, seen = tx.init(PARAMS), []
        for _ in range(6):
            updates, state = tx.update(zeros, state, PARAMS)
            up = updates["layers_0"]["up"]
            seen.append([-float(updates["embed"]["token"]["embedding"][0])])
            seen[-1] += [-float(up["kernel"][0]), -float(up["bias"][0])]
        assert [row[0] for row in seen] == [0.25] * 6  # the optimizer's number
        assert [row[1] for row in seen] == [1.0, 0.75, 0.5, 0.25, 0.5, 0.5]
        assert [row[2] for row in seen] == [0.0] * 6


CHAINED, WD = held(*WARM_UP, name="ChainedLR"), {"ConstantWD": {"val": 1}}
TAGGED = held(linear(0, 1, 4, **EMB), constant(1.0))
TWO = [constant(1, param_group_tags=["emb", "rest"]), constant(2, **REST)]
UNTAGGED = [constant(1, param_group_tags=[None]), constant(2, **REST)]
SCALED = [scaled(constant(1), **EMB), constant(1, **REST)]


@pytest.mark.parametrize(
    ("schedulers", "path", "says"),
    [
        (held(*WARM_UP, milestones=[3]), "SequentialLR.milestones", r"\[3\]: .* end at \[4\]"),
        (held(*WARM_UP, milestones=4), "SequentialLR.milestones", "drop the key"),
        (held(*WARM_UP, last_epoch=2), "SequentialLR.last_epoch", "begins at step 0"),
        (held(*WARM_UP, total_iters=9), "SequentialLR.total_iters", "unknown key; Seq"),
        (held(*WARM_UP, milestone=[4]), "SequentialLR.milestone", "mean 'milestones'"),
        (held(), "SequentialLR.schedulers", "no scheduler"),
        (held(*WARM_UP, name="ChainedLR", milestones=[4]), "ChainedLR.milestones", "unknown"),
        (scaled(WARM_UP[0], milestones=[4]), "ScalePerParamLR.milestones", "unknown"),
        (held(scaled(constant(1.0))), "schedulers[0].ScalePerParamLR", "put SequentialLR into"),
        (TAGGED, "SequentialLR.schedulers[0].LinearLR.param_group_tags", "write them at Sequen"),
        (held(WARM_UP[0], CHAINED), "schedulers[1].ChainedLR", "not supported"),
        (held(WD), "schedulers[0].ConstantWD", "of the learning_rate"),
        ({"ScalePerParamWD": {"scheduler": WD}}, "schedulers.ScalePerParamWD", "does not scale"),
        ({"LinearLR": {"main_scheduler": "chained"}}, "LinearLR.main_scheduler", "unknown key"),
        (list(WARM_UP), "schedulers[1].LinearLR", "acts on the same parameters"),
        (TWO, "schedulers[1].ConstantLR", "acts on the tag 'rest'"),
        (UNTAGGED, "schedulers[0].ConstantLR.param_group_tags", "none is for 'emb'"),
        (SCALED, "schedulers[1].ConstantLR", "not in ScalePerParamLR"),
        (constant(1, param_group_tags=[]), "param_group_tags", "expected a tag"),
    ],
)
def test_a_key_without_an_effect_is_refused(schedulers, path, says):
    factors = {"adjust_learning_rate": {"emb": 0.5}} if schedulers is SCALED else {}
    with pytest.raises(ConfigError, match=says) as caught:
        section_of(schedulers, **factors)
    (problem,) = caught.value.problems
    assert path in str(caught.value)
    assert problem.path[:3] == ("trainer", "init", "schedulers")


def test_a_parameter_follows_one_schedule():
    every = section_of([constant(1, param_group_tags=["emb"])])
    with pytest.raises(ConfigError, match=r"learning_rate: .*layers_0/up/bias has none of these"):
        make_optimizer(every, PARAMS)
    two = [constant(1, param_group_tags=["emb"]), constant(2, param_group_tags="rest")]
    tags = [TAGS[0], {"params": "*", "tag": "rest"}]
    with pytest.raises(ConfigError, match=r"embed/token/embedding follows .* \[emb\] and \[rest\]"):
        make_optimizer(section_of(two, params=tags), PARAMS)
    state = make_optimizer(section_of(two), PARAMS).init(PARAMS)
    assert learning_rates(state).tolist() == [1.0, 2.0]


def test_entries_of_a_list_are_combined_in_one_way():
    entry = {"scheduler": "Constant", "learning_rate": 1.0}
    with pytest.raises(ConfigError, match=r"\[1\].main_scheduler: 'chained': the first"):
        parse_schedules([entry | {"total_iters": 2}, entry | {"main_scheduler": "chained"}])
    tagged = entry | {"param_group_tags": ["a"]}
    first = entry | {"main_scheduler": "chained"}
    with pytest.raises(ConfigError, match=r"\[2\]: .* needs 'total_iters'"):
        parse_schedules([first, entry, tagged, tagged])


def test_the_commands_write_the_same_meaning(tmp_path):
    sgd = {"SGD": {"params": [{"params": f"*{n}*", "tag": t} for n, t in KINDS]}}
    init = {"model": TINY, "optimizer": sgd, "loop": {"max_steps": 9}}
    raw = {"trainer": {"init": init, "fit": {"train_dataloader": TINY_ROWS}}}
    product = held(constant(1.0), FALLING, name="ChainedLR", **EMB)
    init["schedulers"] = [held(*WARM_UP, **NULL), product]
    name, out = str(write_yaml(tmp_path / "params.yaml", raw)), tmp_path / "out.yaml"
    known = upgrade(raw["trainer"]).sections["optimizer"]["learning_rate"]
    assert len(known) == 4
    assert main(["config", "upgrade", name, "-o", str(out)]) == 0
    upgraded = yaml.safe_load(out.read_text())["optimizer"]["learning_rate"]
    assert parse_schedules(upgraded) == parse_schedules(known)
    arguments = ["--model", "gpt2", "--src-fmt", "cs-2.4", "--tgt-fmt", "cs-2.5", "-o"]
    assert main(["convert", "convert-config", *arguments, str(tmp_path / "o"), name]) == 0
    (written,) = (tmp_path / "o").iterdir()
    again = upgrade(yaml.safe_load(written.read_text())["trainer"]).sections["optimizer"]
    assert parse_schedules(again["learning_rate"]) == parse_schedules(known)
