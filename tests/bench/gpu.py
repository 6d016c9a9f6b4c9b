"""What a GPU makes of this code: run it all on one GPU, in under 40 minutes.

    python tests/bench/gpu.py [--quick] [--only PART ...]

Parts, each in turn; one that fails says why and the others go on:

- training: steps of a GPT, dense and masked 90 % (csr kernels are for CPUs)
- attention: ours by XLA blocks and by Triton, ``jax.nn.dot_product_attention`` (XLA, cuDNN) and
  Tokamax where installed, forward and backward; full rows, where results are compared, and ragged
  ones, which only ours skips
- blocks: y = x W with 64 x 64 blocks kept, a Pallas (Triton) kernel against the dense product
- n:m: says whether this JAX reaches a 2:4 product
- streaming: layers that wait in pinned host memory; copies and products alone, and overlapped

On a CPU kernels are interpreted and sizes small: that shows that the script runs, its ratios mean
nothing. Ratios above 1 are faster than the first program of the part.
"""

import functools
import importlib.util
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import harness
import sparse_step

from wafer import vsl

ON_GPU = jax.default_backend() == "gpu"
DTYPE = jnp.bfloat16 if ON_GPU else jnp.float32
TOLERANCE = 0.05 if ON_GPU else 1e-4


def ratios(part, programs, repeats, seconds=60.0):
    """Print a line per program; rows of the others over the first one."""
    times = harness.interleave(programs, repeats, seconds)
    first = next(iter(programs))
    for name, timing in times.items():
        print(f"  {name:24} {1e3 * timing.median:10.3f} ms (fastest {1e3 * timing.least:.3f})")
    return {
        f"{part}_{name}": harness.ratio(times, first, name).median
        for name in programs
        if name != first
    }


def training(quick):
    layers, width, rows = (2, 128, 2) if quick else (12, 1024, 16)
    section = {"algorithm": "static", "sparsity": 0.9, "compute": "masked"}
    programs = {}
    for name, sparse in (("dense", None), ("masked90", section)):
        run = sparse_step.executor(sparse, layers, width)
        batch, state = sparse_step.features(run, rows), [run.init(jax.random.key(0))]

        def once(run=run, batch=batch, state=state):
            state[0], metrics = run.step(state[0], batch, topology=False)
            return metrics

        programs[name] = once
    return ratios("training", programs, 3 if quick else 30)


def gradients(attend):
    """Forward and backward as one program."""

    def total(q, k, v):
        return attend(q, k, v).astype(jnp.float32).sum()

    return jax.jit(jax.value_and_grad(total, (0, 1, 2)))


