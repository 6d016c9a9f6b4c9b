"""Optimizers under csr storage: those that read a weight's axes or sizes, and dense shapes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.sparse_loop import start, step

from wafer import sparsity
from wafer.models.layers.basic import project
from wafer.sparsity.adapters import optimizers

PARAMS = {"up": {"kernel": jax.random.normal(jax.random.key(0), (16, 24)), "bias": jnp.zeros(24)}}
MATRICES = lambda tree: jax.tree.map(lambda leaf: leaf.ndim > 1, tree)
LABELS = lambda tree: jax.tree.map(lambda leaf: "matrix" if leaf.ndim > 1 else "vector", tree)
BY_RANK = optax.multi_transform({"matrix": optax.adam(0.1), "vector": optax.sgd(0.1)}, LABELS)
READS_AXES = {
    "decay of matrices": optax.adamw(0.1, mask=MATRICES),
    "adafactor": optax.adafactor(0.1, min_dim_size_to_factor=8),
    "centralize": optax.chain(optax.centralize(), optax.sgd(0.1)),
    "block rms": optax.chain(optax.clip_by_block_rms(0.01), optax.sgd(0.1)),
    "adaptive clip": optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(0.1)),
    "muon": optax.contrib.muon(0.1),
    "labels": BY_RANK,
}
ELEMENTWISE = {
    "adamw": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1)),
    "lamb": optax.lamb(0.1),
    "accumulates": optax.MultiSteps(optax.adam(0.1), 6).gradient_transformation(),
    "schedule free": optax.contrib.schedule_free_sgd(0.1),
}
quick = lambda names, first: [
    name if name in first else pytest.param(name, marks=pytest.mark.slow) for name in names
]


def configured(compute):
    section = {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 2}, "compute": compute}
    return sparsity.configure(section | {"param_filter": "*kernel"}, accepts=lambda _: True)


@pytest.mark.parametrize("name", quick(READS_AXES, {"decay of matrices", "adafactor", "labels"}))
def test_optimizers_that_read_axes_are_found(name):
    for compute in ("csr", "auto"):
        with pytest.raises(sparsity.SparsityError, match=r"train up/kernel otherwise than with"):
            configured(compute).check(READS_AXES[name], PARAMS)
    configured("masked").check(READS_AXES[name], PARAMS)
    shapes = jax.eval_shape(lambda: PARAMS)
    configured("csr").check(sparsity.with_dense_shapes(READS_AXES[name]), shapes)


@pytest.mark.parametrize("name", quick(ELEMENTWISE, {"adamw"}))
def test_optimizers_that_do_not_are_taken(name):
    configured("csr").check(ELEMENTWISE[name], PARAMS)


BY_SIZE = lambda of: lambda tree: jax.tree.map(of, tree)
READS_SIZES = {  # of a matrix [640, 64], a tenth of it kept
    "size": lambda: optax.adamw(0.1, mask=BY_SIZE(lambda leaf: leaf.size > 4096)),
    "rows": lambda: optax.adamw(0.1, mask=BY_SIZE(lambda leaf: leaf.shape[0] < 1000)),
    "factored": lambda: optax.scale_by_factored_rms(min_dim_size_to_factor=48),
    "labels": lambda: optax.multi_transform(
        {"large": optax.adam(0.1), "small": optax.sgd(0.1)},
        BY_SIZE(lambda leaf: "large" if leaf.size > 10_000 else "small"),
    ),
    "rate": lambda: optax.stateless(
        lambda updates, _: jax.tree.map(lambda u: u * (1 if u.size > 20_000 else 2), updates)
    ),
    "anchor": lambda: optax.stateless(
        lambda updates, params: jax.tree.map(lambda u, p, at: u + p - at, updates, params, LARGE)
    ),
}
LARGE = {"up": {"kernel": jax.random.normal(jax.random.key(0), (640, 64)), "bias": jnp.zeros(64)}}


def large(compute="csr", level=0.9):
    section = {"sparsity": level, "compute": compute, "param_filter": "*kernel"}
    return sparsity.configure(section, accepts=lambda _: True)


@pytest.mark.parametrize("name", READS_SIZES)
def test_optimizers_that_read_sizes_are_found(name):
    with pytest.raises(sparsity.SparsityError, match=r"train up/kernel otherwise than with"):
        large().check(READS_SIZES[name](), jax.eval_shape(lambda: LARGE))
    large("masked").check(READS_SIZES[name](), LARGE)
    large().check(sparsity.with_dense_shapes(READS_SIZES[name]()), LARGE)


def test_sizes_on_one_side_of_a_threshold_are_taken():
    """A tenth of 40,960 values, and a half: the same optimizer, other numbers."""
    by_size = lambda least: optax.adamw(0.1, mask=BY_SIZE(lambda leaf: leaf.size > least))
    large(level=0.9).check(by_size(4000), LARGE)
    large(level=0.5).check(by_size(20_000), LARGE)
    with pytest.raises(sparsity.SparsityError):
        large(level=0.9).check(by_size(20_000), LARGE)
    # Below 700 rows and columns nothing is factored; in the small tree nothing would be, either.
    large().check(optax.scale_by_factored_rms(min_dim_size_to_factor=700), LARGE)


def test_only_programs_that_depend_on_sizes_are_tried_at_full_size(monkeypatch):
    tried = []
    both = optimizers._both
    monkeypatch.setattr(
        optimizers, "_both", lambda tx, trial, *rest: tried.append(trial) or both(tx, trial, *rest)
    )
    shape = lambda: tried.pop().shapes["up"]["kernel"].shape
    large().check(optax.adamw(0.1), LARGE)
    assert shape() == (128, 136)
    large().check(optax.adamw(0.1, mask=BY_SIZE(lambda leaf: leaf.size > 64)), LARGE)
    assert shape() == (128, 136)  # so are the sizes there
    large().check(optax.adamw(0.1, mask=BY_SIZE(lambda leaf: leaf.size > 5)), LARGE)
    assert shape() == (128, 136)
    large().check(optax.adamw(0.1, mask=BY_SIZE(lambda leaf: leaf.size > 63)), LARGE)
    assert shape() == (640, 64)  # the bias is on the other side


def test_what_cannot_be_compared_is_reported(caplog):
    noise = optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(0)), optax.sgd(0.1))
    configured("csr").check(noise, PARAMS)
    assert "draws random numbers" in caplog.text
    needs_value = optax.contrib.reduce_on_plateau()
    configured("csr").check(needs_value, PARAMS)
    assert "not compared, since it fails" in caplog.text
    caplog.clear()
    configured("csr").check(needs_value, PARAMS, value=1.0)
    configured("masked").check(noise, PARAMS)
    assert not caplog.text


@pytest.mark.parametrize("name", quick(READS_AXES, {"adafactor", "labels"}))
def test_dense_shapes_train_csr_as_masks_do(name):
    x = jnp.asarray(np.random.default_rng(0).standard_normal((8, 16)), jnp.float32)

    def loss(tree):
        return jnp.mean((project(x, tree["up"]["kernel"]) + tree["up"]["bias"] - 1) ** 2)

    got = []
    for compute in ("masked", "csr"):
        tx = sparsity.with_dense_shapes(READS_AXES[name])
        rule, *state = start(configured(compute), PARAMS, tx, seed=1)
        for t in range(3):  # a change of topology among them
            of_state = tx._replace(update=functools.partial(tx.update, sparse=state[0]))
            _, *state = step(rule, of_state, loss, *state, due=rule.due(t + 1))
        sparse, params, opt_state = state
        got.append((rule.masks(sparse), *rule.expand(params, opt_state, sparse)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *got)


def test_dense_shapes_need_the_state():
    tx = sparsity.with_dense_shapes(optax.adafactor(0.1))
    with pytest.raises(TypeError, match=r"update lacks `sparse`; expected .*sparse=sparse"):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS)


def test_where_the_number_of_kept_values_is_unknown_few_are_assumed():
    by_size = optax.adamw(0.1, mask=BY_SIZE(lambda leaf: leaf.size > 10_000))  # of 40,960
    assert [*optimizers.differences(by_size, LARGE, ["up/kernel"])] == ["up/kernel"]
    assert not optimizers.differences(by_size, LARGE, {"up/kernel": 20_480})
