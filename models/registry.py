"""From a ``model`` section to its configuration and its model, by the family of its name."""

import contextlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from wafer.models.base import Model
from wafer.models.errors import Problem, SectionError
from wafer.models.factored.adapters import with_adapters
from wafer.models.factored.factors import factors_of, with_factors
from wafer.models.factored.lora import lora_of
from wafer.models.names import MODELS, ModelPreset, lookup, preset_of
from wafer.models.schema import ModelConfig
from wafer.models.sections import parse
from wafer.models.user.code import import_code
from wafer.models.user.trust import is_user_defined

# family -> its configuration and its build function, in models/families
_FAMILIES = {
    "decoder": ("decoder_config:DecoderConfig", "decoder:build_decoder"),
    "encoder": ("encoder_config:EncoderConfig", "encoder:build_encoder"),
    "seq2seq": ("seq2seq_config:Seq2SeqConfig", "seq2seq:build_seq2seq"),
    "vision": ("vision:VisionConfig", "vision:build_vision"),
    "llava": ("llava:LlavaConfig", "llava:build_llava"),
    "dpr": ("dpr:DprConfig", "dpr:build_dpr"),
    "mlp": ("fc_mnist:FcMnistConfig", "fc_mnist:build_fc_mnist"),
}


def _of_family(family: str) -> tuple[type[ModelConfig], Callable[[Any], Model]]:
    """Load a family's configuration class and its build function, and no other family's."""
    config, build = (pkgutil.resolve_name(f"wafer.models.families.{x}") for x in _FAMILIES[family])
    return config, build


def parse_config(settings: Mapping[str, Any]) -> Any:
    """Validate a ``model`` section against the class its name selects.

    Returns:
        The frozen configuration, presets of the name filled in.

    Raises:
        SectionError: with every wrong key.
    """
    name = settings.get("name")
    if name is None:
        message = f"required key is missing; one of {sorted(MODELS)}"
        raise SectionError([Problem(("model", "name"), message)])
    if is_function(name):
        return pkgutil.resolve_name("wafer.models.user.model:parse_own")(settings)
    entry = lookup(str(name))
    config, _ = _of_family(entry.family)
    try:
        return parse(config, {**entry.presets, **settings})
    except SectionError as err:
        raise err.under("model") from None


def is_function(name: object) -> bool:
    """Whether a name is a function of the user, not of a model family that a module registers."""
    if not is_user_defined(name, "model"):
        return False
    if ":" in name:  # importing it may register the name
        with contextlib.suppress(ValueError):  # `find` says what is wrong with it
            import_code(name, "model")
    return preset_of(name) is None


def build(settings: Mapping[str, Any] | ModelConfig) -> Model:
    """Build a model from a ``model`` section or from an already parsed configuration.

    Raises:
        ValueError: unknown name or key, or an impossible combination, with the reason.

    Examples:
        >>> sizes = {"hidden_size": 8, "num_heads": 2, "filter_size": 16, "vocab_size": 11}
        >>> model = build({"name": "gpt2", "num_hidden_layers": 2, **sizes})
        >>> [stage.name for stage in model.stages]
        ['embed', 'layers_0', 'layers_1', 'head']
    """
    if isinstance(settings, str):
        message = f"expected a mapping of keys, such as {{'name': {settings!r}}}, got {settings!r}"
        raise ValueError(message)
    cfg = parse_config(settings) if isinstance(settings, Mapping) else settings
    if is_function(cfg.name):
        return pkgutil.resolve_name("wafer.models.user.model:build_own")(cfg)
    _, build_family = _of_family(lookup(cfg.name).family)
    model = build_family(cfg)
    lora, factors = lora_of(cfg), factors_of(cfg)
    if lora and factors:
        raise ValueError("factors: a model with factors takes no lora_params; fold them first")
    if factors:
        return with_factors(model, factors)
    return model if lora is None else with_adapters(model, lora)


def settings_of(
    cfg: ModelConfig, read: Callable[[dict[str, Any]], ModelConfig] = parse_config
) -> dict[str, Any]:
    """Return a ``model`` section that reads back as the configuration, without the needless keys.

    Args:
        cfg: any configuration.
        read: how the section is read. A key that it would give another value is written, too.
    """
    if is_function(cfg.name):
        return {"name": cfg.name} | pkgutil.resolve_name("wafer.models.user.model:arguments_of")(
            cfg
        )
    presets = lookup(cfg.name).presets
    values = cfg.model_dump(mode="json")
    defaults = {
        k: f.get_default(call_default_factory=True) for k, f in type(cfg).model_fields.items()
    }
    section = {
        key: value
        for key, value in values.items()
        if key in presets or key == "name" or getattr(cfg, key) != defaults[key]
    }
    again = read(section)
    return section | {k: v for k, v in values.items() if getattr(again, k) != getattr(cfg, k)}


def config_class(name: str) -> type[ModelConfig]:
    """Return the class of a name's ``model`` section."""
    return _of_family(lookup(name).family)[0]


def model_keys(name: str) -> list[str]:
    """Return the keys of a name's ``model`` section that hold sections of models, as of towers."""
    preset = preset_of(name)
    fields = _of_family(preset.family)[0].model_fields if preset else {}
    kinds = {key: field.annotation for key, field in fields.items()}
    return [
        k for k, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, ModelConfig)
    ]


def list_models() -> dict[str, ModelPreset]:
    """Return every known name with its family, presets and Hugging Face model type."""
    return dict(MODELS)
