"""LayerNorm and RMSNorm in C++ against XLA's form: values, gradients, further derivatives."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.processes import ended

from wafer import models, vsl
from wafer.models.layers.basic import Norm
from wafer.vsl import norm
from wafer.vsl.attend import attention_as

pytestmark = pytest.mark.native


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm, "_LEAST", 0)
    monkeypatch.setattr(norm, "_NARROWEST", 1)


def _draw(shape: tuple[int, ...], dtype: Any = jnp.float32) -> list[jax.Array]:
    """Activation, scale, bias, and the gradient of the result."""
    rng = np.random.default_rng(0)
    draw = lambda shape, dtype: jnp.asarray(rng.normal(0.5, 2, shape), dtype)
    return [
        draw(shape, dtype),
        *(draw(shape[-1:], jnp.float32) for _ in range(2)),
        draw(shape, dtype),
    ]


def _both(function: Any, *leaves: Any, **options: Any) -> tuple[Any, Any]:
    """What a function of a norm gives with the native one, and with XLA's."""
    run = lambda one: jax.jit(lambda: function(lambda *a: one(*a, **options)))()
    native = jax.jit(lambda *a: vsl.normalize(*a, **options)).lower(*leaves)
    assert "wafer_norm" in native.as_text()
    with attention_as("dense"):
        want = run(vsl.normalize)
    return run(vsl.normalize), want


def _assert_close(got: Any, want: Any, tolerance: float = 2e-6) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        wide = np.asarray(b, np.float64)
        error = np.abs(np.asarray(a, np.float64) - wide).max()
        assert error <= tolerance * np.abs(wide).max()


def test_by_hand(any_size: None) -> None:
    x = jnp.array([[1.0, 3.0], [7.0, 7.0]])
    scale, bias = jnp.array([2.0, -1.0]), jnp.array([1.0, 0.5])
    y, pull = jax.vjp(lambda *a: vsl.normalize(*a, eps=0.25), x, scale, bias)
    unit = 1 / np.sqrt(1.25)
    np.testing.assert_allclose(y, [[1 - 2 * unit, 0.5 - unit], [1, 0.5]], rtol=1e-6)
    dx, d_scale, d_bias = pull(jnp.array([[1.0, 0.0], [3.0, 4.0]]))
    # The row's gradient [2, 0] without its mean, less the row times the mean of their products.
    slope = -unit * 2 / 2
    np.testing.assert_allclose(dx[0], unit * np.array([1 + slope * unit, -1 - slope * unit]))
    np.testing.assert_allclose(dx[1], [10, -10], rtol=1e-6)
    np.testing.assert_allclose(d_scale, [-unit, 0], rtol=1e-6)
    np.testing.assert_array_equal(d_bias, [4, 4])
    rms = vsl.normalize(jnp.array([[3.0, 4.0]]), eps=0.0, centered=False)
    np.testing.assert_allclose(rms, np.array([[3, 4]]) / np.sqrt(12.5), rtol=1e-6)


