"""Cross-entropy in C++ against XLA's form: values, gradients, further derivatives."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import vsl
from wafer.vsl import entropy
from wafer.vsl.attend import attention_as


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entropy, "_LEAST", 0)
    monkeypatch.setattr(entropy, "_FEWEST", 1)


def _draw(rows: int, classes: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Scores, labels, and the gradient of the loss."""
    rng = np.random.default_rng(rows)
    scores = 3 * rng.normal(size=(rows, classes))
    labels = rng.integers(0, classes, rows)
    labels[::3] = scores[::3].argmax(1)
    return jnp.float32(scores), jnp.int32(labels), jnp.float32(rng.normal(size=rows))


def _both(function: Any, *leaves: Any) -> tuple[Any, Any]:
    native = jax.jit(function).lower(*leaves)
    assert "wafer_entropy" in native.as_text()
    got = jax.jit(function)(*leaves)
    with attention_as("dense"):
        return got, jax.jit(functools.partial(function))(*leaves)  # traced anew


def _assert_close(got: Any, want: Any, tolerance: float = 2e-6) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= tolerance * max(1, np.abs(b).max())


@pytest.mark.native
def test_by_hand(any_size: None) -> None:
    scores = jnp.log(jnp.array([[1.0, 2.0, 5.0], [3.0, 3.0, 2.0], [3.0, 3.0, 2.0]]))
    run = lambda x: vsl.cross_entropy(x, jnp.array([2, 0, 1]))
    loss, best = run(scores)
    np.testing.assert_allclose(loss, -np.log([5 / 8, 3 / 8, 3 / 8]), rtol=1e-6)
    np.testing.assert_array_equal(best, [1, 1, 0])  # of equals the first
    gradient = jax.grad(lambda x: run(x).loss @ jnp.array([8.0, 8.0, 0.0]))(scores)
    np.testing.assert_allclose(gradient, [[1, 2, -3], [-5, 3, 2], [0, 0, 0]], atol=2e-6)


@pytest.mark.native
@pytest.mark.parametrize("shape", [(5, 3), (7, 16), (130, 33), (64, 515)], ids=str)
def test_values_and_gradients(any_size: None, shape: tuple[int, int]) -> None:
    scores, labels, d = _draw(*shape)

    def run(scores: jax.Array) -> Any:
        loss, pull = jax.vjp(lambda x: vsl.cross_entropy(x, labels).loss, scores)
        return loss, pull(d), vsl.cross_entropy(scores, labels).best

    got, want = _both(run, scores)
    _assert_close(got, want)
    np.testing.assert_array_equal(got[2], np.argmax(scores, 1) == labels)
    by_rows, _ = _both(lambda x: vsl.cross_entropy(x[None], labels[None]), scores)
    np.testing.assert_array_equal(by_rows.loss[0], got[0])
    half = scores.astype(jnp.bfloat16)
    _assert_close(*_both(lambda x: vsl.cross_entropy(x, labels), half))


DERIVATIVES = {
    "jvp": lambda f, x: jax.jvp(f, (x,), (x + 1,))[1],
    "hessian": lambda f, x: jax.hessian(f)(x),
    "reverse of reverse": lambda f, x: jax.jacrev(jax.grad(f))(x),
    "remat": lambda f, x: jax.grad(jax.checkpoint(f))(x),
    "vmap": lambda f, x: jax.vmap(jax.value_and_grad(f))(jnp.stack([x, x + 1, -x])),
}


@pytest.mark.native
@pytest.mark.parametrize("name", DERIVATIVES)
def test_further_derivatives(any_size: None, name: str) -> None:
    scores, labels, _ = _draw(3, 5)
    loss = lambda x: jnp.sin(vsl.cross_entropy(x, labels).loss).sum()
    _assert_close(*_both(lambda x: DERIVATIVES[name](loss, x), scores), 1e-5)


@pytest.mark.native
def test_scores_without_an_end(any_size: None) -> None:
    """Masked classes take nothing; what overflows is not hidden."""
    none = -jnp.inf
    scores = jnp.array([[0.0, none, 0.0], [none, none, none], [jnp.inf, 0, 0], [0, jnp.nan, 0]])
    run = jax.value_and_grad(lambda x: vsl.cross_entropy(x, jnp.zeros(len(x), int)).loss.sum())
    for rows in (scores[:1], scores[1:2], scores[2:3], scores[3:]):
        got, want = _both(run, rows)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
        np.testing.assert_allclose(got[1], want[1], atol=1e-6)


@pytest.mark.parametrize("form", ["native", "dense"])
def test_labels_that_are_no_class(any_size: None, form: str) -> None:
    scores = jnp.array([[0.0, 1.0, 3.0]] * 3)
    with attention_as(form):
        loss, best = vsl.cross_entropy(scores, jnp.array([-100, 2, 7]))
    most = math.log(1 + math.e + math.e**3)
    np.testing.assert_allclose(loss, [most, most - 3, most - 3], rtol=1e-6)
    np.testing.assert_array_equal(best, [0, 1, 0])


@pytest.mark.native
def test_which_are_native() -> None:
    text = lambda x: jax.jit(lambda x: vsl.cross_entropy(x, x[:, 0].astype(int))).lower(x).as_text()
    large = jnp.zeros((128, 512))
    assert "wafer_entropy" in text(large)
    assert "wafer_entropy" not in text(large[1:])
    assert "wafer_entropy" not in text(large.reshape(-1, 16))
    with attention_as("dense"):
        assert "wafer_entropy" not in text(large)
