"""The vendor's defaults of a ``model`` section, release by release, where ours are others.

tests/golden/vendor_defaults.json has every default of the vendor's public source; here are those
that differ from a name's presets, which are Hugging Face's. A given key wins.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from wafer.models.names import MODELS

Release = tuple[int, int]
_GPTJ = {"gptj", "codegen", "gpt_neox", "falcon"}  # Hugging Face types of those that run its code


class _As(NamedTuple):
    """The value of another key, or a default where that is not given, either."""

    key: str
    default: Any


class _Default(NamedTuple):
    """What a key means that a section leaves out."""

    code: str  #: whose code of the vendor reads it: 'gpt2', 'gptj', 'encoder', 't5', 'llava', ...
    key: str  #: of the section
    value: Any  #: the default
    releases: str = ""  #: 'first-last' of the files that name theirs; '' is every run file
    names: str = ""  #: models' names separated by spaces; '' is all


# What a decoder's file of a release means where it leaves out a key that the name presets as
# Hugging Face has it. GPT-2's code runs LLaMA, Mistral, BLOOM, MPT, Gemma 2, StarCoder and others;
# GPT-J's runs GPT-NeoX and Falcon.
_UNSET: dict[str, Any] = {
    "attention_logit_softcapping": None,
    "attention_module": "aiayn_attention",
    "attention_sliding_window_length": None,
    "embedding_layer_norm": False,
    "final_logit_softcapping": None,
    "layer_norm_epsilon": 1e-5,
    "nonlinearity": "gelu",
    "norm_first_sandwich": False,
    "norm_type": "layernorm",
    "position_embedding_type": "learned",
    "rope_theta": 10000.0,
    "rotary_fraction": 0.25,
    "share_embedding_weights": True,
    "sliding_window_every_other_decoder_layer": False,
    "use_bias_in_output": False,
    "use_ffn_bias": True,
    "use_ffn_bias_in_attention": True,
    "use_projection_bias_in_attention": True,
    "use_untied_layer_norm": False,
}
_UNSET_OF = {
    "gpt2": _UNSET | {"dropout_rate": 0.1},
    "gptj": _UNSET | {"position_embedding_type": "rotary", "use_ffn_bias": False},
}
_CLASSIFIERS = "bert-token-classifier bert-summarization"
_ROWS = (
    _Default("gpt2", "fp16_type", "bfloat16"),  # 1.7-2.2; later files: a precision section
    _Default("gptj", "fp16_type", "bfloat16"),
    _Default("encoder", "dropout_rate", 0.0, "", "bert-token-classifier"),
    _Default("encoder", "attention_dropout_rate", 0.0, "", "bert-token-classifier"),
    _Default("encoder", "loss_weight", 1.0, "", _CLASSIFIERS),
    _Default("gpt2", "attention_dropout_rate", 0.1, "2.4-2.10"),  # until 2.3: dropout_rate
    # GPT-J's: GPT-NeoX and Falcon, too
    _Default("gptj", "attention_dropout_rate", 0.1, "1.6-2.10"),
    _Default("gptj", "embedding_dropout_rate", 0.1, "1.6-2.10"),
    _Default("gptj", "residual_dropout_rate", 0.1, "1.6-2.10"),
    _Default("gptj", "scale_qk_dot_by_d", False, "2.4-2.10"),
    _Default("gptj", "use_ffn_bias", False, "1.6-2.10"),
    # BERT, its fine-tuning, ESM-2 and DPR's towers
    _Default("encoder", "mlm_loss_scaling", "batch_size", "1.6-2.10", "bert esm2"),
    _Default("encoder", "pooler_nonlinearity", _As("encoder_nonlinearity", "gelu"), "1.6-2.10"),
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
# The same of data processors: ``code`` is the processor's name
_SHUFFLED = (
    *("BertCSVDynamicMask", "BertQA", "BertSumCSV", "BertTokenClassifier"),
    *("MNLI", "SST2", "T5Dynamic", "TransformerDynamic"),
)
_INPUTS = (
    _Default("BertCSVDataProcessor", "shuffle", True, "1.6-2.3"),
    _Default("T5DynamicDataProcessor", "extra_ids", 0, "1.6-2.10"),
    _Default("T5HDF5DataProcessor", "use_vsl", True, "2.3-2.10"),
    *(_Default(f"{own}DataProcessor", "shuffle", True, "1.6-2.10") for own in _SHUFFLED),
)
# Keys that keep the default of another one away, beside its other spellings
_INSTEAD = {
    "use_pre_encoder_decoder_layer_norm": ("norm_first",),
    "lm_loss_weight": ("loss_weight",),
    "nonlinearity": ("encoder_nonlinearity",),
    "fp16_type": ("compute_dtype",),
    "rotary_fraction": ("rotary_dim",),
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
    if release is not None and (entry := MODELS.get(str(model.get("name")))):
        unset = _UNSET_OF.get(code, {})
        left = {key for key in entry.presets.keys() & unset.keys() if not _given(model, key)}
        model |= {key: unset[key] for key in left}
    for row in _ROWS:
        if row.code != code or not covers(row.releases, release) or _given(model, row.key):
            continue
        if row.names and model.get("name") not in row.names.split():
            continue
        if row.key == "fp16_type" and model.get("mixed_precision") is not True:
            continue
        value = row.value
        model[row.key] = model.get(value.key, value.default) if isinstance(value, _As) else value
    if code == "encoder" and covers("1.7-2.10", release) and model.get("disable_nsp") is True:
        model.setdefault("num_segments", None)
    if model.get("name") == "esm2" and release is not None and not model.get("disable_nsp", True):
        model.setdefault("head", "pretraining")
    if isinstance(model.get("moe"), dict):
        loss = {"load_balancing_loss_coef": 0.01} if release == (2, 3) else {}
        model["moe"] = {"top_k": 1} | loss | model["moe"]


def changed_defaults(
    section: Mapping[str, Any], code: str, source: Release, target: Release
) -> dict[str, Any]:
    """Say what keys that a section leaves out mean at one release, where another has it otherwise.

    Args:
        section: of a model with its name.
        code: as ``code_of``.
        source: release of the file.
        target: the other release.

    Returns:
        key -> its value at the source.
    """
    then, now = dict(section), dict(section)
    set_defaults(then, code, source)
    set_defaults(now, code, target)
    changed = {key for key in then.keys() | now.keys() if key not in section or key == "moe"}
    values = {key: _effective(then, key) for key in sorted(changed)}
    return {key: value for key, value in values.items() if value != _effective(now, key)}


def _effective(section: Mapping[str, Any], key: str) -> Any:
    """The value of a key, or what a section without it means."""
    from wafer.models.registry import config_class  # imports jax

    name, value = section["name"], section.get(key)
    if key not in section:
        field = config_class(name).model_fields.get(key)
        value = MODELS[name].presets.get(key, None if field is None else field.default)
    if value is None and key.endswith("_dropout_rate"):
        return _effective(section, "dropout_rate")
    if value is None and key == "scale_qk_dot_by_d":
        return section.get("mup_base_hidden_size") is not None
    return value


def set_input_defaults(section: dict[str, Any], release: Release | None) -> None:
    """Set what a section of data leaves out and ours has otherwise; in place."""
    section |= _of_input(section, release)


def changed_input_defaults(
    section: Mapping[str, Any], source: Release, target: Release
) -> dict[str, Any]:
    """Say what keys that a section of data leaves out mean; see ``changed_defaults``.

    Args:
        section: of the data.
        source: release of the file.
        target: the other release.
    """
    then, now = (_of_input(section, release) for release in (source, target))
    # Ours, where a release has no row: false of every key that has one.
    both = {key: then.get(key, False) for key in then.keys() | now.keys()}
    return {key: value for key, value in both.items() if value != now.get(key, False)}


def _of_input(section: Mapping[str, Any], release: Release | None) -> dict[str, Any]:
    """Return the defaults of keys that a section of data leaves out."""
    return {
        row.key: row.value
        for row in _INPUTS
        if row.code == section.get("data_processor")
        and row.key not in section
        and covers(row.releases, release)
    }


def _given(model: dict[str, Any], key: str) -> bool:
    """Whether a section, or a part of one, has a key or what replaces it."""
    from wafer.models.registry import config_class  # imports jax

    name = model.get("name")
    legacy = config_class(name if name in MODELS else "bert").legacy  # towers have no name
    others = [old for old, spelling in legacy.items() if spelling.key == key]
    return not model.keys().isdisjoint((key, *others, *_INSTEAD.get(key, ())))
