"""Second copies of sparse weights: averages, target networks, lookahead's slow weights."""

import collections
import functools
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from helpers import sparse_loop as loop

from wafer import sparsity
from wafer.models.layers.basic import project
from wafer.sparsity.state import fingerprint

PARAMS = {"up": {"kernel": jax.random.normal(jax.random.key(0), (16, 24))}}
X = jax.random.normal(jax.random.key(1), (8, 16))
COMPUTES = ["masked", "csr"]
TX = optax.adam(0.1)


def configured(compute, algorithm="rigl"):
    section = {"algorithm": algorithm, "sparsity": 0.75, "update": {"freq": 2}, "compute": compute}
    return sparsity.configure(section | {"param_filter": "*kernel"})


def start(rule):
    return loop.start(rule, PARAMS, TX, seed=2)[1:]


def copied(compute):
    """A sparsifier, its state, its weights, and a copy of them."""
    rule = configured(compute, "set")
    sparse, params, _ = start(rule)
    return rule, sparse, params, sparsity.WeightCopy.of(params, sparse)


def read(copy, sparse):
    return copy.read(sparse)["up"]["kernel"]


def stepper(rule, traced):
    """A jitted step that carries an average of the weights, as a tree and as a copy.

    ``traced`` gets an item for each compilation.
    """

    @functools.partial(jax.jit, static_argnames="due")
    def step(sparse, params, opt_state, tree, copy, due):
        traced.append(due)
        f = lambda ready: jnp.mean(
            (project(X, rule.attach(ready, sparse)["up"]["kernel"]) - 1) ** 2
        )
        grads = jax.grad(f)(rule.prepare(params, sparse, dense=due))
        grads, dense = rule.split(grads, sparse)
        updates, opt_state = TX.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        copies = (opt_state, tree, {"average": copy})
        sparse, params, copies = rule.update(sparse, params, dense, copies, topology=due)
        opt_state, tree, copy = copies[0], copies[1], copies[2]["average"]
        tree = optax.incremental_update(params, tree, 0.5)
        copy = sparsity.WeightCopy.of(
            optax.incremental_update(params, copy.read(sparse), 0.5), sparse
        )
        return sparse, params, opt_state, tree, copy

    return step


@pytest.mark.parametrize("algorithm", ["rigl", "set"])
def test_every_tree_of_the_optimizer_state_follows(algorithm):
    got = []
    for compute in COMPUTES:
        rule = configured(compute, algorithm)
        sparse, params, opt_state = start(rule)
        state = sparse, params, opt_state, params, sparsity.WeightCopy.of(params, sparse)
        traced = []
        step = stepper(rule, traced)
        for t in range(6):
            state = step(*state, rule.due(t + 1))
        assert sorted(traced) == [False, True]
        assert int(state[0].generation) == int(state[4].generation) == 3
        jax.tree.map(np.testing.assert_array_equal, state[3], state[4].read(state[0]))
        got.append(rule.expand(state[1], (state[2], state[3]), state[0]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *got)


@pytest.mark.parametrize("compute", COMPUTES)
def test_a_copy_left_behind_is_an_error_or_nan(compute):
    rule, sparse, params, copy = copied(compute)
    same, params, _ = rule.update(sparse, params, None, ())  # step 1 changes nothing
    jax.tree.map(np.testing.assert_array_equal, copy.read(same), copy.tree)
    later, params, _ = rule.update(same, params, None, ())
    for use in (copy.read, lambda s: rule.update(s, params, None, copy)):
        with pytest.raises(ValueError, match=r"topology 0 \(found at read\); expected 1"):
            use(later)
    assert jnp.isnan(jax.jit(read)(copy, later)).all()
    assert not jnp.isnan(jax.jit(read)(copy, same)).any()
    several = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), copy)
    assert jnp.isnan(jax.vmap(read, (0, None))(several, later)).all()
    scanned = jax.lax.scan(lambda c, _: (c, read(*c)), (copy, later), length=2)[1]
    assert jnp.isnan(scanned).all()


