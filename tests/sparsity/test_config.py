"""Sparsity sections, and one clear error for every mistake."""

import itertools
import logging
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import sparsity
from wafer.sparsity import SET, Dynamic, RigL, SparsityError, Static, configure
from wafer.sparsity.algorithms.inband import InBandStatic
from wafer.sparsity.filters import ParamFilter
from wafer.sparsity.schedules import (
    NEVER,
    ConstantValue,
    Cosine,
    CustomUpdate,
    Cycling,
    Every,
    UpdateSteps,
)
from wafer.sparsity.views import Blocks, FanIn, NofM, RowGroups


def only(section, **kw):
    (group,) = configure(section, **kw).groups
    return group


def test_a_number_is_static_on_the_default_parameters():
    rule, algorithm = only(0.9)
    assert rule == ParamFilter()
    assert algorithm == Static(sparsity=0.9)
    assert only({"sparsity": 0.9}) == (rule, algorithm)
    assert only("9e-1") == (rule, algorithm)  # PyYAML reads 9e-1 as a string


@pytest.mark.parametrize("section", [None, {"sparsity": None}, []])
def test_null_means_dense(section):
    assert not configure(section)


def test_every_key_of_release_22():
    section = {
        "algorithm": "RigL",
        "sparsity": 0.8,
        "drop_fraction": {"type": "Cosine", "init": 0.3, "half_period": 75},
        "update": {"freq": 10, "stop": 75},
        "init_method": "topk",
        "param_filter": ["*kernel", "*weight"],
        "balance_out_groups": 4,
        "compute": "masked",
    }
    rule, algorithm = only(section)
    assert rule == ParamFilter("glob", ("*kernel", "*weight"))
    assert algorithm == RigL(
        sparsity=ConstantValue(0.8),
        drop_fraction=Cosine(0.3, 75.0),
        update=Every(10, 0, 75),
        init_method="topk",
        structure=RowGroups(4),
        compute="masked",
    )


def test_a_list_is_a_group_and_the_first_match_wins():
    sparsifier = configure(
        [
            {"param_filter": "a/*", "sparsity": 0.5},
            {"algorithm": "set", "sparsity": 0.7},
            ("b/*", RigL(sparsity=0.9)),
        ],
        requires_dense=["c/frozen"],
    )
    assert [type(a) for _, a in sparsifier.groups] == [Static, SET, RigL]
    assert sparsifier.group_of("a/kernel", 2) == sparsifier.group_of("a/bias", 1) == 0
    assert sparsifier.group_of("b/kernel", 2) == 1
    assert sparsifier.group_of("b/bias", 1) == 2
    assert sparsifier.group_of("c/bias", 1) is None
    assert sparsifier.group_of("c/frozen", 2) is None


def test_default_exclusions_and_the_vendors_names():
    aliases = {"h/attn/q": "decoder.proj_q_dense_layer.weight"}
    default = configure(0.5)
    for name in ("x/Embedding/table", "ln/NormScale", "lm_head/kernel", "pe_helper/w"):
        assert default.group_of(name, 2) is None
    assert default.group_of("h/attn/q", 2) == 0
    globs = configure(
        {"sparsity": 0.5, "param_filter": "*proj_[qkv]_dense_layer.weight"},
        aliases=lambda name: aliases.get(name, name),
    )
    assert globs.group_of("h/attn/q", 2) == 0
    assert globs.group_of("h/attn/o", 2) is None
    everything = configure({"sparsity": 0.5, "param_filter": "*"})
    assert everything.group_of("ln/NormScale", 1) == 0  # globs bypass the exclusions


def test_masks_of_a_seed_and_kinds_of_filters():
    section = {"algorithm": "seeded", "sparsity": 0.3, "init_method": "topk", "seed": 1234}
    rule, algorithm = only(section | {"param_filter": {"regex": ["ffn.*weight"]}})
    assert rule == ParamFilter("regex", ("ffn.*weight",))
    assert algorithm == InBandStatic(sparsity=0.3, init_method="topk", seed=1234)
    rule, _ = only({"sparsity": 0.3, "param_filter": {"exclude": ["norm"]}})
    assert rule == ParamFilter("default", ("norm",))


def test_updates_may_be_whole_numbers_or_functions():
    _, algorithm = only({"algorithm": "set", "sparsity": 0.5, "update": 20})
    assert algorithm.update == Every(20)
    _, algorithm = only({"algorithm": "set", "sparsity": 0.5, "update": lambda t: t == 3})
    assert algorithm.update(3)
    assert not algorithm.update(4)


