"""Model names: which family computes each, and what the name presets."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from wafer.models.errors import Problem, SectionError, did_you_mean_model
from wafer.models.user.code import import_code
from wafer.models.user.trust import is_user_defined, require_trusted

FAMILIES_ALONE = (
    "Only a model family (docs/howto/model-family.md) is taken here: a model made by a function is "
    "refused with the option, too"
)
"""For refusals of code by commands that functions of users have no form for."""


class ModelPreset(NamedTuple):
    """One name."""

    family: str  #: 'decoder', 'encoder', 'seq2seq', 'dpr', 'vision', 'llava' or 'mlp'
    presets: Mapping[str, Any]  #: keys the name sets unless the user does
    hf: str = ""  #: model_type in a Hugging Face config.json, '' where none exists
    modules: frozenset[str] = frozenset()  #: of the user, that register it; of ours none do


_GPT2: dict[str, Any] = {}
_PARALLEL = {
    "position_embedding_type": "rotary",
    "parallel_attention": True,
    "share_embedding_weights": False,
}
_GPTJ = _PARALLEL | {
    "use_projection_bias_in_attention": False,
    "use_ffn_bias_in_attention": False,
    "use_bias_in_output": True,
    "nonlinearity": "gelu_new",
}
_NO_BIAS = {
    "use_projection_bias_in_attention": False,
    "use_ffn_bias_in_attention": False,
    "use_ffn_bias": False,
}
_LLAMA = _NO_BIAS | {
    "position_embedding_type": "rotary",
    "rotary_fraction": 1.0,
    "norm_type": "rmsnorm",
    "layer_norm_epsilon": 1e-6,
    "nonlinearity": "swiglu",
    "share_embedding_weights": False,
    "dropout_rate": 0.0,
}
_QWEN2 = _LLAMA | {"use_projection_bias_in_attention": True, "rope_theta": 1e6}
_QK_NORM = {"attention_qk_norm_layer": "rmsnorm", "attention_qk_norm_eps": 1e-6}
_QWEN3 = _LLAMA | _QK_NORM | {"rope_theta": 1e6}
_OLMO2 = _LLAMA | _QK_NORM
_OLMO2 |= {"attention_qk_norm_whole": True, "norm_outputs_only": True, "rope_theta": 500000.0}
_GEMMA = _LLAMA | {
    "norm_type": "rmsnorm-1p",
    "nonlinearity": "geglu_new",
    "share_embedding_weights": True,
}
_GEMMA2 = _GEMMA | {
    "norm_first_sandwich": True,
    "attention_sliding_window_length": 4096,
    "sliding_window_every_other_decoder_layer": True,
    "attention_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3 = _GEMMA | {
    "norm_first_sandwich": True,
    "attention_sliding_window_length": 1024,
    "full_attention_interval": 6,
    "rope_theta": 1e6,
    "rope_theta_local": 10000.0,
    "attention_qk_norm_layer": "rmsnorm-1p",
    "attention_qk_norm_eps": 1e-6,
}
_STARCODER2 = {
    "position_embedding_type": "rotary",
    "rotary_fraction": 1.0,
    "attention_sliding_window_length": 4096,
    "nonlinearity": "gelu_new",
    "dropout_rate": 0.0,
}
_OPT = {"position_embedding_offset": 2, "nonlinearity": "relu"}
_ALIBI = {"position_embedding_type": "alibi"}
_BLOOM = _ALIBI | {"embedding_layer_norm": True, "nonlinearity": "gelu_new"}
_BTLM = _ALIBI | {"nonlinearity": "swiglu", "alibi_slopes_in_checkpoint": True}
# Rotary positions on a quarter of the head; the muP scales depend on the width, like sizes.
_CRYSTAL = {"position_embedding_type": "rotary", "nonlinearity": "swiglu", "dropout_rate": 0.0}
_MQA = {"attention_module": "multiquery_attention"}
_FALCON = (
    _PARALLEL
    | _NO_BIAS
    | _MQA
    | {
        "share_embedding_weights": True,
        "rotary_fraction": 1.0,
        "dropout_rate": 0.0,
    }
)
_FALCON_RW = {
    "position_embedding_type": "alibi",
    "alibi_style": "falcon",
    "dropout_rate": 0.0,
}

_ROBERTA = {
    "position_embedding_offset": 2,
    "disable_nsp": True,
    "num_segments": 1,
    "head": "mlm",
    "vocab_size": 50265,
}
# ESM-2 (Lin et al. 2022): proteins, 33 tokens.
_ESM2 = {
    "head": "mlm",
    "disable_nsp": True,
    "num_segments": None,
    "vocab_size": 33,
    "position_embedding_type": "rotary",
    "rotary_fraction": 1.0,
    "norm_first": True,
    "use_embedding_layer_norm": False,
    "use_final_layer_norm": True,
    "mask_token_id": 32,
}
# GSK's epigenomic BERT (Trotter et al. 2021): no sentences, a state of the chromatin per token.
# 4,101 tokens are the 6-mers of four bases and five special ones.
_EBERT = {
    "head": "mlm",
    "disable_nsp": True,
    "num_segments": None,
    "vocab_size": 4101,
    "epigenetic_vocab_size": 36,
}
_T5 = _NO_BIAS | {
    "norm_type": "rmsnorm",
    "attention_type": "dot_product",
    "nonlinearity": "relu",
    "scale_logits": True,
}
_T5_11 = _T5 | {
    "nonlinearity": "geglu_new",
    "scale_logits": False,
    "share_embedding_weights": False,
}
_UL2 = _T5_11 | {"nonlinearity": "swiglu"}
_TRANSFORMER: dict[str, Any] = {
    "position_embedding_type": "fixed",
    "norm_first": False,
    "layer_norm_epsilon": 1e-5,
    "nonlinearity": "relu",
    "scale_embedding": True,
    "relu_dropout_rate": 0.0,
    "use_dropout_outside_residual_path": False,
}

MODELS: dict[str, ModelPreset] = {
    "gpt2": ModelPreset("decoder", _GPT2, "gpt2"),
    "gpt3": ModelPreset("decoder", _GPT2, "gpt2"),
    "cerebras-gpt": ModelPreset("decoder", _GPT2, "gpt2"),
    "gptj": ModelPreset("decoder", _GPTJ, "gptj"),
    "gpt-neox": ModelPreset("decoder", _PARALLEL | {"use_untied_layer_norm": True}, "gpt_neox"),
    "pythia": ModelPreset("decoder", _PARALLEL | {"use_untied_layer_norm": True}, "gpt_neox"),
    "codegen": ModelPreset("decoder", _GPTJ, "codegen"),
    "bloom": ModelPreset("decoder", _BLOOM, "bloom"),
    "flor": ModelPreset("decoder", _BLOOM, "bloom"),  # BLOOM with a smaller vocabulary
    "btlm": ModelPreset("decoder", _BTLM, "btlm"),
    "jais": ModelPreset("decoder", _BTLM, "jais"),
    "crystalcoder": ModelPreset("decoder", _CRYSTAL, "crystalcoder"),
    "falcon": ModelPreset("decoder", _FALCON, "falcon"),
    "falcon-7b": ModelPreset("decoder", _FALCON, "falcon"),
    "falcon-40b": ModelPreset("decoder", _FALCON | {"use_untied_layer_norm": True}, "falcon"),
    "falcon-11b": ModelPreset("decoder", _FALCON | {"share_embedding_weights": False}, "falcon"),
    "falcon-rw": ModelPreset("decoder", _FALCON_RW, "falcon"),
    "falcon-180b": ModelPreset("decoder", _FALCON | {"use_untied_layer_norm": True}, "falcon"),
    "mpt": ModelPreset(
        "decoder",
        _ALIBI | _NO_BIAS | {"norm_type": "biasless-layernorm"},
        "mpt",
    ),
    "llama": ModelPreset("decoder", _LLAMA, "llama"),
    "llamaV2": ModelPreset("decoder", _LLAMA, "llama"),
    "llama3": ModelPreset("decoder", _LLAMA | {"rope_theta": 500000.0}, "llama"),
    "code-llama": ModelPreset("decoder", _LLAMA | {"rope_theta": 1e6}, "llama"),
    "wizardlm": ModelPreset("decoder", _LLAMA, "llama"),
    "med42": ModelPreset("decoder", _LLAMA | {"layer_norm_epsilon": 1e-5}, "llama"),  # Llama 2 70B
    "mistral": ModelPreset("decoder", _LLAMA | {"layer_norm_epsilon": 1e-5}, "mistral"),
    "mixtral": ModelPreset(
        "decoder", _LLAMA | {"layer_norm_epsilon": 1e-5, "rope_theta": 1e6}, "mixtral"
    ),
    "smollm": ModelPreset(
        "decoder", _LLAMA | {"layer_norm_epsilon": 1e-5, "share_embedding_weights": True}, "llama"
    ),
    "tinyllama": ModelPreset("decoder", _LLAMA | {"layer_norm_epsilon": 1e-5}, "llama"),
    "qwen2": ModelPreset("decoder", _QWEN2, "qwen2"),
    "qwen3": ModelPreset("decoder", _QWEN3, "qwen3"),
    "qwen3_moe": ModelPreset("decoder", _QWEN3, "qwen3_moe"),
    "olmo2": ModelPreset("decoder", _OLMO2, "olmo2"),
    "phi3": ModelPreset("decoder", _LLAMA | {"layer_norm_epsilon": 1e-5}, "phi3"),
    "gemma": ModelPreset("decoder", _GEMMA, "gemma"),
    "gemma2": ModelPreset("decoder", _GEMMA2, "gemma2"),
    "gemma3_text": ModelPreset("decoder", _GEMMA3, "gemma3_text"),
    "opt": ModelPreset("decoder", _OPT, "opt"),
    "starcoder2": ModelPreset("decoder", _STARCODER2, "starcoder2"),
    "santacoder": ModelPreset("decoder", _MQA | {"nonlinearity": "gelu_new"}, "gpt_bigcode"),
    "starcoder": ModelPreset("decoder", _MQA | {"nonlinearity": "gelu_new"}, "gpt_bigcode"),
    "octocoder": ModelPreset("decoder", _MQA | {"nonlinearity": "gelu_new"}, "gpt_bigcode"),
    "wizardcoder": ModelPreset("decoder", _MQA | {"nonlinearity": "gelu_new"}, "gpt_bigcode"),
    "bert": ModelPreset("encoder", {}, "bert"),
    "bert-sequence-classifier": ModelPreset("encoder", {"head": "classification"}, "bert"),
    "bert-token-classifier": ModelPreset("encoder", {"head": "token_classification"}, "bert"),
    "bert-q&a": ModelPreset("encoder", {"head": "qa"}, "bert"),
    "bert-summarization": ModelPreset("encoder", {"head": "summarization"}),
    "roberta": ModelPreset("encoder", _ROBERTA, "roberta"),
    "esm2": ModelPreset("encoder", _ESM2, "esm"),
    "ebert": ModelPreset("encoder", _EBERT),
    "dpr": ModelPreset("dpr", {}, "dpr"),
    "dpr-question-encoder": ModelPreset("encoder", {"head": "embedding"}, "dpr"),
    "dpr-context-encoder": ModelPreset("encoder", {"head": "embedding"}, "dpr"),
    "dpr-reader": ModelPreset("encoder", {"head": "reader"}, "dpr"),
    "t5": ModelPreset("seq2seq", _T5, "t5"),
    "t5-v1.1": ModelPreset("seq2seq", _T5_11, "t5"),
    "flan-t5": ModelPreset("seq2seq", _T5_11, "t5"),
    "ul2": ModelPreset("seq2seq", _UL2, "t5"),
    "flan-ul2": ModelPreset("seq2seq", _UL2, "t5"),
    "transformer": ModelPreset("seq2seq", _TRANSFORMER, "marian"),
    "clip-vit": ModelPreset("vision", {}, "clip_vision_model"),
    "llava": ModelPreset("llava", {}, "llava"),
    "fc_mnist": ModelPreset("mlp", {}),
    "sqlcoder": ModelPreset("decoder", _MQA | {"nonlinearity": "gelu_new"}, "gpt_bigcode"),
}


def preset_of(name: str) -> ModelPreset | None:
    """Return what a name means once its module is imported; None where it means no model family.

    Args:
        name: one of ``MODELS``, or ``module:name`` of a module that registers it. A function of
            a module is none, whatever its name.
    """
    module, _, own = name.rpartition(":")
    preset = MODELS.get(own)
    return preset if preset and (not module or module in preset.modules) else None


def lookup(name: str) -> ModelPreset:
    """Find a name: one of ``MODELS``, or ``module:name`` of a module that registers it.

    Raises:
        SectionError: unknown name, with the nearest known one; a module that cannot be imported;
            a checkpoint's name for code that the user does not trust.
    """
    module, _, base = name.rpartition(":")
    try:
        if module:
            import_code(name, "model")
        elif is_user_defined(name, "model"):
            require_trusted(name, "model")
    except ValueError as error:
        raise SectionError([Problem(("model", "name"), str(error))]) from error
    preset = preset_of(name)
    if preset is not None:
        return preset
    message = f"{name!r} is unknown{did_you_mean_model(base, MODELS)}; known: {sorted(MODELS)}"
    if module:
        message = (
            f"{name!r}: {module} registers no model family {base!r}; expected one that calls "
            "models.convert.register (docs/howto/model-family.md). A model made by a function "
            "trains, but has no other form"
        )
    raise SectionError([Problem(("model", "name"), message)])
