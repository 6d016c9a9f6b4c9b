"""Layers of Flax with csr weights, and what is refused where they cannot be."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from helpers.sparse_loop import start, step

from wafer import sparsity
from wafer.sparsity.kernels.choice import obstacle

CSR = {"sparsity": 0.5, "compute": "csr"}
RIGL = {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 1}, "param_filter": "*kernel*"}
FUNCTIONS = {"dot_general": sparsity.dot_general, "promote_dtype": sparsity.promote_dtype}
X = jax.random.normal(jax.random.key(3), (6, 8))


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(4, use_bias=False)(linen.relu(linen.Dense(12)(x)))


class Nnx(nnx.Module):
    def __init__(self, **keys):
        rngs = nnx.Rngs(0)
        self.up = nnx.Linear(8, 12, rngs=rngs, **keys)
        self.down = nnx.Linear(12, 4, use_bias=False, rngs=rngs, **keys)

    def __call__(self, x):
        return self.down(nnx.relu(self.up(x)))


def linen_parts():
    def run(params, x):
        with sparsity.linen_layers():
            return Linen().apply({"params": params}, x)

    return Linen().init(jax.random.key(0), X)["params"], run


def nnx_parts():
    graph, params = nnx.split(Nnx(**FUNCTIONS))
    return params, lambda params, x: nnx.merge(graph, params)(x)


def trained(parts, compute):
    """Weights, masks and losses of three steps, each with a topology update."""
    params, run = parts()
    tx, losses = optax.adam(1e-2), []
    sparsifier, *state = start(RIGL | {"compute": compute}, params, tx, seed=1)
    for _ in range(3):
        loss = lambda tree: ((run(tree, X) - 1) ** 2).mean()
        value, *state = step(sparsifier, tx, loss, *state)
        losses.append(float(value))
    sparse, params, _ = state
    return sparsifier.expand(params, (), sparse)[0], sparsifier.masks(sparse), losses


@pytest.mark.parametrize(
    "parts", [linen_parts, pytest.param(nnx_parts, marks=pytest.mark.slow)], ids=["linen", "nnx"]
)
def test_csr_weights_train_in_flax_layers_as_masked_ones_do(parts):
    masked, csr = trained(parts, "masked"), trained(parts, "csr")
    assert len(csr[1]) == 2
    jax.tree.map(np.testing.assert_array_equal, masked[1], csr[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), masked, csr)


def test_dtypes_of_a_flax_layer_with_a_csr_kernel():
    layer = nnx.Linear(8, 4, dtype=jnp.bfloat16, rngs=nnx.Rngs(0), **FUNCTIONS)
    dense = layer(X)
    mask = jnp.ones((8, 4), bool)
    pattern = sparsity.pattern_from_mask(mask, 32)
    values = layer.kernel[...].T.reshape(-1)
    layer.kernel = nnx.Param(sparsity.SparseWeight(values=values, pattern=pattern))
    assert layer(X).dtype == dense.dtype == jnp.bfloat16
    np.testing.assert_allclose(layer(X), dense, atol=0.02)
    with pytest.raises(ValueError, match="expected the last axis of x and the first"):
        sparsity.dot_general(X, layer.kernel[...], (((0,), (0,)), ((), ())))


def test_other_layers_are_told_what_to_write():
    params = {"w": jnp.ones((4, 4))}
    sparsifier, sparse, params, _ = start(CSR, params)
    weight = sparsifier.apply(params, sparse)["w"]
    for attribute in ("T", "astype", "dtype", "ndim"):
        with pytest.raises(AttributeError, match=rf"{attribute}: a sparse weight .* is no array"):
            getattr(weight, attribute)
    refused = [lambda: weight @ X[0, :4], lambda: jnp.asarray(weight), lambda: weight[0]]
    refused += [lambda: weight + X, lambda: X - weight, lambda: 2 * weight, lambda: weight / 2]
    refused += [lambda: -weight, lambda: np.ones((4, 4)) * weight, lambda: weight < 1]
    graph, state = nnx.split(nnx.Linear(4, 4, rngs=nnx.Rngs(0)))
    state["kernel"] = nnx.Param(weight)
    for use in [*refused, lambda: nnx.merge(graph, state)(X[:, :4])]:
        with pytest.raises(TypeError, match=r"is no array.*dot_general=sparsity\.dot_general"):
            use()


@pytest.mark.parametrize("change", [lambda v: v.astype(jnp.bfloat16), lambda v: v / 2])
def test_weights_are_cast_and_scaled_before_attach(change):
    params = {"w": jnp.ones((4, 4))}
    sparsifier, sparse, pruned, _ = start(CSR, params)
    ready = sparsifier.prepare(pruned, sparse)
    with pytest.raises(TypeError, match="scale weights before `attach`"):
        X[:, :4] @ jax.tree.map(change, sparsifier.attach(ready, sparse))["w"]
    changed = change(params["w"]) * sparsifier.masks(sparse)["w"]
    y = X[:, :4] @ sparsifier.attach(jax.tree.map(change, ready), sparse)["w"]
    np.testing.assert_allclose(y, X[:, :4] @ changed, rtol=1e-5)


@pytest.mark.parametrize("compute", ["masked", "csr"])
def test_gradients_without_split_are_refused(compute):
    params = {"w": jnp.ones((4, 4))}
    sparsifier, sparse, params, _ = start(RIGL | {"compute": compute, "param_filter": "*"}, params)
    loss = lambda ready: (X[:, :4] @ sparsifier.attach(ready, sparse)["w"]).sum()
    grads = jax.grad(loss)(sparsifier.prepare(params, sparse, dense=True))
    uses = [lambda p, g: p - g, lambda p, g: 0.1 * g, lambda p, g: p * g, lambda p, g: g + p]
    for use in uses:
        with pytest.raises(TypeError, match=r"Call `grads, dense = sparsifier\.split"):
            jax.tree.map(use, params, grads)
    tx = optax.sgd(0.1)
    with pytest.raises(TypeError, match=r"sparsifier\.split"):
        optax.apply_updates(params, tx.update(grads, tx.init(params))[0])


@pytest.mark.parametrize("layer", [linen.DenseGeneral, linen.Einsum])
def test_a_linen_layer_that_takes_arrays_is_named(layer):
    arguments = {linen.DenseGeneral: (4,), linen.Einsum: ((4, 4), "...i,io->...o")}[layer]

    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            return layer(*arguments, name="head")(linen.Dense(4, name="up")(x))

    params = Model().init(jax.random.key(0), X)["params"]
    for name in ("head", "up"):
        section = CSR | {"param_filter": f"{name}/kernel"}
        sparsifier, sparse, pruned, _ = start(section, params)
        tree = sparsifier.apply(pruned, sparse)
        with sparsity.linen_layers():
            if name == "up":
                assert Model().apply({"params": tree}, X).shape[-1] == 4
                continue
            with pytest.raises(TypeError, match=r"\w+ 'head' reads 'kernel' as an array"):
                Model().apply({"params": tree}, X)


def halved(x, kernel, axes, **options):
    return jax.lax.dot_general(x, kernel, axes, **options) / 2


@pytest.mark.parametrize(
    ("name", "own", "taken"),
    [
        ("dot_general", halved, False),
        ("dot_general_cls", lambda: halved, False),
        ("promote_dtype", lambda *arrays, dtype: [2 * leaf for leaf in arrays], False),
        ("dot_general", sparsity.dot_general, True),
        ("precision", "highest", True),
    ],
)
def test_a_linen_dense_with_functions_of_its_own(name, own, taken):
    """It computes with masks, and with csr too where the function is Wafer's; else it is named."""
    model = linen.Sequential([linen.Dense(4, **{name: own})])
    params = model.init(jax.random.key(0), X)["params"]
    results = []
    for compute in ("masked", "csr"):
        sparsifier, sparse, pruned, _ = start(CSR | {"compute": compute}, params)
        tree = sparsifier.apply(pruned, sparse)
        with sparsity.linen_layers():
            if compute == "csr" and not taken:
                with pytest.raises(TypeError, match=rf"Dense 'layers_0' has its own {name}"):
                    model.apply({"params": tree}, X)
                return
            results.append(model.apply({"params": tree}, X))
    np.testing.assert_allclose(*results, rtol=1e-5)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"weight_layout": "oi"}, r"weight_layout is 'oi'.*equinox.*use masked"),
        ({"params": {"w": X}, "accepts": lambda name: False}, "'w' cannot be stored as csr: acc"),
        ({"params": {"w": jnp.ones((2, 2, 2))}}, "'w' cannot be stored as csr: its rank is 3"),
    ],
)
def test_configure_refuses_csr_at_once(keys, message):
    with pytest.raises(sparsity.SparsityError, match=message):
        sparsity.configure(CSR, **keys)


