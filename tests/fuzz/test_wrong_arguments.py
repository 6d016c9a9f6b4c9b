"""No argument of a public function ends the interpreter: the C++ refuses what it cannot read.

Each handler meets wrong shapes, wrong dtypes and indices out of range, unsorted or repeated in a
child process. A result or a Python exception is fine there; a signal is not.
"""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.native

PRELUDE = """
import itertools, sys
import jax, jax.numpy as jnp, numpy as np
from wafer import sparsity, vsl
from wafer.sparsity import kernels
from wafer.sparsity.kernels import native
from wafer.vsl.native.kernels import LIBRARY

tried = clean = 0

def attack(function, *arguments, **options):
    global tried, clean
    tried += 1
    try:
        jax.block_until_ready(function(*arguments, **options))
        clean += 1
    except Exception as error:
        assert str(error), function
"""

PATTERNS = """
rng = np.random.default_rng(0)
K, N = 70, 40
mask = rng.random((K, N)) < 0.3
nnz = int(mask.sum())
good = jax.tree.map(np.asarray, kernels.pattern_from_mask(mask, nnz))
values, x = rng.normal(size=nnz).astype(np.float32), rng.normal(size=(9, K)).astype(np.float32)

def spoiled():
    yield good
    for field in good._fields:
        leaf = getattr(good, field)
        for wrong in (
            leaf[:-3], leaf[:0], np.append(leaf, leaf), leaf[None], leaf[0],
            leaf.astype(np.float32), leaf.astype(np.int8), leaf.astype(np.uint32),
            leaf.astype(np.int32) + 1_000_000, leaf.astype(np.int32) - 1_000_000,
            np.full_like(leaf, -1 if leaf.dtype == np.int32 else np.iinfo(leaf.dtype).max),
            leaf[::-1].copy(), leaf ^ leaf.dtype.type(1 << rng.integers(7)),
            rng.permutation(leaf.ravel()).reshape(leaf.shape),
            *(leaf ^ (rng.random(leaf.shape) < 0.01) * leaf.dtype.type(1 << bit)
              for bit in range(8 * leaf.dtype.itemsize - 1)),
            np.full_like(leaf, leaf[1]), np.full(leaf.shape, 2**31 - 1, np.int32),
        ):
            yield good._replace(**{field: wrong})
"""

SPARSE = (
    PRELUDE
    + PATTERNS
    + """
def gradients(x, values, pattern, implementation):
    weight = lambda v: sparsity.SparseWeight(values=v, pattern=pattern)
    product = lambda x, v: sparsity.sparse_dot(x, weight(v), implementation=implementation).sum()
    return jax.value_and_grad(product, (0, 1))(x, values), jax.grad(product, 1)(x, values), \\
        jax.grad(product, 0)(x, values)

dense = rng.normal(size=(K, N)).astype(np.float32)
for pattern in spoiled():
    attack(gradients, x, values, pattern, "csr")
    attack(kernels.to_dense, values, pattern)
    attack(kernels.gather, dense, pattern)
    attack(kernels.rigl_update, values, pattern, np.abs(dense), 100, (values,))
for wrong in (x[:, :-1], x[0], x[None], x.astype(np.int32), x.astype(np.float16), x[:0], x[:, :0]):
    attack(gradients, wrong, values, good, "csr")
    attack(gradients, wrong, values[:-1], good, "csr")
for wrong in (values[:-1], values[None], values.astype(np.int32), np.float32(3), values[:0]):
    attack(gradients, x, wrong, good, "csr")
    attack(kernels.to_dense, wrong, good)
    attack(kernels.rigl_update, wrong, good, dense, 10)
for wrong in (dense.T, dense[0], dense[None], dense[:, :0], dense.astype(np.int8), np.float32(1)):
    attack(kernels.gather, wrong, good)
    attack(kernels.rigl_update, values, good, wrong, 10)
    attack(kernels.topk_mask, wrong, 3)
    attack(kernels.pattern_from_mask, wrong > 0, 10)
    attack(jax.jit(kernels.pattern_from_mask, static_argnums=1), wrong > 0, 10)
for k in (-1, 41, 10**9, np.zeros(3, np.int32), 1.5, np.nan):
    attack(kernels.topk_mask, dense, k)
    attack(kernels.rigl_update, values, good, dense, k)
    attack(kernels.rigl_update, values, good, dense, 10, grow=k)
room = jax.jit(kernels.pattern_from_mask, static_argnums=1)(mask, 3 * K * N)  # with slack
attack(kernels.rigl_update, np.ones(3 * K * N, np.float32), room, dense, 10, grow=3 * K * N)
for flat in ([5, 4], [3, 3], [-1], [K * N + 1], [2**40], [0.5], [[1]], []):
    attack(kernels.pattern_from_flat, np.asarray(flat), (K, N))
    attack(kernels.pattern_from_flat, np.asarray(flat), (-1, N))
    attack(kernels.pattern_from_flat, np.asarray(flat), (0, N), validate=False)
"""
)

