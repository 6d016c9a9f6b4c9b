"""Rows of a prompt with a chosen and a rejected answer, for DPO."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from wafer.data.preprocess.settings import Settings
from wafer.data.preprocess.vocabulary import RowVocabulary

Render = Callable[[Sequence[Mapping[str, str]]], str]


def preference_rows(
    texts: Mapping[str, str],
    render: Render,
    encode: Callable[[str], list[int]],
    settings: Settings,
    ids: RowVocabulary,
    *,
    begin: int | None = None,
) -> np.ndarray | None:
    """[6, S] rows; None where the template has left out the answer.

    Args:
        texts: prompt, chosen and rejected.
        render: a conversation to text.
        encode: text to ids.
        settings: ``max_seq_length``, ``max_prompt_length``, ``response_delimiter``.
        ids: ``pad_id`` and ``eos_id``.
        begin: first id of a prompt where ``rules.answer_marks``, by which each answer also ends
            with ``eos_id``.
    """
    mark = settings.response_delimiter
    answers = [mark + texts[side] for side in ("chosen", "rejected")]
    whole = [
        render(
            [
                {"role": "user", "content": texts.get("prompt", "")},
                {"role": "assistant", "content": answer},
            ]
        )
        for answer in answers
    ]
    end = whole[0].rfind(mark)
    if end < 0:
        return None
    prompt = encode(whole[0][:end])
    pairs = [_parts(prompt, encode(text[:end] + text[end + len(mark) :])) for text in whole]
    if settings.rules.answer_marks:
        pairs = [
            (ask if begin is None or ask[:1] == [begin] else [begin, *ask], [*answer, ids.eos_id])
            for ask, answer in pairs
        ]
    longest = max(len(answer) for _, answer in pairs)
    rows = [
        _rows(*_shortened(*part, longest, settings), settings.max_seq_length, ids.pad_id)
        for part in pairs
    ]
    return np.concatenate(rows)


def _parts(prompt: list[int], whole: list[int]) -> tuple[list[int], list[int]]:
    """Prompt and answer; a last prompt token that merged with the answer belongs to the answer."""
    count = len(prompt) - int(prompt != whole[: len(prompt)])
    return whole[:count], whole[count:]


def _shortened(
    prompt: list[int], answer: list[int], longest: int, settings: Settings
) -> tuple[list[int], list[int]]:
    """The last tokens of a prompt that is too long, then the first ones of the answer."""
    length = settings.max_seq_length
    if len(prompt) + longest > length:
        prompt = prompt[-settings.max_prompt_length :]
    if len(prompt) + longest > length:
        older = settings.rules.answer_marks
        room = length - (settings.max_prompt_length if older else len(prompt))
        answer = answer[: max(room, 0)]
    return prompt, answer


def _rows(prompt: list[int], answer: list[int], length: int, pad_id: int) -> np.ndarray:
    """[3, S] ids, loss mask (one longer than the labels) and labels."""
    tokens = np.array([*prompt, *answer], np.int32)[:length]
    silent = max(len(prompt) - 1, 0)
    out = np.full((3, length), pad_id, np.int32)
    out[1] = 0
    out[0, : len(tokens)] = tokens
    out[1, silent : len(tokens)] = 1
    out[2, silent : len(tokens) - 1] = tokens[1 + silent :]
    return out
