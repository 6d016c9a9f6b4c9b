"""Small programs of a user, sparse in a few lines, against masks multiplied by hand."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn, nnx
from helpers.sparse_loop import start, step

from wafer import sparsity
from wafer.models.paths import map_named, named_leaves

KEY = jax.random.key(0)
RATE, MOMENTUM, LEVEL, DROP, STEPS = 0.1, 0.9, 0.75, 0.3, 5


class Program(NamedTuple):
    params: Any
    loss: Any  #: (params, step) -> [] float32
    filters: tuple[str, ...]  #: of sparse weights
    products: tuple[str, ...] = ()  #: those that the model computes as ``x @ weight``
    layout: Any = None
    stacked: tuple[str, ...] = ()  #: whose first axis is layers or experts


def draw(key, *shape):
    return jax.random.normal(jax.random.fold_in(KEY, key), shape) / np.sqrt(shape[-2])


def images(t, size=8):
    """Draw ten blurred digits of a stand-in for mnist."""
    centers = jax.random.normal(jax.random.key(7), (10, size, size, 1))
    labels = jax.random.randint(jax.random.key(t), (16,), 0, 10)
    noise = jax.random.normal(jax.random.key(t + 100), (16, size, size, 1))
    return centers[labels] + 0.3 * noise, labels


def tokens(t):
    return (jax.random.randint(jax.random.key(t), (4, 1), 0, 16) + jnp.arange(9)) % 16


def next_token(logits, rows):
    return optax.softmax_cross_entropy_with_integer_labels(logits, rows[:, 1:]).mean()


def mnist():
    """Stand for flax's nnx example: a convolution and two linear layers."""
    dot = {"dot_general": sparsity.dot_general, "promote_dtype": sparsity.promote_dtype}

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
            self.up = nnx.Linear(256, 32, rngs=rngs, **dot)
            self.head = nnx.Linear(32, 10, rngs=rngs)

        def __call__(self, x):
            x = nnx.relu(self.conv(x)).reshape(x.shape[0], -1)
            return self.head(nnx.relu(self.up(x)))

    graph, params = nnx.split(Net(nnx.Rngs(0)))

    def loss(params, t):
        x, labels = images(t)
        logits = nnx.merge(graph, params)(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return Program(params, loss, ("conv/kernel", "up/kernel"), ("up/kernel",))


def language_model():
    """Stand for flax's lm1b: attention of linen and a feed-forward, on embeddings."""

    class Model(nn.Module):
        @nn.compact
        def __call__(self, rows):
            x = nn.Embed(16, 32)(rows)
            mask = nn.make_causal_mask(rows)
            x = x + nn.MultiHeadDotProductAttention(4, name="attn")(nn.LayerNorm()(x), mask=mask)
            h = nn.Dense(64, name="up")(nn.LayerNorm()(x))
            return nn.Dense(16)(x + nn.Dense(32, name="down")(nn.relu(h)))

    model = Model()
    params = model.init(KEY, tokens(0)[:, :-1])["params"]

    def loss(params, t):
        with sparsity.linen_layers():
            return next_token(model.apply({"params": params}, tokens(t)[:, :-1]), tokens(t))

    layout = {"attn/out/kernel": "iio", "attn/*/kernel": "ioo"}
    dense = ("up/kernel", "down/kernel")
    return Program(params, loss, ("attn/*/kernel", *dense), dense, layout)


def scanned_language_model():
    """Stand for nanodo: blocks of DenseGeneral under ``nn.scan``."""

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            h = nn.RMSNorm()(x)
            q, k, v = (nn.DenseGeneral((4, 8), use_bias=False, name=n)(h) for n in "qkv")
            h = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            x = x + nn.DenseGeneral(32, axis=(-2, -1), use_bias=False, name="out")(h)
            h = nn.Dense(64, use_bias=False, name="up")(nn.RMSNorm()(x))
            return x + nn.Dense(32, use_bias=False, name="down")(nn.gelu(h)), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, rows):
            stack = nn.scan(
                Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3
            )
            x, _ = stack(name="layers")(nn.Embed(16, 32)(rows), None)
            return nn.Dense(16, name="lm_head")(x)

    model = Model()
    params = model.init(KEY, tokens(0)[:, :-1])["params"]
    loss = lambda params, t: next_token(
        model.apply({"params": params}, tokens(t)[:, :-1]), tokens(t)
    )
    layout = {"layers/out/kernel": "liio", "layers/?/kernel": "lioo", "layers/*/kernel": "lio"}
    return Program(params, loss, ("layers/*/kernel",), (), layout, ("layers",))


