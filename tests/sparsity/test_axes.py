"""What the axes of a weight are: levels, patterns, budgets and updates of each layer and expert."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.sparse_loop import context, start
from hypothesis import given, settings, strategies as st

from wafer import sparsity
from wafer.sparsity import SparsityError
from wafer.sparsity.algorithms.masks import INIT_METHODS, init_mask
from wafer.sparsity.views import Blocks, CompetitionRows, FanIn, NofM, RowGroups

KEY = jax.random.key(0)
STRUCTURES = [
    RowGroups(),
    RowGroups(2),
    RowGroups(2, "in"),
    FanIn(),
    NofM(2, 4),
    NofM(2, 4, "out"),
    Blocks(4, 2),
]
SOME = (RowGroups(), NofM(2, 4))
EACH = [
    pytest.param(each, id=str(each), marks=() if each in SOME else pytest.mark.slow)
    for each in STRUCTURES
]


def draw(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from("leiok"), min_size=1, max_size=5),
    st.lists(st.integers(1, 4), min_size=5, max_size=5),
    st.booleans(),
)
def test_rows_are_undone(axes, sizes, on_host):
    shape = tuple(sizes[: len(axes)])
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    view = CompetitionRows("".join(axes))
    rows = view.rows(x if on_host else jnp.asarray(x))
    stacks = math.prod(n for n, axis in zip(shape, axes, strict=True) if axis in "le")
    assert rows.shape == (stacks, x.size // stacks) == (view.groups(shape), view.row_length(shape))
    assert np.array_equal(view.unrows(rows, shape), x)
    assert np.array_equal(view.from_oi(view.to_oi(x), shape), x)
    assert math.prod(view.slice_shape(shape)) * stacks == x.size


@pytest.mark.parametrize("structure", EACH)
@pytest.mark.parametrize(
    ("axes", "stored"),
    [
        ("lio", lambda w: w),  # [4, 8, 8] layers of matrices
        ("eoi", lambda w: w.transpose(0, 2, 1)),
        ("ilo", lambda w: w.transpose(1, 0, 2)),
        ("leiio", lambda w: w.reshape(2, 2, 2, 4, 8)),
        ("lioo", lambda w: w.reshape(4, 8, 2, 4)),
    ],
)
def test_a_stack_is_its_layers(axes, stored, structure):
    """Each method's mask of a stack holds the masks of its layers, in any order of the axes."""
    weight, other = draw(4, 8, 8), draw(4, 8, 8, seed=1)
    one, stack = CompetitionRows("io", structure), CompetitionRows(axes, structure)
    for method in ("topk", "checkerboard"):
        apart = [init_mask(method, layer, 0.5, KEY, one) for layer in weight]
        mask = init_mask(method, stored(weight), 0.5, KEY, stack)
        assert np.array_equal(mask, stored(jnp.stack(apart)))
    at = lambda w, g, mask, view: context(w, g, mask, 0.5, 0.25, view)
    for rule in (sparsity.RigL(sparsity=0.5), sparsity.GMP(sparsity=0.75)):
        mask = jnp.stack([init_mask("topk", layer, 0.5, KEY, one) for layer in other])
        apart = [rule.update_mask(at(*each, one)) for each in zip(weight, other, mask, strict=True)]
        got = rule.update_mask(at(*map(stored, (weight, other, mask)), stack))
        assert np.array_equal(got, stored(jnp.stack(apart)))
    for method in INIT_METHODS:
        drawn = init_mask(method, stored(weight), 0.5, KEY, stack)
        per_layer = np.asarray(stack.rows(drawn)).reshape(4, -1).sum(1)
        assert len({*per_layer.tolist()}) == 1
        assert method == "from_zeros" or per_layer[0] == 32


@pytest.mark.parametrize("structure", EACH)
@pytest.mark.parametrize(
    ("axes", "shape", "matrix"),
    [
        ("ioo", (8, 2, 4), (8, 8)),  # [in, heads, dim]
        ("iio", (2, 4, 8), (8, 8)),  # [heads, dim, out]
        ("iioo", (2, 4, 4, 2), (8, 8)),
    ],
)
def test_heads_join_to_a_matrix(axes, shape, matrix, structure):
    weight = draw(*matrix)
    for method in ("random", "topk", "checkerboard"):
        flat = init_mask(method, weight, 0.5, KEY, CompetitionRows("io", structure))
        view = CompetitionRows(axes, structure)
        mask = init_mask(method, weight.reshape(shape), 0.5, KEY, view)
        assert np.array_equal(mask, flat.reshape(shape))


