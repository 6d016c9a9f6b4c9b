"""The native attention kernel against the dense form and the block form, and what it refuses."""

import functools
import os
import pathlib
import platform
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.attention import assert_close, gradients, in_rows, inputs
from helpers.processes import ended
from hypothesis import given, settings, strategies as st

from wafer import vsl
from wafer.vsl.implementations import fused

pytestmark = pytest.mark.native

LENGTHS = (70, 1, 0, 130, 33)  # 250 slots: four tiles, the last one cut, slack at the end
CAPACITY = 250


def test_library_is_built() -> None:
    assert fused.LIBRARY.usable(), "run `python setup.py build_ext --inplace`"


def _slope_terms(x: dict[str, Any], layout: vsl.Layout) -> np.ndarray:
    """Sum of ``|d score| * distance`` of each head, causal, as many key heads; float64.

    The slope's gradient is the sum of these terms with their signs, of which all but a hundredth
    to a thousandth cancels: it is known to a rounding of this sum, in any order of addition.
    """
    q, k, v, do = (np.asarray(x[name], np.float64) for name in ("q", "k", "v", "do"))
    at, segments = np.arange(layout.capacity), np.asarray(layout.segments)
    distance = at[:, None] - at
    seen = (segments[:, None] == segments) & (segments >= 0) & (distance >= 0)
    slopes = np.asarray(x["slopes"], np.float64)[:, None, None]
    scores = np.einsum("qnh,knh->nqk", q, k) / q.shape[-1] ** 0.5 - slopes * distance
    weights = np.where(seen, np.exp(scores - scores.max(-1, where=seen, initial=-99)[..., None]), 0)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-99)
    d_weights = np.einsum("qnh,knh->nqk", do, v)
    d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
    return (np.abs(d_scores) * distance).sum((1, 2))


@pytest.mark.parametrize(
    ("heads", "width", "options"),
    [
        ((4, 2), 16, {}),
        ((4, 1), 8, {"causal": False, "window": 20}),  # one key head: cut into chunks
        ((16, 16), 16, {"window": 40}),  # one task has all of a head
        ((2, 2), 20, {"window": (5, 9), "causal": False, "scale": 0.7}),
        ((3, 3), 64, {"dropout_rate": 0.3}),
        ((3, 3), 64, {"alibi": True}),
        ((3, 3), 64, {"alibi": True, "dropout_rate": 0.3}),
        ((4, 2), 16, {"alibi": True, "bias": "t5", "window": 33}),
        ((4, 4), 16, {"bias": "t5", "causal": False}),
    ],
    ids=["gqa", "mqa", "heads", "scale", "dropout", "alibi", "alibi+dropout", "alibi+t5", "t5"],
)
def test_native_equals_dense(heads: tuple[int, int], width: int, options: dict[str, Any]) -> None:
    """Forward and every gradient; dropout drops the same weights."""
    layout = vsl.layout_from_lengths(jnp.asarray(LENGTHS), CAPACITY)
    x = inputs(CAPACITY, heads, width)
    want = gradients(x, layout, "dense", **options)
    assert float(jnp.abs(want["out"]).max()) > 0.1
    got = gradients(x, layout, "native", **options)
    cancels = "alibi" in options and "bias" not in options
    assert_close(got, want, skip=("slopes",) if cancels else ())
    if cancels:
        difference = np.abs(np.asarray(got["slopes"]) - np.asarray(want["slopes"]))
        assert (difference <= 2.0**-24 * _slope_terms(x, layout)).all()


def test_padded_batch_with_nan_in_the_padding() -> None:
    packed = vsl.layout_from_lengths(jnp.asarray(LENGTHS), CAPACITY)
    rows = vsl.padded_layout(jnp.asarray(LENGTHS), 130)
    x = inputs(CAPACITY, (2, 2), 16)
    spread, here, there = in_rows(x, packed, rows)
    want = gradients(x, packed, "native")
    got = gradients(spread, rows, "native")
    for name in ("q", "k", "v", "out"):
        assert not np.delete(got[name], there, axis=0).any()
        np.testing.assert_allclose(got[name][there], want[name][here], atol=2e-6)


def test_cross_attention() -> None:
    layout = vsl.layout_from_lengths(jnp.asarray(LENGTHS), CAPACITY)
    kv = vsl.layout_from_lengths(jnp.array([30, 60, 5, 0, 90]), 190)
    x = inputs(CAPACITY, (4, 2), 16, keys=190)
    options = {"kv_layout": kv, "causal": False, "window": 40}
    want = gradients(x, layout, "dense", **options)
    assert_close(gradients(x, layout, "native", **options), want)
    assert not np.asarray(want["out"][71:201]).any()  # sequence 3 has no keys


@functools.cache
def _both() -> Any:
    x = inputs(200, (2, 1), 16)

    def run(lengths: jax.Array) -> list[dict[str, jax.Array]]:
        layout = vsl.layout_from_lengths(lengths, 200)
        return [gradients(x, layout, name) for name in ("native", "dense")]

    return jax.jit(run)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 66), min_size=3, max_size=3))
