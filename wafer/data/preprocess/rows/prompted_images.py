"""Rows of LLaVA whose prompts and completions are encoded apart.

An image is ``num_patches`` slots of padding: in phase
1 after the first token, in phase 2 after the system prompt and the prefix of the first prompt. A
record without an image has the slots, too, and nothing attends to them.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from wafer.data.preprocess.rows.image_hooks import SYSTEM_PROMPTS
from wafer.data.preprocess.rows.layouts import Draws, Row, RowLayout, loss_written, padded
from wafer.data.preprocess.rows.packing import Packer
from wafer.data.preprocess.settings import Settings
from wafer.data.preprocess.vocabulary import RowVocabulary
from wafer.data.rowfiles.rules import Attachment, RowGroup

_FEATURES = ("text_input_ids", "loss_mask", "labels", "key_padding_mask")


class PromptedImage(NamedTuple):
    """A row."""

    tokens: np.ndarray  #: [4, n] ids, loss mask, labels, and 1 where nothing attends
    path: str  #: of the image; empty for none


def _before(
    tokenizer: Tokenizer, settings: Settings, vocabulary: RowVocabulary
) -> tuple[list[int], int]:
    """Ids before the image, and how many at their end go with it (a blank of its own)."""
    example = tokenizer.encode("a")
    mask = example.special_tokens_mask
    begin = example.ids[: mask.index(0) if 0 in mask else 0]
    if settings.read_hook_kwargs["phase"] == 1:
        return begin, 0
    style = settings.read_hook_kwargs.get("system_prompt_style") or ""
    ids = [*_plain(tokenizer, SYSTEM_PROMPTS.get(style, "")), *vocabulary.before_prompt]
    blank = tokenizer.token_to_id("\u2581")
    return [*begin, *ids, *([blank] if blank else [])], int(bool(blank))


def _plain(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def prompted_image_row(
    pairs: Sequence[tuple[str, str]],
    path: str,
    tokenizer: Tokenizer,
    settings: Settings,
    ids: RowVocabulary,
) -> PromptedImage | None:
    """One row of a conversation; None where it is too long.

    Args:
        pairs: prompts and completions.
        path: of the image; empty for none.
        tokenizer: encodes each text apart.
        settings: with the hook's arguments.
        ids: the end mark, padding, and what stands around prompts.
    """
    first, has_image = settings.read_hook_kwargs["phase"] == 1, int(bool(path))
    before, blanks = _before(tokenizer, settings, ids)
    asks, answers = ((), ()) if first else (ids.before_prompt, ids.before_answer)
    # of each token: id, loss of predicting the next one, whether others attend to it
    columns = [(i, int(first and not has_image), 1) for i in before[: len(before) - blanks]]
    columns += [(i, 0, has_image) for i in before[len(before) - blanks :]]
    columns += [(ids.pad_id, 0, has_image)] * (settings.num_patches - 1)
    columns += [(ids.pad_id, int(first and has_image), has_image)]
    for number, (prompt, completion) in enumerate(pairs):
        if not first:
            asked = (*(asks if number else ()), *_plain(tokenizer, prompt), *ids.after_prompt)
            columns += [(i, 0, 1) for i in asked]
        columns += [(i, int(k == len(answers)), 1) for k, i in enumerate(answers, 1)]
        columns += [(i, 1, 1) for i in _plain(tokenizer, completion)]
        columns += [(ids.eos_id, 0, int(not first))]
    tokens, loss, attended = np.array(columns, np.int32).T
    if len(tokens) - 1 > settings.max_seq_length:
        return None
    return PromptedImage(np.stack([tokens[:-1], loss[:-1], tokens[1:], attended[:-1] == 0]), path)


def _row(settings: Settings, ids: RowVocabulary, row: PromptedImage, draws: Draws) -> Row:
    del draws
    data = padded(row.tokens, settings.max_seq_length, (ids.pad_id, 0, ids.pad_id, 1))
    loss_written(settings, data)
    return data, np.array([row.path or "None"])


def prompted_image_layout(
    settings: Settings, ids: RowVocabulary, tokenizer: Tokenizer
) -> RowLayout:
    """The layout, with the slot where images begin for ``data_params.json``.

    Args:
        settings: with the hook's arguments; rows have [4, S] features.
        ids: padding.
        tokenizer: encodes what stands before the image.
    """
    start = len(_before(tokenizer, settings, ids)[0])
    return RowLayout(
        (RowGroup("data", _FEATURES, settings.max_seq_length),),
        Packer,
        functools.partial(_row, settings, ids),
        attachments=(Attachment("img_path", (1,), "str"),),
        described={"image_patch_info": {"image_patch_start_idx": start}},
    )