@pytest.mark.parametrize("compute", COMPUTES)
def test_a_copy_of_another_state_is_an_error_or_nan(compute):
    """Of another seed, another choice of first weights, other trees: each of generation 0."""
    rule, sparse, params, copy = copied(compute)
    seed = rule.init(PARAMS, jax.random.key(3))
    section = {"sparsity": 0.75, "init_method": "topk", "compute": compute}
    largest = sparsity.configure(section | {"param_filter": "*kernel"})
    flipped = jax.tree.map(lambda leaf: -leaf[::-1], PARAMS)
    method, weights = (largest.init(tree, jax.random.key(2)) for tree in (PARAMS, flipped))
    for other in (seed, method, weights):
        assert int(other.generation) == int(sparse.generation)
        for use in (copy.read, lambda s: rule.update(s, params, None, {"slow": copy})):
            with pytest.raises(ValueError, match="is of another sparse state"):
                use(other)
        assert jnp.isnan(jax.jit(read)(copy, other)).all()
        moved = jax.jit(lambda c, s: rule.update(s, params, None, c)[2])(copy, other)
        assert jnp.isnan(moved.tree["up"]["kernel"]).any()  # never silently of other weights
    np.testing.assert_array_equal(jax.jit(read)(copy, sparse), params["up"]["kernel"])


@pytest.mark.parametrize("compute", COMPUTES)
def test_arithmetic_over_a_whole_copy_is_an_error(compute):
    """It would change the numbers that the copy is recognized by."""
    _, sparse, params, copy = copied(compute)
    for f in (lambda x: x * 0.5, lambda x: x.astype(jnp.bfloat16), lambda x: x / 1):
        changed = jax.tree.map(f, copy)
        for use in (read, jax.jit(read)):
            with pytest.raises(ValueError, match=r"has a generation of \w+ .*Compute with the w"):
                use(changed, sparse)
    with pytest.raises(ValueError, match=r"compute with copy\.tree: jax\.tree\.map over a copy"):
        read(jax.tree.map(lambda x: x * 2, copy), sparse)
    half = jax.tree.map(lambda x: x / 2, copy.read(sparse))
    got = sparsity.WeightCopy.of(half, sparse).read(sparse)
    np.testing.assert_array_equal(got["up"]["kernel"], params["up"]["kernel"] / 2)


@pytest.mark.parametrize("compute", COMPUTES)
def test_copies_without_a_fingerprint_are_read(compute):
    rule = configured(compute, "set")
    sparse, params, _ = start(rule)
    old = sparsity.WeightCopy(params, jnp.int32(0))  # as stored before there was one

    def body(carry, _):
        sparse, params, copy = carry
        return rule.update(sparse, params, None, copy), None

    sparse, _, old = jax.lax.scan(body, (sparse, params, old), length=4)[0]
    assert int(old.generation) == 2
    assert old.fingerprint is None
    assert not jnp.isnan(old.read(sparse)["up"]["kernel"]).any()


def test_the_fingerprint_is_of_every_position():
    """Each single exchange of a kept and a pruned position is another fingerprint."""
    rule = sparsity.configure({"sparsity": 0.5, "compute": "masked", "param_filter": "w"})
    blank = rule.init({"w": jnp.ones((4, 5))}, jax.random.key(0))
    csr = sparsity.configure({"sparsity": 0.5, "compute": "csr", "param_filter": "w"})
    pattern = csr.init({"w": jnp.ones((4, 5))}, jax.random.key(0)).patterns["w"]
    mask = np.array(blank.masks["w"])
    masks = [mask]
    for i, j in np.ndindex(20, 20):
        other = mask.copy().ravel()
        if other[i] and not other[j]:
            other[i], other[j] = False, True
            masks.append(other.reshape(4, 5))
    assert len(masks) == 101
    of = lambda state: int(fingerprint(state))
    of_masks = [of(blank._replace(masks={"w": jnp.asarray(m)})) for m in masks]
    assert len({*of_masks}) == 101
    patterns = [sparsity.pattern_from_mask(m, pattern.nnz) for m in masks]
    assert [of(blank._replace(masks={}, patterns={"w": p})) for p in patterns] == of_masks


@pytest.mark.parametrize("shape", [(), (7,), (3, 0), (2, 3, 4)])
def test_the_fingerprint_takes_masks_of_every_rank(shape):
    blank = configured("masked").init(PARAMS, jax.random.key(0))
    of = lambda mask: int(fingerprint(blank._replace(masks={"w": mask})))
    assert (of(jnp.ones(shape, bool)) != of(jnp.zeros(shape, bool))) == (math.prod(shape) > 0)


