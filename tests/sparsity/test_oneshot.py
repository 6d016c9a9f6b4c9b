"""One-shot pruning and scores before training: by hand, against oracles, on a whole model."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import models, sparsity, vsl
from wafer.models.paths import named_leaves
from wafer.models.user import model as own
from wafer.sparsity.oneshot import METHODS, prune
from wafer.sparsity.oneshot.grams import Watched, stage_grams
from wafer.sparsity.oneshot.prune import _Layer as Layer, _wanda as wanda
from wafer.sparsity.oneshot.sparsegpt import DAMPING, sparsegpt
from wafer.sparsity.oneshot.synflow import synflow_scores
from wafer.sparsity.views import UNSTRUCTURED, FanIn, NofM

SETTINGS = {"name": "gpt2", "hidden_size": 16, "num_heads": 2, "num_hidden_layers": 2}
SETTINGS |= {"filter_size": 32, "vocab_size": 40, "max_position_embeddings": 12}
MODEL = models.build(SETTINGS)
PARAMS = MODEL.init(jax.random.key(0))


def batch(seed):
    tokens = jax.random.randint(jax.random.key(seed), (24,), 0, 40)
    layout = vsl.padded_layout(jnp.asarray([12, 7], jnp.int32), 12)
    weights = layout.valid.astype(jnp.float32)
    return models.Batch(tokens, jnp.roll(tokens, -1), weights, layout)


BATCHES = [batch(1), batch(2)]


def test_a_gram_is_the_sum_over_real_tokens():
    x = jax.random.normal(jax.random.key(3), (2, 4, 5))
    live = jnp.asarray([1, 1, 1, 0, 1, 1, 0, 0], jnp.float32)

    def twice(gram):
        weight = Watched(jnp.ones((5, 3)), gram, live)
        return weight.project(x).sum() + weight.project(2 * x).sum()

    rows = np.asarray(x).reshape(8, 5)[[0, 1, 2, 4, 5]]
    np.testing.assert_allclose(jax.grad(twice)(jnp.zeros((5, 5))), 5 * rows.T @ rows, rtol=1e-5)


def test_grams_of_a_stage_are_of_its_inputs():
    """The first block's query reads the normalised embeddings: computed here without the model."""
    embed, block = MODEL.stages[:2]
    x = [
        PARAMS["embed"]["token"]["embedding"][b.tokens]
        + PARAMS["embed"]["position"]["embedding"][b.layout.positions]
        for b in BATCHES
    ]
    steps = [MODEL.kinds[embed.kind][1](MODEL.stage_params(embed, PARAMS), None, b, None)
             for b in BATCHES]  # fmt: skip
    name = "layers_0/attn/query/kernel"
    inputs = list(zip(steps, BATCHES, strict=True))
    got = stage_grams(MODEL, block, PARAMS, [name], inputs=inputs)[name]
    rows = np.concatenate(
        [np.asarray(e)[np.asarray(b.layout.valid)] for e, b in zip(x, BATCHES, strict=True)]
    )
    rows = rows - rows.mean(1, keepdims=True)
    rows = rows / np.sqrt((rows**2).mean(1, keepdims=True) + MODEL.config.layer_norm_epsilon)
    np.testing.assert_allclose(got, rows.T @ rows, rtol=2e-4, atol=1e-3)


def test_wanda_by_hand():
    # |w| * norm of the input, 1 and 3: [[2, 5], [3, 3]]. Each output keeps its best one.
    weight = jnp.asarray([[2.0, 5.0], [1.0, -1.0]])  # [in, out]
    sparsifier = sparsity.configure(0.5)
    chosen = sparsifier.select({"kernel": weight})["kernel"]
    layer = Layer(weight, np.diag([1.0, 9.0]), chosen, sparsifier.view(0))
    pruned, mask = wanda(layer)
    np.testing.assert_array_equal(mask, [[False, True], [True, False]])
    np.testing.assert_array_equal(pruned, [[0, 5], [1, 0]])


