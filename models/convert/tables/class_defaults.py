"""Keys of ``config.json`` by model_type: their defaults, other spellings, and which are harmless.

Values are those of transformers' configuration classes (5.24; of version 4 for keys that left), and
of the remote code of BTLM, Jais and CrystalCoder. None: absent.
"""

from collections.abc import Mapping
from typing import Any

# Of every class: bookkeeping, outputs that a caller asks for, generation, training, other heads.
_COMMON = """
_attn_implementation _attn_implementation_autoset _flash_attn_2_enabled _name_or_path _num_labels
architectures attn_implementation auto_map bad_words_ids begin_suppress_tokens bos_token_id
chunk_size_feed_forward classifier_dropout custom_pipelines decoder_start_token_id
diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size eos_token_id
exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id
gradient_checkpointing id2label init_std initializer_factor initializer_range is_decoder
is_encoder_decoder keys_to_ignore_at_inference label2id language length_penalty max_length
max_new_tokens max_sequence_length min_length model_type n_ctx no_repeat_ngram_size num_beam_groups
num_beams num_labels num_return_sequences output_attentions output_hidden_states output_past
output_scores pad_token_id predict_special_tokens prefix pretraining_tp problem_type
remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id
summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class tokenizer_name
top_k top_p torch_dtype torchscript transformers_version typical_p unk_token_id unsloth_fixed
transformers.js_config unsloth_version use_bfloat16 use_cache
"""
# Of one class; its code does not read them, or they choose among ways to the same result.
_OF_CLASS = {
    "gpt_bigcode": "attention_softmax_in_fp32 scale_attention_softmax_in_fp32 inference_runner "
    "max_batch_size num_key_value_heads pad_key_length pre_allocate_kv_cache validate_runner_input",
    "gptj": "rotary scale_attn_weights",
    "codegen": "scale_attn_weights",
    "gpt_neox": "attention_probs_dropout_prob hidden_dropout_prob",
    "bloom": "attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion n_inner "
    "offset_alibi skip_bias_add skip_bias_add_qkv seq_length",
    "mpt": "init_config init_device learned_pos_emb verbose embedding_fraction",
    "bert": "directionality pooler_fc_size pooler_num_attention_heads "
    "pooler_num_fc_layers pooler_size_per_head pooler_type",
    "dpr": "tie_word_embeddings",
    "falcon": "ff_factor",
    "esm": "vocab_list",
    "gemma2": "cache_implementation hidden_act sliding_window_size",
    "t5": "dense_act_fn is_gated_act n_positions",
    "marian": "classif_dropout normalize_embedding normalize_before "
    "static_position_embeddings add_bias_logits add_final_layer_norm extra_pos_embeddings",
    "clip_vision_model": "dropout projection_dim tie_word_embeddings vocab_size",
    "llava": "image_seq_length ignore_index vocab_size pad_token_id hidden_size",
}
HARMLESS: Mapping[str, frozenset[str]] = {
    kind: frozenset(f"{_COMMON} {_OF_CLASS.get(kind, '')}".split())
    for kind in (
        *("gpt2", "gpt_bigcode", "btlm", "jais", "crystalcoder", "gptj", "codegen", "gpt_neox"),
        *("bloom", "falcon", "mpt", "llama", "mistral", "mixtral", "gemma2", "bert"),
        *("roberta", "esm", "dpr"),
        *("t5", "marian", "clip_vision_model", "llava"),
    )
}

_GPT2 = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
}
_BTLM = _GPT2 | {
    "scale_attn_by_inverse_layer_idx": False,
    "position_embedding_type": "learned",
    "mup_width_scale": 1.0,
    "mup_embeddings_scale": 1.0,
    "mup_output_alpha": 1.0,
    "mup_scale_qk_dot_by_d": False,
    "alibi_scaling": None,
}
_GPTJ = {
    "vocab_size": 50400,
    "n_positions": 2048,
    "n_embd": 4096,
    "n_layer": 28,
    "n_head": 16,
    "rotary_dim": 64,
    "n_inner": None,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
}
_SCALING = {"rope_scaling": None, "rope_parameters": None, "partial_rotary_factor": None}
_ROPE = _SCALING | {"rope_theta": 10000.0}
_LLAMA = _ROPE | {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
}
_MISTRAL = _LLAMA | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
_BERT = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "tie_word_embeddings": True,
}

CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gpt2": _GPT2 | {"scale_attn_by_inverse_layer_idx": False},
    "gpt_bigcode": _GPT2
    | {
        "activation_function": "gelu_pytorch_tanh",
        "multi_query": True,
    },
    "btlm": _BTLM,
    "jais": _BTLM,
    "crystalcoder": _BTLM | {"position_embedding_type": "rotary", "rotary_dim": None},
    "gptj": _GPTJ,
    "codegen": _GPTJ,
    "gpt_neox": _SCALING
    | {
        "vocab_size": 50432,
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "hidden_act": "gelu",
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
        "attention_bias": True,
        "rotary_pct": 0.25,
        "rotary_emb_base": 10000.0,
        "rope_theta": None,
    },
    "bloom": {
        "vocab_size": 250880,
        "hidden_size": 64,
        "n_layer": 2,
        "n_head": 8,
        "layer_norm_epsilon": 1e-5,
        "apply_residual_connection_post_layernorm": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "seq_length": 2048,
    },
    "falcon": _ROPE
    | {
        "vocab_size": 65024,
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "num_ln_in_parallel_attn": None,
        "layer_norm_epsilon": 1e-5,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "num_kv_heads": None,
        "alibi": False,
        "new_decoder_architecture": False,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
        "max_position_embeddings": 2048,
        "ffn_hidden_size": None,
        "activation": "gelu",
        "tie_word_embeddings": True,
    },
    "mpt": {
        "d_model": 2048,
        "n_heads": 16,
        "n_layers": 24,
        "max_seq_len": 2048,
        "vocab_size": 50368,
        "resid_pdrop": 0.0,
        "emb_pdrop": 0.0,
        "layer_norm_epsilon": 1e-5,
        "attn_config": None,
        "expansion_ratio": 4,
        "norm_type": "low_precision_layernorm",
        "tie_word_embeddings": True,
    },
    "llama": _LLAMA | {"attention_bias": False, "mlp_bias": False},
    "mistral": _MISTRAL,
    "mixtral": _MISTRAL
    | {
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": None,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
        "output_router_logits": False,
        "use_load_balancing_loss": False,  # ours
        "router_aux_loss_coef": 0.001,
    },
    "gemma2": {k: v for k, v in _LLAMA.items() if k != "hidden_act"}
    | {
        "vocab_size": 256000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "layer_types": None,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
        "use_bidirectional_attention": None,
    },
    "bert": _BERT | {"classifier_dropout": None, "problem_type": None},
    "roberta": _BERT | {"vocab_size": 50265, "pad_token_id": 1},
    "esm": {k: v for k, v in _BERT.items() if k not in ("hidden_act", "type_vocab_size")}
    | {
        "vocab_size": 33,
        "mask_token_id": None,
        "pad_token_id": 1,
        "max_position_embeddings": 1026,
        "rope_theta": 10000.0,
        "position_embedding_type": "absolute",
        "emb_layer_norm_before": False,
        "token_dropout": False,
    },
    "dpr": {k: v for k, v in _BERT.items() if k != "tie_word_embeddings"} | {"projection_dim": 0},
    "t5": {
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_decoder_layers": None,
        "num_heads": 8,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "dropout_rate": 0.1,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",
        "scale_decoder_outputs": None,
        "tie_word_embeddings": True,
        "decoder_start_token_id": 0,
    },
    "marian": {
        "vocab_size": 58101,
        "d_model": 1024,
        "decoder_vocab_size": None,
        "encoder_layers": 12,
        "decoder_layers": 12,
        "encoder_ffn_dim": 4096,
        "decoder_ffn_dim": 4096,
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "max_position_embeddings": 1024,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_function": "gelu",
        "scale_embedding": False,
        "decoder_start_token_id": 58100,
        "tie_word_embeddings": True,
    },
    "clip_vision_model": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 32,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "attention_dropout": 0.0,
    },
    "llava": {
        "vision_config": {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "image_size": 336,
            "patch_size": 14,
        },
        "text_config": {},
        "image_token_index": 32000,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "projector_hidden_act": "gelu",
        "tie_word_embeddings": None,
    },
}

_SIZES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
_SCALES = {
    "embeddings_scale": "mup_embeddings_scale",
    "width_scale": "mup_width_scale",
    "scale_qk_dot_by_d": "mup_scale_qk_dot_by_d",
}
# Other spelling -> key: transformers' ``attribute_map``, and names of files published before it.
CLASS_ALIASES: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gptj", "codegen"), _SIZES),
    **dict.fromkeys(("btlm", "crystalcoder", "jais"), _SIZES | _SCALES),
    "bloom": {
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "n_embed": "hidden_size",
    },
    "falcon": {
        "n_embed": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_head_kv": "num_kv_heads",
    },
    "mpt": {
        "num_attention_heads": "n_heads",
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
    },
    "mixtral": {"num_experts": "num_local_experts"},
    "t5": {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    },
    "marian": {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    },
    "llava": {"image_token_id": "image_token_index"},
}

# Ids of special tokens that a config.json means which lacks the keys.
_GPT2_IDS = {"bos_token_id": 50256, "eos_token_id": 50256}
_LLAMA_IDS = {"bos_token_id": 1, "eos_token_id": 2}
CLASS_IDS: Mapping[str, Mapping[str, int]] = {
    "gpt2": _GPT2_IDS,
    "gpt_bigcode": _GPT2_IDS,
    "gptj": _GPT2_IDS,
    "codegen": _GPT2_IDS,
    "llama": _LLAMA_IDS,
    "mistral": _LLAMA_IDS,
    "mixtral": _LLAMA_IDS,
    "bloom": _LLAMA_IDS,
    "gemma2": {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0},
    "gpt_neox": {"bos_token_id": 0, "eos_token_id": 2},
    "falcon": {"bos_token_id": 11, "eos_token_id": 11},
    "roberta": {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1},
    "t5": {"eos_token_id": 1, "pad_token_id": 0},
    "marian": {"eos_token_id": 0, "forced_eos_token_id": 0},
}
