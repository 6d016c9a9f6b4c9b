"""How much faster does a pruned model decode with kept weights than with dense ones?

GPT-2 small, or with --llama a LLaMA of 1.1 B (d=2048, 22 layers, 4 key-value heads, vocabulary
32,000; it takes 12 GB). Eight tokens in one program, as ``generate`` takes them (batch 1, 8 and 16,
a cache of 64 slots), with dense kernels and with csr kernels, each in float32 and in bfloat16, and
csr kernels and table in int8, all with the native head, alternating in one process; medians,
compilation apart. Dense float32 kernels are the faster of XLA's and native ones, dense bfloat16
ones native. Rows decodeNN:
batch 1, NN % zeros, float32 over float32; _bf16: bfloat16 over bfloat16; _int8: int8 over dense
float32; _bN: batch N. The goal of a row stands beside it. int8_error: the largest difference that
int8 makes to a logit at batch 1, over the largest logit, the worst over the levels.
bandwidth_share: bytes of weights that the float32 csr step at batch 1 reads per second, the least
over the levels, over those of the fastest of three programs that only read as many bytes in the
same rounds: numpy's maximum on all cores, XLA's products, our dense kernel (which of them is
fastest changes from run to run). PyTorch stands beside it in peers.py.

    python tests/bench/generate.py [--quick] [--llama] [--batch 1]
"""

import functools
import os
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import harness

from wafer import malloc, models
from wafer.models.generation.decode import decode_step
from wafer.models.generation.sampling import best_token
from wafer.models.layers.caches import init_cache
from wafer.models.paths import named_leaves, unflatten
from wafer.sparsity import decoding
from wafer.sparsity.kernels import DecodeTable, native

GPT2 = {
    "name": "gpt2",
    "vocab_size": 50257,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_heads": 12,
    "filter_size": 3072,
    "max_position_embeddings": 1024,
}
LLAMA = {
    "name": "llama",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "num_hidden_layers": 22,
    "num_heads": 32,
    "attention_module": "multiquery_attention",
    "extra_attention_params": {"num_kv_groups": 4},
    "filter_size": 5632,
    "max_position_embeddings": 2048,
}
QUICK = {"vocab_size": 4096, "num_hidden_layers": 3}
GOALS = {70: (1.35, None, None), 80: (1.6, 1.6, 4.0), 90: (2.0, 2.0, None)}  # ENDS: at batch 1
LLAMA_GOALS = {70: (1.6, None, None), 80: (2.2, None, None), 90: (3.5, None, None)}
SLOTS = 64
TOKENS = 8
DTYPES = ("float32", "bfloat16")
ENDS = ("", "_bf16", "_int8")


def pruned(level, name, leaf):
    """NaN at a share of every kernel, as a sparse checkpoint has them."""
    if not name.endswith("/kernel") or name.startswith("lm_head"):
        return leaf
    rng = np.random.default_rng(leaf.size)
    return np.where(rng.random(leaf.shape, np.float32) < level, np.nan, leaf)


def stepper(cfg, params, batch):
    """TOKENS tokens of every row after 32 others, in one program, as ``generate`` takes them.

    The tokens are given, so that all arms read the same ones; the likeliest are chosen, and the
    cache is given away for the next call, as ``generate`` does.

    Returns:
        A function of no arguments: [B, 1, V] logits behind the last token, [TOKENS, B] choices.
    """
    tokens, one = jnp.ones((TOKENS, batch), jnp.int32), jnp.ones((batch,), jnp.int32)
    cache = init_cache(cfg, batch, SLOTS, cfg.num_hidden_layers)._replace(length=32 * one)
    logits = jnp.zeros((batch, 1, cfg.vocab_size), cfg.dtype)

    @functools.partial(jax.jit, donate_argnames="cache")
    def run(params, tokens, cache):
        def extend(carry, tokens):
            logits, cache = decode_step(cfg, params, tokens[:, None], one, carry[1])
            return (logits, cache), best_token(logits[:, 0])

        (last, cache), chosen = jax.lax.scan(extend, (logits, cache), tokens)
        return last, chosen, cache._replace(length=32 * one)

    def call():
        nonlocal cache
        last, chosen, cache = run(params, tokens, cache)
        return last, chosen

    return call