def test_wanda_reaches_the_level_of_the_whole_weight():
    """64 inputs at 0.6: outputs keep 25 or 26 each, 1,638 of 4,096 together."""
    weight = jax.random.normal(jax.random.key(0), (64, 64))
    sparsifier = sparsity.configure(0.6)
    chosen = sparsifier.select({"kernel": weight})["kernel"]
    _, mask = wanda(Layer(weight, np.eye(64), chosen, sparsifier.view(0)))
    assert int(mask.sum()) == int((1 - 0.6) * 4096)
    assert set(np.asarray(mask.sum(0)).tolist()) == {25, 26}
    for row, kept in zip(np.abs(weight).T, np.asarray(mask).T, strict=True):
        assert row[kept].min() > row[~kept].max()


@pytest.mark.parametrize("method", ["magnitude", "global-magnitude"])
def test_what_is_pruned_already_stays_pruned(method):
    high, low = (sparsity.configure(level, aliases=MODEL.alias) for level in (0.7, 0.3))
    params, masks = prune(MODEL, PARAMS, high, method)
    params, again = prune(MODEL, params, low, method, masks=masks)
    jax.tree.map(np.testing.assert_array_equal, again, masks)
    up = sparsity.configure({"sparsity": 0.9, "param_filter": "*ffn/up/kernel"})
    params, more = prune(MODEL, params, up, method, masks=masks)
    for name, leaf in named_leaves(params):
        if name in masks:
            assert not (more[name] & ~masks[name]).any()
            assert not (np.asarray(leaf)[~np.asarray(more[name])]).any()
    assert more.keys() == masks.keys()


def error(gram, before, after):
    change = np.asarray(before - after, np.float64)
    return np.trace(change.T @ gram @ change)


@pytest.mark.parametrize(
    ("structure", "level"),
    [(UNSTRUCTURED, 0.5), (FanIn(), 0.75), (NofM(2, 4), 0.5), (UNSTRUCTURED, 0.0)],
)
def test_sparsegpt_mends_what_is_left(structure, level):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 160)) @ rng.standard_normal((160, 160))  # correlated inputs
    x[:, 7] = 0  # a dead input
    weight = rng.standard_normal((160, 24)).astype(np.float32)
    gram = x.T @ x
    mended, mask = sparsegpt(weight, gram, level, structure)
    assert (mended[~mask] == 0).all()
    assert mask.mean() == pytest.approx(1 - level, abs=0.01)
    if level:  # better than the same mask unmended, and than the largest weights
        lowest = np.sort(np.abs(weight).ravel())[int(level * weight.size)]
        largest = weight * (np.abs(weight) >= lowest)
        for other in (weight * mask, *([largest] if structure == UNSTRUCTURED else [])):
            assert error(gram, weight, mended) < error(gram, weight, other)
    if isinstance(structure, FanIn):
        assert np.ptp(mask.sum(0)) == 0
    if isinstance(structure, NofM):
        assert (mask.reshape(40, 4, 24).sum(1) == 2).all()


def test_sparsegpt_of_two_weights_by_hand():
    """One output, two inputs: dropping the first is made up for by the second."""
    gram = np.asarray([[4.0, 2.0], [2.0, 3.0]])
    damped = gram + DAMPING * 3.5 * np.eye(2)
    mended, mask = sparsegpt(np.asarray([[0.1], [1.0]], np.float32), gram, 0.5, UNSTRUCTURED)
    assert mask[:, 0].tolist() == [False, True]
    # The best second weight for the damped problem: w2 + w1 * h12 / h22.
    np.testing.assert_allclose(mended[:, 0], [0, 1 + 0.1 * 2 / damped[1, 1]], rtol=1e-6)


QUICK = {"wanda", "snip"}  # one that reads activations, one that reads gradients


