"""NaN-sentinel checkpoints: written, read, resumed, edited, finalized, damaged."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from wafer import sparsity
from wafer.models.checkpoint.reader import StoredTree, load_checkpoint
from wafer.models.checkpoint.writer import write_checkpoint
from wafer.models.errors import CheckpointError
from wafer.models.paths import named_leaves
from wafer.sparsity.finalize import clear_nan, finalize, main
from wafer.sparsity.stored.resume import resume

RNG = np.random.default_rng(0)
PARAMS = {
    "a": {"kernel": jnp.asarray(RNG.standard_normal((12, 8)), jnp.float32), "bias": jnp.ones(8)},
    "b": {"kernel": jnp.asarray(RNG.standard_normal((8, 6)), jnp.bfloat16)},
}
TX = optax.adam(1e-3)
KEY = jax.random.key(0)


def sparse_run(section):
    sparsifier = sparsity.configure(section)
    sparse = sparsifier.init(PARAMS, KEY)
    opt_state = jax.tree.map(lambda x: x + 1, TX.init(PARAMS))
    return sparsifier, sparse, *sparsifier.prune(PARAMS, opt_state, sparse)


@pytest.mark.parametrize("compute", ["masked", "csr"])
def test_nan_on_disk_zero_in_compute_and_everything_else_bit_exact(compute):
    section = {"algorithm": "rigl", "sparsity": 0.75, "compute": compute}
    sparsifier, sparse, params, opt_state = sparse_run(section)
    stored, moments = sparsity.encode(params, opt_state, sparse)
    masks = sparsifier.masks(sparse)
    for tree in (stored, moments[0].mu, moments[0].nu):
        for name, leaf in named_leaves(tree):
            assert leaf.dtype == dict(named_leaves(PARAMS))[name].dtype  # bf16 stays bf16
            want = ~masks[name] if name in masks else jnp.zeros(leaf.shape, bool)
            np.testing.assert_array_equal(jnp.isnan(leaf), want)
    back = sparsity.resume(sparsifier, stored, moments, KEY, sparsity.to_meta(sparse))
    plain = [
        (s._replace(key=jax.random.key_data(s.key)), p, o)
        for s, p, o in ((sparse, params, opt_state), back)
    ]
    jax.tree.map(np.testing.assert_array_equal, *plain)


def test_sentinels_survive_a_cast_to_bfloat16():
    _, sparse, params, _ = sparse_run(0.5)
    stored, _ = sparsity.encode(params, (), sparse)
    cast = jax.tree.map(lambda x: x.astype(jnp.bfloat16), stored)
    masks = sparsity.decode(cast, ()).masks
    jax.tree.map(np.testing.assert_array_equal, masks, dict(sparse.masks))


def test_a_sparse_checkpoint_needs_a_section_that_covers_it():
    _, sparse, params, opt_state = sparse_run(0.5)
    stored, moments = sparsity.encode(params, opt_state, sparse)
    with pytest.raises(sparsity.SentinelError, match=r"(?s)2 parameters.*sparsity: \{.*finalize"):
        sparsity.require_dense(stored, "runs/x/checkpoints/5")
    sparsity.require_dense(params)
    narrow = sparsity.configure({"sparsity": 0.5, "param_filter": "a/*"})
    with pytest.raises(sparsity.SentinelError, match=r"'b/kernel' sparse.*widen param_filter"):
        sparsity.resume(narrow, stored, moments, KEY)


def test_resume_a_dense_checkpoint_starts_sparse_and_a_dense_start_stays_dense():
    sparsifier = sparsity.configure({"sparsity": 0.5, "init_method": "topk"})
    sparse, params, _ = sparsity.resume(sparsifier, PARAMS, TX.init(PARAMS), KEY)
    assert int(sparse.masks["a/kernel"].sum()) == 48
    assert not np.any(np.where(sparse.masks["a/kernel"], 0, params["a"]["kernel"]))
    section = {"algorithm": "set", "sparsity": 0.5, "update": {"freq": 9, "start": 9}}
    sparsifier, sparse, params, opt_state = sparse_run(section)
    again, _, _ = sparsity.resume(sparsifier, params, opt_state, KEY, sparsity.to_meta(sparse))
    assert all(bool(mask.all()) for mask in again.masks.values())


@pytest.mark.parametrize("section", [0.5, {"algorithm": "rigl", "sparsity": 0.5}])
def test_weights_that_are_not_trained_have_stored_masks_or_none(section):
    """Of a finalized checkpoint nothing more is pruned; of a sparse one exactly the NaN."""
    _, sparse, params, opt_state = sparse_run(section)
    other = sparsity.configure({"algorithm": "seeded", "sparsity": 0.9, "init_method": "topk"})
    for sparsifier in (sparsity.configure(section), other, sparsity.configure(None)):
        none, weights, _ = resume(sparsifier, params, opt_state, KEY, trains=False)
        assert not none.masks
        assert not none.patterns
        jax.tree.map(np.testing.assert_array_equal, weights, params)
        stored = sparsity.encode(params, opt_state, sparse)
        meta = sparsity.to_meta(sparse)
        kept, weights, _ = resume(sparsifier, *stored, KEY, meta, trains=False)
        jax.tree.map(np.testing.assert_array_equal, weights, params)
        for name, mask in kept.masks.items():
            np.testing.assert_array_equal(mask, sparse.masks[name])


RIGL = {"algorithm": "rigl", "sparsity": 0.75, "update": {"freq": 2}}
LISTED = {"algorithm": "gmp", "schedule": [0.25, 0.5, 0.75], "update": {"freq": 2, "stop": 6}}
CUBIC = {"algorithm": "gmp", "update": {"freq": 2}}
CUBIC |= {"schedule": {"type": "cubic", "final": 0.75, "stop": 6}}
MOVES = "the section asks for %s. The next updates of the topology move it there"
STAYS = "the section asks for 50.0%. To move the level between runs"
HALF, LATER, FIRST = MOVES % "50.0%", {"freq": 2, "start": 9}, {"steps": [1, 3]}
CYCLE = {"freq": 2, "start": 2, "stop": 4}
SECTIONS = [
    (RIGL, {"sparsity": 0.5}, [HALF] * 4),
    (RIGL, {"sparsity": 0.5, "update": LATER}, [HALF] * 4),
    (RIGL, {"sparsity": 0.5, "update": FIRST}, [HALF, HALF, STAYS]),
    (RIGL, {"algorithm": "set", "update": LATER}, [""] * 4),
    (LISTED, {"schedule": [0.5, 0.25, 0.75]}, [HALF, MOVES % "25.0%", ""]),
    (LISTED, {"update": {"freq": 2, "stop": 4}}, [""] * 3),
    (CUBIC, {"schedule": {"type": "cubic", "final": 0.5, "stop": 6}}, ["", MOVES % "35.2%"]),
    ({"sparsity": 0.25}, RIGL | {"sparsity": 0.25}, [""] * 2),
    ({"sparsity": 0.25}, RIGL, [MOVES % "75.0%"] * 2),
    ({"algorithm": "sr-ste", "sparsity": 0.5, "stop": 3}, {}, [""] * 3),
    ({"algorithm": "acdc", "sparsity": 0.5, "update": CYCLE}, {}, [""] * 3),
]


@pytest.mark.parametrize(("section", "edit", "told"), SECTIONS)
def test_another_level_than_the_section_in_force_is_told(section, edit, told, caplog):
    """Once at resume, whatever the method; by the steps that are due, not by what comes next."""
    params = {"w": jax.random.normal(KEY, (32, 32))}
    rule, other = sparsity.configure(section), sparsity.configure(section | edit)
    same, sparse = sparsity.configure(section), rule.init(params, KEY)
    grads, (params, _) = params, rule.prune(params, (), sparse)
    for step, line in enumerate(told):
        for t in (2 * step - 1, 2 * step):
            if t > 0:
                sparse, params, _ = rule.update(sparse, params, grads, (), topology=rule.due(t))
        stored, meta = sparsity.encode(params, (), sparse), sparsity.to_meta(sparse)
        for section_now, wanted in ((same, ""), (other, line)):
            caplog.clear()
            with caplog.at_level("WARNING", "wafer.sparsity"):
                sparsity.resume(section_now, *stored, KEY, meta)
            found = [r.message for r in caplog.records if "masks are kept" in r.message]
            assert len(found) == bool(wanted), (int(sparse.step), found)
            assert wanted in "".join(found)


def test_iterative_magnitude_pruning_by_editing_the_level(caplog):
    section = {"algorithm": "seeded", "sparsity": 0.25, "init_method": "topk", "seed": 5}
    _, sparse, params, opt_state = sparse_run(section)
    stored = sparsity.encode(params, opt_state, sparse)
    up = sparsity.configure(section | {"sparsity": 0.5})
    with caplog.at_level("WARNING", "wafer.sparsity"):
        higher, weights, _ = sparsity.resume(up, *stored, KEY)
    assert "masks are changed to the section's level: 25.0% pruned, now 50.0%" in caplog.text
    for name, mask in higher.masks.items():
        assert int(mask.sum()) == mask.size // 2  # n - round(0.5 n)
        assert not np.any(mask & ~sparse.masks[name])  # nothing comes back
        kept = np.abs(np.asarray(dict(named_leaves(params))[name], np.float32))
        assert kept[mask].min() >= kept[sparse.masks[name] & ~mask].max()  # smallest went
    down = sparsity.configure(section | {"sparsity": 0.1})
    lower, weights, moments = sparsity.resume(down, *stored, KEY)
    same, *_ = sparsity.resume(sparsity.configure(section), *stored, KEY)
    assert [int(state.generation) for state in (higher, lower, same)] == [1, 1, 0]
    for name, mask in lower.masks.items():
        back = mask & ~sparse.masks[name]
        assert int(mask.sum()) == mask.size - round(0.1 * mask.size)
        assert not np.any(sparse.masks[name] & ~mask)  # no live weight is lost
        for tree in (weights, moments[0].mu, moments[0].nu):
            leaf = dict(named_leaves(tree))[name]
            assert back.sum() > 0
            assert not np.any(np.where(back, leaf, 0))  # regrown at 0
    # A static mask stays the checkpoint's, which is logged.
    _, sparse, params, opt_state = sparse_run(0.25)
    stored = sparsity.encode(params, opt_state, sparse)
    with caplog.at_level("WARNING", "wafer.sparsity"):
        same, _, _ = sparsity.resume(sparsity.configure(0.5), *stored, KEY)
    jax.tree.map(np.testing.assert_array_equal, same.masks, sparse.masks)
    assert [record.message for record in caplog.records if "masks are kept" in record.message] == [
        "sparsity: the checkpoint's masks are kept: 25.0% pruned, the section asks for 50.0%. To "
        "move the level between runs, write algorithm: seeded; to move it during a run, use "
        "gmp, set or rigl with a schedule"
    ]


def test_seeds_count_all_parameters():
    section = {"algorithm": "seeded", "sparsity": 0.5, "seed": 5}
    order = ("b/kernel", "a/bias", "a/kernel")
    sparse = sparsity.configure(section, order=order).init(PARAMS, KEY)
    kernel = np.asarray(PARAMS["a"]["kernel"])
    score = np.random.default_rng(5 + 2).random((8, 12), np.float32)  # the vendor's [out, in]
    keep = np.zeros(96, bool)
    keep[np.argsort(-score.reshape(-1), kind="stable")[:48]] = True
    np.testing.assert_array_equal(sparse.masks["a/kernel"], keep.reshape(8, 12).T)
    assert kernel.shape == (12, 8)
    with pytest.raises(ValueError, match="`order` lists no parameter 'a/kernel'"):
        sparsity.configure(section, order=["b/kernel", "a/bias"]).init(PARAMS, KEY)


# --- on disk -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A step's folder, and the weights that the model computes with."""
    sparsifier, sparse, params, opt_state = sparse_run(
        {"sparsity": 0.75, "param_filter": "*/kernel"}
    )
    stored, (adam, _) = sparsity.encode(params, opt_state, sparse)
    moments = {"mu": adam.mu, "nu": adam.nu, "count": adam.count}
    tree = {"params": stored, "opt_state": moments, "step": np.int32(3)}
    path = tmp_path_factory.mktemp("run") / "3"
    write_checkpoint(path, tree, {"sparsity": sparsity.to_meta(sparse), "n": 1})
    return path, sparsifier.apply(params, sparse)