@pytest.mark.parametrize(("layout", "axes"), [("io", "kkio"), ("oi", "oikk"), ("io", "kio")])
def test_io_and_oi_are_letters_of_convolutions(layout, axes):
    weight = draw(*(4,) * len(axes))
    for structure, method in itertools.product(STRUCTURES[:6], INIT_METHODS):
        masks = [
            init_mask(method, weight, 0.5, KEY, CompetitionRows(each, structure))
            for each in (layout, axes)
        ]
        assert np.array_equal(*masks)


HEADS = {"query": {"kernel": draw(16, 4, 8)}, "out": {"kernel": draw(4, 8, 16)}}
OF_HEADS = {"query/kernel": "ioo", "out/kernel": "iio"}


def test_two_of_four_inputs_of_heads():
    section = {"pattern": {"type": "n:m", "n": 2, "m": 4}, "compute": "masked"}
    rule = sparsity.configure(section, weight_layout=OF_HEADS)
    masks = rule.masks(rule.init(HEADS, KEY))
    assert (masks["query/kernel"].reshape(4, 4, 4, 8).sum(1) == 2).all()
    assert (masks["out/kernel"].reshape(8, 4, 16).sum(1) == 2).all()
    fan_in = {"sparsity": 0.5, "pattern": {"type": "constant_fan_in"}, "compute": "masked"}
    rule = sparsity.configure(fan_in, weight_layout=OF_HEADS)
    masks = rule.masks(rule.init(HEADS, KEY))
    assert (masks["query/kernel"].sum(0) == 8).all()
    assert (masks["out/kernel"].sum((0, 1)) == 16).all()
    assert [row.axes for row in rule.summary(HEADS)] == ["iio", "ioo"]


def test_rigl_counts_in_each_layer():
    """Gradients that differ by layer move no weight from one layer to another."""
    section = {"algorithm": "rigl", "sparsity": 0.8, "update": {"freq": 1}, "compute": "masked"}
    params = {"up": draw(3, 16, 64), "down": draw(64, 3, 16)}
    layout = {"up": "lio", "down": "oli"}
    rule, sparse, params, _ = start(section, params, weight_layout=layout)
    slope = jnp.array([1.0, 2.0, 3.0])
    grads = {"up": draw(3, 16, 64) * slope[:, None, None], "down": draw(64, 3, 16) * slope[:, None]}
    update = jax.jit(lambda sparse, params: rule.update(sparse, params, grads, ())[:2])
    first = rule.masks(sparse)["up"]
    for _ in range(3):
        sparse, params = update(sparse, params)
        masks = rule.masks(sparse)
        assert masks["up"].sum((1, 2)).tolist() == [204] * 3
        assert masks["down"].sum((0, 2)).tolist() == [204] * 3
        assert not np.array_equal(first, masks["up"])


def test_a_small_expert_keeps_its_share():
    """Each expert has the level, whatever its size; three layers' levels are pooled without l."""
    weight = draw(4, 8, 16) * jnp.array([1.0, 1e-3, 1.0, 1e3])[:, None, None]
    section = {"sparsity": 0.75, "init_method": "topk", "compute": "masked"}
    kept = lambda rule: rule.masks(rule.init({"up": weight}, KEY))["up"].sum((1, 2)).tolist()
    assert kept(sparsity.configure(section, weight_layout={"*": "eio"})) == [32] * 4
    assert kept(sparsity.configure(section))[1] == 0


@pytest.mark.parametrize("budget", ["erdos_renyi", "erk", "flops"])
def test_a_budget_is_of_layers(budget):
    """A stack of layers has the levels of its layers, one by one."""
    section = {"sparsity": 0.8, "budget": budget}
    apart = {f"layers_{i}": draw(16, 64) for i in range(3)} | {"head": draw(64, 128)}
    stacked = {"layers": draw(3, 16, 4, 16), "head": draw(64, 128)}
    level = lambda rule, params, name: float(rule.select(params)[name].algorithm.sparsity(0))
    one = sparsity.configure(section, params=apart)
    rule = sparsity.configure(section, params=stacked, weight_layout={"layers": "lioo"})
    assert level(rule, stacked, "layers") == pytest.approx(level(one, apart, "layers_1"), abs=1e-6)
    assert level(rule, stacked, "head") == pytest.approx(level(one, apart, "head"), abs=1e-6)


