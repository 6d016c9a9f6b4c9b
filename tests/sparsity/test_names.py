"""One name for a leaf in every form of a tree, and masks that find their weights or say so."""

import dataclasses
import functools
import pickle
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn, nnx, struct
from flax.core import freeze
from haiku.data_structures import to_immutable_dict
from helpers.sparse_loop import step

from wafer import sparsity
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.checkpoint.tree import fill_template, to_tree
from wafer.models.checkpoint.writer import write_checkpoint
from wafer.models.paths import map_named, named_leaves, unflatten
from wafer.sparsity.filters import ParamFilter

KEY = jax.random.key(0)
X = jnp.ones((1, 32))


def names(tree):
    return [name for name, _ in named_leaves(tree)]


class Scaled(struct.PyTreeNode, nn.meta.AxisMetadata):
    value: Any
    scale: Any
    unbox = replace_boxed = add_axis = remove_axis = lambda self, *args: self


def nnx_forms():
    model = nnx.Dict(fc=nnx.Linear(32, 32, rngs=nnx.Rngs(0)), layers=nnx.List([nnx.Param(X)]))
    state = nnx.state(model, nnx.Param)
    return [model, state, nnx.as_pure(state), nnx.to_pure_dict(state)], ["fc/bias", "fc/kernel"]


def boxed_forms():
    boxed = nn.with_partitioning(nn.initializers.lecun_normal(), ("a", "b"))
    logical = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("a", "b"))
    first, second = (
        nn.Dense(32, kernel_init=init).init(KEY, X)["params"] for init in (boxed, logical)
    )
    plain = nn.unbox(first)
    return [first, second, plain, freeze(first), freeze(plain)], ["bias", "kernel"]


def haiku_forms():
    params = hk.transform(lambda x: hk.nets.MLP([32])(x).sum()).init(KEY, X)
    return [params, to_immutable_dict(params)], ["mlp/~/linear_0/b", "mlp/~/linear_0/w"]


@pytest.mark.parametrize("forms", [nnx_forms, boxed_forms, haiku_forms])
def test_a_leaf_has_one_name_in_every_form(forms):
    trees, expected = forms()
    for tree in trees:
        assert [name for name in names(tree) if not name.startswith("layers")] == expected
        sizes = map_named(lambda name, leaf: leaf.size, tree)
        assert jax.tree.structure(sizes) == jax.tree.structure(tree)
        assert jax.tree.leaves(sizes) == [leaf.size for leaf in jax.tree.leaves(tree)]
        both = map_named(lambda name, leaf, other: leaf is other, tree, tree)
        assert all(jax.tree.leaves(both))


def test_a_name_goes_by_the_node_and_not_by_its_word():
    attention = {"attn": {"query": X, "key": X, "value": X}}
    assert names(attention) == ["attn/key", "attn/query", "attn/value"]
    assert names({"attn": {"value": nnx.Param(X)}}) == ["attn/value"]
    rule = sparsity.configure({"sparsity": 0.5, "param_filter": "*/value"})
    assert list(rule.select(attention)) == ["attn/value"]
    assert names({"w": Scaled(X, X)}) == ["w/value", "w/scale"]  # two values: not a mere wrapper
    module = eqx.nn.MLP(2, 2, 4, 1, key=KEY)
    assert "layers/0/weight" in names(eqx.filter(module, eqx.is_array))


@pytest.mark.parametrize("compute", ["masked", "csr"])
@pytest.mark.parametrize("forms", [nnx_forms, boxed_forms, haiku_forms])
def test_masks_of_any_form_prune_any_other(forms, compute):
    trees, expected = forms()
    section = {"algorithm": "rigl", "sparsity": 0.9, "update": {"freq": 1}, "compute": compute}
    rule = sparsity.configure(section | {"param_filter": expected[1]})
    tx, weight, x = optax.sgd(0.1, momentum=0.9), expected[1], jax.random.normal(KEY, (8, 32))
    is_leaf = lambda node: isinstance(node, sparsity.SparseWeight)

    def loss(tree):
        return ((x @ dict(named_leaves(tree, is_leaf=is_leaf))[weight]) ** 2).mean()

    @jax.jit
    def stepped(params, sparse):
        params, moments = rule.prune(params, tx.init(params), sparse)
        _, sparse, params, moments = step(rule, tx, loss, sparse, params, moments)
        dense, _ = rule.expand(params, moments, sparse)
        return rule.masks(sparse)[weight], dict(named_leaves(dense))[weight]

    after = []
    for made_for in trees:
        sparse = rule.init(made_for, jax.random.key(1))
        after += [jax.device_get(stepped(used_with, sparse)) for used_with in trees]
    mask, first = after[0]
    assert mask.sum() == 102
    assert not first[~mask].any()
    assert all(np.array_equal(after[0], one) for one in after)