@pytest.mark.parametrize("centered", [True, False], ids=["layer", "rms"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(5, 33), (130, 96), (3, 2, 7)], ids=str)
def test_values_and_gradients(
    any_size: None, shape: tuple[int, ...], dtype: Any, centered: bool
) -> None:
    *leaves, dy = _draw(shape, dtype)

    def run(one: Any) -> Any:
        y, pull = jax.vjp(one, *leaves)
        return y, pull(dy)

    got, want = _both(run, *leaves, eps=1e-5, centered=centered)
    half = dtype == jnp.bfloat16  # a sum of another order may round to the next number
    _assert_close(got, want, 2**-8 if half else 2e-6)
    assert jax.tree.map(jnp.shape, got) == jax.tree.map(jnp.shape, want)
    _assert_close(got[1][1:], want[1][1:])
    plain = lambda one: jax.grad(lambda x: jnp.sin(one(x)).sum())(leaves[0])
    _assert_close(*_both(plain, leaves[0], eps=0.1), 2**-7 if half else 3e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_branch_adds_the_gradient_of_what_is_kept(any_size: None, dtype: Any) -> None:
    """One native sweep gives what normalize and a sum give, also where x alone is used."""
    *leaves, dy = _draw((130, 97), dtype)
    text = jax.jit(lambda *a: vsl.normalize_branch(*a, eps=1e-5)).lower(*leaves).as_text()
    assert text.count("wafer_norm_forward") == 1
    plain = lambda *a: (vsl.normalize(*a, eps=1e-5), a[0])
    (y, x), pull = jax.vjp(lambda *a: vsl.normalize_branch(*a, eps=1e-5), *leaves)
    (want_y, want_x), want_pull = jax.vjp(plain, *leaves)
    np.testing.assert_array_equal(y, want_y)
    np.testing.assert_array_equal(x, want_x)
    for pair in ((dy, dy[::-1]), (jnp.zeros_like(dy), dy)):
        _assert_close(pull(pair), want_pull(pair), 2**-8 if dtype == jnp.bfloat16 else 2e-6)
    moved = [leaf + 1 for leaf in leaves]
    branch = lambda *a: vsl.normalize_branch(*a, eps=1e-3)
    exact = lambda *a: (vsl.normalize(*a, eps=1e-3), a[0])
    tolerance = 2**-7 if dtype == jnp.bfloat16 else 1e-5
    got, want = (jax.jvp(f, leaves, moved)[1] for f in (branch, exact))
    _assert_close(got, want, tolerance)


DERIVATIVES = {
    "jvp": lambda f, x, s: jax.jvp(f, (x, s), (x + 1, 2 * s))[1],
    "frozen scale": lambda f, x, s: jax.grad(f)(x, s),
    "frozen input": lambda f, x, s: jax.grad(f, 1)(x, s),
    "hessian": lambda f, x, s: jax.hessian(f, (0, 1))(x, s),
    "reverse of reverse": lambda f, x, s: jax.jacrev(jax.grad(f, (0, 1)), (0, 1))(x, s),
    "forward of forward": lambda f, x, s: jax.jacfwd(jax.jacfwd(f, (0, 1)), 1)(x, s),
    "remat": lambda f, x, s: jax.grad(jax.checkpoint(f), (0, 1))(x, s),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_further_derivatives(any_size: None, name: str) -> None:
    x, scale, bias, _ = _draw((3, 5))
    run = lambda one: DERIVATIVES[name](lambda x, s: jnp.sin(one(x, s, bias)).sum(), x, scale)
    _assert_close(*_both(run, x, scale, eps=1e-3), 1e-5)


@pytest.mark.parametrize("name", DERIVATIVES)
def test_further_derivatives_of_a_branch(any_size: None, name: str) -> None:
    x, scale, bias, _ = _draw((3, 5))
    total = lambda y, x: (jnp.sin(y) * jnp.cos(x)).sum()
    branch = lambda x, s: total(*vsl.normalize_branch(x, s, bias, eps=1e-3))
    plain = lambda x, s: total(vsl.normalize(x, s, bias, eps=1e-3), x)
    _assert_close(*(DERIVATIVES[name](f, x, scale) for f in (branch, plain)), 1e-5)


@pytest.mark.parametrize("axes", [(1, None), (None, 0), (0, 0)], ids=str)
def test_vmap(any_size: None, axes: tuple[int | None, int | None]) -> None:
    x, scale, bias, _ = _draw((3, 5))
    batch = [
        leaf if axis is None else jnp.stack([leaf, leaf + 1, -leaf], axis)
        for leaf, axis in zip((x, scale), axes, strict=True)
    ]
    grad = lambda one: jax.value_and_grad(lambda x, s: jnp.sin(one(x, s, bias)).sum(), (0, 1))
    _assert_close(*_both(lambda one: jax.vmap(grad(one), axes)(*batch), x, scale, eps=1e-3), 1e-5)


def test_which_norms_are_native() -> None:
    """Large ones of two dtypes, unless a readable program is asked for; a model's layers, too."""
    text = lambda x: jax.jit(lambda x: vsl.normalize(x, eps=1e-5)).lower(x).as_text()
    large = jnp.zeros((512, 128))
    assert "wafer_norm" in text(large)
    assert "wafer_norm" not in text(large[1:])
    assert "wafer_norm" in text(jnp.zeros((1, 512)))
    assert "wafer_norm" not in text(jnp.zeros((1, 511)))
    assert "wafer_norm" not in text(large.reshape(-1, 16))
    assert "wafer_norm" not in text(large.astype(jnp.float16))
    with attention_as("dense"):
        assert "wafer_norm" not in text(large)
    for kind in ("layernorm", "rmsnorm-1p", "nonparametric-layernorm"):
        layer = Norm(kind, 1e-5)
        tree = layer.init(jax.random.key(0), large)
        assert "wafer_norm" in jax.jit(layer.apply).lower(tree, large).as_text()


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"scale \(1,\), x \(3, 5\); expected one .* \(5,\)"):
        vsl.normalize(jnp.zeros((3, 5)), jnp.ones(1), eps=1e-5)


SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from wafer import vsl
jax.config.update("jax_num_cpu_devices", 2)
x, dy = (jnp.asarray(np.random.default_rng(i).normal(size=(700, 202)), jnp.float32) for i in (0, 1))

def gradients(x, scale, dy):
    y, pull = jax.vjp(lambda x, s: vsl.normalize(x, s, eps=1e-5), x, scale)
    return y, *pull(dy)

whole = [np.asarray(leaf, np.float64) for leaf in gradients(x, jnp.arange(202.0), dy)]
print(*(np.square(leaf).sum() for leaf in whole))
print(*(leaf.tobytes().hex()[-4000:] for leaf in whole))
rows, all = jax.P("rows"), jax.P()
mesh = jax.sharding.Mesh(np.array(jax.devices()), rows)
summed = lambda *a: (*(g := gradients(*a))[:2], jax.lax.psum(g[2], "rows"))
specs = {"in_specs": (rows, all, rows), "out_specs": (rows, rows, all), "check_vma": False}
parts = jax.jit(jax.shard_map(summed, mesh=mesh, **specs))(x, jnp.arange(202.0), dy)
print(max(abs(a - b).max() / abs(b).max() for a, b in zip(parts, whole)) < 1e-6)
"""


def _process(threads: int, **settings: str) -> list[str]:
    return ended(SCRIPT, NPROC=str(threads), **settings).stdout.splitlines()


@pytest.mark.slow
def test_every_target_number_of_threads_and_device() -> None:
    sums, bits, by_devices = _process(1)
    assert by_devices == "True"
    assert _process(3)[1] == bits
    for target in ("avx2", "baseline", "0"):
        numbers = [
            [float(number) for number in line.split()]
            for line in (sums, _process(2, WAFER_NATIVE=target)[0])
        ]
        np.testing.assert_allclose(*numbers, rtol=1e-5)


@pytest.mark.parametrize("after", [False, True])
def test_a_block_keeps_a_branch_where_its_residual_begins_before_the_norm(
    any_size: None, after: bool
) -> None:
    """BLOOM's residual is the normalized activation: no gradient of x beside it is read."""
    sizes = {"hidden_size": 32, "num_heads": 2, "filter_size": 32, "vocab_size": 16}
    sizes |= {"num_hidden_layers": 2, "max_position_embeddings": 8, "dropout_rate": 0.0}
    model = models.build({"name": "gpt2", "residual_after_norm": after} | sizes)
    params = model.init(jax.random.key(0))
    tokens, layout = jnp.arange(16), vsl.padded_layout(jnp.array([8, 8]), 8)
    batch = models.Batch(tokens, tokens, jnp.ones(16), layout)
    gradient = jax.grad(lambda p: model.loss(p, batch)[0])
    assert str(jax.make_jaxpr(gradient)(params)).count("norm_branch[") == (0 if after else 4)
    with attention_as("dense"):
        want = gradient(params)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, gradient(params), want)
