"""Reads a preprocessing file: the vendor's of any release, with or without a read hook."""

import importlib.machinery
import inspect
import logging
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import get_args

from wafer.data.preprocess.effects import unused_keys
from wafer.data.preprocess.rows.hooks import HOOKS
from wafer.data.preprocess.settings import HIDDEN, Mode, Settings
from wafer.errors import ConfigError, DataError, Problem
from wafer.models.errors import SectionError, did_you_mean
from wafer.models.sections import parse
from wafer.models.user.trust import owner_of
from wafer.models.user.yamlfile import YamlMapping
from wafer.vendor.preprocess.keys import (
    GROUPS,
    NO_EFFECT,
    OLDER_ALONE,
    REFUSED,
    RELEASES,
    SPELLINGS,
    HookKeys,
)
from wafer.vendor.preprocess.older import hooked_form, older_settings
from wafer.vendor.preprocess.source import data_source, inputs_of, subsets_of
from wafer.yamlfile import read_yaml

_LOG = logging.getLogger(__name__)
_WORDS = ("compression",)  # keys whose `none` is a word of their own
_HOOKS = {  # the vendor's name -> ours
    "text_read_hook": "text",
    "prompt_completion_text_read_hook": "prompt_completion",
    "prompt_completion_key": "prompt_completion",  # three shipped files; there is no such hook
    "prompt_completion_chat_read_hook": "prompt_completion_chat",
    "chat_read_hook": "chat",
    "llama3_1_chat_formatted_data_hook": "llama3_chat",
    "dpo_read_hook": "preferences",
    "nlg_read_hook": "token_ids",
    "pretraining_image_captions_hook": "image_caption",
    "finetuning_image_captions_hook": "image_caption_pair",
    "finetuning_llava_hook": "image_chat",
    "finetuning_llava_hook_prompt_completion": "image_pairs",
    "obelics_hook": "interleaved_images",
    "old_llava": "plain_image_pairs",
}
_HOOKS_2_3 = {
    "text_read_hook": "plain_text",
    "finetuning_llava_hook": "counted_image_chat",
    "finetuning_llava_hook_prompt_completion": "counted_image_pairs",
}
_HOMES = ("cerebras.", "modelzoo.")  # packages of the vendor's hooks and tokenizers
_IDLE_ARGUMENTS = ("has_system_prompt", "image_token", "system_prompt", "system_prompt_style")
_TOKENIZERS = {"gpt2tokenizer": "GPT2Tokenizer", "neoxtokenizer": "NeoXTokenizer"}
_LLAMA = "CustomLlama3Tokenizer"


def load_settings(path: str | pathlib.Path | None, flags: Mapping[str, object]) -> Settings:
    """Merge a YAML file and flags; flags win.

    Args:
        path: a preprocessing YAML of any release, or None.
        flags: key -> value as typed; None is "not given".

    Raises:
        ConfigError: unknown keys, wrong values, keys that do not go together.
        DataError: a read hook or a tokenizer that there is not.
    """
    raw = {} if path is None else read_yaml(path)[0]
    provided = {key: value for key, value in flags.items() if value is not None}
    words = {"true": True, "false": False, "null": None, "none": None}
    typed = provided | {
        key: words.get(value.lower(), value)
        for key, value in provided.items()
        if isinstance(value, str) and key not in _WORDS
    }
    try:
        keys, more = hooked_form(_renamed(_flat(raw, path or "")))
        if _is_hooked(keys):
            settings = parse(Settings, _hooked(keys, typed, raw) | more)
        else:
            settings = parse(Settings, older_settings(keys | typed))
    except SectionError as error:
        raise ConfigError(error.problems, str(path or "")) from None
    for line in unused_keys(settings):
        _LOG.info("%s", line)
    return settings


def _is_hooked(keys: Mapping[str, object]) -> bool:
    """Whether keys are of the form with a read hook."""
    known = ("read_hook", "data", "is_multimodal", "use_single_image_token")
    return any(key in keys for key in known) or keys.get("mode") in get_args(Mode)


def _flat(raw: object, path: str | pathlib.Path) -> YamlMapping:
    """Keys without their groups.

    Raises:
        ConfigError: no keys, or one with two values.
    """
    if not isinstance(raw, Mapping):
        raise ConfigError([Problem((), f"expected keys, got {raw!r}")], str(path))
    out: YamlMapping = {}
    for key, value in raw.items():
        inner = ({} if value is None else value) if key in GROUPS else {key: value}
        if not isinstance(inner, Mapping):
            raise ConfigError([Problem((key,), f"expected keys, got {value!r}")], str(path))
        for name, item in inner.items():
            if name in out and name not in ("output_dir", "processes"):
                raise ConfigError([Problem((key, name), "is given twice; keep one")], str(path))
            out.setdefault(name, item)
    return out


