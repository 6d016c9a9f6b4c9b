"""Read hooks: from the columns of a record to an array of turns with regions.

A hook is ``function(example, **read_hook_kwargs)``. The vendor's own are known by name; a user's
``module:function`` is imported from the working directory or the Python path.
"""

import functools
import importlib.machinery
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from wafer.data.vendor.image_hooks import IMAGE_HOOKS, IMAGE_HOOKS_2_3
from wafer.errors import ConfigError, DataError, Problem
from wafer.models.errors import did_you_mean
from wafer.models.user.code import find
from wafer.models.user.trust import owner_of

Turns = list[dict[str, Any]]
Example = Mapping[str, Any]
Hook = Callable[..., Turns]
_LLAMA = re.compile(
    r"<\|start_header_id\|>(.*?)<\|end_header_id\|>\n\n(.*?)<\|eot_id\|>", re.DOTALL
)


def _turn(role: str, value: Any, name: str = "text") -> dict[str, Any]:
    return {"type": role, "content": [{name: value}]}


def _stripped(value: Any) -> Any:
    return value.strip() if value else None


def _text(example: Example, text_key: str) -> Turns:
    return [{"content": [{"text": example[text_key].strip()}]}]


def _text_of_2_3(example: Example, text_key: str) -> Turns:
    return [{"content": [{"text": example[text_key]}]}]


def _llama_chat(example: Example, chat_key: str) -> Turns:
    """Turns of a text in Llama 3.1's own form."""
    return [_turn(role.strip(), text.strip()) for role, text in _LLAMA.findall(example[chat_key])]


def _pair(example: Example, prompt_key: str, completion_key: str) -> Turns:
    return [
        _turn("prompt", example.get(prompt_key)),
        _turn("completion", example.get(completion_key)),
    ]


def _pair_as_chat(example: Example, prompt_key: str, completion_key: str) -> Turns:
    return [
        _turn("user", _stripped(example.get(prompt_key))),
        _turn("assistant", _stripped(example.get(completion_key))),
    ]


def _chat(
    example: Example,
    multi_turn_key: str,
    multi_turn_role_key: str = "role",
    multi_turn_content_key: str = "content",
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


def _ids(example: Example, context_key: str, completion_key: str) -> Turns:
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
_IDLE = ("has_system_prompt", "image_token", "system_prompt", "system_prompt_style")
HOMES, _SHORT = ("cerebras.", "modelzoo."), "hooks"
"""Packages of the vendor's hooks, and what its module is called where the user has none so."""


def load_hook(name: str, arguments: Mapping[str, Any], release: tuple[int, int] = (2, 10)) -> Hook:
    """Find a hook and bind its arguments.

    Args:
        name: ``module:function``, or the name of one of the vendor's.
        arguments: ``read_hook_kwargs``.
        release: whose hook it is, where they differ.

    Raises:
        DataError: no such hook.
        ConfigError: arguments that it does not take, or that it lacks.
    """
    module, function = _split(name)
    theirs = is_vendors(name)
    hook = _vendor(name, function, release) if theirs else _imported(name, module, function)
    idle = set(idle_arguments(name, arguments, release))
    keys = {key: value for key, value in arguments.items() if key not in idle}
    if problems := _problems(hook, keys, typed=theirs):
        raise ConfigError([Problem(("read_hook_kwargs", key), why) for key, why in problems])
    return functools.partial(hook, **keys)


def idle_arguments(
    name: str, arguments: Mapping[str, Any], release: tuple[int, int] = (2, 10)
) -> list[str]:
    """Return the arguments that the vendor's files have and its hook of that name does not read.

    Args:
        name: of the hook.
        arguments: ``read_hook_kwargs``.
        release: whose hook it is.
    """
    _, function = _split(name)
    if not is_vendors(name) or function not in HOOKS:
        return []
    taken = inspect.signature(_vendor(name, function, release)).parameters
    return [key for key in arguments if key in _IDLE and key not in taken]


def _problems(hook: Hook, given: Mapping[str, Any], *, typed: bool) -> list[tuple[str, str]]:
    """(key, why) of what is wrong with arguments; types count where they are the vendor's."""
    parameters = list(inspect.signature(hook, eval_str=typed).parameters.values())[1:]
    rest = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name: p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    known = f"it takes {', '.join(named) or 'none'}"
    unknown = [key for key in given if key not in named and not rest]
    out = [(key, f"unknown keyword{did_you_mean(key, named)}; {known}") for key in unknown]
    needed = [key for key, p in named.items() if p.default is p.empty and key not in given]
    out += [(key, f"missing; the hook needs it, and {known}") for key in needed]
    for key, value in given.items():
        own = named.get(key)
        optional = value is None and (own is None or own.default is not own.empty)
        if key.endswith("_key") and not optional and not (isinstance(value, str) and value):
            out.append((key, f"{value!r}: expected text, the name of a column"))
        elif typed and own is not None and not optional:
            out += [(key, f"{value!r}: expected {why}") for why in _mismatch(own.annotation, value)]
    return out


def _mismatch(kind: Any, value: Any) -> list[str]:
    """What a type expects of a value, where it is no such."""
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        return [one["msg"].removeprefix("Input should be ") for one in error.errors()[:1]]
    return []


def _split(name: str) -> tuple[str, str]:
    """Module and function of a hook; three shipped files have a dot between them."""
    module, _, function = name.rpartition(":" if ":" in name else ".")
    return module, function


def is_vendors(name: str) -> bool:
    """Whether a read hook is one of the vendor's, by its name."""
    module, _ = _split(name)
    if module != _SHORT:
        return not module or name.startswith(HOMES)
    spec = importlib.machinery.PathFinder.find_spec(module, [*sys.path, os.getcwd()])
    return spec is None or bool(owner_of(spec))


def _vendor(name: str, function: str, release: tuple[int, int]) -> Callable[..., Turns]:
    if function not in HOOKS:
        hint = did_you_mean(function, HOOKS)
        raise DataError(
            f"read_hook: {name} is not known{hint}; known: {', '.join(HOOKS)}. A hook of your own "
            "is module:function, a file of the working directory"
        )
    return (HOOKS | _HOOKS_2_3 if release < (2, 4) else HOOKS)[function]


def _imported(name: str, module: str, function: str) -> Callable[..., Turns]:
    try:
        return find(f"{module}:{function}", HOOKS, "data", [os.getcwd()])
    except ValueError as error:
        missing = isinstance(error.__cause__, ModuleNotFoundError)
        where = f"; run in the folder of {module}.py, or add that folder to PYTHONPATH"
        raise DataError(
            f"read_hook: {name} cannot be imported ({error}){where if missing else ''}"
        ) from error


def columns(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the columns that a hook reads: the values of keys that end in ``_key``."""
    keys = [key for key in arguments if key.endswith("_key")]
    return tuple(dict.fromkeys(str(arguments[key]) for key in keys if arguments[key]))
