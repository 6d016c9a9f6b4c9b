"""Rows of texts and images: which slots an image takes, and where documents with images are cut."""

import functools
import itertools
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wafer.data.preprocess.rows.layouts import Draws, Row, RowLayout, loss_written, padded
from wafer.data.preprocess.rows.packing import Packer, State, ended
from wafer.data.preprocess.rows.regions import Document, Range, TextRegion
from wafer.data.preprocess.settings import Settings
from wafer.data.preprocess.vocabulary import RowVocabulary
from wafer.data.rowfiles.rules import Attachment, RowGroup
from wafer.errors import DataError

_FEATURES = ("text_input_ids", "loss_mask", "labels", "key_padding_mask", "token_modality_idx")
_OVERLAP_FEATURES = ("input_ids", "attention_mask", *_FEATURES[2:])
_NUMBER = 3  # row of ``tokens`` with the number of an image


class ImageSequence(NamedTuple):
    """Tokens with the images among them."""

    #: [4, n] ids, loss weights, attention, and the number of a slot's image (0 for text)
    tokens: np.ndarray
    paths: tuple[str, ...] = ()  #: of the images, the first of which has number 1


class _Expanded(NamedTuple):
    """Tokens after each image mark was replaced by the slots of its image."""

    ids: np.ndarray  #: [n]
    offsets: list[Range]  #: characters of each token
    numbers: np.ndarray  #: [n] number of a slot's image, 0 for text


def has_images(images: Sequence[TextRegion], settings: Settings) -> bool:
    """Whether a document has at most ``max_num_img`` images and each is a file."""
    folder = settings.image_dir or ""
    found = (os.path.isfile(os.path.join(folder, image.path)) for image in images)
    return len(images) <= settings.max_num_img and all(found)


def expand_images(
    ids: Sequence[int],
    offsets: Sequence[Range],
    images: Sequence[TextRegion],
    settings: Settings,
    vocabulary: RowVocabulary,
) -> _Expanded:
    """Replace each image mark by ``num_patches`` slots.

    Args:
        ids: [n] of the text with its marks.
        offsets: characters of each token.
        images: of the document.
        settings: slots of an image.
        vocabulary: ids of the mark and of padding.

    Raises:
        DataError: the text holds image marks of its own.
    """
    mark = -1 if vocabulary.image_id is None else vocabulary.image_id
    count = settings.image_slots
    slot = mark if settings.use_single_image_token else vocabulary.pad_id
    tokens = np.array(ids, np.int32)
    marked = tokens == mark
    if marked.sum() != len(images):
        raise DataError(
            f"{int(marked.sum())} image marks {settings.image_token!r} in the text of a record "
            f"with {len(images)} images; the mark must not stand in a text"
        )
    widths = np.where(marked, count, 1)
    numbers = np.repeat(np.where(marked, np.cumsum(marked), 0), widths)
    spread = np.repeat(np.where(marked, slot, tokens), widths)
    repeated = [o for o, w in zip(offsets, widths.tolist(), strict=True) for _ in range(w)]
    return _Expanded(spread.astype(np.int32), repeated, numbers.astype(np.int32))


def image_sequence(
    document: Document, expanded: _Expanded, ranges: Sequence[Range]
) -> ImageSequence:
    """Weights and attention of the regions' tokens, then those of the images.

    Args:
        document: its regions and images.
        expanded: its tokens.
        ranges: tokens of each region.
    """
    count = len(expanded.ids)
    weights, attention = np.zeros(count), np.ones(count)
    for region, (first, end) in zip(document.regions, ranges, strict=True):
        weights[first:end], attention[first:end] = region.weight, region.attention
    for number, image in enumerate(document.images, 1):
        slots = expanded.numbers == number
        weights[slots], attention[slots] = image.weight, image.attention
    tokens = np.stack([expanded.ids, weights, attention, expanded.numbers]).astype(np.int32)
    return ImageSequence(tokens, tuple(image.path for image in document.images))


def image_text(document: Document, expanded: _Expanded, ranges: Sequence[Range]) -> ImageSequence:
    """As ``image_sequence``, for pretraining: without special tokens at the end.

    Those at the beginning count to the first region.

    Args:
        document: its regions and images.
        expanded: its [n] tokens.
        ranges: tokens of each region.
    """
    sequence = image_sequence(document, expanded, ranges)
    places = np.array(expanded.offsets)
    real = np.flatnonzero(places[:, 1] > places[:, 0])
    tokens = sequence.tokens[:, : real[-1] + 1]
    tokens[1:_NUMBER, : real[0]] = tokens[1:_NUMBER, real[0], None]
    return sequence._replace(tokens=tokens)


def _part(sequence: ImageSequence, first: int, end: int) -> ImageSequence:
    """Tokens from ``first`` to ``end`` with their images, numbered from 1."""
    tokens = sequence.tokens[:, first:end].copy()
    numbers = tokens[_NUMBER]
    present = np.unique(numbers[numbers > 0])
    tokens[_NUMBER] = np.where(numbers > 0, np.searchsorted(present, numbers) + 1, 0)
    return ImageSequence(tokens, tuple(sequence.paths[i - 1] for i in present.tolist()))


