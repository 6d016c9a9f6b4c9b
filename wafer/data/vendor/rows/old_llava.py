"""Rows of LLaVA by the rules of the older preprocessing files (releases 2.2 to 2.4).

Prompts and completions are tokenized apart. An image is ``num_patches`` slots of padding: in phase
1 after the first token, in phase 2 after the system prompt and the prefix of the first prompt. A
record without an image has the slots, too, and nothing attends to them.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from wafer.data.preprocess.layouts import Draws, Layout, Row, padded
from wafer.data.preprocess.vocabulary import RowVocabulary
from wafer.data.rowfiles.rules import Attachment, RowGroup
from wafer.data.vendor.image_hooks import OLD_HOOK, SYSTEM_PROMPTS
from wafer.data.vendor.rows.packers import Ready
from wafer.data.vendor.settings import HookSettings

_FEATURES = ("text_input_ids", "loss_mask", "labels", "key_padding_mask")
_PHASES = {"LlavaPhaseOnePreprocessor": 1, "LlavaPhaseTwoPreprocessor": 2}
_ARGUMENTS = (
    "multi_turn_key",
    "multi_turn_content_key",
    "image_key",
    "multi_modal_non_image_ex_key",
    "image_token",
    "system_prompt_style",
    "prompt_prefix",
    "completion_prefix",
    "eos_after_prompt",
)


class OldImageRow(NamedTuple):
    """A row."""

    tokens: np.ndarray  #: [4, n] ids, loss mask, labels, and 1 where nothing attends
    path: str  #: of the image; empty for none


def old_image_keys(keys: dict[str, Any]) -> dict[str, Any]:
    """An older file's keys as those of a file with a read hook; others as they are."""
    phase = _PHASES.get(keys.get("dataset_processor", ""))
    if phase is None:
        return keys
    arguments = {name: keys.pop(name) for name in _ARGUMENTS if name in keys}
    source = keys.pop("input_dir", None)
    del keys["dataset_processor"]
    keys.pop("tokenizer_type", None)
    return {
        "use_ftfy": False,
        **keys,
        "mode": "finetuning",
        "is_multimodal": True,
        "read_hook": OLD_HOOK,
        "read_hook_kwargs": arguments | {"phase": phase},
        "data": {"type": "local", "source": source},
    }


def _before(tokenizer: Tokenizer, arguments: Mapping[str, Any]) -> tuple[list[int], int]:
    """Ids before the image, and how many at their end go with it (a blank of its own)."""
    example = tokenizer.encode("a")
    mask = example.special_tokens_mask
    begin = example.ids[: mask.index(0) if 0 in mask else 0]
    if arguments["phase"] == 1:
        return begin, 0
    system = SYSTEM_PROMPTS.get(arguments.get("system_prompt_style") or "", "")
    texts = (system, arguments.get("prompt_prefix") or "")
    ids = [i for text in texts for i in _plain(tokenizer, text)]
    blank = tokenizer.token_to_id("\u2581")
    return [*begin, *ids, *([blank] if blank else [])], int(bool(blank))


def _plain(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def old_image_row(
    pairs: Sequence[tuple[str, str]],
    path: str,
    tokenizer: Tokenizer,
    settings: HookSettings,
    ids: RowVocabulary,
) -> OldImageRow | None:
    """One row of a conversation; None where it is too long.

    Args:
        pairs: prompts and completions.
        path: of the image; empty for none.
        tokenizer: encodes each text apart.
        settings: with the arguments of ``old_image_keys``.
        ids: the end mark and padding.
    """
    arguments = settings.read_hook_kwargs
    first, seen = arguments["phase"] == 1, int(bool(path))
    before, blanks = _before(tokenizer, arguments)
    between = [ids.eos_id] if arguments.get("eos_after_prompt") else []
    between += _plain(tokenizer, settings.sep_token or "")
    asks, answers = (
        _plain(tokenizer, "" if first else arguments.get(key) or "")
        for key in ("prompt_prefix", "completion_prefix")
    )
    # of each token: id, loss of predicting the next one, whether others attend to it
    columns = [(i, int(first and not seen), 1) for i in before[: len(before) - blanks]]
    columns += [(i, 0, seen) for i in before[len(before) - blanks :]]
    columns += [(ids.pad_id, 0, seen)] * (settings.num_patches - 1)
    columns += [(ids.pad_id, int(first and seen), seen)]
    for number, (prompt, completion) in enumerate(pairs):
        if not first:
            asked = [*(asks if number else ()), *_plain(tokenizer, prompt), *between]
            columns += [(i, 0, 1) for i in asked]
        columns += [(i, int(k == len(answers)), 1) for k, i in enumerate(answers, 1)]
        columns += [(i, 1, 1) for i in _plain(tokenizer, completion)]
        columns += [(ids.eos_id, 0, int(not first))]
    tokens, loss, attended = np.array(columns, np.int32).T
    if len(tokens) - 1 > settings.max_seq_length:
        return None
    return OldImageRow(np.stack([tokens[:-1], loss[:-1], tokens[1:], attended[:-1] == 0]), path)


def _row(settings: HookSettings, ids: RowVocabulary, row: OldImageRow, draws: Draws) -> Row:
    del draws
    data = padded(row.tokens, settings.max_seq_length, (ids.pad_id, 0, ids.pad_id, 1))
    if settings.inverted_mask:
        data[1] = data[1] == 0
    return data, np.array([row.path or "None"])


def old_image_layout(settings: HookSettings, ids: RowVocabulary, tokenizer: Tokenizer) -> Layout:
    """The layout, with the slot where images begin for ``data_params.json``.

    Args:
        settings: with the arguments of ``old_image_keys``; rows have [4, S] features.
        ids: padding.
        tokenizer: encodes what stands before the image.
    """
    start = len(_before(tokenizer, settings.read_hook_kwargs)[0])
    return Layout(
        (RowGroup("data", _FEATURES, settings.max_seq_length),),
        Ready,
        functools.partial(_row, settings, ids),
        attachments=(Attachment("img_path", (1,), "str"),),
        described={"image_patch_info": {"image_patch_start_idx": start}},
    )
