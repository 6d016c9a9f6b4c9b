"""LLaVA in the vendor's structure, and the precision of models with several parts."""

import pytest

from wafer import models
from wafer.vendor.runfile import read as translate

TOWER = {"name": "ViTModel", "hidden_size": 8, "num_heads": 2, "num_hidden_layers": 2}
TOWER |= {"filter_size": 8, "image_size": [8, 8], "patch_size": [4, 4], "prepend_cls_token": True}
TEXT = {"name": "LlamaModel", "vocab_size": 16, "hidden_size": 12, "num_heads": 2}
TEXT |= {"num_hidden_layers": 1, "filter_size": 8, "embd_pdrop": 0.0, "rotary_dim": 6}
LAYERS = {"name": "FeedForwardNetwork", "input_unit": 8, "layers_units": [12, 12]}
LAYERS |= {"layers_activation": ["relu", None], "use_bias": True}
LLAVA = {"name": "llava", "image_model": TOWER, "text_model": TEXT, "image_start_idx": 1}
LLAVA |= {"projector": {"image_model": LAYERS}, "loss_scaling": "batch_size", "loss_weight": 0.5}
ROWS = {"data_processor": "LlavaHDF5MapDataProcessor"}


def translated(model, **keys):
    out = translate({"model": {**model, **keys}, "train_input": dict(ROWS)})
    return out, out.sections["model"]


def test_the_vendors_llava_is_ours():
    out, section = translated(LLAVA, mixed_precision=True, fp16_type="bfloat16")
    assert not out.problems
    assert out.sections["train_input"]["image_start_idx"] == 1
    cfg = models.build(section).config
    assert cfg.projector_nonlinearity == "relu"
    assert (cfg.image_model.image_size, cfg.image_model.patches) == (8, 4)
    assert (cfg.text_model.loss_scaling, cfg.text_model.loss_weight) == ("batch_size", 0.5)
    assert cfg.text_model.dtype == cfg.image_model.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("image_model.prepend_cls_token", {"image_model": TOWER | {"prepend_cls_token": False}}),
        ("image_model.image_size", {"image_model": TOWER | {"image_size": [8, 4]}}),
        (
            "projector.image_model.layers_units",
            {"projector": {"image_model": LAYERS | {"layers_units": [12]}}},
        ),
        (
            "projector.image_model.use_bias",
            {"projector": {"image_model": LAYERS | {"use_bias": False}}},
        ),
        ("projector", {"projector": {"text_model": LAYERS}}),
    ],
)
def test_another_tower_or_projector_is_refused_by_name(path, change):
    out, _ = translated(LLAVA, **change)
    (problem,) = out.problems
    assert ".".join(problem.path) == f"model.{path}"
    assert "not computed here: " in problem.message


def test_both_towers_of_dpr_compute_in_the_models_precision():
    tower = {"vocab_size": 16, "hidden_size": 8, "num_heads": 2, "num_hidden_layers": 1}
    model = {"name": "dpr", "q_encoder": tower, "ctx_encoder": tower, "mixed_precision": True}
    _, section = translated(model, use_bfloat16=True)
    assert models.build(section).config.q_encoder.dtype == "bfloat16"


@pytest.mark.parametrize(
    "model",
    [
        LLAVA,
        {"name": "t5", "src_vocab_size": 9, "extra_ids": 3, "d_model": 8, "d_kv": 4, "d_ff": 8},
        {"name": "transformer", "d_model": 8, "norm_first": False},
        {"name": "dpo", "policy_model": TEXT | {"name": "llama"}, "dpo": {"reference_free": False}},
        {"name": "bert/token_classifier", "label_vocab_file": "x", "mixed_precision": True},
    ],
    ids=lambda model: model["name"],
)
def test_what_was_translated_stays_as_it_is(model):
    """A run keeps its sections; they are read again when it goes on."""
    once = translate({"model": model, "train_input": dict(ROWS)}).sections
    again = translate(once)
    assert again.sections == once
    assert not again.problems