def test_any_lengths(lengths: list[int]) -> None:
    """Sequences may begin and end anywhere in a tile."""
    got, want = _both()(jnp.asarray(lengths))
    if max(lengths) > 1:
        assert_close(got, want)
        return
    # One token sees itself alone: the gradients of q and k are 0 but for rounding, which v's is
    # the measure of.
    assert_close(got, want, skip=("q", "k"))
    top = float(jnp.abs(want["v"]).max())
    for name in "qk":
        np.testing.assert_allclose(got[name], want[name], atol=3e-6 * max(top, 1e-3))


def test_same_bits_every_time_and_under_vmap() -> None:
    layout = vsl.layout_from_lengths(jnp.asarray(LENGTHS), CAPACITY)
    x = inputs(CAPACITY, (4, 2), 16)
    first = gradients(x, layout, "native")
    for name, value in gradients(x, layout, "native").items():
        np.testing.assert_array_equal(value, first[name])
    run = lambda q: vsl.attention(q, x["k"], x["v"], layout, causal=True, implementation="native")
    twice = jax.vmap(run)(jnp.stack([x["q"], 2 * x["q"]]))
    np.testing.assert_array_equal(twice[0], first["out"])
    np.testing.assert_array_equal(twice[1], run(2 * x["q"]))


def test_bfloat16_accumulates_in_float32() -> None:
    layout = vsl.layout_from_lengths(jnp.asarray(LENGTHS), CAPACITY)
    x = inputs(CAPACITY, (2, 2), 16)
    q, k, v = (x[n].astype(jnp.bfloat16) for n in "qkv")
    wide = [a.astype(jnp.float32) for a in (q, k, v)]
    want = vsl.attention(*wide, layout, causal=True, implementation="native")
    got = vsl.attention(q, k, v, layout, causal=True, implementation="native")
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got, want.astype(jnp.bfloat16))


def test_large_scores_do_not_overflow() -> None:
    """One key far above the others takes all the weight, whichever tile it is in."""
    layout = vsl.layout_from_lengths(jnp.array([150]), 150)
    q = jnp.ones((150, 1, 16))
    k = jnp.zeros((150, 1, 16)).at[140].set(1e4)
    v = jnp.arange(150.0)[:, None, None] * jnp.ones((1, 1, 16))
    out = vsl.attention(q, k, v, layout, causal=False, implementation="native")
    np.testing.assert_array_equal(out, jnp.full_like(out, 140.0))


def test_what_the_kernel_does_not_compute_is_refused() -> None:
    layout = vsl.layout_from_lengths(jnp.asarray(LENGTHS), CAPACITY)
    x = inputs(CAPACITY, (2, 2), 16)
    run = functools.partial(vsl.attention, x["q"], x["k"], x["v"], layout, causal=True)
    for options in (
        {"softcap": 2.0},
        {"window": 4, "sink_tokens": 1},
        {"relative_bias": lambda q, k: jnp.zeros((2, q.size, k.size))},
        {"kv_layout": layout, "alibi_slopes": x["slopes"]},
    ):
        with pytest.raises(ValueError, match="implementation='native' has no soft cap"):
            run(implementation="native", **options)


SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from wafer import vsl
from wafer.vsl.implementations import fused
layout = vsl.layout_from_lengths(jnp.array([100, 44]), 150)
q = jnp.asarray(np.random.default_rng(0).normal(size=(150, 2, 16)), jnp.float32)
def out(q, name):
    return vsl.attention(q, q, q, layout, causal=True, implementation=name)
got, want = (jax.grad(lambda q: (out(q, n) ** 2).sum())(q) for n in ("auto", "dense"))
print(fused.LIBRARY.target(), float(abs(got - want).max() / abs(want).max()) < 3e-6)
"""


@pytest.mark.skipif("WAFER_NATIVE" in os.environ, reason="asks for an instruction set")
def test_the_best_instruction_set_of_the_processor_is_chosen() -> None:
    info = pathlib.Path("/proc/cpuinfo")
    if platform.machine() not in {"x86_64", "AMD64"} or not info.exists():
        pytest.skip("needs an x86 processor whose features Linux lists")
    listed = next(line for line in info.read_text().splitlines() if line.startswith("flags"))
    wanted = {
        "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma"},
        "avx2": {"avx2", "fma"},
        "baseline": set(),
    }
    best = next(name for name, flags in wanted.items() if flags <= set(listed.split()))
    assert fused.LIBRARY.target() == best


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "said"),
    [("avx2", "avx2 True"), ("0", "None True"), ("baseline", "baseline True")],
)
def test_every_target_and_none(setting: str, said: str) -> None:
    if fused.LIBRARY.target() == "baseline":  # a machine without AVX2 has no other
        said = said.replace("avx2", "baseline")
    process = ended(SCRIPT, WAFER_NATIVE=setting)
    assert process.stdout.strip() == said
    notices = [line for line in process.stderr.splitlines() if "no native library" in line]
    assert len(notices) == (setting == "0"), process.stderr
