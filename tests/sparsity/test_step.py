"""A sparse training step: invariants, both storages, and the vendor bugs we do not copy."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.sparse_loop import context, start, step
from hypothesis import given, settings, strategies as st

from wafer import sparsity
from wafer.models.layers.basic import project
from wafer.sparsity.algorithms.masks import init_mask
from wafer.sparsity.selection import kept_count, survivor_count
from wafer.sparsity.views import Blocks, CompetitionRows, FanIn, NofM, RowGroups

STRUCTURES = [
    *(RowGroups(), RowGroups(2), RowGroups(3, "in"), FanIn(), NofM(2, 4, "out"), NofM(1, 3)),
    Blocks(inputs=3, outputs=2),
]
VIEWS = [CompetitionRows("oi"), *(CompetitionRows("io", structure) for structure in STRUCTURES)]


RIGL, SET = sparsity.RigL(sparsity=0.5), sparsity.SET(sparsity=0.5)
GMP = sparsity.GMP(sparsity=[0.1, 0.2])


@settings(max_examples=25)
@given(
    st.integers(0, 2**31), st.floats(0, 1), st.floats(0, 1), st.sampled_from(VIEWS),
    st.sampled_from([RIGL, SET, GMP]), st.booleans(),
)  # fmt: skip
def test_counts_are_exact_whatever_the_scores(seed, level, drop, view, algorithm, zeros):
    rng = np.random.default_rng(seed)
    weight, grad = rng.integers(-3, 4, (2, 6, 8)).astype(np.float32) * (0 if zeros else 1)
    weight, grad, mask = (
        jnp.asarray(weight),
        jnp.asarray(grad),
        jnp.asarray(rng.random((6, 8)) < 0.5),
    )
    mask = view.unrows(view.rows(mask).at[:].set(view.rows(mask)[0]), (6, 8)) > 0  # equal rows
    groups, cells = view.groups((6, 8)), int(mask.sum()) // view.cell
    with jax.disable_jit():  # a few small operations, not one compilation per algorithm and view
        new = algorithm.update_mask(context(weight, grad, mask, level, drop, view))
    new = np.asarray(new)
    rows = np.asarray(view.rows(new)).sum(axis=1) // view.cell
    want = int(kept_count(level, view.row_length((6, 8))))
    if algorithm is not GMP:
        kept = int(survivor_count(drop, jnp.int32(cells), groups))
        want = max(want, kept)
        # Survivors come from the active weights only.
        assert (new & mask).sum() >= min(kept * groups, cells) * view.cell
    assert (rows == want).all()


def test_layouts_give_the_same_pattern():
    weight = jnp.asarray(np.random.default_rng(0).standard_normal((6, 8, 3)))  # [., in, out]
    vendor = weight.transpose(2, 1, 0)
    cases = [
        ("random", RowGroups()),
        ("topk", RowGroups(2, "in")),
        ("checkerboard", RowGroups(3)),
        ("topk", NofM(2, 4)),
        ("random", NofM(1, 3, "out")),
        ("topk", FanIn()),
    ]
    for method, structure in cases:
        args = (0.7, jax.random.key(5))
        io = init_mask(method, weight, *args, CompetitionRows("io", structure))
        oi = init_mask(method, vendor, *args, CompetitionRows("oi", structure))
        np.testing.assert_array_equal(io.transpose(2, 1, 0), oi)


# --- whole steps -------------------------------------------------------------------------------

PARAMS = {
    "a": {"kernel": jax.random.normal(jax.random.key(1), (16, 24)) * 0.3, "bias": jnp.zeros(24)},
    "b": {"kernel": jax.random.normal(jax.random.key(2), (24, 8)) * 0.3},
}
OTHERS = jax.tree.map(lambda p: p[::-1, ::-1] if p.ndim == 2 else p, PARAMS)
X = jax.random.normal(jax.random.key(3), (32, 16))
Y = jax.random.normal(jax.random.key(4), (32, 8))


def loss(params):
    hidden = jnp.tanh(project(X, params["a"]["kernel"]) + params["a"]["bias"])
    return jnp.mean((project(hidden, params["b"]["kernel"]) - Y) ** 2)


TX = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))


class Run(NamedTuple):
    """A short training, kept at every step."""

    sparsifier: sparsity.Sparsifier
    losses: list[float]
    sparse: sparsity.SparseState
    params: Any
    opt_state: Any
    masks: list[dict[str, np.ndarray]]


@functools.cache
def train(algorithm, compute="masked", steps=7):
    section = SECTIONS[algorithm] | {"compute": compute}
    sparsifier, *run = start(section, PARAMS, TX, seed=7)
    one_step = jax.jit(functools.partial(step, sparsifier, TX, loss), static_argnames="due")
    losses, masks = [], []
    for t in range(1, steps + 1):
        value, *run = one_step(*run, due=sparsifier.due(t))
        losses.append(float(value))
        masks.append({n: np.asarray(m) for n, m in sparsifier.masks(run[0]).items()})
    assert one_step._cache_size() <= 2  # topology changes never recompile
    sparse, params, opt_state = run
    return Run(sparsifier, losses, sparse, *sparsifier.expand(params, opt_state, sparse), masks)


RIGL_SECTION = {"algorithm": "rigl", "sparsity": 0.8, "update": {"freq": 3}, "balance_in_groups": 2}
SECTIONS = {"rigl": RIGL_SECTION, "set": {"algorithm": "set", "sparsity": 0.75, "update": 3}}


@pytest.mark.parametrize("algorithm", ["rigl", pytest.param("set", marks=pytest.mark.slow)])
def test_csr_storage_trains_exactly_like_masks(algorithm):
    masked, csr = train(algorithm), train(algorithm, "csr")
    assert masked.losses[-1] < masked.losses[0]
    np.testing.assert_allclose(masked.losses, csr.losses, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), masked[3:], csr[3:])
    levels = [jax.tree.map(float, run.sparsifier.metrics(run.sparse)) for run in (masked, csr)]
    assert levels[0] == pytest.approx(levels[1])
    assert set(levels[0]) == {
        f"sparsity/{n}/kernel/{kind}" for n in "ab" for kind in ("target", "actual")
    }


def test_pruned_weights_and_moments_are_zero_and_only_due_steps_change_masks():
    run = train("rigl")
    adam = run.opt_state[1][0]
    for name in "ab":
        mask = run.masks[-1][f"{name}/kernel"]
        for tree in (run.params, adam.mu, adam.nu):
            assert not np.any(np.where(mask, 0, tree[name]["kernel"]))
        for masks in run.masks:
            each = masks[f"{name}/kernel"].reshape(2, -1).sum(axis=1)  # two groups of inputs
            assert each.tolist() == [int(kept_count(0.8, mask.size // 2))] * 2
    kernel = [masks["a/kernel"] for masks in run.masks]
    changed = [t for t in range(2, 8) if not np.array_equal(kernel[t - 2], kernel[t - 1])]
    assert changed == [3, 6]


@pytest.mark.parametrize("compute", ["masked", "csr"])
def test_a_weight_dropped_and_grown_back_at_once_goes_on_as_it_was(compute):
    first = lambda *_: jnp.asarray([[True, True, False, False]])
    section = {"algorithm": "rigl", "sparsity": 0.5, "drop_fraction": 0.5}
    sparsifier = sparsity.configure(section | {"init_method": first, "compute": compute})
    params = {"w": jnp.asarray([[0.1, 5.0, 7.0, 7.0]])}
    sparse = sparsifier.init(params, jax.random.key(0))
    params, moment = sparsifier.prune(params, {"m": params}, sparse)
    back = {"w": jnp.asarray([[9.0, 0.0, 1.0, 0.0]])}  # the smallest weight's gradient is largest
    again = sparsifier.expand(*sparsifier.update(sparse, params, back, moment)[1:], sparse)
    np.testing.assert_array_equal(again[0]["w"], np.float32([[0.1, 5, 0, 0]]))
    new = {"w": jnp.asarray([[0.0, 0.0, 1.0, 0.0]])}
    sparse, *trees = sparsifier.update(sparse, params, new, moment)
    moved = sparsifier.expand(*trees, sparse)
    np.testing.assert_array_equal(sparsifier.masks(sparse)["w"], [[False, True, True, False]])
    for tree in (moved[0], moved[1]["m"]):
        np.testing.assert_array_equal(tree["w"], np.float32([[0, 5, 0, 0]]))


@pytest.mark.parametrize("algorithm", ["rigl", pytest.param("set", marks=pytest.mark.slow)])
def test_csr_storage_changes_the_same_bits_as_masks(algorithm):
    rng = np.random.default_rng(0)
    few = lambda: {"w": jnp.asarray(rng.integers(-3, 4, (40, 30)), jnp.float32)}  # many ties
    params, moments, grads = few(), (few(), {"w": few()["w"].astype(jnp.bfloat16)}), few()
    got = []
    for compute in ("masked", "csr"):
        section = {"algorithm": algorithm, "sparsity": 0.8, "drop_fraction": 0.7}
        sparsifier = sparsity.configure(section | {"compute": compute})
        sparse = sparsifier.init(params, jax.random.key(0))
        trees = sparsifier.prune(params, moments, sparse)
        new, *trees = sparsifier.update(sparse, trees[0], grads, trees[1])
        got.append((sparsifier.masks(new), sparsifier.expand(*trees, new)))
    jax.tree.map(np.testing.assert_array_equal, *got)
    before, after = sparsifier.masks(sparse)["w"], got[0][0]["w"]
    assert 0 < (before & ~after).sum() < 0.7 * before.sum()  # some went, some came back


@pytest.mark.parametrize(
    "compute", ["masked", "csr", pytest.param("auto", marks=pytest.mark.native)]
)
def test_masks_of_any_storage_are_those_of_the_pruned_weights(compute):
    accepts = lambda name: compute == "csr" or name == "a/kernel"  # "auto" stores one each way
    sparsifier = sparsity.configure({"sparsity": 0.8, "compute": compute}, accepts=accepts)
    sparse = sparsifier.init(PARAMS, jax.random.key(0))
    stored = {"masked": set(), "csr": {"a/kernel", "b/kernel"}, "auto": {"a/kernel"}}
    assert set(sparse.patterns) == stored[compute]
    dense = sparsifier.expand(*sparsifier.prune(PARAMS, (), sparse), sparse)[0]
    masks = sparsifier.masks(sparse)
    assert {name: int(m.sum()) for name, m in masks.items()} == {"a/kernel": 76, "b/kernel": 38}
    for name, mask in masks.items():
        np.testing.assert_array_equal(mask, dense[name[0]]["kernel"] != 0)


def test_wrap_is_the_same_as_the_steps_by_hand():
    run = train("rigl")
    sparsifier = run.sparsifier
    tx = sparsity.wrap(sparsifier, TX, jax.random.key(7))
    state = tx.init(PARAMS)
    params = sparsifier.apply(PARAMS, state.sparse)

    @jax.jit
    def step(params, state):
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state, params)
        return value, optax.apply_updates(params, updates), state

    got = []
    for _ in run.losses:
        value, params, state = step(params, state)
        got.append(float(value))
    np.testing.assert_allclose(got, run.losses, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), params, run.params)
    jax.tree.map(np.testing.assert_array_equal, state.sparse.masks, run.sparse.masks)
    for name, mask in state.sparse.masks.items():
        assert not np.any(np.where(mask, 0, params[name[0]]["kernel"]))  # exactly 0


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    "behind", [optax.scale(0.5), optax.clip(1e-3), optax.ema(0.9), optax.apply_every(2)]
)
def test_what_changes_the_updates_of_wrap_is_no_silent_mask(behind, jit):
    """A dropped weight is subtracted from itself: scaled, clipped or averaged it stays."""
    sparsifier = sparsity.configure({"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 2}})
    tx = optax.chain(sparsity.wrap(sparsifier, TX, jax.random.key(7)), behind)
    state = tx.init(PARAMS)
    params = sparsifier.apply(PARAMS, state[0].sparse)
    update = jax.jit(tx.update) if jit else tx.update

    def train_on(params, state):
        for _ in range(3):
            updates, state = update(jax.grad(loss)(params), state, params)
            params = optax.apply_updates(params, updates)
        return params

    if jit:
        assert all(bool(jnp.isnan(x).all()) for x in jax.tree.leaves(train_on(params, state)))
    else:
        with pytest.raises(ValueError, match=r"pruned weights are not 0 at update 3; .*chain"):
            train_on(params, state)


def test_a_skipped_step_changes_nothing_and_does_not_count():
    sparsifier, sparse, params, opt_state = start(
        {"algorithm": "rigl", "sparsity": 0.5}, PARAMS, TX
    )
    grads = jax.tree.map(lambda p: jnp.full_like(p, jnp.nan), params)
    after = sparsifier.update(sparse, params, grads, opt_state, finite=False)
    plain = [x._replace(key=jax.random.key_data(x.key)) for x in (sparse, after[0])]
    jax.tree.map(np.testing.assert_array_equal, plain[0], plain[1])
    jax.tree.map(np.testing.assert_array_equal, (params, opt_state), after[1:])


def test_nan_gradients_at_pruned_positions_reach_nobody():
    sparsifier = sparsity.configure(0.5)
    sparse = sparsifier.init(PARAMS, jax.random.key(0))
    grads = jax.tree.map(jnp.ones_like, PARAMS)
    mask = sparse.masks["a/kernel"]
    grads["a"]["kernel"] = jnp.where(mask, 1.0, jnp.nan)
    np.testing.assert_array_equal(
        sparsifier.mask_gradients(grads, sparse)["a"]["kernel"], mask.astype(jnp.float32)
    )


def test_missing_gradients_and_uncompressed_weights_are_explained():
    sparsifier = sparsity.configure(RIGL_SECTION | {"compute": "csr"})
    sparse = sparsifier.init(PARAMS, jax.random.key(0))
    with pytest.raises(ValueError, match=r"'a/kernel' is stored as csr.*prune"):
        sparsifier.apply(PARAMS, sparse)
    params, opt_state = sparsifier.prune(PARAMS, (), sparse)
    with pytest.raises(ValueError, match=r"RigL needs the dense gradient of 'a/kernel'"):
        sparsifier.update(sparse, params, None, opt_state)
    state = sparsifier.update(sparse, params, None, opt_state, topology=False)[0]
    assert int(state.step) == 1


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"sparsity": 0.5, "param_filter": "*"}, "its rank is 1"),
        ({"algorithm": "gmp", "schedule": [0.1, 0.5]}, "follows a schedule"),
        ({"algorithm": "set", "sparsity": 0.5, "update": {"freq": 3, "start": 1}}, "starts dense"),
    ],
)
def test_csr_where_it_cannot_be(section, message):
    sparsifier = sparsity.configure(section | {"compute": "csr"})
    with pytest.raises(sparsity.SparsityError, match=message):
        sparsifier.init(PARAMS, jax.random.key(0))
    assert sparsity.configure(section | {"compute": "auto"}).init(PARAMS, jax.random.key(0))


# --- vendor bugs, not copied -------------------------------------------------------------------


def test_vendor_bug_drop_prefers_pruned_positions_to_active_zeros():
    # Oracle: p=[0,0,0,5,0,0], first four active, f=.25 keeps indices 3, 4, 5.
    weight = jnp.asarray([[0.0, 0, 0, 5, 0, 0]])
    mask = jnp.asarray([[True, True, True, True, False, False]])
    kept = RIGL.update_mask(context(weight, weight, mask, 1, 0.25, CompetitionRows("oi")))
    np.testing.assert_array_equal(kept, [[True, True, False, True, False, False]])


def test_vendor_bug_drop_fraction_is_frozen_off_the_vendors_hardware():
    # run_*_stock keep dropping 40 %; a cosine of half period 8 drops nothing at step 8.
    section = {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 4}}
    section["drop_fraction"] = {"type": "cosine", "init": 0.4, "half_period": 8}
    sparsifier = sparsity.configure(section)
    sparse = sparsifier.init(PARAMS, jax.random.key(0))
    changed = []
    for t in range(1, 9):
        old = sparse.masks["a/kernel"]
        sparse = sparsifier.update(sparse, PARAMS, OTHERS, (), topology=sparsifier.due(t))[0]
        if np.any(sparse.masks["a/kernel"] != old):
            changed.append(t)
    assert changed == [4]


def test_vendor_bug_list_positions_are_lost_on_resume():
    section = {"algorithm": "gmp", "schedule": [0.3, 0.5, 0.7], "update": {"freq": 2}}
    sparsifier, sparse, params, opt_state = start(section, PARAMS)
    for _ in range(2):
        sparse, params, opt_state = sparsifier.update(sparse, params, None, opt_state)
    assert sparse.indices.tolist() == [[2, 0]]
    saved = sparsity.encode(params, opt_state, sparse)
    back, params, opt_state = sparsity.resume(
        sparsifier, *saved, jax.random.key(9), sparsity.to_meta(sparse)
    )
    assert back.indices.tolist() == [[2, 0]]
    assert int(back.step) == 2
    for _ in range(2):
        back, params, opt_state = sparsifier.update(back, params, None, opt_state)
    assert float(back.targets[0]) == pytest.approx(0.7)


def test_a_dynamic_algorithm_not_due_at_step_0_starts_dense():
    section = {"algorithm": "set", "sparsity": 0.5, "update": {"freq": 2, "start": 2}}
    sparsifier = sparsity.configure(section)
    sparse = sparsifier.init(PARAMS, jax.random.key(0))
    assert all(bool(mask.all()) for mask in sparse.masks.values())
    assert float(sparse.targets[0]) == 0
    assert [t for t in range(8) if sparsifier.due(t)] == [2, 4, 6]