def experts():
    """Mix four experts by a softmax of a router."""
    params = {"up": draw(1, 4, 16, 32), "down": draw(2, 4, 32, 16), "router": draw(3, 16, 4)}

    def loss(params, t):
        x = jax.random.normal(jax.random.key(t), (8, 16))
        gates = jax.nn.softmax(x @ params["router"])
        h = jax.nn.relu(jnp.einsum("ti,eio->teo", x, params["up"]))
        y = jnp.einsum("teo,eod,te->td", h, params["down"], gates)
        return ((y - jnp.roll(x, 1, axis=1)) ** 2).mean()

    return Program(
        params, loss, ("up", "down", "router"), ("router",), {"up": "eio", "down": "eio"},
        ("up", "down"),
    )  # fmt: skip


def vision_transformer():
    """Write a ViT of equinox: patches, a class token, a block of attention."""

    class ViT(eqx.Module):
        patch: eqx.nn.Conv2d
        cls_token: jax.Array
        pos_embed: jax.Array
        norm: eqx.nn.LayerNorm
        attention: eqx.nn.MultiheadAttention
        mlp: eqx.nn.MLP
        head: eqx.nn.Linear

        def __init__(self, key):
            keys = jax.random.split(key, 6)
            self.patch = eqx.nn.Conv2d(1, 16, 4, 4, key=keys[0])
            self.cls_token = jax.random.normal(keys[1], (1, 16))
            self.pos_embed = jax.random.normal(keys[2], (5, 16))
            self.norm = eqx.nn.LayerNorm(16)
            self.attention = eqx.nn.MultiheadAttention(2, 16, key=keys[3])
            self.mlp = eqx.nn.MLP(16, 16, 32, 1, key=keys[4])
            self.head = eqx.nn.Linear(16, 10, key=keys[5])

        def __call__(self, image):
            x = self.patch(image.transpose(2, 0, 1)).reshape(16, -1).T
            x = jnp.concatenate([self.cls_token, x]) + self.pos_embed
            h = jax.vmap(self.norm)(x)
            x = x + self.attention(h, h, h)
            return self.head((x + jax.vmap(self.mlp)(x))[0])

    params, static = eqx.partition(ViT(KEY), eqx.is_inexact_array)

    def loss(params, t):
        x, labels = images(t)
        logits = jax.vmap(eqx.combine(params, static))(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    filters = ("patch/weight", "attention/*/weight", "mlp/*/weight", "head/weight")
    return Program(params, loss, filters, (), "oi")


def haiku_transformer():
    """Write a block of haiku: attention, and a linear layer that computes ``x @ w``."""

    class Product(hk.Module):
        def __init__(self, size, name):
            super().__init__(name=name)
            self.size = size

        def __call__(self, x):
            shape, init = (x.shape[-1], self.size), hk.initializers.TruncatedNormal(0.2)
            return x @ hk.get_parameter("w", shape, init=init)

    def apply(rows):
        x = hk.Embed(16, 32)(rows)
        mask = jnp.tril(jnp.ones((1, 1, rows.shape[1], rows.shape[1])))
        init = hk.initializers.VarianceScaling(1.0)
        h = hk.LayerNorm(-1, True, True)(x)
        x = x + hk.MultiHeadAttention(4, 8, w_init=init, name="attn")(h, h, h, mask)
        h = Product(64, "up")(hk.LayerNorm(-1, True, True)(x))
        return hk.Linear(16, name="lm_head")(x + Product(32, "down")(jax.nn.relu(h)))

    model = hk.without_apply_rng(hk.transform(apply))
    params = model.init(KEY, tokens(0)[:, :-1])
    loss = lambda params, t: next_token(model.apply(params, tokens(t)[:, :-1]), tokens(t))
    products = ("up/w", "down/w")
    return Program(params, loss, ("attn/*/w", *products), products)


PROGRAMS = {
    make.__name__: make
    for make in (
        mnist, language_model, scanned_language_model, experts, vision_transformer,
        haiku_transformer,
    )
}  # fmt: skip


def rigl_by_hand(weight, mask, grad):
    """Drop the smallest weights, grow those of the largest gradients; one layer."""
    share = lambda part, of: int(np.trunc((np.float32(1) - np.float32(part)) * np.float32(of)))
    stay = share(DROP, mask.sum())
    best = np.argsort(-np.where(mask, np.abs(weight), -1).ravel(), kind="stable")[:stay]
    scores = np.abs(grad).ravel()
    scores[best] = -1
    grown = np.argsort(-scores, kind="stable")[: share(LEVEL, mask.size) - stay]
    new = np.zeros(mask.size, bool)
    new[best] = new[grown] = True
    return new.reshape(mask.shape)


def train_by_hand(program, masks, due):
    """Multiply weights, gradients and momenta by the masks; return losses and weights by name."""
    step = jax.jit(jax.value_and_grad(program.loss))
    masks = {name: np.asarray(mask) for name, mask in masks.items()}
    by_mask = lambda tree: map_named(lambda name, x: x * masks.get(name, 1), tree)
    params, losses = by_mask(program.params), []
    velocity = jax.tree.map(jnp.zeros_like, params)
    for t in range(1, STEPS + 1):
        value, dense = step(params, t)
        losses.append(float(value))
        velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, by_mask(dense))
        params = jax.tree.map(lambda p, v: p - RATE * v, params, velocity)
        if due(t):
            weights, grads = (
                {name: np.array(leaf) for name, leaf in named_leaves(tree)}
                for tree in (params, dense)
            )
            for name, mask in masks.items():
                stacked = name.startswith(program.stacked or ("/",))
                parts = [weights[name], mask, grads[name]]
                parts = parts if stacked else [part[None] for part in parts]
                new = np.stack([rigl_by_hand(*each) for each in zip(*parts, strict=True)])
                masks[name] = new.reshape(mask.shape)
            params, velocity = by_mask(params), by_mask(velocity)
    return losses, dict(named_leaves(params)), masks


