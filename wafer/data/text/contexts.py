"""Retrieved contexts: from what a retriever wrote beside a question to texts before the prompt.

Light on purpose: preprocessing's workers import it.
"""

from collections.abc import Mapping
from typing import Any


class Contexts(str):
    """Name of the field that holds the contexts of a prompt."""

    __slots__ = ()


def read_contexts(value: Any, field: Contexts) -> tuple[tuple[str, ...] | None, str]:
    r"""Read contexts in the retriever's order, the best first.

    Args:
        value: a list of texts, or of objects with ``text`` and perhaps ``title`` (DPR's files).
        field: for the error.

    Returns:
        The texts and '', or None and what is wrong.

    >>> read_contexts(["a", {"title": "B", "text": "b"}], Contexts("ctxs"))
    (('a', 'B\nb'), '')
    """
    if not isinstance(value, list):
        return None, f"field '{field}' is {type(value).__name__}, expected a list of contexts"
    texts: list[str] = []
    for number, item in enumerate(value, 1):
        text = item.get("text") if isinstance(item, Mapping) else item
        title = item.get("title") if isinstance(item, Mapping) else None
        if not isinstance(text, str) or not isinstance(title, str | None):
            return None, (
                f"field '{field}', context {number}: expected a text, or an object with 'text' "
                "and perhaps 'title'"
            )
        texts.append(f"{title}\n{text}" if title else text)
    return tuple(texts), ""
