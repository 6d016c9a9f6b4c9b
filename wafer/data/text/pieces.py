"""Encode pieces of a text so that their tokens, joined, are the tokens of one text.

Tokenizers of SentencePiece's kind put a space before whatever they encode, and leave it out when
they decode: of three pieces encoded alone two would begin with a space that the text does not have.
"""

import json
from typing import Any

from tokenizers import Tokenizer

_BEGIN_ALONE = {"Prepend", "Strip"}  # change the ends of whatever they are given


def for_pieces(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer without what it adds or strips at the ends of a text."""
    content = json.loads(tokenizer.to_str())
    for part in ("normalizer", "pre_tokenizer"):
        content[part] = _inside(content[part])
    return Tokenizer.from_str(json.dumps(content))


def _inside(step: Any) -> Any:
    """Rewrite a step of the tokenizer's JSON; None where nothing is left of it."""
    if not isinstance(step, dict):
        return step
    if step["type"] in _BEGIN_ALONE:
        return None
    step = dict(step)
    for key in ("normalizers", "pretokenizers"):
        if key in step:
            step[key] = [new for old in step[key] if (new := _inside(old)) is not None]
    if "prepend_scheme" in step:
        step["prepend_scheme"] = "never"
    if "add_prefix_space" in step:
        step["add_prefix_space"] = False
    return step


def decode_inside(tokenizer: Tokenizer, ids: list[int], mark: int) -> str:
    """Decode tokens from inside a text: a space at their beginning is kept.

    Args:
        tokenizer: whose decoder may drop the first space of a text.
        ids: what to decode.
        mark: id of a special token.
    """
    before = tokenizer.decode([mark], skip_special_tokens=False)
    return tokenizer.decode([mark, *ids], skip_special_tokens=False).removeprefix(before)