def train(program, rule):
    """Train as the guide does; return losses, weights and masks by name, and the first masks."""
    tx = optax.sgd(RATE, momentum=MOMENTUM)
    rule, *run = start(rule, program.params, tx, seed=1)
    first = rule.masks(run[0])

    @functools.partial(jax.jit, static_argnames="due")
    def one_step(t, *run, due):
        return step(rule, tx, lambda tree: program.loss(tree, t), *run, due=due)

    losses = []
    for t in range(1, STEPS + 1):
        value, *run = one_step(t, *run, due=rule.due(t))
        losses.append(float(value))
    sparse, params, moments = run
    params, _ = rule.expand(params, moments, sparse)
    return losses, dict(named_leaves(params)), rule.masks(sparse), first


KEPT_VALUES = {"mnist", "language_model", "experts", "haiku_transformer"}  # with products of them
CHEAP = {("experts", "masked", "rigl"), ("experts", "csr", "rigl"), ("mnist", "masked", "static")}
CASES = [
    pytest.param(*case, marks=() if case in CHEAP else pytest.mark.slow)
    for name in PROGRAMS
    for compute in ("masked", "csr")[: 1 + (name in KEPT_VALUES)]
    for case in ((name, compute, "static"), (name, compute, "rigl"))
]


@pytest.mark.parametrize(("name", "compute", "algorithm"), CASES)
def test_training_is_that_of_masks_by_hand(name, compute, algorithm):
    program = PROGRAMS[name]()
    products = program.products if compute == "csr" else ()
    section = {"algorithm": algorithm, "sparsity": LEVEL}
    section |= {} if algorithm == "static" else {"update": {"freq": 2}, "drop_fraction": DROP}
    sections = [section | {"param_filter": [glob], "compute": "csr"} for glob in products]
    masked = section | {"param_filter": [*program.filters], "compute": "masked"}
    rule = sparsity.configure([*sections, masked], weight_layout=program.layout)
    losses, weights, masks, first = train(program, rule)
    by_hand, expected, expected_masks = train_by_hand(program, first, rule.due)
    np.testing.assert_allclose(losses, by_hand, rtol=2e-5)
    assert losses[-1] != losses[0]
    assert {*masks} == {*expected_masks}
    for each, mask in masks.items():
        assert np.array_equal(mask, expected_masks[each])
        assert not np.asarray(weights[each])[~np.asarray(mask)].any()
    for each, leaf in expected.items():
        np.testing.assert_allclose(weights[each], leaf, atol=5e-6, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["static", "rigl"])
