"""Sections of models that are refused, and what the error says."""

import pytest

from wafer import models

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_heads": 4, "filter_size": 24}
TEXT = {"vocab_size": 31, "max_position_embeddings": 32, **SIZES}
TOWER = {"image_size": 4, "patch_size": 2, **SIZES}
BASES = {
    "clip-vit": TOWER,
    "dpr": {"q_encoder": TEXT, "ctx_encoder": TEXT},
    "llava": {"image_model": TOWER, "text_model": TEXT | {"name": "llama"}},
    "fc_mnist": {},
}
GROUPS = {"extra_attention_params": {"num_kv_groups": 3}}
PATTERN = "sliding_window_every_other_decoder_layer_pattern"
MUP = {"mup_base_hidden_size": 8, "mup_base_filter_size": 6}
PADDING = "include_padding_in_loss: padding has activations in"
REFUSED = [
    ("gpt2", {"hiden_size": 8}, r"model\.hiden_size: unknown key; did you mean 'hidden_size'"),
    ("gpt2", {"num_heads": 3}, "num_heads: 3 does not divide 16"),
    ("gpt2", {"num_heads": True}, "num_heads: True: expected a number"),
    ("gtp2", {}, "'gtp2' is unknown; did you mean 'gpt2'"),
    ("gpt2", {"nonlinearity": "gleu"}, "nonlinearity 'gleu' is unknown"),
    ("gpt2", GROUPS, "needs attention_module"),
    ("gpt2", GROUPS | {"attention_module": "multiquery_attention"}, "must divide num_heads"),
    ("gpt2", {"position_embedding_type": "rotary", "rotary_dim": 3}, "rotary_dim: 3 must be even"),
    ("gpt2", {"pos_scaling_type": "llama3"}, "pos_scaling_extra_args: required"),
    ("llama", {"pos_scaling_type": "longrope"}, "longrope changes its tables"),
    ("llama", {"pos_scaling_type": "yarn"}, "required by pos_scaling_type yarn"),
    ("gpt2", {"mup_base_hidden_size": 8}, "give both or neither"),
    ("gpt2", MUP | {"output_logits_scale": 0.1}, "use output_logits_alpha"),
    ("t5", {"output_logits_alpha": 2.0}, "output_logits_alpha: of muP; give mup_base_hidden_size"),
    ("gpt2", {"parallel_attention": True, "norm_first": False}, "no post-LN form"),
    ("gpt2", {"use_untied_layer_norm": True}, "only a parallel block"),
    ("gpt2", {"initializer": {"name": "trunc_normal"}}, "did you mean 'truncated_normal'"),
    ("gpt2", {"initializer": {"name": "normal", "sdt": 1}}, r"initializer\.sdt: unknown.*'std'"),
    ("gpt2", {"hidden_size": "wide"}, r"model\.hidden_size: 'wide': expected a whole number"),
    ("gpt2", {"loss_weight": 0.5}, "loss_scaling: batch_size"),
    ("gpt2", {"factors": {"form": "pressed"}}, r"factors\.form"),
    ("gpt2", {"factors": {"form": "doped", "sparsity": 0.5}, "lora_params": {"r": 2}}, "no lora"),
    ("llama", {"attention_sink_tokens": 2}, "attention_sink_tokens: every token is visible"),
    ("mixtral", {"moe": {"num_experts": 4, "top_k": 5}}, "top_k: 5 of 4 experts"),
    ("llama", {"num_key_value_heads": 2}, r"here it is `extra_attention_params: {num_kv_g"),
    ("llama", {"n_layer": 2}, r"model\.n_layer: unknown key; here it is `num_hidden_layers`"),
    ("llama", {"hidden_dim": 2}, r"model\.hidden_dim: unknown key; here it is `hidden_size`"),
    ("bert", {"mlm_loss_weight": 0.02, "mlm_loss_scaling": "num_masked"}, "mlm_loss_weight: .*num"),
    ("bert", {"scale_qk_dot_by_layer_idx": True}, "scale_qk_dot_by_layer_idx"),
    ("bert", {PATTERN: "full_attention_first"}, PATTERN),
    ("bert", {"moe": {"num_experts": 2, "load_balancing_loss_coef": 0.1}}, "moe"),
    ("bert", {"epigenetic_vocab_size": 3}, "epigenetic_vocab_size: head 'pretraining' has no rows"),
    ("bert-sequence-classifier", {"num_labels": 1}, "num_labels: 1 classes"),
    ("bert-sequence-classifier", {"include_padding_in_loss": True}, PADDING),
    ("bert-token-classifier", {"include_padding_in_loss": True, "enable_vts": True}, PADDING),
    ("esm2", {"token_dropout": True, "mask_token_id": None}, "mask_token_id: missing; token"),
    ("t5", {"tgt_vocab_size": 12}, "cannot share a table"),
    ("t5", {"extra_ids": -1}, "extra_ids"),
    ("t5", {PATTERN: "full_attention_first"}, PATTERN),
    ("t5", {"position_embedding_offset": 1}, "position_embedding_offset"),
    ("clip-vit", {"position_embedding_type": "alibi"}, "position_embedding_type"),
    ("clip-vit", {"embedding_dropout_rate": 0.5}, "embedding_dropout_rate"),
    ("dpr", {"ctx_encoder": TEXT | {"hidden_size": 8}}, "8 features cannot .* the question's 16"),
    ("dpr", {"q_encoder": TEXT | {"head": "mlm"}}, "head must be 'embedding'"),
    ("dpr", {"q_encoder": {"vocab_siz": 3}}, r"q_encoder.*vocab_siz: unknown key"),
    ("llava", {"image_feature_select_layer_idx": -4}, "none of the tower's 3 hidden states"),
    ("fc_mnist", {"depth": 0}, "depth"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "keys", "says"), REFUSED)
def test_a_section_that_is_refused(name, keys, says):
    with pytest.raises(ValueError, match=says):
        models.build({"name": name, **BASES.get(name, TEXT), **keys})


@pytest.mark.parametrize(
    ("section", "says"),
    [("gpt2", r"such as \{'name': 'gpt2'\}, got 'gpt2'"), ({}, r"name: required")],
)
def test_what_is_no_section(section, says):
    with pytest.raises(ValueError, match=says):
        models.build(section)