def test_finalize_gives_what_the_model_computed(checkpoint, tmp_path):
    path, computed = checkpoint
    report = finalize(path, tmp_path / "3")
    state, meta = load_checkpoint(tmp_path / "3")
    jax.tree.map(np.testing.assert_array_equal, state["params"], computed)
    assert meta == {"n": 1}  # no record of the pattern
    assert not any(np.isnan(np.float32(x)).any() for x in jax.tree.leaves(state))
    trees = ("opt_state/mu", "opt_state/nu", "params")
    assert [t.name for t in report.sparse] == [f"{tree}/{n}/kernel" for tree in trees for n in "ab"]
    assert all(t.sparsity == 0.75 for t in report.sparse)
    assert "6 of 11 tensors were sparse (75.0% to 75.0% of each)" in report.summary()
    assert state["params"]["b"]["kernel"].dtype == jnp.bfloat16
    assert sum(1 for _ in (tmp_path / "3").rglob("*")) < 2 * sum(1 for _ in path.rglob("*"))
    again = finalize(tmp_path / "3" / "state", tmp_path / "item")  # a bare Orbax item
    assert not again.sparse
    assert "0 of 11 tensors were sparse" in "".join(again.lines())


def test_finalize_refuses_to_overwrite_and_explains(checkpoint, tmp_path, capsys):
    path, _ = checkpoint
    with pytest.raises(FileExistsError, match="never overwrites"):
        finalize(path, tmp_path)
    assert main(["-i", str(tmp_path / "no"), "-o", str(tmp_path / "x")]) == 1
    assert "does not exist" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match=r"give the folder of a step.*\.\.\./3"):
        finalize(path.parent, tmp_path / "x")
    assert main(["-i", str(path), "-o", str(tmp_path / "x")]) == 0
    assert "params/a/kernel" in capsys.readouterr().out


