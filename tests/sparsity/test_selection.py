"""What the default filter selects in a user's tree, and how that is shown."""

import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import linen as nn, nnx
from helpers.sparse_loop import start

from wafer import sparsity
from wafer.models.checkpoint.layout import ContentError
from wafer.models.checkpoint.pruned import check_weight
from wafer.models.paths import dense_word
from wafer.sparsity import SparsityError

KEY = jax.random.key(0)
ones = lambda *shape: jnp.ones(shape)


def heads():
    layer = nn.MultiHeadDotProductAttention(num_heads=4)
    return layer.init(KEY, ones(2, 5, 32))["params"]


def scanned():
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x + nn.Dense(16, name="up")(nn.LayerNorm(name="before")(x)), None

    stack = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)()
    return stack.init(KEY, ones(4, 16), None)["params"]


def mapped():
    @nnx.split_rngs(splits=4)
    @nnx.vmap(axis_size=4)
    def layers(rngs):
        return nnx.Dict(ln=nnx.LayerNorm(16, rngs=rngs), lin=nnx.Linear(16, 16, rngs=rngs))

    return nnx.state(layers(nnx.Rngs(0)), nnx.Param)


def vit():
    return {
        "cls_token": ones(1, 1, 64),
        "register_tokens": ones(1, 4, 64),
        "pos": ones(1, 17, 64),
        "posEmbed": ones(17, 64),
        "wte": ones(50, 64),
        "Embed_0": {"weight": ones(50, 64)},
        "blocks": {"position_mlp": {"kernel": ones(64, 64)}, "upscale": ones(64, 64)},
    }


def statistics():
    stacked = {name: ones(12, 64) for name in ("gamma", "beta", "mean", "var", "moving_variance")}
    return {"blocks": stacked | {"layer_scale": ones(12, 64), "mlp": {"w": ones(12, 64, 64)}}}


def convolutions():
    return eqx.filter(eqx.nn.Conv2d(3, 8, 3, key=KEY), eqx.is_array)


@pytest.mark.parametrize(
    ("params", "sparse"),
    [
        (heads, ["key/kernel", "out/kernel", "query/kernel", "value/kernel"]),
        (scanned, ["up/kernel"]),
        (mapped, ["lin/kernel"]),
        (vit, ["blocks/position_mlp/kernel", "blocks/upscale"]),
        (convolutions, ["weight"]),
        (statistics, ["blocks/mlp/w"]),
    ],
)
def test_biases_scales_and_embeddings_stay_dense_in_any_rank(params, sparse):
    params = params()
    assert list(sparsity.configure(0.5).select(params)) == sparse
    # Run files keep the vendor's words, which take more.
    assert {*sparsity.configure(0.5, dense_words=False).select(params)} > {*sparse}


WORDS = {
    "bias": ["attn/query/bias", "biases"],
    "scale": ["layers_0/Scale_1", "blocks/LayerScale_0/w"],
    "embed": ["pos_embed", "posEmbed"],
    "embedding": ["token_embedding/w"],
    "token": ["cls_tokens"],
    "gamma": ["ls1/gamma"],
    "norm": ["LayerNorm_0/weight"],
    "bn": ["bn/moving_mean"],
    "var": ["stats/running_var"],
    "mean": ["layers/mean"],
    "": ["tokenizer/up", "rescale/kernel", "position/kernel", "log_var/w"],
}
WORDS[""] += ["fc_mean/kernel", "lm_head/kernel"]  # it computes a mean; a filter may take it


@pytest.mark.parametrize(("name", "word"), [(n, word) for word in WORDS for n in WORDS[word]])
def test_words_are_whole(name, word):
    assert dense_word(name) == word
    nan = np.array([np.nan], np.float32)
    if not word:  # a checkpoint that does not say what is pruned has NaN as marks there alone
        assert check_weight("f", name, nan, None) is nan
        return
    with pytest.raises(ContentError, match=rf"weights {name} .* prune its source again"):
        check_weight("f", name, nan, None)


def test_a_filter_takes_what_the_default_leaves():
    rule = sparsity.configure({"sparsity": 0.5, "param_filter": ["*Embed*", "cls_token"]})
    assert [*rule.select(vit())] == ["Embed_0/weight", "cls_token", "posEmbed"]


@pytest.mark.parametrize("dtype", [jnp.int8, bool, jnp.complex64, ml_dtypes.float4_e2m1fn])
@pytest.mark.parametrize("compute", ["masked", "csr"])
def test_weights_without_nan_are_refused_when_named_and_left_out_otherwise(dtype, compute):
    params = {"up": {"kernel": jnp.zeros((16, 16), dtype)}, "down": {"kernel": ones(16, 16)}}
    assert [*sparsity.configure({"sparsity": 0.5, "compute": compute}).select(params)] == [
        "down/kernel"
    ]
    named = {"sparsity": 0.5, "compute": compute, "param_filter": "*kernel"}
    name = np.dtype(dtype).name
    with pytest.raises(SparsityError, match=rf"'up/kernel' cannot .* \(its dtype is {name}\)"):
        sparsity.configure(named).init(params, KEY)
    shared = sparsity.configure({"sparsity": 0.5, "budget": "erk"}, params=params)
    assert [*shared.select(params)] == ["down/kernel"]


