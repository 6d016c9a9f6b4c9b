"""Conversations: from role/content objects to prompts and completions in turns.

Light on purpose: preprocessing's workers import it.
"""

from collections.abc import Mapping
from typing import Any

_PROMPT = ("system", "user", "human")
_COMPLETION = ("assistant", "gpt", "model")


class Turns(str):
    """Name of the field that holds a conversation, and how a turn is read.

    Args:
        name: of the field.
    """

    __slots__ = ("content", "role")
    content: str  #: key of a turn's text (the vendor's ``multi_turn_content_key``)
    role: str  #: key of who speaks

    def __new__(cls, name: str, content: str = "content", role: str = "role") -> "Turns":
        """Make the name; a ``str`` is complete before ``__init__``."""
        field = super().__new__(cls, name)
        field.content, field.role = content, role
        return field


def read_turns(value: Any, field: Turns) -> tuple[tuple[str, ...] | None, str]:
    """Read a conversation as (prompt, completion, prompt, completion, ...).

    Neighbouring turns of one side (a system's and a user's) are joined by a line break; a prompt at
    the end has nothing to learn and is left out.

    Args:
        value: a list of objects with a role and a text, or of texts that begin with a prompt.
        field: says which keys.

    Returns:
        The texts and '', or None and what is wrong.

    >>> read_turns([{"role": "user", "content": "2+2?"}, {"role": "gpt", "content": "4"}],
    ...     Turns("messages"))
    (('2+2?', '4'), '')
    """
    if not isinstance(value, list) or not value:
        return None, f"field '{field}' is {type(value).__name__}, expected a list of turns"
    texts: list[str] = []
    for i, turn in enumerate(value):
        text, side, problem = _turn(turn, i, field)
        if problem:
            return None, f"field '{field}', turn {i + 1}: {problem}"
        if not texts and side == 1:
            return None, f"field '{field}' begins with the assistant's turn; expected a prompt"
        if (len(texts) - 1) % 2 == side and texts:
            texts[-1] += "\n" + text
        else:
            texts.append(text)
    texts = texts[: len(texts) // 2 * 2]
    if not texts:
        return None, f"field '{field}' has no turn of {', '.join(_COMPLETION)}; nothing to learn"
    return tuple(texts), ""


def _turn(turn: Any, index: int, field: Turns) -> tuple[str, int, str]:
    """Text, side (0 prompts, 1 completes) and problem of one turn."""
    if isinstance(turn, str):
        return turn, index % 2, ""
    if not isinstance(turn, Mapping) or not isinstance(turn.get(field.content), str):
        return "", 0, f"expected a text, or an object with the text under {field.content!r}"
    role = turn.get(field.role)
    if role in _PROMPT or role in _COMPLETION:
        return turn[field.content], int(role in _COMPLETION), ""
    known = ", ".join((*_PROMPT, *_COMPLETION))
    return "", 0, f"{field.role!r} is {role!r}; known: {known}"
