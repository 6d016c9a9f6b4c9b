"""A loop's own state stored: what is refused, and every form of a tree comes back as it was."""

import io

import equinox as eqx
import flax.core
import flax.serialization
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from helpers.sparse_loop import start

from wafer import sparsity
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.checkpoint.tree import fill_template
from wafer.models.checkpoint.writer import write_checkpoint
from wafer.models.errors import CheckpointError
from wafer.sparsity.finalize import finalize

KEY = jax.random.key(0)
TX = optax.adam(0.1)
NESTED = {"up": {"kernel": jax.random.normal(KEY, (8, 6)), "bias": jnp.ones(6)}}
COMPUTES = ["masked", "csr"]


def sparse_run(params, compute, seed=1):
    section = {"algorithm": "set", "sparsity": 0.5, "update": {"freq": 3}, "compute": compute}
    section |= {"param_filter": ["*kernel", "*weight", "*/w", "0"]}
    rule, sparse, *trees = start(section, params, TX, seed=seed)
    assert sparsity.to_meta(sparse)["parameters"]
    return rule, sparse, *trees


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("leaf", ["kernel", "bias"])
def test_nan_weights_are_not_stored(compute, leaf):
    _, sparse, params, opt_state = sparse_run(NESTED, compute)
    sparsity.encode(*sparsity.encode(params, opt_state, sparse), sparse)  # NaN where pruned
    params["up"][leaf] = jnp.asarray(params["up"][leaf]).at[:2].set(jnp.nan)
    with pytest.raises(CheckpointError, match=rf"weights of up/{leaf} are NaN"):
        sparsity.encode(params, opt_state, sparse)


def test_masked_weights_of_another_state_are_not_stored():
    _, _, params, opt_state = sparse_run(NESTED, "masked")
    other = sparse_run(NESTED, "masked", seed=2)[1]
    with pytest.raises(CheckpointError, match=r"up/kernel are not 0 .* of another seed, section"):
        sparsity.encode(params, opt_state, other)
    dense = sparse_run(NESTED, "csr")[1]  # a dense leaf beside a pattern
    with pytest.raises(CheckpointError, match=r"up/kernel are not 0 where the state prunes"):
        sparsity.encode(NESTED, (), dense)


@pytest.mark.parametrize("compute", COMPUTES)
def test_finalize_refuses_the_arrays_of_a_loop(compute, tmp_path):
    rule, sparse, params, opt_state = sparse_run(NESTED, compute)

    def save(name, tree):
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / name, tree)
        return tmp_path / name

    for name, tree in {
        "tuple": (params, opt_state, sparse),
        "dict": {"params": params, "state": {"sparse": sparse}},
        "wrapped": sparsity.SparseOptState(opt_state, sparse),
        "alone": sparse,
    }.items():
        with pytest.raises(CheckpointError, match=r"holds a sparse state.*encode"):
            finalize(save(name, tree), tmp_path / "out")
        assert not (tmp_path / "out").exists()
    encoded = sparsity.encode(params, opt_state, sparse)
    report = finalize(save("encoded", {"trees": encoded, "sparse": sparse}), tmp_path / "out")
    assert {t.name for t in report.sparse} >= {"trees/0/up/kernel"}
    with ocp.StandardCheckpointer() as checkpointer:
        stored = checkpointer.restore(tmp_path / "out")
    want = rule.expand(params, (), sparse)[0]["up"]["kernel"]
    np.testing.assert_array_equal(stored["trees"][0]["up"]["kernel"], want)


def _haiku():
    def forward(x):
        return hk.nets.MLP([6, 4])(hk.Linear(8, name="first")(x))

    return hk.transform(forward).init(KEY, jnp.ones((2, 5)))


LOST = {
    "as a loop has them": lambda params, sparse: params,
    "decoded": lambda params, sparse: sparsity.decode(*sparsity.encode(params, (), sparse)).params,
    "bfloat16": lambda params, sparse: jax.tree.map(lambda x: x.astype(jnp.bfloat16), params),
}
SECTIONS = {
    "static": {"sparsity": 0.8},
    "seeded": {"algorithm": "seeded", "sparsity": 0.8, "seed": 3, "init_method": "topk"},
    "rigl": {"algorithm": "rigl", "sparsity": 0.8, "update": {"freq": 5}},
    "gmp": {"algorithm": "gmp", "schedule": [0.2, 0.4], "update": {"freq": 2}},
    "2:4": {"pattern": "2:4", "sparsity": 0.5},
}


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("lost", LOST)
def test_weights_stored_without_their_masks_do_not_resume(section, lost):
    rule, sparse, params, opt_state = start(SECTIONS[section] | {"compute": "masked"}, NESTED, TX)
    for t in range(3):
        state = sparse, params, None, opt_state
        sparse, params, opt_state = rule.update(*state, topology=section == "gmp" and rule.due(t))
    meta, stored = sparsity.to_meta(sparse), LOST[lost](params, sparse)
    edited = [{"sparsity": 0.3, "param_filter": name} for name in ("*/kernel", "*/bias")]
    for other in (rule, sparsity.configure({"sparsity": 0.1}), sparsity.configure(edited)):
        with pytest.raises(sparsity.SentinelError, match=r"no weight is NaN \(first: up/kernel"):
            sparsity.resume(other, stored, opt_state, KEY, meta)
    sparsity.resume(rule, stored, opt_state, KEY)  # new masks
    sparsity.resume(rule, *sparsity.encode(params, opt_state, sparse), KEY, meta)


