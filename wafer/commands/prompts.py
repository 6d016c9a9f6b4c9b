"""Prompts of ``wafer generate`` as token ids, by the rule of the model's own tokenizer."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from wafer.data.text.tokenizer import tokenizing
from wafer.errors import DataError
from wafer.models.convert.tokenizer import TextMarks


def require_text(name: str, texts: Sequence[str], *, empty: bool = True) -> None:
    """Refuse what is no text, or text that UTF-8 cannot hold.

    Args:
        name: of the option.
        texts: as given; a shell's bytes that are not UTF-8 come as lone surrogates.
        empty: whether '' is one.

    Raises:
        ValueError: names the option.
    """
    for text in texts:
        if not isinstance(text, str) or not (text or empty):
            raise ValueError(f"{name}: expected text, got {text!r:.60}")
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError(f"{name}: {text!r:.60} is not UTF-8; expected text in UTF-8")


def encode_prompts(
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    marks: TextMarks,
    *,
    add_bos: bool | None = None,
    whole: bool = False,
) -> list[list[int]]:
    """Return the ids of each prompt.

    Args:
        tokenizer: ``tokenizers.Tokenizer``.
        prompts: texts; an empty one becomes the token that begins texts, or one that ends them.
        marks: ids with which texts begin and end.
        add_bos: put the token that begins texts first (once) or not; None is the tokenizer's rule:
            what its post-processor adds, and ``add_bos_token`` of its settings.
        whole: keep an end mark that the tokenizer adds: an encoder reads whole texts.

    Raises:
        DataError: no id is known that an empty prompt or ``add_bos`` needs, or the tokenizer
            cannot encode a prompt.
        ValueError: a prompt that is not text.
    """

    def ids_of(text: str, *, add_special_tokens: bool = True) -> list[int]:
        with tokenizing(f"prompt {text!r:.60}: the tokenizer cannot encode it"):
            return tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    require_text("prompt", prompts)
    # What the tokenizer itself puts before an empty text.
    put = (i for i in ids_of("") if i not in marks.ends or i == marks.begin)
    first = next(put, marks.begin)
    if add_bos and first is None:
        raise DataError(
            "add_bos: no token is known that begins texts; expected bos_token_id in "
            "generation_config.json or config.json beside the weights"
        )
    put_first = bool(marks.adds_begin) if add_bos is None else add_bos
    rows = []
    for prompt in prompts:
        own = ids_of(prompt, add_special_tokens=False)
        ids = own if add_bos is not None else ids_of(prompt)
        if put_first and first is not None and ids[:1] != [first]:
            ids = [first, *ids]
        if ids[:2] == [first, first]:  # one in the text, one of the rule
            ids = ids[1:]
        if not whole and len(ids) > 1 and ids[-1] in marks.ends and own[-1:] != ids[-1:]:
            ids = ids[:-1]
        rows.append(ids or _begin_of_nothing(first, marks))
    return rows


def _begin_of_nothing(first: int | None, marks: TextMarks) -> list[int]:
    begin = next(iter(marks.ends), None) if first is None else first
    if begin is None:
        raise DataError(
            "prompt: '' has no tokens, and no token is known that begins texts; give some text"
        )
    return [begin]