def readers(nbytes):
    """Programs that read as many bytes once and keep next to nothing."""
    parts = np.array_split(np.ones(nbytes // 8), os.cpu_count() or 1)

    def maximum():
        threads = [threading.Thread(target=np.max, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    size = nbytes // 4 // 768
    x, rest = jnp.ones((1, 768)), size % 3072
    widths = [3072] * (size // 3072) + [rest] * (rest > 0)
    matrices = [jnp.ones((768, width)) for width in widths]
    table = DecodeTable(jnp.ones((size, 768)))
    products = jax.jit(lambda x, matrices: [(x @ matrix).sum() for matrix in matrices])
    score = jax.jit(lambda x, table: table.project(x))
    return {
        "maximum": maximum,
        "products": lambda: products(x, matrices),
        "table": lambda: score(x, table),
    }


def dense_tree(leaves, dtype, *, native_kernels):
    """The weights with the native head, and kernels of XLA's or of the native product."""

    def one(name, leaf):
        if name == "embed/token/embedding":
            return DecodeTable.from_dense(leaf, dtype)
        if native_kernels and name.endswith("/kernel"):
            return DecodeTable.from_dense(np.nan_to_num(leaf).T, dtype)
        return jnp.asarray(np.nan_to_num(leaf))

    return unflatten({name: one(name, leaf) for name, leaf in leaves.items()})


def trees_of(model, weights, level):
    """Arm -> tree of one step, and the bytes that the float32 csr one reads."""
    stored = {n: pruned(level / 100, n, np.asarray(leaf)) for n, leaf in named_leaves(weights)}
    csr = {d: decoding.convert(model, stored.items(), jnp.dtype(d)) for d in (*DTYPES, "int8")}
    trees = {f"csr {dtype}": tree.params for dtype, tree in csr.items()}
    trees |= {f"dense {d}": dense_tree(stored, d, native_kernels=True) for d in DTYPES}
    trees["dense float32, XLA"] = dense_tree(stored, "float32", native_kernels=False)
    return trees, csr["float32"].nbytes


def measure(model, trees, nbytes, batch, repeats):
    """Ratios of csr steps to the dense ones of ``ENDS``, share of the stream, error of int8."""
    programs = {name: stepper(model.config, tree, batch) for name, tree in trees.items()}
    for dtype, tolerance in zip(DTYPES, (1e-4, 2e-2), strict=True):
        harness.agree({n: run()[0] for n, run in programs.items() if dtype in n}, tolerance)
    exact, rough = (np.asarray(programs[f"csr {d}"]()[0]) for d in ("float32", "int8"))
    error = np.abs(rough - exact).max() / np.abs(exact).max()
    streams = readers(nbytes)
    times = harness.interleave(programs | streams, repeats)
    fastest = min(streams, key=lambda name: times[name].median)
    dense = min(("dense float32", "dense float32, XLA"), key=lambda name: times[name].median)
    arms = zip((dense, "dense bfloat16", dense), (*DTYPES, "int8"), strict=True)
    ratios = [harness.ratio(times, base, f"csr {dtype}").median for base, dtype in arms]
    share = TOKENS * harness.ratio(times, fastest, "csr float32").median
    print(
        f"batch {batch}: "
        + ", ".join(f"{name} {1e3 * times[name].median / TOKENS:.1f} ms" for name in programs)
        + "; float32 {:.2f} x, bfloat16 {:.2f} x, int8 {:.2f} x".format(*ratios)
        + f", error of int8 {error:.4f}; stream ({fastest}) "
        f"{nbytes / times[fastest].median / 1e9:.1f} GB/s, share {share:.2f}",
        flush=True,
    )
    return ratios, share, error


def main():
    malloc.restart()  # as `wafer generate` does
    parser = harness.arguments(__doc__)
    parser.add_argument("--llama", action="store_true", help="the LLaMA of 1.1 B")
    parser.add_argument("--batch", type=int, nargs="+", help="rows of a step; default 1 8 16")
    options = parser.parse_args()
    print(harness.environment())
    if not native.available():
        sys.exit("no native library: python setup.py build_ext --inplace")
    print(f"native target {native.target()}")
    settings, goals_of = (LLAMA, LLAMA_GOALS) if options.llama else (GPT2, GOALS)
    model = models.build(settings | (QUICK if options.quick else {}))
    weights = model.init(jax.random.key(0))
    rows, shares, errors = {}, [], []
    repeats = 5 if options.quick else 7
    for level, goals in [*goals_of.items()][2 if options.quick else 0 :]:
        trees, nbytes = trees_of(model, weights, level)
        print(f"{level} % zeros; goals at batch 1 in {(*DTYPES, 'int8')}: {goals}")
        for batch in options.batch or ((1, 8) if options.quick else (1, 8, 16)):
            ratios, share, error = measure(model, trees, nbytes, batch, repeats)
            end = "" if batch == 1 else f"_b{batch}"
            rows |= {f"decode{level}{end}{e}": r for e, r in zip(ENDS, ratios, strict=True)}
            if batch == 1:
                shares, errors = [*shares, share], [*errors, error]
    print(harness.environment())
    if shares:
        rows |= {"bandwidth_share": min(shares), "int8_error": max(errors)}
    harness.report(rows)


if __name__ == "__main__":
    main()