def test_the_optimizer_of_nnx_keeps_pruned_weights_at_zero():
    """Three steps of a wrapped Adam are those of Adam with masks multiplied by hand."""
    model = nnx.Linear(32, 32, rngs=nnx.Rngs(0))
    rule = sparsity.configure({"sparsity": 0.9, "compute": "masked"})
    optimizer = nnx.Optimizer(model, sparsity.wrap(rule, optax.adam(1e-2), KEY), wrt=nnx.Param)
    sparse = nnx.as_pure(optimizer.opt_state).sparse
    nnx.update(model, rule.apply(nnx.state(model, nnx.Param), sparse))
    (mask,) = sparse.masks.values()
    by_hand, tx = nnx.to_pure_dict(nnx.state(model, nnx.Param)), optax.adam(1e-2)
    moments = tx.init(by_hand)

    @nnx.jit
    def step(model, optimizer, x):
        optimizer.update(model, nnx.grad(lambda m: ((m(x) - 1) ** 2).mean())(model))

    def loss(params, x):
        return ((x @ (params["kernel"] * mask) + params["bias"] - 1) ** 2).mean()

    for t in range(3):
        x = jax.random.normal(jax.random.key(t), (8, 32))
        step(model, optimizer, x)
        updates, moments = tx.update(jax.grad(loss)(by_hand, x), moments)
        by_hand = optax.apply_updates(by_hand, updates)
    assert int((model.kernel[...] != 0).sum()) == int(mask.sum()) == 102
    np.testing.assert_allclose(model.kernel[...], by_hand["kernel"], atol=1e-6)


VARIABLES = {"params": {"fc": {"kernel": jnp.ones((8, 8))}}}
METHODS = {
    "prepare": lambda rule, tree, sparse: rule.prepare(tree, sparse, dense=True),
    "attach": lambda rule, tree, sparse: rule.attach(tree, sparse),
    "split": lambda rule, tree, sparse: rule.split(tree, sparse),
    "prune": lambda rule, tree, sparse: rule.prune(tree, (), sparse),
    "expand": lambda rule, tree, sparse: rule.expand(tree, (), sparse),
    "update": lambda rule, tree, sparse: rule.update(sparse, tree, None, ()),
}


@pytest.mark.parametrize("compute", ["masked", "csr"])
@pytest.mark.parametrize("method", METHODS)
def test_a_mask_without_a_weight_is_an_error_with_both_names(method, compute):
    rule = sparsity.configure({"sparsity": 0.75, "compute": compute})
    sparse = rule.init(VARIABLES, KEY)
    found = rf"sparsity.{method}: 1 of 1 masks .*\(params/fc/kernel\); the tree has fc/kernel"
    call = lambda rule, tree: METHODS[method](rule, tree, sparse)
    for run in (call, jax.jit(call, static_argnums=0)):
        with pytest.raises(ValueError, match=found):
            run(rule, VARIABLES["params"])
    part = dataclasses.replace(rule, partial=True)
    assert jax.tree.leaves(call(part, VARIABLES["params"]))


def test_a_part_of_a_tree_is_allowed_where_the_caller_says_so():
    params = {"encoder": {"kernel": jnp.ones((8, 8))}, "head": {"kernel": jnp.ones((8, 8))}}
    rule = sparsity.configure({"sparsity": 0.75}, partial=True)
    sparse = rule.init(params, KEY)
    pruned, _ = rule.prune({"encoder": params["encoder"], "head": None}, (), sparse)
    assert int(pruned["encoder"]["kernel"].sum()) == 16


def test_two_leaves_of_one_name_are_an_error(tmp_path):
    twins = {"a/b": {"kernel": X}, "a": {"b": {"kernel": X}}}
    rule = sparsity.configure(0.5)
    with pytest.raises(ValueError, match=r"2 leaves of the tree are called 'a/b/kernel'"):
        rule.init(twins, KEY)
    sparse = rule.init({"a": twins["a"]}, KEY)
    with pytest.raises(ValueError, match=r"2 leaves .* 'a/b/kernel'"):
        rule.prune(twins, (), sparse)
    with pytest.raises(ValueError, match=r"names of leaves: .* Rename the keys"):
        write_checkpoint(tmp_path / "twins", {"params": twins}, {})