def test_a_budget_of_convolutions_counts_channels_in_either_layout():
    section = {"sparsity": 0.5, "budget": "erdos_renyi"}
    io = {"a": draw(3, 3, 4, 8), "b": draw(3, 3, 8, 32)}
    oi = {name: leaf.transpose(3, 2, 0, 1) for name, leaf in io.items()}
    levels = [
        [float(c.algorithm.sparsity(0)) for c in rule.select(params).values()]
        for params, layout in ((io, "io"), (oi, "oi"))
        for rule in [sparsity.configure(section, params=params, weight_layout=layout)]
    ]
    assert levels[0] == pytest.approx(levels[1])


@pytest.mark.parametrize(
    "pattern",
    [
        {"pattern": {"type": "n:m", "n": 2, "m": 4}},
        {"sparsity": 0.5, "pattern": {"type": "constant_fan_in"}},
        {"sparsity": 0.5, "balance_in_groups": 2},
    ],
)
def test_a_pattern_on_axes_without_a_name_is_an_error(pattern):
    rule = sparsity.configure(pattern | {"param_filter": "query*"})
    with pytest.raises(SparsityError, match=r"'query/kernel' has a pattern .* \(rank 3\).*'ioo'"):
        rule.init(HEADS, KEY)
    named = sparsity.configure(pattern | {"param_filter": "query*"}, weight_layout="io")
    assert [*named.select(HEADS)] == ["query/kernel"]  # a convolution over one axis


def test_errors_of_layouts():
    with pytest.raises(SparsityError, match=r"unknown layout \('lix'\); expected 'io'.*l layers"):
        sparsity.configure(0.5, weight_layout={"*": "lix"})
    with pytest.raises(SparsityError, match=r"unknown layout \('lio'\); expected 'io', 'oi'"):
        sparsity.configure(0.5, weight_layout="lio")
    for axes in ("ii", "li", "k", ""):
        with pytest.raises(SparsityError, match=rf"unknown layout \('{axes}'\).* one of them o:"):
            sparsity.configure(0.5, weight_layout={"w": "io", "*": axes})
    rule = sparsity.configure(0.5, weight_layout={"q*": "lio", "*": "io"})
    with pytest.raises(SparsityError, match=r"'q\*' gives 'q' other axes than its 2 \('lio'\)"):
        rule.init({"q": draw(4, 4)}, KEY)
    assert [*rule.select({"q": draw(2, 4, 4), "b": draw(4, 4)})] == ["b", "q"]
    csr = sparsity.configure({"sparsity": 0.5, "compute": "csr"}, weight_layout={"w": "oi"})
    with pytest.raises(SparsityError, match="'w' cannot be stored as csr: its axes are 'oi'"):
        csr.init({"w": draw(8, 8)}, KEY)
    ends = {"sparsity": 0.5, "dense_ends": 1}
    with pytest.raises(SparsityError, match=r"stacks its layers on one axis .*dense_ends"):
        sparsity.configure(ends, params={"w": draw(3, 8, 8)}, weight_layout={"w": "lio"})
    with pytest.raises(ValueError, match=r"m=4 does not divide its 6 inputs .* axes 'lio'"):
        sparsity.configure(
            {"pattern": {"type": "n:m", "n": 2, "m": 4}}, weight_layout={"w": "lio"}
        ).init({"w": draw(4, 6, 8)}, KEY)


def test_globs_without_effect_are_named(caplog):
    """Of a layout, of a list of filters, and of groups; behind another that takes the same."""
    layout = {"query/*": "ioo", "outs/*": "iio", "*/kernel": "ioo", "out/kernel": "iio"}
    sections = [
        {"sparsity": 0.5, "param_filter": ["query/kernel", "que*/kernal"]},
        {"sparsity": 0.75, "param_filter": ["out*", "query/*", "out/kernel"]},
    ]
    rule = sparsity.configure(sections, weight_layout=layout)
    rule.init(HEADS, KEY)
    assert [line.removeprefix("sparsity: ") for line in caplog.messages] == [
        "param_filter 'que*/kernal' matches no parameter; did you mean 'query/kernel'?",
        "param_filter 'query/*' has no effect: those before it match query/kernel, too",
        "weight_layout 'outs/*' matches no parameter",
        "weight_layout 'out/kernel' has no effect: those before it match out/kernel, too",
    ]
    caplog.clear()
    sparsity.configure(sections[:1], weight_layout=OF_HEADS).init(HEADS, KEY)
    assert [line.split()[1] for line in caplog.messages] == ["param_filter"]
