"""Reads a preprocessing file: our keys, the vendor's until 2.4, or those from 2.3 on."""

import logging
import pathlib
from collections.abc import Mapping
from typing import Any

from wafer.data.preprocess.settings import Settings
from wafer.data.vendor.effects import unused_keys
from wafer.data.vendor.keys import GROUPS, NO_EFFECT, REFUSED
from wafer.data.vendor.rows.old_llava import old_image_keys
from wafer.data.vendor.settings import VENDOR_MODES, AnySettings, HookSettings
from wafer.data.vendor.source import data_source, inputs_of, subsets_of
from wafer.errors import ConfigError, Problem
from wafer.models.errors import SectionError, did_you_mean
from wafer.models.sections import parse
from wafer.yamlfile import read_yaml

_LOG = logging.getLogger(__name__)
# What an NLGPreprocessor of the older form says in the newer one.
_NLG = {
    "mode": "nlg",
    "read_hook": "nlg_read_hook",
    "read_hook_kwargs": {"context_key": "context", "completion_key": "completion"},
}
_TOKENIZERS = {"GPT2Tokenizer": "gpt2tokenizer", "NeoXTokenizer": "neoxtokenizer"}
_WORDS = ("compression",)  # keys whose `none` is a word of their own
# The vendor's `dataset_processor` of 1.9 to 2.4 says the same as our `mode`.
_PROCESSORS = {
    "LMDataPreprocessor": "LMData",
    "VSLLMDataPreprocessor": "LMData_VSL",
    "SummarizationPreprocessor": "Summarization",
    "CurationCorpusPreprocessor": "Summarization",
    "VSLSummarizationPreprocessor": "Summarization_VSL",
    "FIMDataPreprocessor": "FIM",
}


def load_settings(path: str | pathlib.Path | None, flags: Mapping[str, Any]) -> AnySettings:
    """Merge a YAML file and flags; flags win.

    Args:
        path: a preprocessing YAML of any release, or None.
        flags: key -> value as typed; None is "not given".

    Returns:
        ``HookSettings`` for files with a read hook, else ``Settings``.

    Raises:
        ConfigError: unknown keys, wrong values, keys that do not go together.
    """
    raw = {} if path is None else read_yaml(path)[0]
    given = {key: value for key, value in flags.items() if value is not None}
    words = {"true": True, "false": False, "null": None, "none": None}
    typed = given | {
        key: words.get(value.lower(), value)
        for key, value in given.items()
        if isinstance(value, str) and key not in _WORDS
    }
    try:
        merged = _modern(_flat(raw, path or ""))
        if is_hooked(merged):
            given = {name: value for name, value in raw.items() if name in GROUPS}
            settings = parse(HookSettings, _hooked(merged, typed) | {"given": given})
        else:
            settings = parse(Settings, _processor(merged) | typed)
    except SectionError as error:
        raise ConfigError(error.problems, str(path or "")) from None
    for line in unused_keys(settings):
        _LOG.info("%s", line)
    return settings


def parse_settings(written: Mapping[str, Any]) -> AnySettings:
    """Settings of either kind, as a run has kept them.

    Raises:
        SectionError: what they hold does not go together.
    """
    return parse(HookSettings if is_hooked(written) else Settings, written)


def is_hooked(keys: Mapping[str, Any]) -> bool:
    """Whether keys are of the form from 2.3 on."""
    known = ("read_hook", "data", "is_multimodal", "use_single_image_token")
    return any(key in keys for key in known) or keys.get("mode") in VENDOR_MODES


def _flat(raw: Any, path: str | pathlib.Path) -> dict[str, Any]:
    """Keys without their groups.

    Raises:
        ConfigError: no keys, or one with two values.
    """
    if not isinstance(raw, Mapping):
        raise ConfigError([Problem((), f"expected keys, got {raw!r}")], str(path))
    out: dict[str, Any] = {}
    for key, value in raw.items():
        inner = ({} if value is None else value) if key in GROUPS else {key: value}
        if not isinstance(inner, Mapping):
            raise ConfigError([Problem((key,), f"expected keys, got {value!r}")], str(path))
        for name, item in inner.items():
            if name in out and name not in ("output_dir", "processes"):
                raise ConfigError([Problem((key, name), "is given twice; keep one")], str(path))
            out.setdefault(name, item)
    return out


