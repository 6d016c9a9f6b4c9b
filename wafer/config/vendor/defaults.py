"""The vendor's defaults of a ``model`` section, release by release, where ours are others.

tests/golden/vendor_defaults.json has every default of the vendor's public source; the rows here are
those that differ from a name's presets, which are Hugging Face's. A given key wins.
"""

from typing import Any, NamedTuple

from models.names import MODELS

__all__ = ["Release", "code_of", "covers", "set_defaults"]

Release = tuple[int, int]
_GPTJ = {"gptj", "codegen", "gpt_neox", "falcon"}  # Hugging Face types of those that run its code


class _As(NamedTuple):
    """The value of another key, or a default where that is not given, either."""

    key: str
    default: Any


class _Default(NamedTuple):
    """What a key means that a section leaves out.

    code: whose code of the vendor reads it: 'gpt2', 'gptj', 'encoder', 'seq2seq', 'llava', ...
    key: of the section
    value: the default
    releases: 'first-last' of the files that name theirs; '' is every run file
    names: models' names separated by spaces; '' is all
    """

    code: str
    key: str
    value: Any
    releases: str = ""
    names: str = ""


_CLASSIFIERS = "bert-token-classifier bert-summarization"
_ROWS = (
    _Default("gpt2", "fp16_type", "bfloat16"),  # 1.7-2.2; later files: a precision section
    _Default("gptj", "fp16_type", "bfloat16"),
    _Default("encoder", "dropout_rate", 0.0, "", "bert-token-classifier"),
    _Default("encoder", "attention_dropout_rate", 0.0, "", "bert-token-classifier"),
    _Default("encoder", "loss_weight", 1.0, "", _CLASSIFIERS),
    # the decoders that run GPT-2's code: LLaMA, Mistral, BLOOM, MPT, Gemma 2, StarCoder, ...
    _Default("gpt2", "attention_dropout_rate", 0.1, "2.4-2.10"),  # until 2.3: dropout_rate
    _Default("gpt2", "attention_logit_softcapping", None, "1.6-2.10"),
    _Default("gpt2", "attention_module", "aiayn_attention", "1.6-2.10"),
    _Default("gpt2", "attention_sliding_window_length", None, "1.6-2.10"),
    _Default("gpt2", "dropout_rate", 0.1, "1.6-2.10"),
    _Default("gpt2", "embedding_layer_norm", False, "1.6-2.10"),
    _Default("gpt2", "final_logit_softcapping", None, "1.6-2.10"),
    _Default("gpt2", "layer_norm_epsilon", 1e-5, "1.6-2.10"),
    _Default("gpt2", "nonlinearity", "gelu", "1.6-2.10"),
    _Default("gpt2", "norm_first_sandwich", False, "1.6-2.10"),
    _Default("gpt2", "norm_type", "layernorm", "1.6-2.10"),
    _Default("gpt2", "position_embedding_type", "learned", "1.6-2.10"),
    _Default("gpt2", "rope_theta", 10000.0, "1.6-2.10"),
    _Default("gpt2", "rotary_fraction", 0.25, "1.6-2.10"),  # of the head, as rotary_dim
    _Default("gpt2", "share_embedding_weights", True, "1.6-2.10"),
    _Default("gpt2", "sliding_window_every_other_decoder_layer", False, "1.6-2.10"),
    _Default("gpt2", "use_ffn_bias", True, "1.6-2.10"),
    _Default("gpt2", "use_ffn_bias_in_attention", True, "1.6-2.10"),
    _Default("gpt2", "use_projection_bias_in_attention", True, "1.6-2.10"),
    # GPT-J's: GPT-NeoX and Falcon, too
    _Default("gptj", "attention_dropout_rate", 0.1, "1.6-2.10"),
    _Default("gptj", "attention_module", "aiayn_attention", "1.6-2.10"),
    _Default("gptj", "embedding_dropout_rate", 0.1, "1.6-2.10"),
    _Default("gptj", "nonlinearity", "gelu", "1.6-2.10"),
    _Default("gptj", "residual_dropout_rate", 0.1, "1.6-2.10"),
    _Default("gptj", "rotary_fraction", 0.25, "1.6-2.10"),
    _Default("gptj", "scale_qk_dot_by_d", False, "2.4-2.10"),
    _Default("gptj", "share_embedding_weights", True, "1.6-2.10"),
    _Default("gptj", "use_bias_in_output", False, "1.6-2.10"),
    _Default("gptj", "use_ffn_bias", False, "1.6-2.10"),
    _Default("gptj", "use_ffn_bias_in_attention", True, "1.6-2.10"),
    _Default("gptj", "use_projection_bias_in_attention", True, "1.6-2.10"),
    _Default("gptj", "use_untied_layer_norm", False, "1.6-2.10"),
    # BERT, its fine-tuning, ESM-2 and DPR's towers
    _Default("encoder", "mlm_loss_scaling", "batch_size", "1.6-2.10", "bert esm2"),
    _Default("encoder", "pooler_nonlinearity", _As("encoder_nonlinearity", "gelu"), "1.7-2.10"),
    _Default("encoder", "mlm_nonlinearity", _As("encoder_nonlinearity", "gelu"), "1.8-2.10"),
    _Default("encoder", "fp16_type", "bfloat16", "2.3-2.3", _CLASSIFIERS),
    _Default(
        "encoder",
        "attention_dropout_rate",
        0.1,
        "2.2-2.10",
        "bert-sequence-classifier bert-summarization",
    ),
    _Default(
        "encoder",
        "embedding_dropout_rate",
        0.1,
        "2.2-2.2",
        "bert-sequence-classifier bert-token-classifier",
    ),
    _Default("encoder", "embedding_dropout_rate", 0.1, "2.2-2.10", "bert-summarization"),
    _Default("encoder", "disable_nsp", False, "2.2-2.10", "esm2"),
    _Default("encoder", "head", "pretraining", "2.2-2.10", "esm2"),
    _Default("encoder", "mask_token_id", None, "2.2-2.10", "esm2"),
    _Default("encoder", "position_embedding_type", "learned", "2.2-2.10", "esm2"),
    _Default("encoder", "rotary_fraction", 0.25, "2.2-2.10", "esm2"),
    _Default("encoder", "use_embedding_layer_norm", True, "2.2-2.10", "esm2"),
    _Default("encoder", "use_final_layer_norm", False, "2.2-2.10", "esm2"),
    # T5, whose code the Transformer runs, too
    _Default("t5", "layer_norm_epsilon", 1e-5, "1.6-2.10"),
    _Default("t5", "lm_loss_weight", 1.0, "1.6-2.10"),
    _Default("t5", "mlm_loss_scaling", "batch_size", "1.6-2.10"),
    _Default("t5", "norm_type", "rmsnorm", "1.6-2.10"),
    _Default("t5", "position_embedding_type", "relative", "1.6-2.10"),
    _Default("t5", "nonlinearity", "relu", "2.2-2.10"),
    _Default("t5", "relu_dropout_rate", None, "1.6-2.10"),  # as dropout_rate
    _Default("t5", "scale_logits", True, "1.6-2.10"),  # where embeddings are shared
    _Default("t5", "share_embedding_weights", True, "1.6-2.10"),
    _Default("t5", "use_dropout_outside_residual_path", True, "1.6-2.10"),
    _Default("t5", "use_ffn_bias", False, "1.6-2.10"),
    _Default("t5", "use_pre_encoder_decoder_layer_norm", False, "1.6-1.7"),
    _Default("t5", "use_pre_encoder_decoder_layer_norm", True, "1.8-2.10"),
    _Default("t5", "use_projection_bias_in_attention", False, "1.6-2.10"),
    # models of several parts, and LLaVA's tower
    _Default("dpr", "fp16_type", "bfloat16", "2.3-2.3"),
    _Default("llava", "fp16_type", "bfloat16", "2.3-2.3"),
    _Default("llava", "image_feature_select_layer_idx", -1, "2.2-2.10"),
    _Default("vision", "dropout_rate", 0.1, "2.4-2.10"),
    _Default("vision", "attention_dropout_rate", 0.0, "2.4-2.10"),
    _Default("vision", "filter_size", 3072, "2.4-2.10"),
    _Default("vision", "hidden_size", 768, "2.4-2.10"),
    _Default("vision", "image_size", 224, "2.4-2.10"),
    _Default("vision", "nonlinearity", "gelu", "2.4-2.10"),
    _Default("vision", "num_heads", 12, "2.4-2.10"),
    _Default("vision", "num_hidden_layers", 12, "2.4-2.10"),
    _Default("vision", "patch_size", 16, "2.4-2.10"),
)
# Other spellings: a given one keeps the default of its row away
_SPELLINGS = {
    "use_embedding_layer_norm": ("embedding_layer_norm",),
    "use_pre_encoder_decoder_layer_norm": ("norm_first",),
    "lm_loss_weight": ("loss_weight",),
    "nonlinearity": ("encoder_nonlinearity",),
    "fp16_type": ("use_bfloat16", "compute_dtype"),
}


