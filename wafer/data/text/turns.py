"""Conversations: from role/content objects to prompts and completions in turns.

Light on purpose: preprocessing's workers import it.
"""

from collections.abc import Mapping

from wafer.errors import DataError

_PROMPTS, _ANSWERS = ("system", "user", "human"), ("assistant", "gpt", "model")


def read_turns(
    value: object, field: str, content: str = "content", role: str = "role"
) -> list[str]:
    """Read a conversation as [prompt, completion, prompt, completion, ...].

    Neighbouring turns of one side (a system's and a user's) are joined by a line break; a prompt at
    the end has nothing to learn and is left out.

    Args:
        value: a list of objects with a role and a text, or of texts that begin with a prompt.
        field: its name, for errors.
        content: key of a turn's text.
        role: key of who speaks.

    Raises:
        DataError: anything else.

    >>> read_turns([{"role": "user", "content": "2+2?"}, {"role": "gpt", "content": "4"}], "turns")
    ['2+2?', '4']
    """
    if not isinstance(value, list) or not value:
        raise DataError(f"field '{field}' is {type(value).__name__}, expected a list of turns")
    texts: list[str] = []
    for i, turn in enumerate(value):
        text, side = _turn(turn, i, content, role, f"field '{field}', turn {i + 1}")
        if not texts and side == 1:
            raise DataError(f"field '{field}' begins with the assistant's turn; expected a prompt")
        if texts and (len(texts) - 1) % 2 == side:
            texts[-1] += "\n" + text
        else:
            texts.append(text)
    if len(texts) < 2:
        raise DataError(f"field '{field}' has no turn of {', '.join(_ANSWERS)}; nothing to learn")
    return texts[: len(texts) // 2 * 2]


def _turn(turn: object, index: int, content: str, role: str, source: str) -> tuple[str, int]:
    """Text and side (0 prompts, 1 completes) of one turn."""
    if isinstance(turn, str):
        return turn, index % 2
    if not isinstance(turn, Mapping) or not isinstance(turn.get(content), str):
        raise DataError(f"{source}: expected a text, or an object with the text under {content!r}")
    if (name := turn.get(role)) not in (*_PROMPTS, *_ANSWERS):
        known = ", ".join((*_PROMPTS, *_ANSWERS))
        raise DataError(f"{source}: {role!r} is {name!r}; known: {known}")
    return turn[content], int(name in _ANSWERS)