@pytest.mark.parametrize(
    "method", [m if m in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in METHODS]
)
def test_a_model_is_pruned_to_its_level(method):
    sparsifier = sparsity.configure(0.5, aliases=MODEL.alias)
    lines = []
    params, masks = prune(MODEL, PARAMS, sparsifier, method, batches=BATCHES, report=lines.append)
    assert set(masks) == set(sparsifier.select(PARAMS))
    kept = sum(int(mask.sum()) for mask in masks.values())
    total = sum(mask.size for mask in masks.values())
    assert kept == pytest.approx(total / 2, abs=len(masks))
    after = dict(named_leaves(params))
    for name, leaf in named_leaves(PARAMS):
        if name not in masks:
            np.testing.assert_array_equal(after[name], leaf)
        else:
            assert (np.asarray(after[name])[~np.asarray(masks[name])] == 0).all()
    if method == "sparsegpt":
        assert lines == ["layers_0: 6 matrices pruned", "layers_1: 6 matrices pruned"]


def test_snip_and_grasp_scores_against_finite_differences():
    """One weight matrix; the loss is a quadratic form, whose derivatives are plain."""
    from wafer.sparsity.oneshot.prune import _grasp, _snip

    matrix = jnp.asarray([[3.0, 1.0], [1.0, 2.0]])

    class Quadratic:
        def loss(self, params, scale):
            w = params["w"]
            return 0.5 * scale * w @ matrix @ w, None

    w = jnp.asarray([1.0, -2.0])
    gradient = 3 * matrix @ w  # batches of scale 1 and 2
    snip = _snip(Quadratic(), {"w": w}, [1.0, 2.0])["w"]
    np.testing.assert_allclose(snip, np.abs(w * gradient))
    grasp = _grasp(Quadratic(), {"w": w}, [1.0, 2.0])["w"]
    np.testing.assert_allclose(grasp, w * (3 * matrix @ gradient))


def mlp(**settings):
    return models.build({"name": "fc_mnist", "activation_fn": "relu", "dropout": 0.0} | settings)


def test_synflow_of_two_linear_layers_by_hand():
    model = mlp(input_size=2, hidden_size=2, depth=1, num_classes=1, activation_fn="linear")
    first, second = jnp.asarray([[1.0, -2.0], [3.0, 4.0]]), jnp.asarray([[1.0], [-0.5]])
    biases = [{"bias": jnp.zeros(size)} for size in (2, 1)]
    params = {"fc_0": {"kernel": first} | biases[0], "fc_1": {"kernel": second} | biases[1]}
    scores = synflow_scores(model, params)
    # R = (1 + 3) * 1 + (2 + 4) * 0.5 = 7; a weight's score is what flows through it.
    np.testing.assert_allclose(scores["fc_0"]["kernel"], [[1, 1], [3, 2]])
    np.testing.assert_allclose(scores["fc_1"]["kernel"], [[4], [3]])


def sums(model, params):
    return {name: float(s.sum()) for name, s in named_leaves(synflow_scores(model, params))}


def test_synflow_is_conserved_from_layer_to_layer():
    model = mlp(input_size=12, hidden_size=16, depth=4, num_classes=5)
    through = sums(model, model.init(jax.random.key(0)))
    kernels = [value for name, value in through.items() if name.endswith("kernel")]
    np.testing.assert_allclose(kernels, kernels[0], rtol=1e-5)

    model = models.build(SETTINGS | {"nonlinearity": "relu"})
    through = sums(model, model.init(jax.random.key(0)))
    for layer in ("layers_0", "layers_1"):
        parts = [through[f"{layer}/attn/{part}/kernel"] for part in ("query", "key", "value")]
        np.testing.assert_allclose(parts, through[f"{layer}/attn/out/kernel"], rtol=1e-4)
        up, down = (through[f"{layer}/ffn/{part}/kernel"] for part in ("up", "down"))
        assert up == pytest.approx(down, rel=1e-4)
        assert min(*parts, up) > 0


