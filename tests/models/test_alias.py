"""Dotted names, letter by letter, as the Model Zoo's converters write them."""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import sparsity
from wafer.models.alias import all_names, decoder_alias, encoder_alias, seq2seq_alias
from wafer.models.paths import map_named, named_leaves
from wafer.optim.groups import ParamGroups

LAYER = "model.transformer_decoder.layers.1"
BIAS = "position_embed_helper.relative_attention_bias.weight"
POSITIONS = "position_embeddings.embed.weight"
EXPERTS = f"{LAYER}.ffn.experts"
NAMES = [
    (decoder_alias, "position/relative/embedding", f"model.embedding_layer.{BIAS}"),
    (decoder_alias, "position/slopes", "model.embedding_layer.position_embed_helper.slopes"),
    (decoder_alias, "embed/position/embedding", f"model.embedding_layer.{POSITIONS}"),
    (decoder_alias, "layers_1/norm2/bias", f"{LAYER}.norm3.bias"),
    (decoder_alias, "layers_1/norm1_post/scale", f"{LAYER}.norm1_post.weight"),
    (decoder_alias, "layers_1/norm2_post/scale", f"{LAYER}.norm3_post.weight"),
    (decoder_alias, "layers_1/attn/query_norm/scale", f"{LAYER}.self_attn.q_norm.weight"),
    (decoder_alias, "layers_1/attn/key_norm/scale", f"{LAYER}.self_attn.k_norm.weight"),
    (decoder_alias, "layers_1/ffn/down/kernel", f"{LAYER}.ffn.ffn.1.linear_layer.weight"),
    (decoder_alias, "lm_head/kernel", "model.lm_head.weight"),
    (
        *(encoder_alias, "mlm_dense/kernel"),
        "model.bert_mlm_head.mlm_transform.ffn.ffn.0.linear_layer.weight",
    ),
    (encoder_alias, "mlm_norm/scale", "model.bert_mlm_head.mlm_transform.ln.weight"),
    (seq2seq_alias, "decoder_position/relative/embedding", f"model.decoder_embeddings.{BIAS}"),
    (seq2seq_alias, "embed/position/embedding", f"model.encoder_embeddings.{POSITIONS}"),
    (seq2seq_alias, "decoder_embed/position/embedding", f"model.decoder_embeddings.{POSITIONS}"),
]


@pytest.mark.parametrize(("alias", "ours", "theirs"), NAMES)
def test_names_are_those_of_the_vendors_files(alias, ours, theirs):
    assert alias(ours) == theirs


@pytest.mark.parametrize(
    ("alias", "ours", "others"),
    [
        (decoder_alias, "norm_f/bias", ["model.transformer_decoder.norm.bias"]),
        (decoder_alias, "embed/norm/bias", []),  # embedding_ln_f has no twin
        (decoder_alias, "position/slopes", ["model.relative_pe_helper.slopes"]),  # before 2.1
        (
            *(seq2seq_alias, "encoder_position/relative/embedding"),
            ["model.relative_position_encoder.relative_attention_bias.weight"],
        ),
        (
            *(decoder_alias, "layers_1/moe/experts_3/gate/kernel"),
            [
                f"{EXPERTS}.experts.3.0.linear_layer_for_glu.weight",
                f"{EXPERTS}.fused_ffns.0.linear_layer_for_glu.expert_weights",
            ],
        ),
        (
            *(decoder_alias, "layers_1/moe/experts_3/down/bias"),
            [
                f"{EXPERTS}.experts.3.1.linear_layer.bias",
                f"{EXPERTS}.fused_ffns.1.linear_layer.expert_biases",
            ],
        ),
    ],
)
def test_a_tensor_with_many_names_is_known_by_each(alias, ours, others):
    assert all_names(ours, alias) == (ours, alias(ours), *others)


@pytest.mark.parametrize(
    "glob", ["*experts.experts.*.ffn.1.*", "*experts.3.1.*", "*fused_ffns.1.*"]
)
def test_filters_select_experts_in_every_layout_of_the_vendor(glob):
    section = {"algorithm": "static", "sparsity": 0.5, "param_filter": glob}
    chosen = sparsity.configure(section, aliases=decoder_alias)
    assert chosen.group_of("layers_1/moe/experts_3/down/kernel", 2) == 0
    assert chosen.group_of("layers_1/moe/experts_3/up/kernel", 2) is None


def test_groups_of_the_optimizer_find_the_last_norm_by_either_name():
    groups = ParamGroups(factors=((("*transformer_decoder.norm.*",), 0.5),), alias=decoder_alias)
    assert groups.factor("norm_f/scale") == 0.5
    assert groups.factor("layers_0/norm1/scale") == 1.0


def test_a_models_own_rules_may_count_layers():
    def alias(name):
        return re.sub(r"layers_(\d+)/", lambda m: f"blocks.{int(m[1]) + 1}.", name)

    assert all_names("layers_3/w", alias)[1] == "blocks.4.w"


def test_names_of_leaves_are_the_paths_of_any_tree():
    class Pair(NamedTuple):
        left: object
        right: object

    tree = {"b": {"y": 1, "x": np.zeros(2)}, "a": [1, {"k": 2}], "c": Pair(3, None), "d": {}}
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    want = [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in paths]
    assert [name for name, _ in named_leaves(tree)] == want
    mapped = map_named(lambda name, x, y: (name, x is y), tree, tree)
    assert jax.tree.structure(mapped, is_leaf=lambda x: type(x) is tuple) == jax.tree.structure(
        tree
    )
    assert named_leaves(jnp.ones(3))[0][0] == ""
    with pytest.raises(ValueError, match=r"[Kk]ey"):
        map_named(lambda *_: 0, {"a": 1}, {"b": 1})