def test_policy_gradients_of_several_seeds_in_one_jit(algorithm):
    """Clipped policy gradients, wrapped, under ``vmap`` and ``scan``: each seed as when alone."""
    rule = sparsity.configure(
        {"algorithm": algorithm, "sparsity": LEVEL, "param_filter": "up", "compute": "masked"}
        | ({} if algorithm == "static" else {"update": {"freq": 2}, "drop_fraction": DROP})
    )

    def loss(params, batch):
        x, action, old, advantage = batch
        h = jnp.tanh(x @ params["up"])
        log = jax.nn.log_softmax(h @ params["policy"])[jnp.arange(len(x)), action]
        ratio = jnp.exp(log - old)
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        return ((h @ params["value"])[:, 0] - advantage).var() - gain.mean()

    def rollout(params, key):
        x = jax.random.normal(key, (16, 8))
        logits = jax.nn.log_softmax(jnp.tanh(x @ params["up"]) @ params["policy"])
        action = jax.random.categorical(jax.random.fold_in(key, 1), logits)
        reward = (action == (x.sum(1) > 0)).astype(jnp.float32)
        return x, action, logits[jnp.arange(16), action], reward - 0.5

    def start(key):
        sizes = {"up": (8, 32), "policy": (32, 2), "value": (32, 1)}
        keys = jax.random.split(key, 3)
        return {
            n: jax.random.normal(k, s) * 0.3 for k, (n, s) in zip(keys, sizes.items(), strict=True)
        }

    def train_one(key):
        tx = sparsity.wrap(rule, optax.sgd(RATE, momentum=MOMENTUM), key)
        params = start(key)
        state = tx.init(params)
        first = state.sparse.masks["up"]
        params = rule.apply(params, state.sparse)

        def body(carry, t):
            params, state = carry
            batch = rollout(params, jax.random.fold_in(key, t))
            value, grads = jax.value_and_grad(loss)(params, batch)
            updates, state = tx.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), value

        (params, state), losses = jax.lax.scan(body, (params, state), jnp.arange(1, STEPS + 1))
        return params, state.sparse.masks["up"], losses, first

    keys = jax.random.split(KEY, 2)
    params, masks, losses, first = jax.jit(jax.vmap(train_one))(keys)
    assert not np.array_equal(first[0], first[1])
    for i, key in enumerate(keys):
        own = lambda params, t, key=key: loss(params, jax.lax.stop_gradient(
            rollout(params, jax.random.fold_in(key, t))
        ))  # fmt: skip
        program = Program(start(key), own, ("up",))
        by_hand, expected, mask = train_by_hand(program, {"up": first[i]}, rule.due)
        np.testing.assert_allclose(losses[i], by_hand, rtol=2e-5, atol=1e-6)
        assert np.array_equal(masks[i], mask["up"])
        for name, leaf in expected.items():
            np.testing.assert_allclose(params[name][i], leaf, atol=5e-6, rtol=1e-4)