# Every handler with operands that it takes, without what Python checks.
HANDLERS = (
    PRELUDE
    + PATTERNS
    + """
dense, shape = rng.normal(size=(K, N)).astype(np.float32), jax.ShapeDtypeStruct
f32, i32 = jnp.float32, jnp.int32
dy, places = rng.normal(size=(9, N)).astype(np.float32), good[:2]
new = tuple(shape(leaf.shape, leaf.dtype) for leaf in good[:3])
walk, t_walk = good[3:5], good[5:]
q = rng.normal(size=(70, 2, 16)).astype(np.float32)
low, high = np.zeros(70, np.int32), np.arange(1, 71, dtype=np.int32)
profile, noise = np.zeros((2, 400), np.float32), np.zeros(70, np.uint32)
at = np.where(np.arange(128) < 70, np.arange(128), -1).astype(np.int32)
seen = (q, q, q, low, high, profile, noise, at)
rest = dict(scale=np.float32(1), keep=np.float32(1), threshold=np.int64(0),
            profile_zero=np.int64(128))
tall, wide = np.ones((70, 64), np.float32), np.ones((64, 128), np.float32)
count, kept = np.full(1, 9, np.int32), np.int32([50, 20])
few = np.add.outer(np.arange(64), np.arange(N)) % 16 == 0  # in slices
masked = kernels.DecodeWeight.from_dense(np.float32(mask[:64])).operands
sliced = kernels.DecodeWeight.from_dense(np.float32(few)).operands
table = kernels.DecodeTable.from_dense(np.ones((N, 64)), jnp.int8).operands
turned, lse = dict(transposed=np.bool_(False)), np.zeros((2, 70), np.float32)
labels, sums = np.arange(K, dtype=np.int32) % N, np.ones(K, np.float32)
bias, norm = np.ones(N, np.float32), dict(eps=np.float32(1e-5), centered=np.bool_(True))
token, cache = np.ones((3, 4, 16), np.float32), np.ones((3, 2, 9, 16), np.float32)
at3 = np.int32([1, 8, 4])
like = lambda *arrays: tuple(shape(a.shape, a.dtype) for a in arrays)
CALLS = {
    "wafer_sparse_multiply":
        (like(dy, dy), (x, *(values, bias, good.pointers, *walk) * 2), {}),
    "wafer_sparse_input_gradient": (shape((9, K), f32), (dy, values, *places, *t_walk), {}),
    "wafer_sparse_weight_gradient": (shape((nnz,), f32), (x, dy, good.pointers, *walk), {}),
    "wafer_sparse_gradients":
        (like(x, *(values, bias) * 2), (x, *(dy, values, *places, *walk, *t_walk) * 2), {}),
    "wafer_sparse_walk": (like(*walk, *t_walk), good[:3], {}),
    "wafer_sparse_topk_mask": (shape((K, N), bool), (dense, np.full(K, 3, np.int32)), {}),
    "wafer_sparse_pattern_of_mask": (new, (mask,), {}),
    "wafer_sparse_update_pattern":
        ((*new, shape((nnz,), i32)), (values, *good[:3], dense, kept), dict(groups=np.int64(1))),
    "wafer_sparse_take": (shape((nnz,), f32), (values, np.arange(nnz, dtype=np.int32)), {}),
    "wafer_sparse_places": (shape((nnz,), i32), (*places, *places), {}),
    "wafer_sparse_to_dense": (shape((K, N), f32), (values, *places, np.float32(0)), turned),
    "wafer_sparse_gather": (shape((nnz,), f32), (dense, *places), {}),
    "wafer_decode":
        (like(dy, dy, dy), (x[:, :64], *masked, bias, *sliced, bias, *table, bias[:0]), {}),
    "wafer_attention_forward": (like(q, lse), seen, rest),
    "wafer_attention_backward": (like(q, q, q, profile), (*seen, q, lse, q), rest),
    "wafer_product_forward": (shape((70, 128), f32), (tall, wide, count, wide[0]), turned),
    "wafer_product_backward":
        (like(tall, wide, wide[0]), (tall, wide, count, np.ones((70, 128), np.float32)), turned),
    "wafer_norm_forward": (like(x), (x, x[0], x[1]), norm),
    "wafer_norm_backward": (like(x, x[0], x[1]), (x, x, x[0], x), norm),
    "wafer_entropy_forward": (like(sums, sums), (dense, labels), {}),
    "wafer_entropy_backward": (shape((K, N), f32), (sums, dense, labels, sums), {}),
    "wafer_attention_cached":
        (like(token, cache, cache), (token, *(token[:, :2],) * 2, cache, cache, at3, at3),
         dict(scale=np.float32(1))),
}
ALIASES = {"wafer_attention_cached": {3: 1, 4: 2}}
assert CALLS.keys() == {*native.HANDLERS, *LIBRARY.handlers}
assert native.usable() and LIBRARY.usable()
for name, (result, operands, attributes) in CALLS.items():
    call = jax.ffi.ffi_call(name, result, input_output_aliases=ALIASES.get(name))
    jax.block_until_ready(call(*operands, **attributes))
"""
)
SPOILED = """
for name, (result, operands, attributes) in CALLS.items():
    one = jax.ffi.ffi_call(name, result, input_output_aliases=ALIASES.get(name))
    call = lambda *given: one(*given, **attributes)
    for i, leaf in enumerate(operands):
        flat = np.ravel(leaf)
        wrong = [flat[:-3], flat[:0], np.append(flat, flat), leaf[None], leaf.astype(np.int8),
                 leaf.astype(np.float64), leaf.astype(np.float16)]
        if leaf.ndim:
            wrong += [leaf[:-1], leaf[:0], np.append(leaf, leaf, 0), leaf[..., :-1]]
        if leaf.dtype.kind in "iu":
            top = np.iinfo(leaf.dtype).max
            wrong += [leaf[::-1].copy(), np.full_like(leaf, top), leaf * 0 + leaf[:1],
                      leaf.astype(np.int32) + 10**6, leaf.astype(np.int32) - 10**6]
        for given in wrong:
            attack(call, *operands[:i], given, *operands[i + 1 :])
"""

