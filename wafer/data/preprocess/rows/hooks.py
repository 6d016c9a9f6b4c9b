"""Read hooks: from the columns of a record to an array of turns with regions.

A hook is ``function(example, **read_hook_kwargs)``. Ours are known by name; a user's
``module:function`` is imported from the working directory or the Python path.
"""

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from wafer.data.preprocess.rows.image_hooks import IMAGE_HOOKS, Example, Turn, Turns
from wafer.data.text.turns import read_turns
from wafer.errors import ConfigError, DataError, Problem
from wafer.models.errors import did_you_mean
from wafer.models.user.code import find

Hook = Callable[..., Turns]
_LLAMA = re.compile(
    r"<\|start_header_id\|>(.*?)<\|end_header_id\|>\n\n(.*?)<\|eot_id\|>", re.DOTALL
)


def _turn(role: str, value: object, name: str = "text") -> Turn:
    return {"type": role, "content": [{name: value}]}


def _stripped(value: str | None) -> str | None:
    return value.strip() if value else None


def _text(example: Example, text_key: str) -> Turns:
    return [{"content": [{"text": example[text_key].strip()}]}]


def _plain_text(example: Example, text_key: str) -> Turns:
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


def _role(turn: str | Turn, index: int, key: str) -> str:
    """Who speaks; turns are counted where nothing says it."""
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


def _plain_pair(
    example: Example, prompt_key: str, completion_key: str, contexts_key: str | None = None
) -> Turns:
    """A prompt and a completion, after retrieved contexts, the best first."""
    contexts = [] if contexts_key is None else _contexts(example[contexts_key], contexts_key)
    return [_turn("context", text) for text in contexts] + _pair(
        example, prompt_key, completion_key
    )


def _contexts(value: object, field: str) -> list[str]:
    """Texts of contexts: a list of texts, or of objects with text and perhaps title (DPR's)."""
    if not isinstance(value, list):
        raise DataError(f"field '{field}' is {type(value).__name__}, expected a list of contexts")
    texts = []
    for number, item in enumerate(value, 1):
        text = item.get("text") if isinstance(item, Mapping) else item
        title = item.get("title") if isinstance(item, Mapping) else None
        if not isinstance(text, str) or not isinstance(title, str | None):
            raise DataError(
                f"field '{field}', context {number}: expected a text, or an object with 'text' "
                "and perhaps 'title'"
            )
        texts.append(f"{title}\n{text}" if title else text)
    return texts


def _plain_turns(
    example: Example, turns_key: str, content: str = "content", role: str = "role"
) -> Turns:
    texts = read_turns(example[turns_key], turns_key, content, role)
    return [_turn(("prompt", "completion")[i % 2], text) for i, text in enumerate(texts)]


HOOKS: dict[str, Callable[..., Turns]] = {
    "text": _text,
    "plain_text": _plain_text,
    "prompt_completion": _pair,
    "prompt_completion_chat": _pair_as_chat,
    "plain_prompt_completion": _plain_pair,
    "chat": _chat,
    "plain_chat": _plain_turns,
    "llama3_chat": _llama_chat,
    "preferences": _preferences,
    "token_ids": _ids,
    **IMAGE_HOOKS,
}
"""Our hooks by name."""


def load_hook(name: str, arguments: Mapping[str, object]) -> Hook:
    """Find a hook and bind its arguments.

    Args:
        name: of ``HOOKS``, or ``module:function``.
        arguments: ``read_hook_kwargs``.

    Raises:
        DataError: no such hook.
        ConfigError: arguments that it does not take, or that it lacks.
    """
    is_builtin = ":" not in name
    if is_builtin and name not in HOOKS:
        hint = did_you_mean(name, HOOKS)
        raise DataError(
            f"read_hook: {name} is not known{hint}; known: {', '.join(HOOKS)}. A hook of your own "
            "is module:function, a file of the working directory"
        )
    hook = HOOKS[name] if is_builtin else _imported(name)
    if problems := _problems(hook, arguments, typed=is_builtin):
        raise ConfigError([Problem(("read_hook_kwargs", key), why) for key, why in problems])
    return functools.partial(hook, **arguments)


def _problems(hook: Hook, arguments: Mapping[str, object], *, typed: bool) -> list[tuple[str, str]]:
    """(key, why) of what is wrong with arguments; types count where the hook is ours."""
    parameters = list(inspect.signature(hook, eval_str=typed).parameters.values())[1:]
    variadic = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name: p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    known = f"it takes {', '.join(named) or 'none'}"
    unknown = [key for key in arguments if key not in named and not variadic]
    out = [(key, f"unknown keyword{did_you_mean(key, named)}; {known}") for key in unknown]
    needed = [key for key, p in named.items() if p.default is p.empty and key not in arguments]
    out += [(key, f"missing; the hook needs it, and {known}") for key in needed]
    for key, value in arguments.items():
        arg = named.get(key)
        optional = value is None and (arg is None or arg.default is not arg.empty)
        if key.endswith("_key") and not optional and not (isinstance(value, str) and value):
            out.append((key, f"{value!r}: expected text, the name of a column"))
        elif typed and arg is not None and not optional:
            out += [(key, f"{value!r}: expected {why}") for why in _mismatch(arg.annotation, value)]
    return out


def _mismatch(kind: Any, value: object) -> list[str]:
    """What a type expects of a value, where it is no such."""
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        return [one["msg"].removeprefix("Input should be ") for one in error.errors()[:1]]
    return []


def _imported(name: str) -> Callable[..., Turns]:
    module = name.partition(":")[0]
    try:
        return find(name, HOOKS, "data", [os.getcwd()])
    except ValueError as error:
        missing = isinstance(error.__cause__, ModuleNotFoundError)
        where = f"; run in the folder of {module}.py, or add that folder to PYTHONPATH"
        raise DataError(
            f"read_hook: {name} cannot be imported ({error}){where if missing else ''}"
        ) from error
