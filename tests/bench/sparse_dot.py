"""How much faster is a product with kept values than the dense one?

Forward, dx and dW of y = x W against the faster of two dense products, XLA's and our native one,
interleaved in one process, medians, float32, over T x (K, N) and sparsities. Rows s80, s90, s95 are
the worst ratio over the shapes, s80_mean ... the geometric mean.

    python tests/bench/sparse_dot.py [--quick] [--peers] [--structure]

Columns: by medians / by fastest runs / by CPU time (all threads; steadier when other work shares
the cores). With ``--peers`` (and in --quick, on one small shape) the other ways to hold such a
weight run beside it: mask multiply (jaxpruner), BCOO, BCSR, scipy CSR, torch CSR if importable.
With ``--structure`` only patterns of blocks and n:m run, rows ``b64`` ... ``n2m4``: the worst ratio
over the shapes; --quick has them on one. ``topology`` is the time of a RigL update per dense
weight in ns, its row ``rigl_100M_s`` that of 100 M weights in seconds.
"""

import functools
import importlib.util
import sys
from pathlib import Path

import jax
import jax.experimental.sparse as jsparse
import jax.numpy as jnp
import numpy as np
import scipy.sparse

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import harness

from wafer import malloc
from wafer.sparsity import kernels
from wafer.sparsity.kernels import native
from wafer.vsl.product import stream_product

LAYERS = [(512, 2048), (2048, 512), (768, 3072), (2048, 8192)]
TOKENS = [512, 2048, 4096]
LEVELS = [0.8, 0.9, 0.95]