gmp = lambda **schedule: {"algorithm": "gmp", "schedule": schedule}
pattern = lambda kind, **keys: {"pattern": {"type": kind} | keys}
SOME, SETS = {"sparsity": 0.5}, {"algorithm": "set", "sparsity": 0.5}
SEEDED, ACDC = SOME | {"algorithm": "seeded"}, SOME | {"algorithm": "acdc"}
TOPKAST, SR_STE = SOME | {"algorithm": "topkast"}, SOME | {"algorithm": "sr-ste", "stop": 9}
GROUPS, PHASES = {"balance_in_groups": 2}, {"freq": 10, "start": 10, "stop": 30}
MISTAKES = [
    (1, r"sparsity must be a float with 0.0 <= sparsity < 1.0, got 1"),
    (True, "got True"),
    (1.0, "got 1.0"),
    (-0.1, "got -0.1"),
    ({"sparsity": 0}, r"sparsity\.sparsity: .*got 0"),
    ({"sparsity": 2.0}, "sparsity"),
    ({"sparsity": float("nan")}, "sparsity"),
    ({"sparsity": -5.0}, "sparsity"),
    ({"algorithm": "rigl", "sparsity": -5.0}, "sparsity: expected a number from 0 to 1, got -5"),
    (SOME | {"schedule": [0.1]}, "name the same thing"),
    (SOME | {"budget": "erq"}, r"unknown budget 'erq'.*did you mean 'erk'"),
    (SOME | {"budget": "erk"}, "need the model"),
    ({"algorithm": "rigl"}, "no level"),
    (SOME | {"algorithm": "rigel"}, "unknown algorithm 'rigel'.*mean 'rigl'"),
    (SOME | {"init_method": "tokp"}, "random, topk, from_zeros, checkerboard.*mean 'topk'"),
    (SOME | {"algorithm": "gmp"}, "gmp needs a schedule"),
    ({"algorithm": "gmp", "schedule": [0.1], "drop_fraction": 0.1}, "gmp takes no drop_frac"),
    ({"algorithm": "gmp", "schedule": [0.5, 1.5]}, r"schedule\[1\]: expected a number from 0"),
    (gmp(type="exp", init=0.1, gamma=float("inf")), "gamma: expected a number, got inf"),
    (gmp(type="linear", init=-3.0, slope=0.1), "init: expected a number from 0 to 1, got -3"),
    (gmp(type="cosine", init=0.1, half_period=0), "half_period: expected steps above 0, got 0"),
    (gmp(type="cubic", final=0.9, start=5, stop=5), "with 0 <= start < stop, got 5 and 5"),
    (gmp(type="quartic"), "unknown schedule 'quartic'"),
    (gmp(type="linear", init=0), r"missing \['slope'\]"),
    ({"algorithm": "set", "schedule": []}, "one or more numbers"),
    ({"algorithm": "set", "schedule": ["x"]}, "one or more numbers"),
    (SOME | {"update": {"freq": 2}}, "static takes no update"),
    (SOME | {"drop_fraction": 0.1, "update": {"freq": 2}}, "no update and no drop_fraction"),
    (SOME | {"param_fliter": "*"}, r"sparsity\.param_fliter: unknown.*'param_filter'"),
    ({"algoritm": "set", "sparsity": 0.5}, r"algoritm: unknown key; did you mean 'algorithm'\?"),
    (SOME | {"param_filter": {"*": 1}}, "a dict is not a filter"),
    (SOME | {"param_filter": {"regex": ["fc("]}}, r"'fc\(' is no regex"),
    (SETS | GROUPS | {"balance_out_groups": 2}, "exclude each other"),
    (SETS | {"update": {"freq": 0}}, r"update\.freq"),
    (SETS | {"update": {"every": 3}}, "unknown key"),
    (SETS | {"update": {}}, "either freq"),
    (SETS | {"update": {"steps": [1], "stop": 3}}, "go with freq"),
    (SETS | {"drop_fraction": float("nan")}, "drop_fraction"),
    (SOME | {"compute": "fast"}, r"sparsity\.compute"),
    ([[0.5]], "cannot hold another group"),
    ([0.5, {"sparsity": 2.0}], r"sparsity\[1\]\.sparsity"),
    (SEEDED | {"seed": "x"}, r"sparsity\.seed: 'x': expected"),
    (SEEDED | {"init_method": "checkerboard"}, "random, topk"),
    (SEEDED | {"update": 3}, "takes no update"),
    (SOME | {"seed": 1}, r"sparsity\.seed: unknown"),
    (pattern("n:m", n=4, m=4), r"n=4 must be below m=4"),
    ({"pattern": "4:2"}, r"n=4 must be below m=2"),
    ({"pattern": "2:4:8"}, r"'2:4:8': expected N:M such as '2:4', or keys"),
    (pattern("n:m", n=2, m=4) | {"sparsity": 0.9}, "has the level 0.5"),
    (pattern("block", size=0) | SOME, r"pattern.*size"),
    (pattern("block", size=4), "no level"),
    (pattern("hexagon") | SOME, "n:m"),
    (pattern("constant_fan_in") | SOME | GROUPS, "balance_in_groups and pattern exclude each"),
    (ACDC | {"update": 10}, "acdc needs its phases"),
    (ACDC | {"update": PHASES}, "2 changes end on a dense phase; stop: 20"),
    (ACDC | {"update": {"freq": 10}, "init_method": "topk"}, "acdc takes no init_method"),
    (TOPKAST, "stop"),
    (TOPKAST | {"stop": 0}, "expected a step from 1, got 0"),
    (TOPKAST | {"stop": 9, "backward_sparsity": 0.9}, "from 0 to the level 0.5"),
    (TOPKAST | {"stop": 9, "compute": "csr"}, "use masked"),
    (SR_STE | {"penalty": -1.0}, "must not be negative"),
    (SR_STE | {"update": 3}, "takes no update"),
    (SOME | {"algorithm": "rigl", "grown_moments": "kept"}, "grown_moments.*zero.*mean"),
]