def _ended(sequence: ImageSequence, width: int, eos_id: int) -> ImageSequence:
    return sequence._replace(tokens=ended(sequence.tokens, width, eos_id))


_NOTHING = ImageSequence(np.empty((4, 0), np.int32))


class ImagePacker(Packer):
    """Documents cut every S + 1 tokens; no image is cut, and none stands in two rows.

    Args:
        settings: of the run.
        eos_id: end of a document.
    """

    def __init__(self, settings: Settings, eos_id: int) -> None:
        self._length, self._eos = settings.max_seq_length, eos_id
        self._shortest = max(settings.min_sequence_len, 2)
        self._pack, self._lossy = settings.pack_sequences, settings.rules.lossy
        self._most = settings.max_num_img
        self._held = _NOTHING

    def add(self, sequence: ImageSequence) -> list[ImageSequence]:
        """Pieces of at most S + 1 tokens."""
        if not self._lossy:
            sequence = _ended(sequence, sequence.tokens.shape[1] + 1, self._eos)
        held, tokens = self._held, sequence.tokens.copy()
        tokens[_NUMBER] += len(held.paths) * (tokens[_NUMBER] > 0)
        tokens = np.concatenate([held.tokens, tokens], axis=1)
        stream = ImageSequence(tokens, (*held.paths, *sequence.paths))
        *pieces, remainder = [_part(stream, *span) for span in self._spans(stream.tokens[_NUMBER])]
        if not self._pack or remainder.tokens.shape[1] > self._length:
            pieces, remainder = [*pieces, remainder], _NOTHING
        self._held = remainder
        if self._lossy and pieces:
            pieces[-1] = _ended(pieces[-1], self._length + 1, self._eos)
        return self._kept(pieces) if pieces else []

    def _spans(self, numbers: np.ndarray) -> list[Range]:
        """First and end of each piece; the last may have room left.

        Args:
            numbers: [n] see ``ImageSequence``; an image has fewer than S slots.
        """
        borders = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        spans: list[Range] = []
        start, images = 0, 0
        for first, end in itertools.pairwise(borders):
            if numbers[first]:
                if end - start >= self._length or images == self._most:
                    spans.append((start, first))
                    start, images = first, 0
                images += 1
            while end - start > self._length + 1:
                spans.append((start, start + self._length + 1))
                start, images = start + self._length + 1, 0
        return [span for span in (*spans, (start, len(numbers))) if span[1] > span[0]]

    def _kept(self, pieces: Sequence[ImageSequence]) -> list[ImageSequence]:
        sizes = (piece.tokens.shape[1] for piece in pieces)
        return self.long_enough(pieces, sizes, self._shortest)

    def finish(self) -> list[ImageSequence]:
        """The rest, if it is long enough."""
        remainder, self._held = self._held, _NOTHING
        if not remainder.tokens.shape[1]:
            return []
        return self._kept([_ended(remainder, self._length + 1, self._eos)])

    def state(self) -> State:
        """See ``Packer``."""
        return {"tokens": self._held.tokens, "paths": np.array(self._held.paths, np.str_)}

    def restore(self, state: State) -> None:
        """See ``Packer``."""
        self._held = ImageSequence(state["tokens"], tuple(state["paths"].tolist()))


def _image_row(
    settings: Settings, ids: RowVocabulary, sequence: ImageSequence, draws: Draws
) -> Row:
    """Data [5, S], paths, whether there is an image, and the slots of each image."""
    del draws
    length, tokens = settings.max_seq_length, sequence.tokens
    inputs = tokens[:, :-1]
    rows = np.stack([inputs[0], tokens[1, 1:], tokens[0, 1:], inputs[2] == 0, inputs[0]])
    data = padded(rows, length, (ids.pad_id, 0, ids.pad_id, 1, 0))
    data[4] = padded(tokens[_NUMBER, None, :length] > 0, length, (0,))  # also of the last label
    loss_written(settings, data)
    slots = np.full((settings.max_num_img, settings.image_slots), length, np.int32)
    for number in range(1, len(sequence.paths) + 1):
        slots[number - 1] = np.flatnonzero(tokens[_NUMBER] == number)
    missing = settings.max_num_img - len(sequence.paths)
    paths = np.array([*sequence.paths, *["None"] * missing])
    return data, paths, np.array([bool(sequence.paths)]), slots


def image_layout(settings: Settings, ids: RowVocabulary) -> RowLayout:
    """The layout of rows with images."""
    most = settings.max_num_img
    named = _OVERLAP_FEATURES if settings.rules.overlap else _FEATURES
    cuts = functools.partial(ImagePacker, settings, ids.eos_id)
    return RowLayout(
        (RowGroup("data", named, settings.max_seq_length),),
        cuts if settings.mode == "pretraining" else Packer,
        functools.partial(_image_row, settings, ids),
        attachments=(
            Attachment("img_path", (most,), "str"),
            Attachment("has_img", (1,), "bool"),
            Attachment("img_data_loc", (most, settings.image_slots), "i4"),
        ),
    )
