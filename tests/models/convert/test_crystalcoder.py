"""CrystalCoder: transformers has no class for it; a NumPy model of its published parts stands in.

The tensors' names and what they are for are those of the published checkpoint's index and
config.json; the arithmetic in ``helpers/remote_models.py`` is written from these.
"""

import json
import math

import jax
import numpy as np
import pytest
import yaml
from helpers import hf_parity, remote_models
from helpers.batches import rows
from helpers.paths import GOLDEN, ROOT
from safetensors.numpy import save_file

from wafer import models
from wafer.models.convert.files import open_tensors, read_config

HIDDEN, HEADS, INNER, VOCAB, LAYERS, LENGTH = 32, 2, 24, 19, 2, 7
CONFIG = {"model_type": "crystalcoder", "architectures": ["CrystalCoderLMHeadModel"]}
CONFIG |= {"vocab_size": VOCAB, "n_positions": 16, "n_embd": HIDDEN, "n_layer": LAYERS}
CONFIG |= {"n_head": HEADS, "n_inner": INNER, "activation_function": "swiglu"}
CONFIG |= {"layer_norm_epsilon": 1e-5, "position_embedding_type": "rotary", "rotary_dim": 4}
CONFIG |= {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}
CONFIG |= {"mup_embeddings_scale": 14.6, "mup_output_alpha": 2.22, "mup_width_scale": 0.0625}
CONFIG |= {"mup_scale_qk_dot_by_d": True, "tie_word_embeddings": True}
CONFIG |= {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    shapes = {"wte.weight": (VOCAB, HIDDEN), "ln_f.weight": (HIDDEN,), "ln_f.bias": (HIDDEN,)}
    for i in range(LAYERS):
        linears = {"attn.c_attn": (HIDDEN, 3 * HIDDEN), "attn.c_proj": (HIDDEN, HIDDEN)}
        linears |= {"mlp.c_fc": (HIDDEN, INNER), "mlp.c_fc2": (HIDDEN, INNER)}
        linears |= {"mlp.c_proj": (INNER, HIDDEN), "ln_1": (HIDDEN,), "ln_2": (HIDDEN,)}
        for name, shape in linears.items():
            shapes |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[-1:]}
    tensors = {
        f"transformer.{name}": rng.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    (tmp_path / "theirs").mkdir()
    save_file(tensors, tmp_path / "theirs/model.safetensors", {"format": "pt"})
    (tmp_path / "theirs/config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "theirs"


def test_logits_are_those_of_the_published_parts(folder):
    model, params = models.from_hf(folder)
    ids = np.random.default_rng(1).integers(VOCAB, size=LENGTH)
    logits = jax.jit(model.apply)(params, rows(ids))
    tensors = open_tensors(folder)
    expected = remote_models.logits(CONFIG, {name: tensors[name] for name in tensors}, ids)
    np.testing.assert_allclose(logits, expected, rtol=2e-4, atol=2e-4)


def test_the_way_back_is_bit_equal(folder, tmp_path):
    model, params = models.from_hf(folder, dtype=None)
    assert model.config.name == "crystalcoder"
    models.to_hf(model, params, tmp_path / "ours")
    before, after = open_tensors(folder), open_tensors(tmp_path / "ours")
    assert set(before) == set(after)
    for name in before:
        np.testing.assert_array_equal(np.asarray(before[name]), np.asarray(after[name]))
    config = json.loads((tmp_path / "ours/config.json").read_text())
    for key in ("model_type", "rotary_dim", "n_inner", "mup_embeddings_scale", "architectures"):
        assert config[key] == CONFIG[key], key
    scale = config["mup_output_alpha"] * config["mup_width_scale"]
    assert scale == pytest.approx(2.22 * 0.0625)
    again, _ = models.from_hf(tmp_path / "ours", dtype=None)
    assert again.config == model.config


def test_the_name_alone_rotates_a_quarter_of_the_head():
    config = models.build({"name": "crystalcoder", "hidden_size": 256, "num_heads": 2}).config
    assert (config.rotary_features, config.head_dim) == (32, 128)
    assert config.rotary_interleaved


def test_the_published_size_is_counted_to_the_byte():
    """The index says 26,960,145,024: float32 weights, the head once more, masks of each layer."""
    path = ROOT / "models/configs/crystalcoder/crystalcoder_7b.yaml"
    section = yaml.safe_load(path.read_text(encoding="utf-8"))["model"]
    model = models.build(section)
    shapes = jax.tree.leaves(jax.eval_shape(lambda: model.init(jax.random.key(0))))
    weights = sum(math.prod(leaf.shape) for leaf in shapes)
    head, layers, length = 32032 * 4096, 32, 2048
    masks = layers * length**2  # attn.bias, a byte each, and masked_bias, a float32
    assert 4 * (weights + head + layers) + masks == 26_960_145_024


@pytest.mark.parametrize("name", ["btlm_ref", "jais_590m_like_gelu_learned"])
def test_the_reference_agrees_with_recorded_outputs(name):
    """Of a PyTorch model of BTLM and Jais, written from their published configurations."""
    _, _, _, runs = hf_parity.load(GOLDEN / "hf" / name)
    inputs, outputs, _ = runs["full"]
    tensors = open_tensors(GOLDEN / "hf" / name)
    arrays = {key: tensors[key] for key in tensors}
    ours = remote_models.logits(read_config(GOLDEN / "hf" / name), arrays, inputs["input_ids"][0])
    assert hf_parity.relative(ours, outputs["logits"][0]) < 5e-6