@pytest.mark.parametrize(("section", "says"), MISTAKES)
def test_mistakes_are_named(section, says):
    with pytest.raises(SparsityError, match=f"(?s){says}"):
        configure(section)


def test_nothing_matched_is_a_warning(caplog):
    sparsifier = configure({"sparsity": 0.5, "param_filter": "nothing"})
    with caplog.at_level(logging.WARNING, "wafer.sparsity"):
        assert sparsifier.select({"a": {"kernel": jnp.ones((2, 2))}}) == {}
    assert "no parameter matches nothing" in caplog.text


def test_users_own_algorithms():
    class Twice(Dynamic):
        """Grows where the weight index is even."""

        def grow_scores(self, ctx):
            return (
                (jnp.arange(ctx.weight.size) % 2 == 0).astype(jnp.float32).reshape(ctx.weight.shape)
            )

    by_class = only({"algorithm": Twice, "sparsity": 0.5, "update": 3})[1]
    assert isinstance(by_class, Twice)
    assert by_class.update == Every(3)
    by_scores = only(Dynamic(sparsity=0.5, grow=lambda ctx: -ctx.weight))[1]
    assert by_scores.drop_fraction == ConstantValue(0.3)
    with pytest.raises(TypeError, match="Dynamic has no grow scores"):
        Dynamic(sparsity=0.5).grow_scores(None)


def test_the_cubic_of_zhu_and_gupta_by_hand(caplog):
    """0.9 - 0.9 (1 - (t - 4) / 8)^3: 0.9 (1 - 27/64) a quarter, 0.9 * 7/8 half of the way."""
    cubic = {"type": "cubic", "final": 0.9, "start": 4, "stop": 12}
    section = {"algorithm": "gmp", "schedule": cubic, "update": {"freq": 2}}
    ((_, algorithm),) = configure(section).groups
    levels = [algorithm.sparsity.at(t) for t in (0, 4, 6, 8, 12, 99)]
    np.testing.assert_allclose(levels, [0, 0, 0.9 * 37 / 64, 0.9 * 7 / 8, 0.9, 0.9], rtol=1e-6)
    assert algorithm.sparsity.min_max_end() == pytest.approx((0, 0.9, 0.9))
    never = {"type": "power", "init": 0.0, "beta": 2.0}
    rule = configure(section | {"schedule": never})
    rule.init({"kernel": np.ones((32, 32), np.float32)}, jax.random.key(0))
    assert "is 0 at every step, so nothing is pruned" in caplog.text


def test_a_function_is_a_schedule():
    bounds = sparsity.schedules.schedule(lambda t: t * 0.01).min_max_end(0, 50)
    assert bounds == pytest.approx((0.0, 0.5, 0.5))