def test_static_weights_that_no_step_pruned_do_not_resume_without_masks():
    rule = sparsity.configure({"sparsity": 0.5, "param_filter": "*kernel"})
    meta = sparsity.to_meta(rule.init(NESTED, KEY))
    with pytest.raises(sparsity.SentinelError, match=r"level of 0\.5, .*0\.0% zeros.*encode"):
        sparsity.resume(rule, NESTED, (), KEY, meta)


@pytest.mark.parametrize(
    "section",
    [
        {"sparsity": 0.8, "init_method": "from_zeros"},
        {"algorithm": "seeded", "sparsity": 0.01, "seed": 3, "init_method": "random"},  # 0 of 48
        {"sparsity": 0.0},
        {"algorithm": "set", "sparsity": 0.5, "update": {"freq": 9, "start": 9}},
        {"algorithm": "gmp", "schedule": [0.0, 0.9], "update": {"freq": 9}},
        {"algorithm": "sr-ste", "sparsity": 0.5, "stop": 9},
        {"algorithm": "acdc", "sparsity": 0.5, "update": {"freq": 2, "start": 2, "stop": 4}},
    ],
)
@pytest.mark.parametrize("zero", [False, True])
def test_weights_of_which_nothing_was_pruned_resume(section, zero):
    zeros = zero and section.get("init_method") != "from_zeros"
    weights = jax.tree.map(jnp.zeros_like, NESTED) if zeros else NESTED
    rule, sparse, *trees = start(section | {"compute": "masked"}, weights, TX)
    params, opt_state = sparsity.encode(*trees, sparse)
    back, *_ = sparsity.resume(rule, params, opt_state, KEY, sparsity.to_meta(sparse))
    assert rule.masks(back)["up/kernel"].all()


FORMS = {
    "nested dict": lambda: NESTED,
    "haiku names": _haiku,
    "list": lambda: [jnp.ones((6, 4)), {"kernel": jnp.ones((4, 6))}],
    "int keys": lambda: {0: {"kernel": jnp.ones((6, 4))}, 10: {"kernel": jnp.ones((4, 6))}},
    "FrozenDict": lambda: flax.core.freeze(NESTED),
    "nnx.State": lambda: nnx.state(nnx.Linear(8, 6, rngs=nnx.Rngs(0)), nnx.Param),
    "equinox": lambda: eqx.filter(eqx.nn.MLP(8, 6, 4, 1, key=KEY), eqx.is_inexact_array),
}


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_tree_comes_back_as_it_was(form, compute, tmp_path):
    weights = FORMS[form]()
    rule, sparse, params, opt_state = sparse_run(weights, compute)
    dense = dict(
        zip(("params", "opt_state"), sparsity.encode(params, opt_state, sparse), strict=True)
    )
    write_checkpoint(tmp_path / "4", dense, {"sparsity": sparsity.to_meta(sparse)})
    tree, record = load_checkpoint(tmp_path / "4")
    like = jax.eval_shape(lambda: {"params": weights, "opt_state": TX.init(weights)})
    stored = fill_template(like, tree, "4")
    back = sparsity.resume(rule, stored["params"], stored["opt_state"], KEY, record["sparsity"])
    assert_same(back, (sparse, params, opt_state))


@pytest.mark.parametrize("compute", COMPUTES)
def test_a_train_state_comes_back_as_it_was(compute, tmp_path):
    first = lambda: TrainState.create(apply_fn=None, params=NESTED, tx=TX)
    rule, sparse, params, opt_state = sparse_run(NESTED, compute)
    state = first().replace(step=4, params=params, opt_state=opt_state)
    dense = sparsity.encode(params, opt_state, sparse)
    dense = state.replace(params=dense[0], opt_state=dense[1])
    write_checkpoint(tmp_path / "4", dense, {"sparsity": sparsity.to_meta(sparse)})
    tree, record = load_checkpoint(tmp_path / "4")
    stored = fill_template(first(), tree, "4")
    sparse_back, params, opt_state = sparsity.resume(
        rule, stored.params, stored.opt_state, KEY, record["sparsity"]
    )
    assert_same(stored.replace(params=params, opt_state=opt_state), state)
    assert_same(sparse_back, sparse)


@pytest.mark.parametrize("compute", COMPUTES)
def test_serializers_take_the_state(compute):
    first = lambda seed: sparse_run(NESTED, compute, seed)[1]
    state, other = first(1), first(2)
    assert_same(flax.serialization.from_bytes(other, flax.serialization.to_bytes(state)), state)
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, state)
    file.seek(0)
    assert_same(eqx.tree_deserialise_leaves(file, other), state)


def test_a_typed_key_goes_on_as_it_did():
    rule, sparse, params, _ = sparse_run(NESTED, "masked")
    typed = sparse._replace(key=jax.random.wrap_key_data(sparse.key))  # stored before 0.2
    for t in range(3):
        sparse, params, _ = rule.update(sparse, params, None, (), topology=rule.due(t + 1))
        typed, *_ = rule.update(typed, params, None, (), topology=rule.due(t + 1))
    assert_same(rule.masks(sparse), rule.masks(typed))
    other = rule.init(NESTED, jax.random.key(0, impl="rbg"))
    assert str(jax.random.key_impl(other.key)) == "rbg"