@pytest.mark.parametrize("stored", COMPUTES)
@pytest.mark.parametrize("later", COMPUTES)
def test_a_copy_is_stored_by_encode_and_read_in_another_storage(stored, later):
    """With slack, too: a pattern has room for more values than the first mask keeps."""
    for slack in (False, True):
        rule = _from_zeros(stored) if slack else configured(stored, "set")
        params = PARAMS | {"low": {"kernel": jnp.eye(16, 24)}} if slack else PARAMS
        rule, sparse, weights, _ = loop.start(rule, params, seed=2)
        half = jax.tree.map(lambda leaf: leaf / 2, weights)
        copy = sparsity.WeightCopy.of(half, sparse)
        encoded = sparsity.encode(weights, {"average": copy}, sparse)
        other = _from_zeros(later) if slack else configured(later, "set")
        meta = sparsity.to_meta(sparse)
        again, _, opt_state = sparsity.resume(other, *encoded, jax.random.key(9), meta)
        got = opt_state["average"].read(again)
        want = rule.expand(half, (), sparse)[0]
        jax.tree.map(np.testing.assert_array_equal, other.expand(got, (), again)[0], want)
        again, _, opt_state = other.update(again, got, None, opt_state)  # goes along
        opt_state["average"].read(again)
        stranger = other.init(params, jax.random.key(3))
        if not slack:
            with pytest.raises(ValueError, match="of another sparse state"):
                opt_state["average"].read(stranger)


def _from_zeros(compute):
    section = {"algorithm": "set", "sparsity": 0.75, "init_method": "from_zeros"}
    section |= {"update": {"freq": 2}, "compute": compute, "param_filter": "*kernel"}
    return sparsity.configure(section)


def test_a_skipped_step_does_not_count():
    rule = configured("masked", "set")
    sparse, params, _ = start(rule)
    sparse, params, _ = rule.update(sparse, params, None, ())
    skipped, *_ = rule.update(sparse, params, None, (), finite=False)
    assert int(skipped.generation) == 0
    meta = sparsity.to_meta(rule.update(sparse, params, None, ())[0])
    assert int(sparsity.from_meta(meta, 1).generation) == 1


def test_states_without_the_field_are_read(tmp_path):
    rule = configured("csr", "set")
    sparse, params, _ = start(rule)
    fields = [name for name in sparse._fields if name != "generation"]
    before = collections.namedtuple("Before", fields)(*(getattr(sparse, n) for n in fields))
    old = sparsity.SparseState(*pickle.loads(pickle.dumps(tuple(before))))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "old", before)
    with ocp.StandardCheckpointer() as checkpointer:
        shapes = jax.eval_shape(before._asdict)
        again = sparsity.SparseState(**checkpointer.restore(tmp_path / "old", shapes))
    again = again._replace(generation=None)
    for _ in range(2):
        old, *_ = rule.update(old, params, None, ())
        again, *_ = rule.update(again, params, None, ())
    assert int(old.generation) == int(again.generation) == 1


def test_the_trees_of_lookahead_have_one_mask():
    rule = configured("masked")
    tx = sparsity.wrap(rule, optax.lookahead(optax.sgd(0.1), 3, 0.5), jax.random.key(0))
    params = optax.LookaheadParams.init_synced(PARAMS)
    state = tx.init(params)
    assert [*rule.masks(state.sparse)] == ["up/kernel"]
    params = optax.LookaheadParams.init_synced(rule.apply(PARAMS, state.sparse))
    f = lambda tree: jnp.mean((X @ tree["up"]["kernel"] - 1) ** 2)
    for t in range(1, 7):
        updates, state = tx.update(jax.grad(f)(params.fast), state, params)
        params = optax.apply_updates(params, updates)
        mask = rule.masks(state.sparse)["up/kernel"]
        assert int(mask.sum()) == 96
        for tree in params:
            assert not np.any(np.where(mask, 0, tree["up"]["kernel"]))
        if t % 3 == 0:
            close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
            jax.tree.map(close, params.fast, params.slow)