def attention(quick):
    rows, size, heads, width = (2, 64, 2, 32) if quick else (8, 2048, 16, 64)
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (rows, size, heads, width), DTYPE) for key in keys)
    triton = "pallas" if ON_GPU else "pallas_interpret"

    def ours(implementation, lengths):
        layout = vsl.padded_layout(jnp.asarray(lengths, jnp.int32), size)

        def attend(q, k, v):
            flat = (part.reshape(rows * size, heads, width) for part in (q, k, v))
            out = vsl.attention(*flat, layout, causal=True, implementation=implementation)
            return out.reshape(q.shape)

        return attend

    def peer(implementation):
        return functools.partial(
            jax.nn.dot_product_attention, is_causal=True, implementation=implementation
        )

    full = [size] * rows
    programs = {"jax_xla": peer("xla"), "blocks": ours("blocks", full), triton: ours(triton, full)}
    if ON_GPU:
        programs["jax_cudnn"] = peer("cudnn")
    if ON_GPU and importlib.util.find_spec("tokamax"):
        import tokamax

        programs["tokamax"] = functools.partial(tokamax.dot_product_attention, is_causal=True)
    want = jax.jit(programs["jax_xla"])(q, k, v).astype(jnp.float32)
    rows_of = {}
    for name, attend in programs.items():
        error = jnp.abs(jax.jit(attend)(q, k, v).astype(jnp.float32) - want).max()
        print(f"  {name}: largest difference to jax_xla {float(error):.2e}")
        rows_of[f"attention_error_{name}"] = error
        assert error < TOLERANCE, name
    call = lambda attend: functools.partial(gradients(attend), q, k, v)
    repeats = 3 if quick else 20
    rows_of |= ratios("attention", {n: call(a) for n, a in programs.items()}, repeats)
    ragged = np.random.default_rng(0).integers(1, size // 2, rows)  # a mean of a quarter
    programs = {"jax_xla": peer("xla")} | {n: ours(n, ragged) for n in ("blocks", triton)}
    print("  rows of a quarter of the length:")
    return rows_of | ratios("ragged", {n: call(a) for n, a in programs.items()}, repeats)


def block_product(x, blocks, inputs, columns, tile):
    """y = x W for kept blocks [N/s, C, s, s] at input blocks [N/s, C]."""
    size = blocks.shape[-1]

    def kernel(x_ref, blocks_ref, inputs_ref, y_ref):
        def add(j, total):
            part = x_ref[:, pl.ds(inputs_ref[j] * size, size)]
            return total + plgpu.dot(part, blocks_ref[j])

        zero = jnp.zeros((tile, size), jnp.float32)
        total = jax.lax.fori_loop(0, blocks_ref.shape[0], add, zero)
        y_ref[...] = total.astype(y_ref.dtype)

    return pl.pallas_call(
        kernel,
        grid=(len(x) // tile, columns // size),
        in_specs=[
            pl.BlockSpec((tile, x.shape[1]), lambda t, n: (t, 0)),
            pl.BlockSpec((None, *blocks.shape[1:]), lambda t, n: (n, 0, 0, 0)),
            pl.BlockSpec((None, inputs.shape[1]), lambda t, n: (n, 0)),
        ],
        out_specs=pl.BlockSpec((tile, size), lambda t, n: (t, n)),
        out_shape=jax.ShapeDtypeStruct((len(x), columns), x.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=3),
        interpret=not ON_GPU,
    )(x, blocks, inputs)


def blocks(quick):
    tokens, rows, columns, kept = (64, 1280, 128, 2) if quick else (8192, 5120, 5120, 8)
    size, rng = 64, np.random.default_rng(0)
    inputs = np.stack([rng.permutation(rows // size)[:kept] for _ in range(columns // size)])
    values = rng.standard_normal((columns // size, kept, size, size), np.float32)
    dense = np.zeros((rows // size, size, columns // size, size), np.float32)
    for n, chosen in enumerate(inputs):
        dense[chosen, :, n] = values[n]
    dense = jnp.asarray(dense.reshape(rows, columns), DTYPE)
    x = jnp.asarray(rng.standard_normal((tokens, rows), np.float32), DTYPE)
    given = x, jnp.asarray(values, DTYPE), jnp.asarray(inputs, jnp.int32)
    ours = jax.jit(functools.partial(block_product, columns=columns, tile=64))
    plain = jax.jit(lambda x, w: jnp.dot(x, w, preferred_element_type=jnp.float32).astype(x.dtype))
    error = jnp.abs(ours(*given).astype(jnp.float32) - plain(x, dense).astype(jnp.float32)).max()
    scale = float(jnp.sqrt(kept * size))
    print(f"  {kept * size / rows:.0%} kept; largest difference {float(error):.2e}")
    assert error < scale * TOLERANCE
    programs = {"dense": lambda: plain(x, dense), "kept": lambda: ours(*given)}
    return ratios("blocks", programs, 3 if quick else 30) | {"blocks_error": error}


def n_of_m(quick):
    del quick
    if importlib.util.find_spec("jax.experimental.sparse.nm") is None:
        print(f"  jax {jax.__version__} has no n:m product (jax.experimental.sparse.nm): not run")
        return {}
    from jax.experimental.sparse.nm import nm_spmm

    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal((4096, 4096), np.float32), DTYPE) for _ in range(2))
    mask = jnp.asarray(np.tile([True, True, False, False], 1024 * 4096).reshape(4096, 4096))
    kept = w[mask].reshape(4096, 2048)
    plain, sparse = jax.jit(lambda w, x: w @ x), jax.jit(nm_spmm)
    programs = {"dense": lambda: plain(w * mask, x), "kept": lambda: sparse(kept, x, mask)}
    return ratios("n2m4", programs, 20)


def streaming(quick):
    layers, width, tokens = (4, 256, 64) if quick else (24, 4096, 4096)
    device = jax.devices()[0]
    host = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    near = jax.sharding.SingleDeviceSharding(device)
    weights = [
        jax.device_put(
            jax.random.normal(jax.random.key(i), (width, width), DTYPE) / width**0.5, host
        )
        for i in range(layers)
    ]
    x = jnp.ones((tokens, width), DTYPE)
    layer = jax.jit(lambda x, w: jnp.tanh(x @ w))

    def copies():
        return [jax.device_put(w, near) for w in weights]

    here = copies()

    def products():
        y = x
        for w in here:
            y = layer(y, w)
        return y

    def overlapped():
        y, coming = x, jax.device_put(weights[0], near)
        for i in range(layers):
            w, coming = coming, jax.device_put(weights[min(i + 1, layers - 1)], near)
            y = layer(y, w)
        return y

    programs = {"overlapped": overlapped, "copies": copies, "products": products}
    times = harness.interleave(programs, 3 if quick else 15, 60.0)
    copy, work, both = (times[n].median for n in ("copies", "products", "overlapped"))
    rate = sum(w.nbytes for w in weights) / copy / 1e9
    hidden = (copy + work - both) / min(copy, work)
    print(f"  copies {1e3 * copy:.1f} ms ({rate:.1f} GB/s), products {1e3 * work:.1f} ms, together "
          f"{1e3 * both:.1f} ms: {hidden:.0%} of the shorter one hidden")  # fmt: skip
    return {"streaming_gb_per_s": rate, "streaming_hidden": hidden}


PARTS = {
    "training": training,
    "attention": attention,
    "blocks": blocks,
    "n2m4": n_of_m,
    "streaming": streaming,
}


def main():
    parser = harness.arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    print(harness.environment(), "|", jax.devices()[0].device_kind)
    rows, failed = {}, []
    for name in options.only:
        print(name, flush=True)
        begin = time.perf_counter()
        try:
            rows |= PARTS[name](options.quick or not ON_GPU)
        except Exception as error:
            failed.append(name)
            print(f"  failed: {type(error).__name__}: {str(error).splitlines()[0][:300]}")
        print(f"  {time.perf_counter() - begin:.0f} s", flush=True)
    harness.report(rows)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
