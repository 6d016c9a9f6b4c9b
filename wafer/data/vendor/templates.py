"""Preprocessing files to begin with, one for each kind of rows, in the vendor's newer form."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from wafer.errors import DataError
from wafer.models.errors import did_you_mean

_HOOKS = "cerebras.modelzoo.data_preparation.data_preprocessing.hooks:"


class Template(NamedTuple):
    """What a preprocessing file is about."""

    help: str  #: one line
    mode: str  #: of ``setup``
    hook: str  #: the vendor's, by name
    keys: Mapping[str, Any]  #: its arguments
    dataset: Mapping[str, Any] = {}  #: dataset, setup: further keys of these sections
    setup: Mapping[str, Any] = {}


_TEXT = ("pretraining", "text_read_hook", {"text_key": "text"})
_PAIRS = ("finetuning", "prompt_completion_text_read_hook")
_PAIR_KEYS = {"prompt_key": "prompt", "completion_key": "completion"}
_CHAT = {
    "multi_turn_key": "messages",
    "multi_turn_role_key": "role",
    "multi_turn_content_key": "content",
}
_FIM = {
    "training_objective": "fim",
    "fim_rate": 0.5,
    "spm_rate": 0.5,
    "fim_prefix_tok": "<|fim_prefix|>",
    "fim_middle_tok": "<|fim_middle|>",
    "fim_suffix_tok": "<|fim_suffix|>",
}
_PREFERENCES = {"prompt_key": "prompt", "chosen_key": "chosen", "rejected_key": "rejected"}
_LLAVA = {
    "multi_turn_key": "conversations",
    "multi_turn_content_key": "value",
    "image_key": "image",
    "image_token": "<image>",
    "phase": 2,
}

TEMPLATES: dict[str, Template] = {
    "pretraining": Template("texts, end to end", *_TEXT),
    "pretraining_vsl": Template("texts side by side (VSL)", *_TEXT, dataset={"use_vsl": True}),
    "mlm": Template("texts with hidden tokens", *_TEXT, dataset={"training_objective": "mlm"}),
    "fim": Template("texts with their middles at the end", *_TEXT, dataset=_FIM),
    "finetuning": Template("prompts and completions", *_PAIRS, _PAIR_KEYS),
    "finetuning_vsl": Template(
        "prompts and completions side by side (VSL)", *_PAIRS, _PAIR_KEYS, dataset={"use_vsl": True}
    ),
    "chat": Template(
        "conversations, by the tokenizer's template", "finetuning", "chat_read_hook", _CHAT
    ),
    "dpo": Template(
        "answers, one better than the other",
        "dpo",
        "dpo_read_hook",
        _PREFERENCES,
        dataset={"max_prompt_length": 512},
    ),
    "nlg": Template(
        "token ids of a context and a completion",
        "nlg",
        "nlg_read_hook",
        {"context_key": "context", "completion_key": "completion"},
    ),
    "llava": Template(
        "conversations about an image",
        "finetuning",
        "finetuning_llava_hook",
        _LLAVA,
        dataset={"is_multimodal": True, "num_patches": 576, "max_num_img": 1},
        setup={"image_dir": "images"},
    ),
}
"""Name -> what the file is about."""


def preprocessing_file(name: str) -> str:
    """Write the YAML of a template; its paths are ``texts``, ``tokenizer`` and ``rows``.

    Args:
        name: of ``TEMPLATES``.

    Raises:
        DataError: no such template.
    """
    if name not in TEMPLATES:
        hint = did_you_mean(name, TEMPLATES)
        raise DataError(f"{name}: no such template{hint}; known: {', '.join(TEMPLATES)}")
    one = TEMPLATES[name]
    sections = {
        "setup": {
            "data": {"type": "local", "source": "texts"},
            "mode": one.mode,
            "output_dir": "rows",
            **one.setup,
        },
        "processing": {
            "huggingface_tokenizer": "tokenizer",
            "max_seq_length": 2048,
            "read_hook": _HOOKS + one.hook,
            "read_hook_kwargs": dict(one.keys),
        },
        "dataset": dict(one.dataset),
    }
    head = f"# {one.help}; `wafer data preprocess -p FILE`, see docs/guides/vendor-data.md\n"
    kept = {key: copy.deepcopy(value) for key, value in sections.items() if value}
    return head + yaml.safe_dump(kept, sort_keys=False)