@pytest.mark.parametrize(
    "update",
    [Every(7), Every(5, 3), Every(5, 3, 20), Every(9, 40), UpdateSteps((2, 9, 31)), NEVER,
     CustomUpdate(lambda step: step == 11)],
)  # fmt: skip
def test_steps_that_are_due_between_two(update):
    """As asking for each step, and at once however many there are."""
    for begin, end in itertools.product(range(0, 45, 3), range(0, 45, 4)):
        assert update.due_between(begin, end) == any(map(update, range(begin, end)))
    rest = not isinstance(update, UpdateSteps | CustomUpdate) and getattr(update, "stop", 1) is None
    assert update.due_between(100, 2**31) == rest


@pytest.fixture
def registered():
    """Algorithms registered in the test are forgotten after it."""
    before = dict(sparsity.ALGORITHMS)
    yield
    sparsity.ALGORITHMS.clear()
    sparsity.ALGORITHMS.update(before)


def test_a_registered_algorithm_needs_nothing_else(registered):
    @sparsity.register("Keep_Last")
    class KeepLast(sparsity.Algorithm):
        rows: int
        share: float = 0.5

    assert only({"algorithm": "keep_last", "sparsity": 0.5, "rows": 3})[1] == KeepLast(
        sparsity=0.5, rows=3
    )
    with pytest.raises(SparsityError, match=r"sparsity\.rows: missing, and there is no default"):
        configure({"algorithm": "keep_last", "sparsity": 0.5})
    with pytest.raises(SparsityError, match=r"sparsity\.shar: unknown key; did you mean 'share'"):
        configure({"algorithm": "keep_last", "sparsity": 0.5, "rows": 3, "shar": 1.0})
    with pytest.raises(SparsityError, match=r"unknown algorithm 'keep_lats'.*mean 'keep_last'"):
        configure({"algorithm": "keep_lats", "sparsity": 0.5})
    with pytest.raises(SparsityError, match=r"sparsity\.algorithm: 'no_module:X'"):
        configure({"algorithm": "no_module:X", "sparsity": 0.5})
    with pytest.raises(ValueError, match=r"'keep_last' is .*KeepLast"):
        sparsity.register("keep_last")(RigL)


NEEDED = {
    "gmp": {"schedule": [0.3, 0.5]},
    "acdc": {"sparsity": 0.5, "update": {"freq": 10, "start": 10, "stop": 20}},
    "topkast": {"sparsity": 0.5, "stop": 10},
    "sr-ste": {"sparsity": 0.5, "stop": 10},
}


@pytest.mark.parametrize("name", sorted(sparsity.ALGORITHMS))
def test_every_registered_name_is_its_own_class(name):
    """A name once trained RigL when the parser had no branch for it."""
    keys = NEEDED.get(name, {"sparsity": 0.5})
    assert type(only({"algorithm": name.upper()} | keys)[1]) is sparsity.ALGORITHMS[name]


def test_a_section_is_parsed_before_devices_are_chosen():
    """JAX refuses a number of devices once it has begun with the default one."""
    code = f"""
import jax
from wafer import sparsity
for name in sparsity.ALGORITHMS:
    sparsity.parse({{"algorithm": name}} | {NEEDED}.get(name, {{"sparsity": 0.5}}))
jax.config.update("jax_num_cpu_devices", 2)
assert jax.device_count() == 2
"""
    env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def test_a_section_is_parsed_once():
    section = {"algorithm": "rigl", "sparsity": 0.8}
    groups = sparsity.parse(section)
    assert groups.section is section
    assert sparsity.parse(groups) is groups
    assert configure(groups).groups is groups


def test_patterns_are_structures_that_every_algorithm_knows():
    pattern = {"type": "n:m", "n": 2, "m": 4}
    _, algorithm = only({"pattern": pattern})
    assert only({"pattern": "2:4"})[1] == algorithm
    assert algorithm == Static(sparsity=0.5, structure=NofM(2, 4))
    _, rigl = only({"algorithm": "rigl", "sparsity": 0.75, "pattern": pattern | {"n": 1}})
    assert rigl.structure == NofM(1, 4)
    assert only({"sparsity": 0.9, "pattern": {"type": "block", "size": [4, 8]}})[1].structure == (
        Blocks(inputs=4, outputs=8)
    )
    fan = {"sparsity": 0.9, "pattern": {"type": "constant_fan_in"}}
    assert only(fan)[1].structure == FanIn()
    gmp = {"algorithm": "gmp", "schedule": [0.25, 0.5], "update": 10, "pattern": pattern}
    assert only(gmp)[1].sparsity == Cycling((0.25, 0.5))