STREAMS = (
    PRELUDE
    + """
T = 200
rng = np.random.default_rng(0)
q = rng.normal(size=(T, 2, 16)).astype(np.float32)
good = jax.tree.map(np.asarray, vsl.layout_from_lengths(np.int32([70, 0, 100]), T))
import dataclasses

def run(q, k, v, layout, **options):
    attend = lambda q, k, v: vsl.attention(
        q, k, v, layout, causal=True, implementation="native", **options).sum()
    return jax.value_and_grad(attend, (0, 1, 2))(q, k, v)

def spoiled():
    for field in ("lengths", "segments", "positions", "starts", "ends", "first"):
        leaf = getattr(good, field)
        for wrong in (leaf + 10**6, leaf - 10**6, leaf * 0 - 1, leaf.astype(np.float32),
                      leaf.astype(np.int8), np.full_like(leaf, 2**31 - 1), leaf[..., None]):
            yield dataclasses.replace(good, **{field: wrong})
        if leaf.ndim:
            for wrong in (leaf[:-1], leaf[:0], np.append(leaf, leaf), leaf[::-1].copy()):
                yield dataclasses.replace(good, **{field: wrong})

options = ({}, {"window": 5}, {"alibi_slopes": vsl.alibi_slopes(2)},
           {"dropout_rate": 0.1, "dropout_key": jax.random.key(0)}, {"kv_layout": good})
attack(run, q, q, q, good)
assert clean == 1
for layout, option in itertools.product(spoiled(), options):
    attack(run, q, q, q, layout, **option)
for layout in spoiled():
    attack(run, q, q, q, good, kv_layout=layout)
for wrong in (q[:-1], q[:, :1], q[..., :7], q[0], q[None], q[:0], q.astype(np.int32), q[:, :0]):
    for place in range(3):
        attack(run, *(wrong if i == place else q for i in range(3)), good)
for lengths in ([300], [-1, 5], [], [[1]], [0.5], [2**40], [True]):
    attack(vsl.layout_from_lengths, np.asarray(lengths), T)
    attack(vsl.padded_layout, np.asarray(lengths), 20)
    attack(vsl.layout_from_spans, np.asarray(lengths)[None], np.asarray(lengths)[None])
x, w = np.ones((T, 64), np.float32), np.ones((64, 128), np.float32)
for a, b in itertools.product(
    (x, x[:, :5], x[0], x[None], x.astype(np.float16), x[:0]),
    (w, w[:5], w[0], w.T, w.astype(np.int32), w[:0], w[None])):
    for count in (np.int32(5), np.int32(10**6), np.int32(-1), np.zeros(3, np.int32), np.nan):
        for transposed in (False, True):
            attack(vsl.stream_product, a, b, count, transposed=transposed)
"""
)


def test_every_handler_takes_its_operands():
    exec(HANDLERS, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [SPARSE, HANDLERS + SPOILED, STREAMS], ids=["sparsity", "handlers", "vsl"]
)
def test_wrong_arguments_never_end_the_interpreter(program):
    command = [sys.executable, "-P", "-c", program + "\nprint('attempts', tried, clean)"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"exit status {ended.returncode}\n{ended.stderr[-3000:]}"
    assert int(ended.stdout.split()[-2]) > 100
