"""Gemma 2 between run files of the vendor, Hugging Face and .mdl names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.batches import rows
from helpers.paths import GOLDEN

from wafer import models
from wafer.models.convert import config_from_hf, config_to_hf
from wafer.models.convert.standard import in_pairs, offset_norms
from wafer.models.families.decoder import layer_kinds
from wafer.models.paths import named_leaves
from wafer.models.registry import build, parse_config
from wafer.vendor.runfile import read as translate

# As in the vendor's files: plain RMSNorm scales, exact GELU, the scale of embeddings given.
VENDOR = {"name": "gemma2", "vocab_size": 16, "hidden_size": 8, "num_heads": 2, "filter_size": 8}
VENDOR |= {"num_hidden_layers": 3, "max_position_embeddings": 8, "norm_type": "rmsnorm"}
VENDOR |= {"embeddings_scale": 2.8284271, "nonlinearity": "geglu"}
WINDOWS = {"attention_sliding_window_length": 4, "sliding_window_every_other_decoder_layer": True}


def section(**keys):
    return translate({"model": {**VENDOR, **WINDOWS, **keys}}).sections["model"]


def test_the_vendor_begins_with_full_attention_and_hugging_face_with_the_window():
    """TransformerDecoder of release 2.10: the window is in layers 1, 3, ... by default."""
    theirs = parse_config(section())
    assert layer_kinds(theirs) == ["layer_global", "layer", "layer_global"]
    own = build(config_from_hf({"model_type": "gemma2", "num_hidden_layers": 3})).config
    assert layer_kinds(own) == ["layer", "layer_global", "layer"]
    pattern = "sliding_window_every_other_decoder_layer_pattern"
    first = section(**{pattern: "sliding_window_first"})
    assert layer_kinds(parse_config(first)) == layer_kinds(own)
    written = config_to_hf(build(section(nonlinearity="geglu_new")).config)
    assert written["layer_types"] == ["full_attention", "sliding_attention", "full_attention"]
    assert config_from_hf(written)[pattern] == "full_attention_first"


def test_scales_move_between_both_forms_of_the_norm():
    cfg = parse_config(section())
    leaves = {"layers_0/norm1_post/scale": np.float32([2.0]), "norm_f/scale": np.float32([0.5])}
    leaves["layers_0/attn/query/kernel"] = np.float32([7.0])
    changed, out = offset_norms(cfg, leaves, "rmsnorm-1p")
    assert changed.norm_type == "rmsnorm-1p"
    assert [np.asarray(leaf).tolist() for leaf in out.values()] == [[1.0], [-0.5], [7.0]]
    again, back = offset_norms(changed, out, "rmsnorm")
    assert again == cfg
    assert [np.asarray(leaf).tolist() for leaf in back.values()] == [[2.0], [0.5], [7.0]]


def test_a_run_files_model_is_written_for_hugging_face_and_computes_the_same(tmp_path):
    model = build(section(final_logit_softcapping=3.0, attention_logit_softcapping=2.0))
    params = model.init(jax.random.key(0))
    models.to_hf(model, params, tmp_path)
    other, read = models.from_hf(tmp_path)
    assert other.config.norm_type == "rmsnorm-1p"
    tokens = jnp.arange(8)
    a, b = (jax.jit(m.apply)(p, rows(tokens)) for m, p in ((model, params), (other, read)))
    assert np.asarray(a) == pytest.approx(np.asarray(b), abs=2e-6)


def test_the_vendors_names_hold_plain_scales():
    model, params = models.from_hf(GOLDEN / "hf" / "gemma2", dtype=None)
    leaves = dict(named_leaves(params))
    cfg, out = in_pairs(model.config, leaves)
    assert cfg.norm_type == "rmsnorm"
    own = np.asarray(leaves["norm_f/scale"], np.float32)
    assert np.asarray(out["norm_f/scale"]) == pytest.approx(own + 1, abs=1e-3)
    assert model.alias("layers_0/norm2_post/scale").endswith("layers.0.norm3_post.weight")