def code_of(name: str) -> str:
    """Return the vendor's code that a name runs: 'gpt2', 'gptj', 't5', or else the family."""
    entry = MODELS.get(name)
    if entry is not None and entry.family == "decoder":
        return "gptj" if entry.hf in _GPTJ else "gpt2"
    family = getattr(entry, "family", "")
    return "t5" if family == "seq2seq" else family


def covers(releases: str, release: Release | None) -> bool:
    """Whether 'first-last' has a release; '' has all, also none."""
    if not releases:
        return True
    first, last = (tuple(map(int, end.split("."))) for end in releases.split("-"))
    return release is not None and first <= release <= last


def set_defaults(model: dict[str, Any], code: str, release: Release | None) -> None:
    """Set what a section leaves out and a preset has otherwise.

    Args:
        model: the section, changed in place.
        code: as ``code_of``.
        release: of the file, where it says so.
    """
    for row in _ROWS:
        if row.code != code or not covers(row.releases, release):
            continue
        if row.names and model.get("name") not in row.names.split():
            continue
        given = {row.key, *_SPELLINGS.get(row.key, ())} & model.keys()
        if given or (row.key == "fp16_type" and model.get("mixed_precision") is not True):
            continue
        value = row.value
        model[row.key] = model.get(value.key, value.default) if isinstance(value, _As) else value
    if code == "encoder" and covers("1.7-2.10", release) and model.get("disable_nsp") is True:
        model.setdefault("num_segments", None)