def test_wrap_refuses_csr_at_once():
    with pytest.raises(sparsity.SparsityError, match=r"wrap\(\) differentiates at dense weights"):
        sparsity.wrap(sparsity.configure(CSR), optax.sgd(1), jax.random.key(0))


@pytest.mark.native
@pytest.mark.parametrize(
    ("level", "accepts", "records"),
    [
        (0.9, None, [("WARNING", "auto keeps masks of a, b: configure() was not told")]),
        (0.9, lambda name: name == "a", [("INFO", "auto keeps masks of b: accepts() says")]),
        (0.1, lambda name: True, [("INFO", "auto keeps masks of a, b: csr pays up to 60 %")]),
        (0.9, lambda name: True, []),
    ],
)
def test_auto_says_in_one_line_that_it_keeps_masks(level, accepts, records, caplog):
    caplog.set_level("INFO", "wafer.sparsity.storage")
    params = {name: jnp.ones((16, 16)) for name in "ab"}
    sparsity.configure(level, accepts=accepts).init(params, jax.random.key(0))
    lines = [(r.levelname, r.message) for r in caplog.records if r.name == "wafer.sparsity.storage"]
    assert len(lines) == len(records)
    for (level, text), (want, part) in zip(lines, records, strict=True):
        assert level == want
        assert part in text


def test_auto_keeps_masks_without_the_native_kernels(monkeypatch, caplog):
    monkeypatch.setattr("wafer.sparsity.kernels.native.usable", lambda: False)
    monkeypatch.setattr("wafer.sparsity.storage.obstacle", obstacle.__wrapped__)  # keeps no answer
    caplog.set_level("INFO", "wafer.sparsity.storage")
    sparse = sparsity.configure(0.9, accepts=lambda name: True).init(
        {"w": jnp.ones((16, 16))}, jax.random.key(0)
    )
    assert not sparse.patterns
    assert "auto keeps masks of w: there is no native kernel for this machine" in caplog.text
