"""The vendor's model names: which family builds each, and what the name presets."""

import importlib
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

from models.adapters import with_adapters
from models.base import Model
from models.errors import SectionError, did_you_mean
from models.lora import lora_of
from models.sections import parse

__all__ = [
    "MODELS",
    "Entry",
    "build",
    "knobs",
    "list_models",
    "lookup",
    "parse_config",
    "settings_of",
]


class Entry(NamedTuple):
    """One name.

    family: 'decoder', 'encoder', 'seq2seq', 'dpr', 'vision', 'llava' or 'mlp'
    presets: keys the name sets unless the user does
    hf: model_type in a Hugging Face config.json, '' where none exists
    """

    family: str
    presets: Mapping[str, Any]
    hf: str = ""


# family -> (module, config class, build function)
_FAMILIES = {
    "decoder": ("models.decoder", "models.decoder_config", "DecoderConfig", "build_decoder"),
    "encoder": ("models.encoder", "models.encoder_config", "EncoderConfig", "build_encoder"),
    "seq2seq": ("models.seq2seq", "models.seq2seq_config", "Seq2SeqConfig", "build_seq2seq"),
    "vision": ("models.vision", "models.vision", "VisionConfig", "build_vision"),
    "llava": ("models.llava", "models.llava", "LlavaConfig", "build_llava"),
    "dpr": ("models.dpr", "models.dpr", "DprConfig", "build_dpr"),
    "mlp": ("models.fc_mnist", "models.fc_mnist", "FcMnistConfig", "build_fc_mnist"),
}

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
_ALIBI = {"position_embedding_type": "alibi"}
_BLOOM = _ALIBI | {"embedding_layer_norm": True, "nonlinearity": "gelu_new"}
_BTLM = _ALIBI | {"nonlinearity": "swiglu", "alibi_slopes_in_checkpoint": True}
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
}

MODELS: dict[str, Entry] = {
    "gpt2": Entry("decoder", _GPT2, "gpt2"),
    "gpt3": Entry("decoder", _GPT2, "gpt2"),
    "cerebras-gpt": Entry("decoder", _GPT2, "gpt2"),
    "gptj": Entry("decoder", _GPTJ, "gptj"),
    "gpt-neox": Entry("decoder", _PARALLEL | {"use_untied_layer_norm": True}, "gpt_neox"),
    "pythia": Entry("decoder", _PARALLEL | {"use_untied_layer_norm": True}, "gpt_neox"),
    "codegen": Entry("decoder", _GPTJ, "codegen"),
    "bloom": Entry("decoder", _BLOOM, "bloom"),
    "btlm": Entry("decoder", _BTLM, "btlm"),
    "jais": Entry("decoder", _BTLM, "jais"),
    "falcon": Entry("decoder", _FALCON, "falcon"),
    "falcon-7b": Entry("decoder", _FALCON, "falcon"),
    "falcon-40b": Entry("decoder", _FALCON | {"use_untied_layer_norm": True}, "falcon"),
    "falcon-11b": Entry("decoder", _FALCON | {"share_embedding_weights": False}, "falcon"),
    "falcon-rw": Entry("decoder", _FALCON_RW, "falcon"),
    "falcon-180b": Entry("decoder", _FALCON | {"use_untied_layer_norm": True}, "falcon"),
    "mpt": Entry(
        "decoder",
        _ALIBI | _NO_BIAS | {"norm_type": "biasless-layernorm"},
        "mpt",
    ),
    "llama": Entry("decoder", _LLAMA, "llama"),
    "llamaV2": Entry("decoder", _LLAMA, "llama"),
    "llama3": Entry("decoder", _LLAMA | {"rope_theta": 500000.0}, "llama"),
    "code-llama": Entry("decoder", _LLAMA | {"rope_theta": 1e6}, "llama"),
    "wizardlm": Entry("decoder", _LLAMA, "llama"),
    "mistral": Entry("decoder", _LLAMA | {"layer_norm_epsilon": 1e-5}, "mistral"),
    "mixtral": Entry(
        "decoder", _LLAMA | {"layer_norm_epsilon": 1e-5, "rope_theta": 1e6}, "mixtral"
    ),
    "santacoder": Entry("decoder", _MQA | {"nonlinearity": "gelu_new"}, "gpt_bigcode"),
    "starcoder": Entry("decoder", _MQA | {"nonlinearity": "gelu_new"}, "gpt_bigcode"),
    "octocoder": Entry("decoder", _MQA | {"nonlinearity": "gelu_new"}, "gpt_bigcode"),
    "wizardcoder": Entry("decoder", _MQA | {"nonlinearity": "gelu_new"}, "gpt_bigcode"),
    "bert": Entry("encoder", {}, "bert"),
    "bert-sequence-classifier": Entry("encoder", {"head": "classification"}, "bert"),
    "bert-token-classifier": Entry("encoder", {"head": "token_classification"}, "bert"),
    "bert-q&a": Entry("encoder", {"head": "qa"}, "bert"),
    "bert-summarization": Entry("encoder", {"head": "summarization"}),
    "roberta": Entry("encoder", _ROBERTA, "roberta"),
    "dpr": Entry("dpr", {}, "dpr"),
    "dpr-question-encoder": Entry("encoder", {"head": "embedding"}, "dpr"),
    "dpr-context-encoder": Entry("encoder", {"head": "embedding"}, "dpr"),
    "dpr-reader": Entry("encoder", {"head": "reader"}, "dpr"),
    "t5": Entry("seq2seq", _T5, "t5"),
    "t5-v1.1": Entry("seq2seq", _T5_11, "t5"),
    "flan-t5": Entry("seq2seq", _T5_11, "t5"),
    "ul2": Entry("seq2seq", _UL2, "t5"),
    "flan-ul2": Entry("seq2seq", _UL2, "t5"),
    "transformer": Entry("seq2seq", _TRANSFORMER, "marian"),
    "clip-vit": Entry("vision", {}, "clip_vision_model"),
    "llava": Entry("llava", {}, "llava"),
    "fc_mnist": Entry("mlp", {}),
    "sqlcoder": Entry("decoder", _MQA | {"nonlinearity": "gelu_new"}, "gpt_bigcode"),
}