def _renamed(keys: YamlMapping) -> YamlMapping:
    """With today's names of keys."""
    for name in [name for name in SPELLINGS if name in keys]:
        key, value = SPELLINGS[name], keys.pop(name)
        if keys.setdefault(key, value) != value:
            message = f"is another spelling of {key!r}, which is {keys[key]!r}; keep one"
            raise SectionError([Problem((name,), message)])
    return keys


def _hooked(keys: YamlMapping, flags: Mapping[str, object], raw: YamlMapping) -> YamlMapping:
    """The settings that the keys of a file with a read hook mean; logs what has no effect.

    Raises:
        SectionError: a key that cannot be taken.
    """
    keys = _with_images(keys)
    if keys.get("is_multimodal") is True and keys.get("mode") == "pretraining":
        keys.setdefault("pack_sequences", False)
    if keys.get("resume_from_checkpoint") is False:  # the vendor's default
        del keys["resume_from_checkpoint"]
    keys |= flags
    if keys.get("token_limit") is False:  # the vendor's default
        del keys["token_limit"]
    if "sep_token" in keys and keys["sep_token"] is None:
        keys["sep_token"] = ""  # none; without the key it is the tokenizer's
    wrong = {key: REFUSED[key] for key in REFUSED if keys.get(key) is not None}
    wrong |= {key: "unknown key" for key in keys if key in OLDER_ALONE or key in HIDDEN}
    if wrong:
        raise SectionError([Problem((key,), why) for key, why in wrong.items()])
    _read_source(keys, flags)
    for key in [key for key in keys if key in NO_EFFECT]:
        _LOG.info("%s: no effect here: %s", key, NO_EFFECT[key])
        del keys[key]
    hook_keys = parse(HookKeys, {k: keys.pop(k) for k in list(keys) if k in HookKeys.model_fields})
    nested = _unnested(keys)
    release = hook_keys.release or ("2.3" if nested else RELEASES[-1])
    major, minor = map(int, release.split("."))
    losses = f" without its losses of text (release: {release} has those, too)"
    told = losses if hook_keys.release is None else ", as the vendor's tool writes them"
    _LOG.info("Rows of release %s%s", release, told)
    if keys.get("training_objective") is None and "fim_rate" in keys and hook_keys.release is None:
        _LOG.info("training_objective: fim, which fim_rate means; it is missing in the file")
        keys["training_objective"] = "fim"
    _name_hook(keys, (major, minor))
    _shorten(keys)
    described = {name: dict(raw.get(name) or {}) for name in GROUPS} | {"release": release}
    rules = {
        "overlap": (major, minor) < (2, 4),
        "lossy": hook_keys.release is not None,
        "lines": (major, minor) >= (2, 6),
        "gaps": (major, minor) >= (2, 7),
        "answer_marks": (major, minor) < (2, 5),
    }
    keys = {"use_ftfy": True} | keys | _tokenizer(hook_keys, keys)
    return keys | {"described": described, "rules": rules}


def _with_images(keys: YamlMapping) -> YamlMapping:
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


def _read_source(keys: YamlMapping, flags: Mapping[str, object]) -> None:
    """Put the files that ``data`` means in its place."""
    data = keys.pop("data", None) if "data" in keys else None
    given = data is not None or "input_dir" in keys or keys.get("metadata_files")
    if not given:
        message = "missing; give setup.data with type local and source, a folder to read"
        raise SectionError([Problem(("data",), message)])
    if data is None or "input_dir" in flags or keys.get("metadata_files"):
        return
    if "input_dir" in keys:
        _LOG.info("input_dir: no effect here: setup.data names the input")
    source = data_source(data)
    keys |= {"input_dir": inputs_of(source), "subsets": subsets_of(source)}


def _unnested(keys: YamlMapping) -> bool:
    """Take the names that release 2.3 nests under ``data_keys`` out of them; whether it does."""
    arguments = keys.get("read_hook_kwargs")
    if not isinstance(arguments, Mapping) or "data_keys" not in arguments:
        return False
    nested = arguments["data_keys"]
    if nested is not None and not isinstance(nested, Mapping):
        message = f"{arguments!r}: data_keys: expected a mapping of keys"
        raise SectionError([Problem(("read_hook_kwargs",), message)])
    rest = {key: value for key, value in arguments.items() if key != "data_keys"}
    keys["read_hook_kwargs"] = rest | dict(nested or {})
    return True


