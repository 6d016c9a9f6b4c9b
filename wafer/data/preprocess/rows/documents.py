"""What a worker process does with records: a hook reads turns, which become sequences.

A sequence is [n] ids, [2, n] ids and loss weights, or [3, n] ids, loss mask and labels. A list of
sequences shares a row.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from wafer.data.preprocess.encode import Encoded, current
from wafer.data.preprocess.records import InputRecord
from wafer.data.preprocess.rows.answers import (
    finetuning_sequences,
    fitting_rows,
    pair_rows,
    read_apart,
    read_conversation,
    read_ids,
    read_preferences,
    read_prompted_image,
)
from wafer.data.preprocess.rows.batch import EncodingBatch, problem_of, utf8_size
from wafer.data.preprocess.rows.hooks import Turns, load_hook
from wafer.data.preprocess.rows.packing import merge_backward, next_fit
from wafer.data.preprocess.rows.texts import (
    ended_sentences,
    ended_texts,
    pretraining_sequences,
    read_text_turns,
)
from wafer.data.preprocess.settings import Settings

_LOG = logging.getLogger(__name__)
_Read = Callable[[EncodingBatch, Turns], Any]
_Rows = Callable[[EncodingBatch, Sequence[Any]], list[Any]]


def encode_records(records: Sequence[InputRecord]) -> Encoded:
    """Turn a batch of records into sequences, in their order."""
    batch = EncodingBatch(*current())
    settings = batch.settings
    hook = load_hook(settings.read_hook, settings.read_hook_kwargs)
    read, rows = _makers(settings)
    examples = []
    for example, where in _examples(records, settings):
        reading = functools.partial(_read, read, batch, hook, example)
        examples.append(batch.attempt(reading, example, where))
    sequences = rows(batch, [one for one in examples if one is not None])
    if settings.vsl and not settings.rules.plain:
        backward = settings.mode == "finetuning" or settings.rules.overlap
        batch.count(sequences=len(sequences))
        sequences = (merge_backward if backward else next_fit)(sequences, settings.max_seq_length)
    if batch.left_out:
        _LOG.warning("%s record(s) left out, the first: %s", len(batch.left_out), batch.left_out[0])
    return Encoded(sequences, batch.counts)


def _read(read: _Read, batch: EncodingBatch, hook: Callable[..., Turns], example: Any) -> Any:
    return read(batch, hook(example))


def training_texts(records: Sequence[InputRecord], settings: Settings) -> Iterator[str]:
    """Texts that a vocabulary is trained on; bad records are left out, as their rows will be.

    Raises:
        DataError: a bad record, unless skipped.
    """
    hook = load_hook(settings.read_hook, settings.read_hook_kwargs)
    for example, location in _examples(records, settings):
        try:
            turns = hook(example)
        except Exception as error:  # a hook is the user's program: it raises anything
            problem_of(error, settings, example, location)
            continue
        parts = (part for turn in turns for part in turn["content"])
        yield from (part["text"] for part in parts if isinstance(part.get("text"), str))


def _examples(
    records: Sequence[InputRecord], settings: Settings
) -> Iterator[tuple[dict[str, Any], str]]:
    """Columns by name, and where they were read."""
    names = settings.columns.names
    for record in records:
        for values in _cut(record.values, settings):
            yield dict(zip(names, values, strict=True)), record.where


def _cut(record: tuple[Any, ...], settings: Settings) -> Iterator[tuple[Any, ...]]:
    """A record; lossy rules have one text longer than a chunk in pieces, by paragraphs."""
    size, text = settings.read_chunk_size * 1024, record[0]
    whole = len(record) > 1 or not isinstance(text, str) or utf8_size(text) <= size
    if whole or not settings.rules.lossy:
        yield record
        return
    while len(text.encode()) > size:
        paragraph = text.rfind("\n\n", 0, size)
        sentence = max(text.rfind(mark, 0, size) for mark in ".!?")
        end = paragraph + 2 if paragraph >= 0 else sentence + 1 or min(size, len(text))
        yield (text[:end],)
        text = text[end:]
    if text:
        yield (text,)


def _makers(settings: Settings) -> tuple[_Read, _Rows]:
    """How a mode reads turns (None leaves a record out), and makes rows of what was read."""
    plain = settings.rules.plain
    if plain and settings.mode == "finetuning":
        images = settings.is_multimodal
        return (read_prompted_image, fitting_rows) if images else (read_apart, pair_rows)
    if plain:
        nsp = settings.training_objective == "nsp"
        return read_text_turns, ended_sentences if nsp else ended_texts
    as_they_are = lambda batch, made: list(made)
    makers: dict[str, tuple[_Read, _Rows]] = {
        "pretraining": (read_text_turns, pretraining_sequences),
        "finetuning": (read_conversation, finetuning_sequences),
        "dpo": (read_preferences, as_they_are),
        "nlg": (read_ids, as_they_are),
    }
    return makers[settings.mode]
