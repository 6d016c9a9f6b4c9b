"""Read hooks: from the columns of a record to an array of turns with regions.

A hook is ``function(example, **read_hook_kwargs)``. The vendor's own are known by name; a user's
``module:function`` is imported from the working directory or the Python path.
"""

import functools
import importlib.machinery
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from models.errors import did_you_mean
from models.user.code import find
from models.user.trust import owner_of
from wafer.data.vendor.image_hooks import IMAGE_HOOKS, IMAGE_HOOKS_2_3
from wafer.errors import DataError

__all__ = ["HOMES", "HOOKS", "Hook", "Turns", "columns", "load_hook"]

Turns = list[dict[str, Any]]
Example = Mapping[str, Any]
Hook = Callable[[Example], Turns]
_LLAMA = re.compile(
    r"<\|start_header_id\|>(.*?)<\|end_header_id\|>\n\n(.*?)<\|eot_id\|>", re.DOTALL
)


def _turn(role: str, value: Any, name: str = "text") -> dict[str, Any]:
    return {"type": role, "content": [{name: value}]}


def _stripped(value: Any) -> Any:
    return value.strip() if value else None


def _text(example: Example, text_key: str, **_: Any) -> Turns:
    return [{"content": [{"text": example[text_key].strip()}]}]


def _text_of_2_3(example: Example, text_key: str, **_: Any) -> Turns:
    return [{"content": [{"text": example[text_key]}]}]


def _llama_chat(example: Example, chat_key: str, **_: Any) -> Turns:
    """Turns of a text in Llama 3.1's own form."""
    return [_turn(role.strip(), text.strip()) for role, text in _LLAMA.findall(example[chat_key])]


def _pair(example: Example, prompt_key: str, completion_key: str, **_: Any) -> Turns:
    return [
        _turn("prompt", example.get(prompt_key)),
        _turn("completion", example.get(completion_key)),
    ]


def _pair_as_chat(example: Example, prompt_key: str, completion_key: str, **_: Any) -> Turns:
    return [
        _turn("user", _stripped(example.get(prompt_key))),
        _turn("assistant", _stripped(example.get(completion_key))),
    ]


def _chat(
    example: Example,
    multi_turn_key: str,
    multi_turn_role_key: str = "role",
    multi_turn_content_key: str = "content",
    **_: Any,
) -> Turns:
    """A system turn, then pairs of a user's and an assistant's; [] for anything else."""
    turns = list(example.get(multi_turn_key) or ())
    out = []
    if turns and _role(turns[0], 0, multi_turn_role_key) == "system":
        first = turns.pop(0).get(multi_turn_content_key)
        out = [_turn("system", first)] if first else []
    roles = [_role(turn, i, multi_turn_role_key) for i, turn in enumerate(turns)]
    pairs = zip(roles[::2], roles[1::2], strict=False)
    if len(turns) % 2 or any(user == assistant for user, assistant in pairs):
        return []
    texts = [turn if isinstance(turn, str) else turn.get(multi_turn_content_key) for turn in turns]
    return out + [_turn(r, _stripped(text)) for r, text in zip(roles, texts, strict=True)]


def _role(turn: Any, index: int, key: str) -> str:
    """Who speaks; release 2.3 counts turns where nothing says it."""
    named = None if isinstance(turn, str) else turn.get(key)
    return named or ("user", "assistant")[index % 2]


def _preferences(
    example: Example,
    chosen_key: str,
    rejected_key: str,
    prompt_key: str | None = None,
    assistant_role: str = "assistant:",
    **_: Any,
) -> Turns:
    chosen: Any = example.get(chosen_key)
    rejected: Any = example.get(rejected_key)
    if isinstance(chosen, list) and isinstance(rejected, list):
        texts = [chosen[0]["content"], chosen[1]["content"], rejected[1]["content"]]
    elif prompt_key:
        texts = [example.get(prompt_key) or "", chosen or "", rejected or ""]
    else:
        end = str(chosen or "").lower().rfind(assistant_role)
        if end < 0:
            return []
        end += len(assistant_role)
        texts = [chosen[:end], chosen[end:], rejected[end:]]
    return [_turn(r, t) for r, t in zip(("prompt", "chosen", "rejected"), texts, strict=True)]


def _ids(example: Example, context_key: str, completion_key: str, **_: Any) -> Turns:
    return [
        _turn("context", example.get(context_key)),
        _turn("completion", example.get(completion_key)),
    ]


HOOKS: dict[str, Callable[..., Turns]] = {
    "text_read_hook": _text,
    "prompt_completion_text_read_hook": _pair,
    "prompt_completion_key": _pair,  # three shipped files; the vendor has no such hook
    "prompt_completion_chat_read_hook": _pair_as_chat,
    "chat_read_hook": _chat,
    "dpo_read_hook": _preferences,
    "nlg_read_hook": _ids,
    "llama3_1_chat_formatted_data_hook": _llama_chat,
    **IMAGE_HOOKS,
}
"""The vendor's hooks by name."""
_HOOKS_2_3: dict[str, Callable[..., Turns]] = {"text_read_hook": _text_of_2_3, **IMAGE_HOOKS_2_3}
HOMES, _SHORT = ("cerebras.", "modelzoo."), "hooks"
"""Packages of the vendor's hooks, and what its module is called where the user has none so."""


def load_hook(name: str, arguments: Mapping[str, Any], release: tuple[int, int] = (2, 10)) -> Hook:
    """Find a hook and bind its arguments.

    Args:
        name: ``module:function``, or the name of one of the vendor's.
        arguments: ``read_hook_kwargs``.
        release: whose hook it is, where they differ.

    Raises:
        DataError: no such hook, arguments that it does not take.
    """
    module, colon, function = name.rpartition(":")
    if not colon:  # three shipped files have a dot there
        module, _, function = name.rpartition(".")
    if not module or name.startswith(HOMES) or (module == _SHORT and not _is_users(module)):
        hook = _vendor(name, function)
        hook = _HOOKS_2_3.get(function, hook) if release < (2, 4) else hook
    else:
        hook = _imported(name, module, function)
    return functools.partial(hook, **arguments)


def _vendor(name: str, function: str) -> Callable[..., Turns]:
    if function not in HOOKS:
        hint = did_you_mean(function, HOOKS)
        raise DataError(
            f"read_hook: {name} is not known{hint}; known: {', '.join(HOOKS)}. A hook of your own "
            "is module:function, a file of the working directory"
        )
    return HOOKS[function]


def _is_users(module: str) -> bool:
    spec = importlib.machinery.PathFinder.find_spec(module, [*sys.path, os.getcwd()])
    return spec is not None and not owner_of(spec)


def _imported(name: str, module: str, function: str) -> Callable[..., Turns]:
    try:
        return find(f"{module}:{function}", HOOKS, "data", [os.getcwd()])
    except ValueError as error:
        raise DataError(
            f"read_hook: {name} cannot be imported ({error}); run in the folder of {module}.py, "
            "or add that folder to PYTHONPATH"
        ) from error


def columns(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the columns that a hook reads: the values of keys that end in ``_key``."""
    keys = [key for key in arguments if key.endswith("_key")]
    return tuple(dict.fromkeys(str(arguments[key]) for key in keys if arguments[key]))