def test_rounds_keep_a_narrow_layer_alive():
    """Two small hidden layers behind a wide input: nearly everything goes, but no layer whole."""
    model = mlp(input_size=400, hidden_size=6, depth=3, num_classes=10)
    params = model.init(jax.random.key(2))
    sparsifier = sparsity.configure(
        {"sparsity": 0.985, "param_filter": "*kernel"}, aliases=model.alias
    )
    masks = prune(model, params, sparsifier, "synflow").masks
    assert len(masks) == 4
    assert all(bool(mask.any()) for mask in masks.values())
    total = sum(mask.size for mask in masks.values())
    assert sum(int(mask.sum()) for mask in masks.values()) == pytest.approx(0.015 * total, abs=1)
    at_once = prune(model, params, sparsifier, "synflow", rounds=1).masks
    assert any((masks[name] != at_once[name]).any() for name in masks)


def test_rounds_of_a_score_that_stays_change_nothing():
    sparsifier = sparsity.configure(0.8, aliases=MODEL.alias)
    once, often = (
        prune(MODEL, PARAMS, sparsifier, "global-magnitude", rounds=n).masks for n in (None, 7)
    )
    for name, mask in once.items():
        np.testing.assert_array_equal(mask, often[name])


def test_n_of_m_and_budgets_of_one_shot():
    section = {"pattern": {"type": "n:m", "n": 2, "m": 4}}
    masks = prune(MODEL, PARAMS, sparsity.configure(section), "wanda", batches=BATCHES[:1]).masks
    for mask in masks.values():
        inputs, outputs = mask.shape
        assert (np.asarray(mask).reshape(inputs // 4, 4, outputs).sum(1) == 2).all()
    erk = sparsity.configure({"sparsity": 0.5, "budget": "erk"}, params=PARAMS)
    levels = {m.shape: 1 - m.mean() for m in prune(MODEL, PARAMS, erk, "magnitude").masks.values()}
    assert levels[16, 16] < 0.5 < levels[16, 32]


def level_of(globs):
    return {"sparsity": 0.5, "param_filter": globs}


@pytest.mark.parametrize(
    ("section", "method", "batches", "says"),
    [
        (0.5, "wandda", BATCHES, "unknown method 'wandda'.*did you mean 'wanda'"),
        (0.5, "wanda", [], "needs calibration rows"),
        (level_of("no"), "snip", [], "needs calibration rows"),
        (level_of("layers_0/attn/query/kernl"), "magnitude", [], "mean 'layers_0/attn"),
        (
            level_of("no"),
            "snip",
            BATCHES,
            "takes no weight to prune; matrices of the model: emb",
        ),
        (level_of("*embedding"), "wanda", BATCHES, "leave it out"),
        (level_of("*embedding"), "synflow", [], "nothing flows through 'embed/position"),
        ({"sparsity": 0.5, "balance_in_groups": 2}, "snip", BATCHES, "takes one level"),
        (
            {"sparsity": 0.5, "pattern": {"type": "block", "size": 4}},
            *("sparsegpt", BATCHES, "Take wanda or magnitude"),
        ),
        # 0.999 of 256 or of 512 weights keeps none; 0.9999 of all 4,096 together.
        (0.999, "magnitude", [], "magnitude: nothing is left of layers.*level 0.999 of 256"),
        (0.9999, "global-magnitude", [], "nothing is left of layers.*level 0.9999 of 256"),
    ],
)
def test_what_cannot_be_is_said(section, method, batches, says):
    with pytest.raises(sparsity.SparsityError, match=says):
        prune(MODEL, PARAMS, sparsity.configure(section), method, batches=batches)


def test_what_synflow_and_rounds_cannot_do_is_said():
    huge = jax.tree.map(lambda w: w * 1e30, PARAMS)
    with pytest.raises(sparsity.SparsityError, match=r"synflow: the score of .* is not finite"):
        prune(MODEL, huge, sparsity.configure(0.5), "synflow")
    wrong: Any
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(sparsity.SparsityError, match="integer of at least 1, found"):
            prune(MODEL, PARAMS, sparsity.configure(0.5), "synflow", rounds=wrong)
    with pytest.raises(sparsity.SparsityError, match=r"wanda prunes once; .*synflow"):
        prune(MODEL, PARAMS, sparsity.configure(0.5), "wanda", batches=BATCHES, rounds=2)


def flat_model(params):
    """A model whose arrays are not below the names of layers."""
    apply = lambda params, tokens, key: jnp.eye(40)[tokens] @ params["weight"]
    return own.plain(lambda key: params, apply, vocab_size=40)


@pytest.mark.parametrize("method", METHODS)
def test_arrays_of_a_model_that_have_no_folder_are_pruned(method):
    weight = np.random.default_rng(0).permutation(1600).astype(np.float32).reshape(40, 40) / 1600
    params = {"weight": jnp.asarray(weight), "empty": jnp.zeros((0, 4))}
    section = sparsity.configure(0.5, params=params)
    if method in ("wanda", "sparsegpt", "synflow"):  # of layers that are not watched
        with pytest.raises(ValueError, match=r"multiply by .* as a matrix|takes rows of tokens"):
            prune(flat_model(params), params, section, method, batches=BATCHES)
        return
    pruned = prune(flat_model(params), params, section, method, batches=BATCHES)
    mask = np.asarray(pruned.masks["weight"])
    assert mask.sum() == 800
    np.testing.assert_array_equal(pruned.params["weight"], np.where(mask, weight, 0))
    if "magnitude" in method:
        np.testing.assert_array_equal(mask, weight >= 0.5)
        none = sparsity.configure(level_of("empty"), params=params)
        with pytest.raises(sparsity.SparsityError, match=r"empty takes no .*the model: weight"):
            prune(flat_model(params), params, none, method)


def test_a_matrix_of_a_stack_that_loses_everything_is_refused():
    """0.9995 of 1,600 weights keeps none of each layer; 0.999 keeps one."""
    params = {"weight": jnp.stack([jnp.eye(40) + 1, jnp.eye(40) * 0.5])}
    configured = lambda level: sparsity.configure(level, weight_layout={"*": "lio"}, params=params)
    with pytest.raises(sparsity.SparsityError, match="nothing is left of weight"):
        prune(flat_model(params), params, configured(0.9995), "magnitude")
    mask = prune(flat_model(params), params, configured(0.999), "magnitude").masks["weight"]
    assert mask.sum((1, 2)).tolist() == [1, 1]


def test_scores_of_all_weights_say_which_matrices_are_gone():
    small = jax.tree_util.tree_map_with_path(
        lambda path, w: w * 1e-6 if "query" in str(path) else w, PARAMS
    )
    lines = []
    sparsifier = sparsity.configure(0.5)
    prune(MODEL, small, sparsifier, "global-magnitude", report=lines.append)
    gone = "nothing is left of layers_*/attn/query/kernel (2); a lower level keeps some"
    assert lines == [gone]


@pytest.mark.parametrize(
    ("patterns", "taken"),
    [
        ("layers_0/ffn/*", ["down/kernel", "up/kernel"]),
        (["layers_0/ffn/*", "layers_0/ffn/up/bias"], ["down/kernel", "up/bias", "up/kernel"]),
        ("layers_0/ffn/*/bias", ["down/bias", "up/bias"]),
        ("layers_0/ffn/up/bias", ["up/bias"]),
    ],
)
def test_vectors_are_pruned_where_a_pattern_takes_them_alone(patterns, taken):
    sparsifier = sparsity.configure({"sparsity": 0.5, "param_filter": patterns})
    masks = prune(MODEL, PARAMS, sparsifier, "magnitude").masks
    assert sorted(masks) == [f"layers_0/ffn/{name}" for name in taken]


def test_weights_that_stay_pruned_are_counted():
    """0.25 of 1,600 weights prunes 400, all of them among the 800 that are so already."""
    params = {"weight": jnp.arange(1600.0).reshape(40, 40)}
    half, quarter = (sparsity.configure(level, params=params) for level in (0.5, 0.25))
    params, masks = first = prune(flat_model(params), params, half, "magnitude")
    again = prune(flat_model(params), params, quarter, "magnitude", masks=masks)
    assert (first.stayed, again.stayed) == (0, 400)
    assert int(again.masks["weight"].sum()) == 800