def test_init_logs_one_line_with_counts_and_names(caplog):
    params = {f"layers_{i}": {"up": {"kernel": ones(8, 4), "bias": ones(4)}} for i in range(12)}
    rule = sparsity.configure({"sparsity": 0.5, "compute": "masked"})
    with caplog.at_level(logging.INFO, "wafer.sparsity"):
        rule.init(params | {"head": ones(4, 4)}, KEY)
    (line,) = [record.message for record in caplog.records]
    assert line == (
        "Will apply sparsity to 13 weights with Static on default parameters: head, "
        "layers_*/up/kernel (12) (400 values)"
    )


@pytest.mark.parametrize("algorithm", ["rigl", "set", "mest"])
def test_an_update_at_every_step_is_said(algorithm, caplog):
    """It is the default where a section has no `update`."""
    section, said = {"algorithm": algorithm, "sparsity": 0.5, "compute": "masked"}, []
    for update in ({}, {"update": {"freq": 1}}, {"update": {"freq": 2}}, {"update": {"steps": []}}):
        caplog.clear()
        with caplog.at_level(logging.INFO, "wafer.sparsity"):
            sparsity.configure(section | update).init({"kernel": ones(8, 4)}, KEY)
        said.append("on default parameters, updated at every step: kernel" in caplog.text)
    assert said == [True, True, False, False]


def test_the_summary_has_a_row_for_each_parameter():
    params = {
        "embed": ones(8, 4),
        "lm_head": ones(4, 8),
        "norm": {"scale": ones(4)},
        "q": jnp.ones((4, 4), jnp.int8),
        "conv": ones(3, 4, 4),
        "up": ones(512, 512),
        "frozen": ones(4, 4),
    }
    section = {"algorithm": "gmp", "schedule": [0.25, 0.5], "update": {"freq": 2, "stop": 4}}
    rule = sparsity.configure(section, requires_dense=["frozen"])
    rows = {row.name: row for row in rule.summary(jax.eval_shape(lambda: params))}
    assert {row.name for row in rows.values() if row.storage != "dense"} == {"conv", "up"}
    assert rows["up"][:6] == ("up", (512, 512), "io", 0.25, 0.5, "masked")
    assert rows["up"].why.startswith("GMP on default parameters; its level follows a schedule")
    assert rows["conv"].axes == "kio"
    assert rows["embed"].why == "'embed' in its name"
    assert rows["lm_head"].why == "'lm_head' in its name"
    assert rows["norm/scale"].why == "rank 1"
    assert rows["q"].why == "int8 has no NaN"
    assert rows["frozen"].why == "requires_dense"
    lines = str(rule.summary(params)).splitlines()
    assert lines[0].split() == ["name", "shape", "axes", "level", "storage", "why"]
    assert "up          512x512  io    25.0% to 50.0%  masked" in lines[-1]

    rule = sparsity.configure({"sparsity": 0.9, "param_filter": "up"}, accepts=lambda name: True)
    rows = {row.name: row for row in rule.summary(params)}
    stored = rule.choice(rule.select(params)["up"]).storage
    assert rows["up"][3:6] == (0.9, 0.9, stored)
    assert rows["conv"].why == "no param_filter matches it"


def test_a_checkpoint_pruned_by_the_former_default_resumes(caplog):
    """Its masks stay, change by the section's rule, and a line names the filter."""
    params = {"up": jax.random.normal(KEY, (16, 16)), "wte": jax.random.normal(KEY, (16, 16))}
    section = {"algorithm": "set", "sparsity": 0.75, "update": {"freq": 1}, "compute": "masked"}
    former, sparse, *pruned = start(section, params, optax.adam(1e-3), dense_words=False)
    stored = sparsity.encode(*pruned, sparse)

    rule = sparsity.configure(section)
    assert [*rule.select(params)] == ["up"]
    again, weights, moments = sparsity.resume(rule, *stored, KEY, sparsity.to_meta(sparse))
    assert "masks of wte are kept" in caplog.text
    assert 'param_filter: ["up", "wte"]' in caplog.text
    assert all(np.array_equal(again.masks[name], mask) for name, mask in sparse.masks.items())
    updated = [one.update(again, weights, None, moments) for one in (former, rule)]
    masks = [after.masks for after, _, _ in updated]
    assert all(map(np.array_equal, *(each.values() for each in masks)))
    assert {*rule.metrics(again)} == {*former.metrics(again)}
    assert int(masks[1]["wte"].sum()) == 64

    caplog.clear()
    exact = sparsity.configure(section | {"param_filter": ["up", "wte"]})
    sparsity.resume(exact, *stored, KEY, sparsity.to_meta(sparse))
    assert "kept" not in caplog.text
