"""The GPU kernels: equal to the dense form when interpreted, and they lower for CUDA."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AbstractDevice, AbstractMesh

from wafer import vsl
from wafer.vsl.implementations.intervals import BlockSizes

LENGTHS = np.array([20, 1, 0, 37, 9])
CAPACITY = 75
N, K, H = 4, 2, 16


def _inputs(dtype: Any = jnp.float32) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = {"q": (CAPACITY, N, H), "k": (CAPACITY, K, H), "v": (CAPACITY, K, H)}
    out = {n: jnp.asarray(rng.normal(size=s), dtype) for n, s in shapes.items()}
    return out | {"slopes": jnp.asarray(vsl.alibi_slopes(N))}


def _loss(x: dict[str, Any], implementation: Any, *, causal: bool, **options: Any) -> jax.Array:
    layout = vsl.layout_from_lengths(jnp.asarray(LENGTHS), CAPACITY)
    out = vsl.attention(
        x["q"], x["k"], x["v"], layout, causal=causal, alibi_slopes=x["slopes"],
        implementation=implementation, **options,
    )  # fmt: skip
    return jnp.sum(jnp.sin(out.astype(jnp.float32)))


@pytest.mark.parametrize(
    ("causal", "options"), [(True, {"softcap": 2.0, "window": 12, "sink_tokens": 2}), (False, {})]
)
def test_interpreted_kernels_equal_dense(
    causal: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vsl.attend, "_SIZES", BlockSizes(16, 16))  # several blocks, few steps
    x = _inputs()

    def run(implementation: str) -> Any:
        return jax.jit(
            jax.value_and_grad(lambda x: _loss(x, implementation, causal=causal, **options))
        )(x)

    want, got = run("dense"), run("pallas_interpret")
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
    for name in want[1]:
        np.testing.assert_allclose(got[1][name], want[1][name], rtol=1e-6, atol=2e-5, err_msg=name)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # jax 0.12
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_kernels_lower_for_cuda(dtype: Any) -> None:
    """Forward and backward become Triton calls; no GPU is needed to see that."""
    grad = jax.jit(jax.grad(lambda x: _loss(x, "pallas", causal=True, softcap=3.0)))
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="cuda")
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        lowered = export.export(
            grad,
            platforms=["cuda"],
            disabled_checks=[export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")],
        )(_inputs(dtype))
    assert lowered.mlir_module().count("__gpu$xla.gpu.triton") == 3  # out, dq, dk and dv


def test_what_the_kernels_refuse() -> None:
    x = _inputs()
    bias = vsl.RelativeBias(table=jnp.zeros((32, N)))
    with pytest.raises(ValueError, match="no relative bias and no dropout"):
        _loss(x, "pallas", causal=True, relative_bias=bias)
    narrow = {n: v[..., :8] if v.ndim == 3 else v for n, v in x.items()}
    with pytest.raises(ValueError, match="power of two of at least 16 features, got 8"):
        _loss(narrow, "pallas", causal=True)


def test_auto_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels where they serve, else the scores of whole rows, of a packed stream blocks."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    x = {n: jnp.ones((2 * 256, *v.shape[1:])) for n, v in _inputs().items() if n != "slopes"}
    padded = vsl.padded_layout(jnp.array([200, 30]), 256)
    packed = vsl.layout_from_lengths(jnp.array([200, 30]), 512)

    def program(layout: vsl.Layout, **options: Any) -> str:
        attend = lambda x: vsl.attention(x["q"], x["k"], x["v"], layout, causal=True, **options)
        return str(jax.make_jaxpr(attend)(x))

    scores = "f32[2,2,2,256,256]"  # rows, key heads, query heads of each, positions
    some = {"dropout_rate": 0.1, "dropout_key": jax.random.key(0)}
    assert "pallas_call" in program(packed)
    assert "pallas_call" in program(padded)
    assert "pallas_call" not in program(padded, **some)
    assert scores in program(padded, **some)
    assert scores not in program(packed, **some)
    monkeypatch.setattr(vsl.attend, "_SCORES", 4 * 2 * 4 * 256 * 256 - 1)
    assert scores not in program(padded, **some)
    with pytest.raises(ValueError, match="'native' is for CPUs, and programs run on GPU here"):
        program(padded, implementation="native")
