"""Products with kept values only: hand values, dense autodiff, two implementations, transforms."""

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import sparsity
from wafer.sparsity import kernels
from wafer.sparsity.kernels import native
from wafer.sparsity.kernels.choice import obstacle
from wafer.sparsity.kernels.pattern import add_walk

IMPLEMENTATIONS = ["masked", "csr"]
BLOCK = 176  # kBlock of walk.h


def make(mask, seed=0, dtype=jnp.float32, implementation="csr"):
    """A SparseWeight of a mask, and the same weight dense."""
    mask = np.asarray(mask)
    dense = np.where(mask, np.random.default_rng(seed).normal(size=mask.shape), 0)
    dense = jnp.asarray(dense, jnp.float32)
    pattern = kernels.pattern_from_mask(jnp.asarray(mask), int(mask.sum()))
    values = kernels.gather(dense, pattern).astype(dtype)
    return kernels.SparseWeight(
        values=values, pattern=pattern, implementation=implementation
    ), dense.astype(dtype)


def normal(seed, *shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def assert_close(got, want, step):
    """Equal to a step of each value, and of the largest where that is above 1."""
    got, want = (np.asarray(x, np.float32) for x in (got, want))
    np.testing.assert_allclose(got, want, atol=step * np.abs(want).max(initial=1), rtol=step)


@functools.partial(jax.jit, static_argnums=4)
def product_and_gradients(x, values, pattern, dy, implementation):
    def run(x, values):
        weight = kernels.SparseWeight(values=values, pattern=pattern)
        return kernels.sparse_dot(x, weight, implementation=implementation)

    y, back = jax.vjp(run, x, values)
    return (y, *back(dy))


@pytest.mark.skipif(shutil.which("c++") is None, reason="no compiler to build them with")
@pytest.mark.skipif("os.environ.get('WAFER_NATIVE') == '0'", reason="switched off")
def test_native_library_is_built_here():
    """Tests marked native would otherwise be skipped without anybody's notice."""
    assert native.available(), "run `python setup.py build_ext --inplace`"
    assert native.target() in {"avx512", "avx2", "baseline"}


def test_pattern_by_hand():
    # W = [[0, 1, 2],      columns: n=0 keeps k=1; n=1 keeps k=0; n=2 keeps k=0, 1
    #      [3, 0, 4]]
    dense = jnp.asarray([[0.0, 1, 2], [3, 0, 4]])
    pattern = kernels.pattern_from_mask(dense != 0, 4)
    assert pattern.shape == (2, 3)
    assert pattern.nnz == 4
    assert pattern.indices.tolist() == [1, 0, 0, 1]
    assert pattern.pointers.tolist() == [0, 1, 2, 4]
    assert pattern.t_pointers.tolist() == [0, 2, 4]
    values = kernels.gather(dense, pattern)
    assert values.tolist() == [3, 1, 2, 4]
    assert (kernels.to_dense(values, pattern) == dense).all()
    assert (kernels.to_mask(pattern) == (dense != 0)).all()
    filled = kernels.to_dense(values, pattern, float("nan"))
    assert np.isnan(filled).tolist() == [[True, False, False], [False, True, False]]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_product_by_hand(implementation):
    dense = jnp.asarray([[0.0, 1, 2], [3, 0, 4]])
    pattern = kernels.pattern_from_mask(dense != 0, 4)
    values = kernels.gather(dense, pattern)
    x, dy = jnp.asarray([[1.0, 10]]), jnp.asarray([[1.0, 2, 3]])
    y, dx, dw = product_and_gradients(x, values, pattern, dy, implementation)
    assert y.tolist() == [[30, 1, 42]]
    assert dx.tolist() == [[8, 15]]  # [1*2 + 2*3, 3*1 + 4*3]
    assert dw.tolist() == [10, 2, 3, 30]  # x[k] * dy[n] in canonical order


SHAPES = [  # T, K, N, kept share: tails of tokens, tall, wide, long tiles, wide indices
    (70, 37, 53, 0.1),
    (129, 1200, 40, 0.2),
    (33, 40, 700, 0.05),
    (3, 65_600, 2, 0.01),
    (65, 17, 16, 1.0),
    (1, 2, 2, 1.0),
    (0, 5, 90, 0.3),
    (31, 300, 7, 0.0),
]


@pytest.mark.parametrize(("tokens", "rows", "columns", "share"), SHAPES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
def test_both_equal_dense_autodiff(tokens, rows, columns, share, dtype):
    mask = np.random.default_rng(1).random((rows, columns)) < share
    mask[:, 0] = False  # an empty row of W^T, and an empty one of W
    mask[rows // 2] = False
    weight, dense = make(mask)
    x, dy = normal(2, tokens, rows, dtype=dtype), normal(3, tokens, columns, dtype=dtype)
    wide_x, wide_dy = x.astype(jnp.float32), dy.astype(jnp.float32)
    y, back = jax.vjp(jnp.matmul, wide_x, dense)
    expected = (y, *back(wide_dy))
    expected = (*expected[:2], kernels.gather(expected[2], weight.pattern))
    for implementation in IMPLEMENTATIONS:
        got = product_and_gradients(x, weight.values, weight.pattern, dy, implementation)
        for one, want, outer in zip(got, expected, (dtype, dtype, jnp.float32), strict=True):
            assert one.dtype == outer
            assert_close(one, want, 2**-8 if outer == jnp.bfloat16 else 2**-21)


@pytest.mark.native
@pytest.mark.parametrize(
    ("block", "dtype"),
    [
        pytest.param((4, 4), jnp.float32, marks=pytest.mark.slow),
        ((3, 8), jnp.bfloat16),
        ((64, 64), jnp.float32),
    ],
    ids=["4x4-f32", "3x8-bf16", "64x64-f32"],
)
def test_rows_that_share_their_inputs_have_the_same_sums(block, dtype):
    rng = np.random.default_rng(5)
    mask = np.kron(rng.random((13, 5)) < 0.4, np.ones(block, bool))
    mask = np.concatenate([mask, rng.random((len(mask), 7)) < 0.3], 1)  # and rows that do not
    mask = np.concatenate([mask, rng.random((5, mask.shape[1])) < 0.3])
    weight, _ = make(mask)
    x, dy = normal(2, 85, mask.shape[0], dtype=dtype), normal(3, 85, mask.shape[1], dtype=dtype)
    y, dx, dw = product_and_gradients(x, weight.values, weight.pattern, dy, "csr")
    dense = kernels.to_dense(weight.values, weight.pattern)

    def alone(part):  # one row of W^T, or of W: no other row shares its inputs
        kept = kernels.pattern_from_mask(part != 0, int((part != 0).sum()))
        return kernels.gather(part, kept), kept

    some = lambda count: range(0, count, -(-count // 7))  # of the blocks and of the rest
    for n in some(mask.shape[1]):
        line = product_and_gradients(x, *alone(dense[:, n : n + 1]), dy[:, n : n + 1], "csr")
        assert (line[0][:, 0] == y[:, n]).all()
        assert (line[2] == dw[slice(*weight.pattern.pointers[n : n + 2])]).all()
    for k in some(mask.shape[0]):
        line = product_and_gradients(dy, *alone(dense[k : k + 1].T), x[:, k : k + 1], "csr")
        assert (line[0][:, 0] == dx[:, k]).all()


@pytest.mark.native
@pytest.mark.parametrize("tokens", [0, 20, 150])
@pytest.mark.parametrize(
    ("block", "dtype"),
    [((16, 4), jnp.float32), ((64, 64), jnp.bfloat16), ((32, 8), jnp.float32)],
    ids=["16x4-f32", "64x64-bf16", "32x8-f32"],
)
def test_blocks_of_whole_panels_equal_the_dense_product(tokens, block, dtype):
    mask = np.kron(np.random.default_rng(tokens).random((9, 5)) < 0.5, np.ones(block, bool))
    weight, _ = make(mask)
    x = normal(2, tokens, mask.shape[0], dtype=dtype)
    dy = normal(3, tokens, mask.shape[1], dtype=dtype)
    one, two = (
        product_and_gradients(x, weight.values, weight.pattern, dy, i) for i in ("csr", "masked")
    )
    for ours, masked in zip(one, two, strict=True):
        assert_close(ours, masked, 2**-7 if ours.dtype == jnp.bfloat16 else 2**-19)


def test_same_bits_every_time():
    """dW sums over threads in a fixed order."""
    weight, _ = make(np.random.default_rng(0).random((96, 80)) < 0.3)
    x, dy = normal(1, 300, 96), normal(2, 300, 80)
    runs = [product_and_gradients(x, weight.values, weight.pattern, dy, "csr") for _ in range(5)]
    for run in runs[1:]:
        for one, other in zip(runs[0], run, strict=True):
            assert (one == other).all()


def test_not_a_number_stays_in_its_token():
    weight, _ = make(np.eye(20, dtype=bool) | (np.arange(20) % 3 == 0))
    x = normal(0, 40, 20).at[7, 3].set(jnp.nan).at[9, 4].set(-jnp.inf)
    for dtype in (jnp.float32, jnp.bfloat16):
        y = np.asarray(weight.project(x.astype(dtype)), np.float32)
        bad = ~np.isfinite(y).all(axis=1)
        assert bad.nonzero()[0].tolist() == [7, 9]
        assert np.isnan(y[7]).any()
        assert np.isinf(y[9]).any()
        assert not np.isnan(y[9]).any()


@pytest.mark.native
def test_only_what_is_asked_for_is_computed():
    weight, _ = make(np.random.default_rng(0).random((12, 9)) < 0.4)
    x = normal(1, 5, 12)

    def handlers(fn, *args):
        text = jax.jit(fn).lower(*args).as_text()
        return {name for name in native.HANDLERS if f"@{name}(" in text}

    def loss(x, values):
        return kernels.SparseWeight(values=values, pattern=weight.pattern).project(x).sum()

    gradients = {0: "input_gradient", 1: "weight_gradient", (0, 1): "gradients"}
    for places, backward in gradients.items():
        found = handlers(jax.value_and_grad(loss, places), x, weight.values)
        assert found == {"wafer_sparse_multiply", f"wafer_sparse_{backward}"}


def test_under_scan_and_vmap():
    """Layers of equal nnz scan, and map."""
    rng = np.random.default_rng(0)
    masks = []
    for _ in range(3):
        mask = np.zeros(64, bool)
        mask[rng.permutation(64)[:20]] = True
        masks.append(mask.reshape(8, 8))
    pairs = [make(mask, seed) for seed, mask in enumerate(masks)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(w for w, _ in pairs))
    dense = jnp.stack([d for _, d in pairs])
    x = normal(1, 6, 8)

    @jax.jit
    def deep(values, x):
        layers = kernels.SparseWeight(values=values, pattern=stacked.pattern, implementation="csr")
        return jax.lax.scan(lambda h, w: (jnp.tanh(w.project(h)), None), x, layers)[0].sum()

    def dense_deep(x):
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, dense)[0].sum()

    np.testing.assert_allclose(
        jax.grad(deep, 1)(stacked.values, x), jax.grad(dense_deep)(x), atol=1e-5
    )
    mapped = jax.vmap(lambda w: w.project(x))(stacked)
    np.testing.assert_allclose(mapped, jnp.einsum("tk,lkn->ltn", x, dense), atol=1e-5)


DAMAGED = {  # field: (entries of a pattern of 4 values in a 2 x 3 weight, what is said)
    "indices": ([9, 0, 1, 0], r"indices\[0\] is 9; expected 0 .. 1"),
    "pointers": ([0, 1, 2, 9], r"\.pointers do not rise from 0 to at most 4"),
    "t_pointers": ([0, 5, 3], r"\.t_pointers do not rise from 0 to at most 4"),
}


@pytest.mark.parametrize("field", DAMAGED)
def test_places_beyond_the_end_are_named(field):
    good = kernels.pattern_from_flat(np.asarray([0, 2, 5, 6]), (2, 3))  # 6 is slack
    entries, message = DAMAGED[field]
    wrong = jnp.asarray(entries, getattr(good, field).dtype)
    pattern = good._replace(**{field: wrong})
    for dtype in (jnp.float32, jnp.bfloat16):
        with pytest.raises(ValueError, match=f"^to_dense: .*{message}.*make patterns with"):
            kernels.to_dense(jnp.ones(4, dtype), pattern)
    with pytest.raises(ValueError, match=f"^to_mask: .*{message}"):
        kernels.to_mask(pattern)
    with pytest.raises(ValueError, match=f"^gather: .*{message}"):
        kernels.gather(jnp.ones((2, 3)), pattern)


def test_slack_is_ignored():
    mask = np.random.default_rng(0).random((30, 20)) < 0.3
    nnz = int(mask.sum())
    pattern = jax.jit(lambda m: kernels.pattern_from_mask(m, nnz + 7))(mask)
    values = jnp.arange(1.0, nnz + 8)
    dense = kernels.to_dense(values, pattern)
    assert int((dense != 0).sum()) == nnz
    x, dy = normal(1, 10, 30), normal(2, 10, 20)
    for implementation in IMPLEMENTATIONS:
        y, dx, dw = product_and_gradients(x, values, pattern, dy, implementation)
        np.testing.assert_allclose(y, x @ dense, rtol=1e-5, atol=1e-3)
        np.testing.assert_allclose(dx, dy @ dense.T, rtol=1e-5, atol=1e-3)
        assert (dw[nnz:] == 0).all()
        assert (dw[:nnz] != 0).all()


def test_errors_say_what_was_found():
    weight, _ = make(np.ones((4, 3), bool))
    with pytest.raises(ValueError, match=r"x has shape \(2, 5\), the weight is 4 x 3"):
        weight.project(jnp.ones((2, 5)))
    with pytest.raises(ValueError, match="choose auto, masked or csr"):
        kernels.sparse_dot(jnp.ones((2, 4)), weight, implementation="dense")
    with pytest.raises(TypeError, match="csr takes float32 and bfloat16, x is float16"):
        weight.project(jnp.ones((2, 4), jnp.float16))
    with pytest.raises(ValueError, match="values have shape"):
        kernels.SparseWeight(values=jnp.ones(5), pattern=weight.pattern).project(jnp.ones((2, 4)))
    with pytest.raises(ValueError, match="keeps 12 weights, nnz is 11"):
        kernels.pattern_from_mask(jnp.ones((4, 3), bool), 11)


@pytest.mark.native
def test_auto_follows_the_crossover_and_says_so(caplog):
    obstacle.cache_clear()
    with caplog.at_level("DEBUG", logger="wafer.sparsity.kernels.choice"):
        assert kernels.choose(2048, 512, 2048, 512 * 2048 // 10, jnp.float32) == "csr"
        assert kernels.choose(2048, 512, 2048, 512 * 2048 * 2 // 3, jnp.float32) == "masked"
        assert kernels.choose(2048, 128, 128, 128 * 128 // 2, jnp.bfloat16) == "csr"
        assert kernels.choose(16, 512, 2048, 512 * 2048 * 2 // 5, jnp.float32) == "masked"
        assert kernels.choose(64, 64, 64, 10, jnp.float16) == "masked"
    assert "csr for T=2048 K=512 N=2048 with 10.0 % kept" in caplog.text
    assert "float16 has no native kernel" in caplog.text


def test_wrong_patterns_say_what_is_wrong():
    pattern = kernels.pattern_from_mask(np.ones((3, 2), bool), 6)
    x, values = np.ones((1, 3), np.float32), np.ones(6, np.float32)
    make = lambda **wrong: sparsity.SparseWeight(values=values, pattern=pattern._replace(**wrong))
    with pytest.raises(TypeError, match=r"pattern.indices is float32; expected uint16 or int32"):
        sparsity.sparse_dot(x, make(indices=np.ones(6, np.float32)))
    count = len(pattern.slices)  # 1, without the native kernels 0
    with pytest.raises(ValueError, match=rf"slices has shape \(2, 8\); expected \({count}, 4\)"):
        sparsity.sparse_dot(x, make(slices=np.zeros((2, 8), np.int32)))
    for wrong, message in (
        ([2, 1], "entry 0 is 2, the next 1"),
        ([1, 1], "drop repetitions"),
        ([7], r"position 7 \(entry 0\) is not in 0 .. 6"),
    ):
        with pytest.raises(ValueError, match=message):
            kernels.pattern_from_flat(np.array(wrong), (3, 2))


def with_slice(pattern, word, value):
    pattern = jax.tree.map(np.array, pattern)
    pattern.slices[0, word] = value
    return pattern


OUTSIDE = [
    (lambda p: with_slice(p, 0, 9), "a slice leads out of the outputs or the slots"),  # rows[0]
    (lambda p: with_slice(p, 2, BLOCK + 1), "a slice leads out of the outputs"),  # counts[0]
    (lambda p: with_slice(p, 2, 2), "slices do not have as many values of each output"),
    (lambda p: with_slice(p, 3, 1 << 20), "a slice leads out of the outputs"),  # slots
    (lambda p: p._replace(offsets=jnp.full_like(p.offsets, 200)), "an offset leads out of its"),
    (lambda p: p._replace(indices=jnp.full(6, 3, jnp.uint16)), r"an index is not in 0 \.\. 2"),
    (lambda p: p._replace(indices=jnp.zeros(6, jnp.uint16)), "entries that the indices name"),
    (lambda p: p._replace(pointers=jnp.int32([0, 7, 6])), "pointers do not rise from 0 to at most"),
]


@pytest.mark.native
@pytest.mark.parametrize(("change", "says"), OUTSIDE)
def test_kernels_refuse_places_that_lead_outside_or_elsewhere(change, says):
    pattern = change(kernels.pattern_from_mask(np.ones((3, 2), bool), 6))
    weight = sparsity.SparseWeight(values=jnp.ones(6), pattern=pattern)
    product = lambda x: sparsity.sparse_dot(x, weight, implementation="csr").sum()
    with pytest.raises(jax.errors.JaxRuntimeError, match=says):
        jax.grad(product)(jnp.ones((1, 3))).block_until_ready()


@pytest.mark.native
@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 1, 3], r"an index is not in 0 \.\. 2"),
        ([0, 2, 1], "indices of an output do not rise"),
        ([0, 1, 1], "indices of an output do not rise"),
    ],
)
def test_walks_are_made_of_sound_indices_alone(indices, message):
    pointers = jnp.array([0, 1, 3], jnp.int32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(
            add_walk(jnp.array(indices, jnp.uint16), pointers, jnp.array([0, 1, 2, 3], jnp.int32))
        )


@pytest.mark.native
def test_a_walk_by_hand():
    # Outputs 0 .. 4 keep inputs {1}, {0, 2}, {}, {0, 1, 2}, {2}: the longest first, four together.
    mask = np.array([[0, 1, 0, 1, 0], [1, 0, 0, 1, 0], [0, 1, 0, 1, 1]], bool)
    pattern = kernels.pattern_from_mask(mask, 7)
    slices = np.asarray(pattern.slices)
    assert slices.shape == (2, 4)
    rows, counts = slices[:, :2].view(np.uint16), slices[:, 2:3].view(np.uint8)
    assert rows.tolist() == [[3, 1, 0, 4], [2, 8, 8, 8]]  # 8: no such output
    assert counts.tolist() == [[3, 2, 1, 1], [0, 0, 0, 0]]
    assert slices[:, 3].tolist() == [0, 12]
    none = BLOCK
    slots = [[0, 0, 1, 2], [1, 2, none, none], [2, none, none, none]]
    assert np.asarray(pattern.offsets)[:12].reshape(3, 4).tolist() == slots


@pytest.mark.native
@pytest.mark.parametrize("shape", [(1, 1), (3, 515), (177, 4), (176, 512), (400, 1030)])
def test_every_kept_weight_has_one_slot(shape):
    mask = np.random.default_rng(1).random(shape) < 0.2
    pattern = kernels.pattern_from_mask(mask, int(mask.sum()))
    forward, transposed = (jax.tree.map(np.asarray, pattern[i : i + 2]) for i in (3, 5))
    for (slices, offsets), kept in ((forward, mask), (transposed, mask.T)):
        group = min(512, -(-kept.shape[1] // 4) * 4)
        blocks, seen = -(-kept.shape[0] // BLOCK), np.zeros(kept.shape, int)
        for at, (*_, place) in enumerate(slices):
            segment = at // (group // 4)
            rows = slices[at, :2].view(np.uint16) & 0x3FFF
            counts = slices[at, 2:3].view(np.uint8)
            for c in range(4):
                read = offsets[place + c + 4 * np.arange(counts[c])].astype(int)
                inputs = segment % blocks * BLOCK + read
                seen[inputs, segment // blocks * group + rows[c] if counts[c] else 0] += 1
        np.testing.assert_array_equal(seen, kept)


@pytest.mark.native
@pytest.mark.parametrize(("zeros", "most"), [(0.8, 8.5), (0.9, 9.0), (0.95, 9.8)])
def test_bytes_per_kept_weight(zeros, most):
    """Values and the whole pattern."""
    mask = np.random.default_rng(0).random((1024, 2048)) >= zeros
    nnz = int(mask.sum())
    pattern = jax.eval_shape(lambda mask: kernels.pattern_from_mask(mask, nnz), mask)
    weight = (jax.ShapeDtypeStruct((nnz,), jnp.float32), *pattern)
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in weight) <= most * nnz