def blocks(rng, rows, columns, size, level=0.9):
    """Keep whole blocks; as many as the level says, exactly."""
    score = rng.random((rows // size, columns // size))
    return np.kron(score > np.quantile(score, level), np.ones((size, size), bool))


def n_of_m(rng, rows, columns, n, m):
    """Keep n of every m inputs."""
    rank = rng.random((rows // m, m, columns)).argsort(1).argsort(1)
    return (rank < n).reshape(rows, columns)


STRUCTURES = {
    "b64": functools.partial(blocks, size=64),
    "b16": functools.partial(blocks, size=16),
    "b4": functools.partial(blocks, size=4),
    "unstructured": functools.partial(blocks, size=1),
    "n2m4": functools.partial(n_of_m, n=2, m=4),
}


def make(tokens, rows, columns, level):
    rng = np.random.default_rng(0)
    draw = level if callable(level) else lambda *shape: shape[0].random(shape[1:]) >= level
    mask = draw(rng, rows, columns)
    normal = functools.partial(rng.standard_normal, dtype=np.float32)
    dense = normal((rows, columns)) * mask
    pattern = kernels.pattern_from_mask(jnp.asarray(mask), int(mask.sum()))
    values = kernels.gather(jnp.asarray(dense), pattern)
    x, dy = jnp.asarray(normal((tokens, rows))), jnp.asarray(normal((tokens, columns)))
    return x, dy, jnp.asarray(dense), jnp.asarray(mask), values, pattern


def step(product):
    """Forward, dx and dW of ``product(x, w)`` as one compiled program."""

    @jax.jit
    def run(x, dy, w, *rest):
        y, back = jax.vjp(lambda x, w: product(x, w, *rest), x, w)
        return y, back(dy)

    return run


def dense_product(x, w):
    return x @ w


def native_product(x, w, count):
    return stream_product(x, w, count)


def csr_product(x, values, pattern):
    weight = kernels.SparseWeight(values=values, pattern=pattern)
    return kernels.sparse_dot(x, weight, implementation="csr")


def masked_product(x, w, mask):
    return x @ (w * mask)


dense_step, native_step = step(dense_product), step(native_product)
csr_step, masked_step = step(csr_product), step(masked_product)
TOLERANCE = 2e-5  # of sums in another order, float32


def measure(tokens, rows, columns, level, repeats, seconds):
    """Times of the faster dense product, called "dense", and of the csr one."""
    x, dy, dense, _, values, pattern = make(tokens, rows, columns, level)
    programs = {
        "XLA": lambda: dense_step(x, dy, dense),
        "native": lambda: native_step(x, dy, dense, jnp.int32(tokens)),
        "csr": lambda: csr_step(x, dy, values, pattern),
    }
    kept = lambda y, grads: (y, grads[0], kernels.gather(grads[1], pattern))
    wanted = {name: kept(*programs[name]()) for name in ("XLA", "native")}
    y, grads = programs["csr"]()
    harness.agree(wanted | {"csr": (y, *grads)}, TOLERANCE)
    return with_dense(harness.interleave(programs, repeats, seconds))


def with_dense(times):
    """Call the faster of the two dense products "dense"."""
    fastest = min(("XLA", "native"), key=lambda name: times[name].median)
    return {"dense": times[fastest], **times}


def table(cases, repeats, seconds):
    """Print a line per case; return the worst ratio and the geometric mean of each level."""
    every = {}
    print("T K N sparsity: dense ms, csr ms, ratio by medians / fastest / CPU, csr GFLOP/s")
    for tokens, rows, columns in cases:
        for level in LEVELS:
            times = measure(tokens, rows, columns, level, repeats, seconds)
            ratios = harness.ratio(times, "dense", "csr")
            flops = 6 * tokens * rows * columns * (1 - level)
            print(
                f"{tokens} {rows} {columns} {level}: {1e3 * times['dense'].median:.1f} "
                f"{1e3 * times['csr'].median:.1f} {ratios.median:.2f} / {ratios.least:.2f} / "
                f"{ratios.cpu:.2f} {flops / times['csr'].least / 1e9:.0f}",
                flush=True,
            )
            name = f"s{round(100 * level)}"
            for suffix, value in zip(("", "_least", "_cpu"), ratios, strict=True):
                every.setdefault(name + suffix, []).append(value)
    worst = {name: min(values) for name, values in every.items()}
    return worst | {
        f"{name}_mean": float(np.exp(np.mean(np.log(values)))) for name, values in every.items()
    }


def structures(cases, repeats, seconds):
    """Print a line per pattern and shape; return the worst ratio of each pattern."""
    worst = {}
    print("pattern T K N: dense ms, csr ms, ratio by medians / fastest / CPU")
    for name, draw in STRUCTURES.items():
        for case in cases:
            times = measure(*case, draw, repeats, seconds)
            ratios = harness.ratio(times, "dense", "csr")
            print(
                f"{name} {' '.join(map(str, case))}: {1e3 * times['dense'].median:.1f} "
                f"{1e3 * times['csr'].median:.1f} "
                f"{ratios.median:.2f} / {ratios.least:.2f} / {ratios.cpu:.2f}",
                flush=True,
            )
            worst[name] = min(worst.get(name, np.inf), ratios.median)
    return worst


def scipy_step(x, dy, dense):
    """The three products with scipy's CSR, one thread; dW at kept positions."""
    weight = scipy.sparse.csr_matrix(np.asarray(dense))
    transposed = weight.T.tocsr()
    x, dy = np.asarray(x), np.asarray(dy)
    rows, columns = weight.nonzero()

    def run():
        y = (transposed @ x.T).T
        dx = (weight @ dy.T).T
        dw = np.einsum("tj,tj->j", x[:, rows], dy[:, columns])
        return y, dx, dw

    return run


def torch_step(x, dy, dense):
    """Forward and dx with torch CSR (it has no dW at kept positions: sampled_addmm)."""
    import torch

    weight = torch.from_numpy(np.array(dense).T.copy()).to_sparse_csr()
    transposed = torch.from_numpy(np.array(dense)).to_sparse_csr()
    x, dy = torch.from_numpy(np.array(x)), torch.from_numpy(np.array(dy))

    def run():
        y = (weight @ x.T).T
        dx = (transposed @ dy.T).T
        dw = torch.sparse.sampled_addmm(transposed, x.T, dy, beta=0.0)
        return y.numpy(), dx.numpy(), dw.values().numpy()

    return run


def peers(tokens, rows, columns, level):
    """Time every way to hold the weight, on one shape; ratios to dense XLA."""
    x, dy, dense, mask, values, pattern = make(tokens, rows, columns, level)
    bcoo = jsparse.BCOO.fromdense(dense)
    bcsr = jsparse.BCSR.fromdense(dense.T)
    bcsr_back = jsparse.BCSR.fromdense(dense)

    @jax.jit
    def bcoo_step(x, dy, data):
        def product(x, data):
            return x @ jsparse.BCOO((data, bcoo.indices), shape=bcoo.shape)

        y, back = jax.vjp(product, x, data)
        return y, back(dy)

    @jax.jit
    def bcsr_products(x, dy):
        return (bcsr @ x.T).T, (bcsr_back @ dy.T).T  # its dW needs a dense product

    programs = {
        "XLA": lambda: dense_step(x, dy, dense),
        "native": lambda: native_step(x, dy, dense, jnp.int32(tokens)),
        "csr": lambda: csr_step(x, dy, values, pattern),
        "masked": lambda: masked_step(x, dy, dense, mask),
        "bcoo": lambda: bcoo_step(x, dy, bcoo.data),
        "bcsr_forward_dx": lambda: bcsr_products(x, dy),
        "scipy": scipy_step(x, dy, dense),
    }
    if importlib.util.find_spec("torch"):
        programs["torch"] = torch_step(x, dy, dense)
    forms = {name: jax.tree.leaves(run())[:2] for name, run in programs.items()}  # y and dx
    harness.agree(forms, TOLERANCE)
    times = with_dense(harness.interleave(programs, 3))
    print(f"peers at T={tokens} K={rows} N={columns}, {100 * level:.0f} % sparse:")
    for name in programs:
        ratio = harness.ratio(times, "dense", name)
        print(f"  {name}: {1e3 * times[name].median:.1f} ms, {ratio.median:.3f}x dense")
    return {
        f"peer_{name}": harness.ratio(times, "dense", name).median
        for name in programs
        if name not in ("XLA", "native")
    }


def topology(side):
    """Seconds per dense weight of a RigL update with two moments, 90 % sparse, 30 % dropped."""
    *_, values, pattern = make(1, side, side, 0.9)
    scores = jnp.abs(jax.random.normal(jax.random.key(0), (side, side)))
    keep = jnp.int32(0.7 * pattern.nnz)
    update = jax.jit(kernels.rigl_update)
    run = lambda: update(values, pattern, scores, keep, [values, values])
    times = harness.interleave({"rigl": run}, 5)["rigl"]
    print(
        f"RigL update of {side * side / 1e6:.1f} M weights: {1e3 * times.median:.0f} ms "
        f"(fastest {1e3 * times.least:.0f}, CPU {1e3 * times.cpu:.0f})"
    )
    return times.median / side**2


def forward(tokens, rows, columns, level):
    """Time y = x W alone, and a call without tokens: the check of the walk above all."""
    x, _, dense, _, values, pattern = make(tokens, rows, columns, level)
    product, plain, own = map(jax.jit, (csr_product, dense_product, native_product))
    programs = {
        "XLA": lambda: plain(x, dense),
        "native": lambda: own(x, dense, jnp.int32(tokens)),
        "csr": lambda: product(x, values, pattern),
    }
    harness.agree({name: run() for name, run in programs.items()}, TOLERANCE)
    checks = {"checks": lambda: product(x[:0], values, pattern)}
    times = with_dense(harness.interleave(programs | checks, 21))
    ratio = harness.ratio(times, "dense", "csr")
    print(
        f"forward T={tokens} K={rows} N={columns} {level}: {ratio.median:.2f} x dense; csr "
        f"{1e3 * times['csr'].median:.2f} ms, without tokens {1e3 * times['checks'].median:.3f} ms"
    )
    return ratio.median


def main():
    malloc.restart()  # as `wafer run` does, for every arm
    parser = harness.arguments(__doc__)
    parser.add_argument("--peers", action="store_true", help="also the other libraries, slow")
    parser.add_argument("--structure", action="store_true", help="blocks and n:m alone")
    options = parser.parse_args()
    print(harness.environment())
    if not native.available():
        sys.exit("no native library: python setup.py build_ext --inplace")
    print(f"native target {native.target()}")
    few = [(512, 512, 2048), (512, 2048, 512)]
    if options.structure:
        cases = [(2048, *layer) for layer in LAYERS]
        harness.report(structures(cases, 11, 8.0), "sparse_structure")
        return
    if options.quick:
        rows = table(few, 5, 1.5) | structures(few[:1], 3, 0.5)
    else:
        cases = [(tokens, *layer) for layer in LAYERS for tokens in TOKENS]
        rows = table(cases, 11, 8.0)
    if options.peers or options.quick:
        rows |= peers(*((128, 256, 512) if options.quick else (1024, 512, 2048)), 0.9)
    rows["forward_s90"] = forward(2048, 512, 2048, 0.9)
    rows["rigl_100M_s"] = 1e8 * topology(1024 if options.quick else 4096)
    harness.report(rows)


if __name__ == "__main__":
    main()