def test_a_missing_piece_is_not_read_as_zeros(checkpoint):
    stored = StoredTree(checkpoint[0] / "state")
    stored.keys["params.a.kernel"].pop()
    with pytest.raises(CheckpointError, match="tensor params/a/kernel has 0 of its 1 pieces"):
        stored.open("params/a/kernel")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_clear_nan(dtype):
    array = np.asarray([[np.nan, 1.0, -0.0], [np.inf, -np.nan, -np.inf]]).astype(dtype)
    want = np.asarray([[0.0, 1.0, -0.0], [np.inf, 0.0, -np.inf]]).astype(dtype)
    assert clear_nan(array) == 2
    assert array.tobytes() == want.tobytes()


KEYS = {
    "typed": lambda: jax.random.key(1),
    "old": lambda: jax.random.PRNGKey(1),
    "rbg": lambda: jax.random.key(1, impl="rbg"),
    "unsafe_rbg": lambda: jax.random.key(1, impl="unsafe_rbg"),
}


@pytest.mark.parametrize("kind", KEYS)
def test_every_kind_of_random_key_comes_back_as_it_was(kind):
    """Masks drawn after the restart are those of a run without one."""
    sparsifier = sparsity.configure({"algorithm": "set", "sparsity": 0.5, "update": {"freq": 1}})
    sparse = sparsifier.init(PARAMS, KEYS[kind]())
    params, opt_state = sparsifier.prune(PARAMS, TX.init(PARAMS), sparse)
    meta = json.loads(json.dumps(sparsity.to_meta(sparse)))
    stored = sparsity.encode(params, opt_state, sparse)
    again, *_ = sparsity.resume(sparsifier, *stored, KEY, meta)
    assert again.key.dtype == sparse.key.dtype
    grads = jax.tree.map(jnp.ones_like, PARAMS)
    masks = [
        sparsifier.masks(sparsifier.update(s, params, grads, opt_state, topology=True)[0])
        for s in (sparse, again)
    ]
    jax.tree.map(np.testing.assert_array_equal, *masks)


def test_a_record_without_a_generator_has_a_key_of_threefry():
    """So have files of earlier releases."""
    _, sparse, _, _ = sparse_run(0.5)
    assert "key_impl" not in sparsity.to_meta(sparse)
    back = sparsity.from_meta(sparsity.to_meta(sparse), 1)
    np.testing.assert_array_equal(back.key, sparse.key)