def _modern(keys: dict[str, Any]) -> dict[str, Any]:
    """An older file of token ids or of images as one with a read hook; others as they are."""
    if keys.get("dataset_processor") != "NLGPreprocessor":
        return old_image_keys(keys)
    files = {key: keys.pop(key) for key in ("encoder_file", "vocab_file") if key in keys}
    kind = _TOKENIZERS.get(keys.pop("tokenizer_type", None))
    named = {"custom_tokenizer": kind, "tokenizer_params": files} if kind else {}
    return keys | _NLG | named | {"data": {"type": "local", "source": keys.pop("input_dir", None)}}


def _processor(keys: dict[str, Any]) -> dict[str, Any]:
    """With the mode that an old file's ``dataset_processor`` means."""
    processor = keys.pop("dataset_processor", None)
    if processor is not None and "mode" not in keys:
        if processor not in _PROCESSORS:
            hint = did_you_mean(processor, _PROCESSORS)
            message = f"{processor!r} is not known{hint}; known: {', '.join(_PROCESSORS)}"
            raise SectionError([Problem(("setup", "dataset_processor"), message)])
        keys["mode"] = _PROCESSORS[processor]
    return keys


def _hooked(keys: dict[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of ``HookSettings``; logs what has no effect.

    Raises:
        SectionError: a key that cannot be taken.
    """
    keys = _with_images(keys)
    if keys.get("is_multimodal") is True and keys.get("mode") == "pretraining":
        keys.setdefault("pack_sequences", False)
    wrong = [
        Problem((key,), why) for key, why in REFUSED.items() if keys.pop(key, None) is not None
    ]
    if wrong:
        raise SectionError(wrong)
    if keys.get("resume_from_checkpoint") is False:  # the vendor's default
        del keys["resume_from_checkpoint"]
    keys |= flags
    if keys.get("token_limit") is False:  # the vendor's default
        del keys["token_limit"]
    if "input_dir" in flags:
        keys.pop("data", None)
    elif "data" in keys and not keys.get("metadata_files"):
        if "input_dir" in keys:
            _LOG.info("input_dir: no effect here: setup.data names the input")
        source = data_source(keys["data"])
        keys |= {"input_dir": inputs_of(source), "subsets": subsets_of(source)}
    keys.pop("data", None)
    for key in [key for key in keys if key in NO_EFFECT]:
        _LOG.info("%s: no effect here: %s", key, NO_EFFECT[key])
        del keys[key]
    arguments = keys.get("read_hook_kwargs")
    keys["nested_keys"] = isinstance(arguments, Mapping) and "data_keys" in arguments
    return _meant(keys)


def _with_images(keys: dict[str, Any]) -> dict[str, Any]:
    """Keys of a file of 2.3 with ``multimodal``, which names its columns apart; others as given."""
    if "multimodal" not in keys:
        return keys
    keys = {"is_multimodal": keys["multimodal"]} | keys
    del keys["multimodal"]
    arguments = keys.get("read_hook_kwargs")
    if keys["is_multimodal"] is True and (arguments is None or isinstance(arguments, Mapping)):
        nested = {"data_keys": keys.pop("data_keys", {})}
        keys["read_hook_kwargs"] = nested | dict(arguments or {})
    return keys


def _meant(keys: dict[str, Any]) -> dict[str, Any]:
    """What files mean that the vendor's tool takes otherwise, or for nothing."""
    objective = keys.get("training_objective")
    if objective is None and "fim_rate" in keys and not keys.get("release"):
        _LOG.info("training_objective: fim, which fim_rate means; it is missing in the file")
        keys["training_objective"] = "fim"
    return keys