def _name_hook(keys: YamlMapping, release: tuple[int, int]) -> None:
    """Give the hook our name; leave out arguments that it does not read, and say so."""
    name, arguments = keys.get("read_hook"), keys.get("read_hook_kwargs")
    if not isinstance(name, str) or not name:
        return
    keys["read_hook"] = name = hook_name(name, release)
    if ":" in name or not isinstance(arguments, Mapping):
        return
    taken = inspect.signature(HOOKS[name]).parameters
    idle = [key for key in arguments if key in _IDLE_ARGUMENTS and key not in taken]
    for key in idle:
        _LOG.info("read_hook_kwargs.%s: no effect: the hook does not read it", key)
    keys["read_hook_kwargs"] = {k: v for k, v in arguments.items() if k not in idle}


def hook_name(name: str, release: tuple[int, int] = (2, 10)) -> str:
    """Return our name of one of the vendor's hooks, or ``module:function`` of another.

    Args:
        name: in a file; three shipped files have a dot between module and function.
        release: whose hook it is, where they differ.

    Raises:
        DataError: the vendor has no such hook.
    """
    module, _, function = name.rpartition(":" if ":" in name else ".")
    if module and not name.startswith(_HOMES):
        spec = importlib.machinery.PathFinder.find_spec(module, [*sys.path, os.getcwd()])
        if module != "hooks" or not (spec is None or owner_of(spec)):
            return f"{module}:{function}"
    if not module and name in HOOKS:
        return name
    if function not in _HOOKS:
        raise DataError(
            f"read_hook: {name} is not known{did_you_mean(function, _HOOKS)}; known: "
            f"{', '.join(_HOOKS)}. A hook of your own is module:function, a file of the working "
            "directory"
        )
    return (_HOOKS | _HOOKS_2_3 if release < (2, 4) else _HOOKS)[function]


def _shorten(keys: YamlMapping) -> None:
    """Leave out what the vendor's tool does not read of ``truncate_to_msl``."""
    shorten = keys.get("truncate_to_msl")
    if isinstance(shorten, Mapping) and "truncation_mode" in shorten:
        _LOG.info(
            "truncate_to_msl.truncation_mode: no effect: the keys are prompt_truncation_mode, "
            "max_turn_length"
        )
        rest = {key: value for key, value in shorten.items() if key != "truncation_mode"}
        keys["truncate_to_msl"] = rest


def _tokenizer(hook_keys: HookKeys, keys: Mapping[str, object]) -> YamlMapping:
    """The settings of the tokenizer that a file names.

    Raises:
        SectionError: none, or two.
        DataError: a class of the vendor's that is not known.
    """
    custom, files = hook_keys.custom_tokenizer, hook_keys.tokenizer_params
    if (custom is None) == (keys.get("huggingface_tokenizer") is None):
        message = "give exactly one of custom_tokenizer and huggingface_tokenizer"
        raise SectionError([Problem(("huggingface_tokenizer",), message)])
    read = ("encoder_file", "vocab_file", "pretrained_model_name_or_path")
    for name in sorted(files.model_fields_set - {*read}):
        _LOG.info("tokenizer_params.%s: no effect: the keys are %s", name, ", ".join(read))
    if custom is None:
        if "tokenizer_params" in hook_keys.model_fields_set:
            _LOG.info("tokenizer_params: no effect here: it needs custom_tokenizer")
        return {"tokenizer_type": "HuggingFaceTokenizer"}
    if custom in _TOKENIZERS:
        kind = {"tokenizer_type": _TOKENIZERS[custom], "encoder_file": files.encoder_file}
        gpt2 = {"vocab_file": files.vocab_file, "pad_id": None}  # whose padding is its end mark
        return kind | (gpt2 if custom == "gpt2tokenizer" else {})
    if (":" in custom and not custom.startswith(_HOMES)) or custom.rpartition(":")[2] != _LLAMA:
        raise DataError(
            f"custom_tokenizer: {custom} is a class, which cannot be used here; known: "
            f"{', '.join(_TOKENIZERS)}, {_LLAMA}. Save it with save_pretrained and name the folder "
            "under huggingface_tokenizer"
        )
    return {
        "tokenizer_type": "HuggingFaceTokenizer",
        "huggingface_tokenizer": files.pretrained_model_name_or_path,
    }
