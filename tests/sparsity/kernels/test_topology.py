"""Exact selection and topology change: hand values, native against the JAX reference, counts."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer.sparsity import kernels, selection

update = jax.jit(kernels.rigl_update, static_argnames=("implementation", "groups"))
SETTINGS = hypothesis.settings(max_examples=12, database=None)


def test_rigl_by_hand():
    # Canonical order is by column: positions (k, n) = (0,0) (1,0) (1,1) (0,2).
    dense = jnp.asarray([[1.0, 0, -4], [-2, 3, 0]])
    pattern = kernels.pattern_from_mask(dense != 0, 4)
    values = kernels.gather(dense, pattern)  # [1, -2, 3, -4]
    scores = jnp.asarray([[0.0, 9, 9], [9, 9, 9]])  # survivors' scores do not count
    moments = jnp.asarray([10.0, 20, 30, 40])
    for implementation in ("native", "reference"):
        new = update(values, pattern, scores, 2, [moments], implementation=implementation)
        # 3 and -4 stay. Of the positions with score 9 the lowest in canonical order win: (1, 0),
        # which was just dropped and goes on as it was, then (0, 1), which starts at 0.
        assert kernels.to_mask(new.pattern).tolist() == [[False, True, True], [True, True, False]]
        assert new.values.tolist() == [-2, 0, 3, -4]
        assert new.others[0].tolist() == [20, 0, 30, 40]


@SETTINGS
@hypothesis.given(st.data())
def test_native_update_equals_reference(data):
    """Bit for bit, with many ties, slack, counts of 0 and all, and scores that are no numbers."""
    rows, columns, nnz = data.draw(st.sampled_from([(13, 9, 42), (9, 40, 360)]))
    groups = data.draw(st.sampled_from([1, {9: 3, 40: 2}[columns], columns]))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 16)))
    active = data.draw(st.sampled_from([nnz, nnz - nnz // 4]))
    mask = np.zeros(rows * columns, bool)
    mask[rng.permutation(rows * columns)[:active]] = True
    pattern = jax.jit(kernels.pattern_from_mask, static_argnums=1)(mask.reshape(rows, columns), nnz)
    values = jnp.asarray(np.round(rng.normal(size=nnz) * 2) / 2, jnp.float32)
    scores = np.round(rng.normal(size=(rows, columns)) * data.draw(st.sampled_from([0, 1, 3])))
    strange = data.draw(st.sampled_from([1.0, np.nan, np.inf, -np.inf]))
    scores.flat[rng.integers(rows * columns)] = strange
    scores = jnp.asarray(scores, jnp.float32)
    each, room = active // groups, nnz // groups
    keep = data.draw(st.sampled_from([0, each // 2, each]))
    grow = data.draw(st.sampled_from([0, each - keep, room - keep]))
    run = functools.partial(update, values, pattern, scores, keep, [values + 1], grow=grow)
    a, b = (run(groups=groups, implementation=name) for name in ("native", "reference"))
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(one, other)
    ends = np.asarray(a.pattern.pointers)[:: columns // groups]
    assert np.diff(ends).tolist() == [keep + grow] * groups  # of each group


def test_rigl_in_groups_by_hand():
    """Each output keeps its largest weight and grows one; the third output has none to keep."""
    dense = jnp.asarray([[1.0, 5, 0], [-2, 6, 0], [3, 0, 0]])
    pattern = jax.jit(kernels.pattern_from_mask, static_argnums=1)(dense != 0, 6)
    values = kernels.gather(dense, pattern)
    scores = jnp.asarray([[7.0, 1, 2], [8, 0, 2], [9, 2, 1]])
    for implementation in ("native", "reference"):
        new = update(values, pattern, scores, 1, grow=1, groups=3, implementation=implementation)
        # Output 0 keeps 3 and regrows -2 (score 8); output 1 keeps 6 and grows row 2; output 2
        # grows two: rows 0 and 1.
        dense = kernels.to_dense(new.values, new.pattern)
        assert dense.tolist() == [[0, 0, 0], [-2, 6, 0], [3, 0, 0]]
        np.testing.assert_array_equal(kernels.to_mask(new.pattern), [[0, 0, 1], [1] * 3, [1, 1, 0]])


def test_groups_that_do_not_divide_the_outputs():
    pattern = kernels.pattern_from_mask(jnp.ones((2, 3), bool), 6)
    with pytest.raises(ValueError, match="2 groups do not divide 3 outputs"):
        kernels.rigl_update(jnp.ones(6), pattern, jnp.ones((2, 3)), 3, groups=2)


def test_weights_that_were_active_keep_their_bits():
    rng = np.random.default_rng(0)
    mask = rng.random((40, 30)) < 0.3
    nnz = int(mask.sum())
    pattern = kernels.pattern_from_mask(jnp.asarray(mask), nnz)
    values = jnp.asarray(rng.normal(size=nnz), jnp.float32)
    scores = jnp.asarray(rng.random((40, 30)), jnp.float32)
    keep = nnz * 7 // 10
    new = update(values, pattern, scores, keep, [values * 3])
    before = np.asarray(kernels.to_dense(values, pattern))
    after = np.asarray(kernels.to_dense(new.values, new.pattern))
    stayed = np.abs(before) >= np.sort(np.abs(values))[-keep]
    active = np.asarray(kernels.to_mask(new.pattern))
    assert active[stayed].all()
    np.testing.assert_array_equal(after, np.where(active & mask, before, 0))
    assert (active & mask & ~stayed).any()  # some were dropped and grew back
    assert (new.others[0] == new.values * 3).all()
    grown = active & ~stayed
    rest = ~grown & ~stayed
    assert np.asarray(scores)[grown].min() >= np.asarray(scores)[rest].max()


def test_counts_and_topology_never_recompile():
    mask = np.random.default_rng(0).random((20, 10)) < 0.5
    nnz = int(mask.sum())
    pattern = kernels.pattern_from_mask(jnp.asarray(mask), nnz)
    values, scores = jnp.asarray(np.arange(1, nnz + 1), jnp.float32), jnp.ones((20, 10))
    traced = []

    @jax.jit
    def step(*arguments):
        traced.append(arguments)
        return kernels.rigl_update(*arguments)

    for keep in (3, 50, nnz):
        new = step(values, pattern, scores, jnp.int32(keep))
        values, pattern = new.values, new.pattern
    assert len(traced) == 1


SELECTIONS = (kernels.topk_mask, jax.jit(selection.topk_mask))


def stable_sort(scores, k):
    """Mask of the k largest of each row, of equal ones the first."""
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.argsort(order, axis=1, kind="stable") < np.reshape(k, (-1, 1))


@SETTINGS
@hypothesis.given(st.data())
def test_topk_of_any_numbers(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 16)))
    some = [0.0, -0.0, 1.0, -1.0, 2.5, 1e-38, -1e30, np.inf, -np.inf]
    scores = rng.choice(np.float32(some), (3, 70))
    k = jnp.asarray(data.draw(st.lists(st.integers(0, 70), min_size=3, max_size=3)), jnp.int32)
    for select in SELECTIONS:
        np.testing.assert_array_equal(select(jnp.asarray(scores), k), stable_sort(scores, k))
    scores.flat[rng.integers(210)] = np.nan
    native, reference = (select(jnp.asarray(scores), k) for select in SELECTIONS)
    assert native.sum(axis=1).tolist() == k.tolist()
    np.testing.assert_array_equal(native, reference)


@pytest.mark.parametrize(
    ("rows", "n"),
    [(999, 2), (999, 4), (99, 8), (99, 5), (9, 64), (9, 65), (3, 5000), (1, 40_000)],
)
def test_topk_of_any_size(rows, n):
    """Short rows, and several chunks of the native selection; many ties, and none."""
    rng = np.random.default_rng(n)
    for drawn in (rng.integers(-2, 3, (rows, n)), rng.standard_normal((rows, n))):
        scores = drawn.astype(np.float32)
        for k in (0, 1, n // 2, n):
            for select in SELECTIONS:
                np.testing.assert_array_equal(
                    select(jnp.asarray(scores), k), stable_sort(scores, k)
                )


@pytest.mark.parametrize("extra", [0, 6, -6])
def test_native_pattern_equals_reference(extra):
    mask = np.random.default_rng(1).random((33, 70)) < 0.2
    nnz = int(mask.sum()) + extra
    got = jax.jit(kernels.pattern_from_mask, static_argnums=1)(mask, nnz)
    flat = np.full(nnz, mask.size)
    positions = np.flatnonzero(mask.T)[:nnz]
    flat[: len(positions)] = positions
    want = kernels.pattern_from_flat(jnp.asarray(flat, jnp.int32), mask.shape)
    for name, one, other in zip(want._fields, got, want, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)


def test_values_move_between_patterns():
    rng = np.random.default_rng(0)
    old, new = rng.random((9, 7)) < 0.5, rng.random((9, 7)) < 0.4
    a = kernels.pattern_from_mask(old, int(old.sum()))
    b = kernels.pattern_from_mask(new, int(new.sum()))
    for dtype in (jnp.float32, jnp.bfloat16, jnp.int32):
        values = jnp.arange(1, a.nnz + 1, dtype=dtype)
        (moved,) = kernels.move_values([values], a, b)
        assert moved.dtype == dtype
        want = kernels.gather(kernels.to_dense(values, a), b)
        np.testing.assert_array_equal(moved, want)