def test_names_of_wrapped_leaves_before_0_2_still_match(tmp_path):
    """Filters, pickled states and checkpoints that have 'kernel/value' for 'kernel'."""
    state = nnx.state(nnx.Linear(32, 32, rngs=nnx.Rngs(0)), nnx.Param)
    for kind, pattern in (("glob", "*kernel/value"), ("regex", "kernel/value$")):
        assert ParamFilter(kind, (pattern,)).matches(["kernel"], 2)
        assert not ParamFilter(kind, (pattern,)).matches(["bias"], 1)
    section = {"sparsity": 0.75, "compute": "masked", "param_filter": "*kernel/value"}
    rule = sparsity.configure(section, params=state)
    sparse, tx = rule.init(state, KEY), optax.adam(1e-3)
    before = sparse._replace(masks={"kernel/value": sparse.masks["kernel"]})
    before = pickle.loads(pickle.dumps(before))
    after, params, moments = rule.update(before, state, None, tx.init(state))
    assert list(after.masks) == ["kernel"]
    assert int((params["kernel"][...] != 0).sum()) == 256

    stored = sparsity.encode(params, moments, after)
    old = [
        unflatten({name.replace("kernel", "kernel/value"): leaf for name, leaf in named_leaves(to)})
        for to in map(to_tree, stored)
    ]
    meta = sparsity.to_meta(after) | {"parameters": ["kernel/value"]}
    write_checkpoint(tmp_path / "1", {"params": old[0], "opt_state": old[1]}, {"sparsity": meta})
    tree, record = load_checkpoint(tmp_path / "1")
    params = fill_template(state, tree["params"], "1")
    moments = fill_template(jax.eval_shape(tx.init, state), tree["opt_state"], "1")
    again, params, moments = sparsity.resume(rule, params, moments, KEY, record["sparsity"])
    assert np.array_equal(again.masks["kernel"], after.masks["kernel"])
    assert int((params["kernel"][...] != 0).sum()) == 256


@pytest.mark.parametrize("compute", ["masked", "csr"])
def test_weights_of_another_shape_are_named(compute):
    """Another number of kept values, another width; also where arrays would broadcast."""
    rules = [
        sparsity.configure({"sparsity": level, "compute": compute, "param_filter": "up/w"})
        for level in (0.5, 0.75)
    ]
    trees = [{"up": {"w": jnp.ones(shape)}, "b": X} for shape in ((8, 6), (6, 8), (1, 6))]
    rule, sparse = rules[0], rules[0].init(trees[0], KEY)
    wrong = trees[1:]
    if compute == "csr":
        wrong += [rules[1].prune(trees[0], (), rules[1].init(trees[0], KEY))[0]]
    for tree in wrong:
        for use in (*METHODS.values(), lambda _, tree, sparse: sparsity.encode(tree, (), sparse)):
            call = functools.partial(use, rule, tree, sparse)
            for each in (call, functools.partial(jax.eval_shape, call)):
                with pytest.raises(ValueError, match=r"sparsity\.\w+: 'up/w' has shape .*; expec"):
                    each()


@pytest.mark.parametrize("compute", ["masked", "csr"])
@pytest.mark.parametrize("algorithm", ["rigl", "set"])
def test_a_part_of_the_tree_is_updated_as_in_the_whole(algorithm, compute, caplog):
    """One encoder of two, in a due step: its masks are those that the whole tree would give it."""
    section = {"algorithm": algorithm, "sparsity": 0.5, "update": {"freq": 1}, "compute": compute}
    rule = sparsity.configure(section | {"param_filter": "*w"}, partial=True)
    draw = lambda key: jax.random.normal(jax.random.key(key), (8, 6))
    params, grads = ({part: {"w": draw(key + i)} for i, part in enumerate("ab")} for key in (1, 5))
    sparse = rule.init(params, KEY)
    params, moments = rule.prune(params, {"m": params}, sparse)
    whole, *_ = rule.update(sparse, params, grads, moments)
    part = lambda tree: {"a": tree["a"]}
    state, weights, after = rule.update(
        sparse, part(params), part(grads), {"m": part(moments["m"])}
    )
    masks, before = rule.masks(state), rule.masks(sparse)
    assert np.array_equal(masks["a/w"], rule.masks(whole)["a/w"])
    assert not np.array_equal(masks["a/w"], before["a/w"])
    assert np.array_equal(masks["b/w"], before["b/w"])
    dense = rule.expand(weights, after, state)
    for tree in (dense[0], dense[1]["m"]):
        assert not np.any(np.where(masks["a/w"], 0, tree["a"]["w"]))
    assert not caplog.messages
    rule.prune({"model": params}, (), sparse)
    assert "sparsity.prune: none of 2 masks (a/w, b/w) finds a weight of its name" in caplog.text