def lookup(name: str) -> Entry:
    """Find a name: one of ``MODELS``, or ``module:name`` of a module that registers it.

    Raises:
        ValueError: unknown name, with the nearest known one; a module that cannot be imported.
    """
    module, _, own = name.rpartition(":")
    if module and own not in MODELS:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(
                f"model.name: {name!r}: {error}; is its folder on PYTHONPATH?"
            ) from error
    if own not in MODELS:
        raise ValueError(
            f"model.name: {name!r} is unknown{did_you_mean(own, MODELS)}; known: {sorted(MODELS)}"
        )
    return MODELS[own]


def parse_config(settings: Mapping[str, Any]) -> Any:
    """Validate a ``model`` section against the class its name selects.

    Args:
        settings: the section; ``name`` is required.

    Returns:
        The frozen configuration, presets of the name filled in.

    Raises:
        SectionError: with every wrong key.
    """
    name = settings.get("name")
    if name is None:
        raise ValueError(f"model.name: required key is missing; one of {sorted(MODELS)}")
    entry = lookup(str(name))
    _, module, cls, _ = _FAMILIES[entry.family]
    config = getattr(importlib.import_module(module), cls)
    try:
        return parse(config, {**entry.presets, **settings})
    except SectionError as err:
        raise err.under("model") from None


def build(settings: Any) -> Model:
    """Build a model from a ``model`` section or from an already parsed configuration.

    Raises:
        ValueError: unknown name or key, or an impossible combination, with the reason.

    Examples:
        >>> sizes = {"hidden_size": 8, "num_heads": 2, "filter_size": 16, "vocab_size": 11}
        >>> model = build({"name": "gpt2", "num_hidden_layers": 2, **sizes})
        >>> [stage.name for stage in model.stages]
        ['embed', 'layers_0', 'layers_1', 'head']
    """
    cfg = parse_config(settings) if isinstance(settings, Mapping) else settings
    module, _, _, function = _FAMILIES[lookup(cfg.name).family]
    model: Model = getattr(importlib.import_module(module), function)(cfg)
    lora = lora_of(cfg)
    return model if lora is None else with_adapters(model, lora)


def settings_of(cfg: Any) -> dict[str, Any]:
    """Return a ``model`` section that parses to the configuration, without the needless keys."""
    presets = lookup(cfg.name).presets
    values = cfg.model_dump(mode="json")
    defaults = {k: f.get_default(call_default_factory=True) for k, f in _fields(cfg).items()}
    return {
        key: value
        for key, value in values.items()
        if key in presets or key == "name" or getattr(cfg, key) != defaults[key]
    }


def _fields(cfg: Any) -> dict[str, Any]:
    return type(cfg).model_fields


def knobs(name: str) -> list[tuple[str, str, Any]]:
    """List every key of a name's ``model`` section: (key, what it takes, what the name sets).

    Raises:
        ValueError: unknown name, with the nearest known one.
    """
    entry = lookup(name)
    _, module, cls, _ = _FAMILIES[entry.family]
    fields = getattr(importlib.import_module(module), cls).model_fields
    out = []
    for key, field in fields.items():
        default = (
            "required" if field.is_required() else field.get_default(call_default_factory=True)
        )
        out.append((key, _takes(field.annotation), entry.presets.get(key, default)))
    return out


def _takes(annotation: Any) -> str:
    """Say what a key takes, in the words of a YAML file."""
    if annotation in (None, type(None)):
        return "null"
    args = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return " | ".join(map(str, args))
    if typing.get_origin(annotation) is tuple:
        return "list"
    if args:
        return " | ".join(dict.fromkeys(_takes(arg) for arg in args))
    words = {bool: "true | false", int: "integer", float: "number", str: "text"}
    return words.get(annotation, "section")


def list_models() -> dict[str, Entry]:
    """Return every known name with its family, presets and Hugging Face model type."""
    return dict(MODELS)