@pytest.mark.parametrize(("n", "m"), [(1, 3), (2, 3), (1, 7), (5, 7), (3, 10), (2, 4)])
def test_the_level_of_n_of_m_keeps_n(n, m):
    weight = jnp.arange(1.0, 2 * m + 1).reshape(m, 2)  # [in, out]
    sparsifier = configure({"pattern": {"type": "n:m", "n": n, "m": m}, "init_method": "topk"})
    (mask,) = sparsifier.masks(sparsifier.init({"kernel": weight}, jax.random.key(0))).values()
    assert mask.sum(0).tolist() == [n, n]
    assert mask[-n:].all()  # the largest


def test_a_pattern_that_does_not_fit_a_weight_is_said():
    sparsifier = configure({"pattern": {"type": "block", "size": 4}, "sparsity": 0.5})
    with pytest.raises(ValueError, match="do not tile its 6 inputs x 8 outputs"):
        sparsifier.select({"kernel": jnp.zeros((6, 8))})


def test_a_filter_that_matches_nothing_is_refused_where_the_model_is_known():
    params = {"layers_0": {"ffn": {"kernel": jnp.zeros((8, 8))}}}
    section = [
        {"sparsity": 0.5, "param_filter": "*ffn*"},
        {"sparsity": 0.5, "param_filter": "*fnn*"},
    ]
    with pytest.raises(SparsityError, match=r"\*fnn\* matches no parameter.*layers_0/ffn/kernel"):
        configure(section, params=params)
    assert configure(section[0], params=params)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"sparsity": 0.9, "param_filter": "small"}, "small: pruned to 100 %"),
        ({"sparsity": 0.5, "param_filter": "*"}, "bias, norm: biases and norms become sparse"),
        (
            {"algorithm": "gmp", "schedule": [0.3, 0.6], "update": {"freq": 10, "start": 5}},
            "begins again at step 25, with 0.3",
        ),
        (
            {"algorithm": "gmp", "schedule": [0.3, 0.6], "update": {"steps": [1, 4, 7]}},
            "begins again at step 7",
        ),
        ({"algorithm": "gmp", "schedule": [0.3, 0.6], "update": {"freq": 10, "stop": 20}}, None),
        ({"algorithm": "gmp", "schedule": [0.3, 0.6], "update": {"steps": [1, 4]}}, None),
        ({"sparsity": 0.5}, None),
    ],
)
def test_what_may_surprise_is_said_once(caplog, section, says):
    shapes = {"kernel": (4, 8), "small": (2, 2), "bias": (8,), "norm": (8,)}
    params = {name: jnp.ones(shape) for name, shape in shapes.items()}
    sparsifier = configure(section, params=params, accepts=lambda name: False)
    with caplog.at_level(logging.WARNING):
        sparsifier.init(params, jax.random.key(0))
    if says is None:
        assert not caplog.records
    else:
        assert [record.message for record in caplog.records if says in record.message]


def test_adapters_that_become_sparse_are_named(caplog):
    layer = {"kernel": (4, 8), "lora_down": (4, 2), "lora_up": (2, 8)}
    params = {"query": {name: jnp.ones(shape) for name, shape in layer.items()}}
    configure(0.5, params=params).init(params, jax.random.key(0))
    assert "query/lora_down, query/lora_up: LoRA adapters become sparse" in caplog.text


def test_each_pattern_of_a_filter_matches_and_each_group_takes_something():
    """Else what was to be sparse trains dense, or at another group's level."""
    params = {"ffn": {"up": {"kernel": jnp.ones((4, 4))}, "down": {"kernel": jnp.ones((4, 4))}}}
    with pytest.raises(SparsityError, match=r"ffn/pu/kernel matches no .* mean 'ffn/up/kernel'"):
        configure({"sparsity": 0.5, "param_filter": ["*down*", "ffn/pu/kernel"]}, params=params)
    both = [{"sparsity": 0.5, "param_filter": p} for p in ("*kernel", "*up*")]
    with pytest.raises(SparsityError, match=r"\*up\* has no effect: an earlier group takes"):
        configure(both, params=params)
    assert configure(both[::-1], params=params).groups
    with pytest.raises(SparsityError, match="or the model needs it dense"):
        configure(both[1], params=params, requires_dense=["*up*"])
