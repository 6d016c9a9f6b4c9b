"""Rows as text for people: what each token is for, packed documents apart (``wafer data show``)."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from wafer.data.rowfiles.described import DAMAGE, describe, open_rows
from wafer.data.rowfiles.files import find_files, folder_params
from wafer.data.rowfiles.rules import ATTACHED, IGNORED, checked_row
from wafer.data.text.tokenizer import tokenizing
from wafer.errors import DataError
from wafer.models.errors import plain

Row = Mapping[str, np.ndarray]
_IDS = "input_ids"
_LOSS, _CONTEXT, _PADDING, _IMAGE = "loss", "no loss", "padding", "image"
_TEXT = (_LOSS, _CONTEXT)
_GATHERED = (  # positions, labels, weights of hidden tokens
    ("gather_positions", "gather_labels", "gather_weights"),
    ("masked_lm_positions", "labels", "masked_lm_mask"),
)
_WINDOW = 128  # tokens of a corpus that are one row here
_WHOLE = ("dynamic_mlm", "nsp", "t5")  # objectives whose rows tell where their texts end


class ShownRow(NamedTuple):
    """A row and what helps to read it."""

    where: str  #: 'path: row N'
    values: dict[str, Any]  #: feature -> array; paths of images
    problem: str = ""  #: why it cannot be trained on, or ''
    eos_id: int | None = None  #: ends a document inside a row; None where rows tell themselves
    inverted: bool = False  #: its loss mask is 1 where no loss counts
    in_place: bool = False  #: its labels are those of their own positions


class Passage(NamedTuple):
    """Tokens of one text of a row, in their order."""

    name: str  #: of the text, such as 'chosen' or 'document 2'
    ids: np.ndarray  #: [n] tokens; where loss counts, those to predict
    kinds: list[str]  #: of each: 'loss', 'no loss', 'padding', 'image'


def read_rows_of(path: pathlib.Path, first: int, count: int) -> Iterator[ShownRow]:
    """Read rows of a file, or of a folder's files one after another.

    Args:
        path: an HDF5 file or a folder.
        first: number of the first row, from 0.
        count: rows at most.

    Raises:
        DataError: no such file, or it holds no rows.
    """
    files = find_files([path]) if path.is_dir() else [path]
    params = folder_params(files[0].parent)
    after, settings = params.get("post-process", {}), params.get("settings") or {}
    streams = params.get("mode") == "pretraining" and not settings.get("use_vsl")
    streams = streams and settings.get("training_objective") not in _WHOLE
    keys: dict[str, Any] = {"inverted": bool(settings.get("inverted_mask"))}
    keys["eos_id"] = after.get("eos_id") if streams else None
    for file in files:
        described = describe(file, params)
        keys["in_place"] = any(group.name == "labels" for group in described.groups)
        window = settings.get("max_seq_length") or _WINDOW
        size = -(-described.size // window) if described.corpus else described.size
        with open_rows(file) as opened:
            corpus: Any = opened.get("data")
            for number in range(first, min(first + count, size)):
                if described.corpus:
                    part = corpus[number * window : (number + 1) * window]
                    values, problem = {_IDS: part}, ""
                else:
                    values, problem = _sample_row(opened, described.groups, number)
                yield ShownRow(f"{file}: row {number}", values, problem, **keys)
                count -= 1
        first = max(first - size, 0)
        if count < 1:
            return


def _sample_row(file: Any, groups: Any, number: int) -> tuple[dict[str, np.ndarray], str]:
    try:
        stored = [file[group.name][number] for group in groups]
        values: dict[str, Any] = {}
        for group, array in zip(groups, stored, strict=True):
            values.update(zip(group.features, array, strict=True))
        values |= {name: file[name][number] for name in ATTACHED if name in file}
    except DAMAGE as error:
        return {}, f"cannot be read ({error})"
    try:
        checked_row(groups, stored, None)
    except DataError as error:
        return values, str(error)
    return values, ""


def passages(row: ShownRow) -> tuple[list[Passage], list[str]]:
    """Find the texts of a row.

    Args:
        row: any features; texts are those whose names end with ``input_ids``.

    Returns:
        The texts, packed documents apart, and the names of the features that they do not show.
    """
    values = {name: np.asarray(value) for name, value in row.values.items()}
    out: list[Passage] = []
    shown: set[str] = set()
    for name in [n for n in values if n.endswith(_IDS) and values[n].dtype.kind in "iu"]:
        side = name.removesuffix(_IDS)
        names = _names(values, side)
        shown |= {name, *names.values()}
        several = values[name].ndim > 1
        for k, ids in enumerate(np.atleast_2d(values[name])):
            own = {key: np.atleast_2d(values[n])[k] for key, n in names.items()}
            title = f"{side.strip('_')} {k + 1}".strip() if several else side.strip("_")
            out += _texts(title, ids, own, row)
    return out, [name for name in values if name not in shown]


def _names(values: Row, side: str) -> dict[str, str]:
    """What a text's features are called: labels, mask, span, place, gathered ones."""
    plain_side = side in ("", "text_", "decoder_")
    lone = plain_side and not (side == "" and f"decoder_{_IDS}" in values)
    options: dict[str, tuple[str, ...]] = {"labels": (f"{side}labels", "labels" if lone else "")}
    options["mask"] = (f"{side}loss_mask", "loss_mask" if lone else "", f"{side}attention_mask")
    if lone:
        options |= {"span": ("attention_span",), "place": ("position_ids",)}
        options |= {"ignored": ("key_padding_mask",), "image": ("token_modality_idx",)}
        options["attends"] = ("attention_mask",) if "loss_mask" in values else ()
        for positions, labels, weights in _GATHERED:
            if positions in values and labels in values:
                options |= {"positions": (positions,), "hidden": (labels,), "weights": (weights,)}
                options["labels"] = ()
    present = {key: next((n for n in names if n in values), "") for key, names in options.items()}
    size = values[side + _IDS].shape
    return {
        key: name
        for key, name in present.items()
        if name and (key in ("positions", "hidden", "weights") or values[name].shape == size)
    }


def _texts(title: str, ids: np.ndarray, arrays: Row, row: ShownRow) -> list[Passage]:
    if "labels" in arrays and _is_shifted(ids, arrays, row):
        return _next_tokens(title, ids, arrays, row)
    ids, count = ids.copy(), len(ids)
    loss = np.zeros(count, bool)
    if "positions" in arrays:
        positions = arrays["positions"][arrays.get("weights", np.ones(len(arrays["hidden"]))) != 0]
        hidden = arrays["hidden"][: len(positions)]
        ids[positions], loss[positions] = hidden, True
    elif "labels" in arrays:  # of the tokens themselves: hidden ones, or classes
        loss = arrays["labels"] != IGNORED
        loss &= arrays["mask"] != 0 if "attends" in arrays else True
        ids = np.where(loss & ("attends" not in arrays), arrays["labels"], ids)
    attends = arrays.get("attends", arrays.get("mask"))
    used = np.ones(count, bool) if attends is None else attends != 0
    kinds = [
        _LOSS if lost else _CONTEXT if u else _PADDING for lost, u in zip(loss, used, strict=True)
    ]
    spans = _spans(arrays, count)
    return _apart(title, [(ids[a:b], kinds[a:b]) for a, b in spans], packed="span" in arrays)


def _is_shifted(ids: np.ndarray, arrays: Row, row: ShownRow) -> bool:
    """Whether labels are the next tokens, not classes or hidden tokens of their positions."""
    if row.in_place:
        return False
    labels, scored = arrays["labels"], arrays["labels"] != IGNORED
    scored &= arrays["mask"] != 0 if "attends" in arrays else True
    following = (labels[:-1] == ids[1:])[scored[:-1]]
    if "attends" in arrays and "span" not in arrays:  # classes of tokens, or texts with images
        return bool(following.all())
    return bool(scored.all() or not following.size or following.any())


def _next_tokens(title: str, ids: np.ndarray, arrays: Row, row: ShownRow) -> list[Passage]:
    """Each document's first token, and what follows it: the labels where loss counts."""
    labels = arrays["labels"]
    loss = arrays.get("mask", np.ones(len(ids))) != 0
    loss = ~loss if row.inverted else loss
    used = _used(loss, labels, arrays)
    texts = []
    documents = _spans(arrays, used)
    for begin, end in documents:
        after = np.append(ids[begin + 1 : end], labels[end - 1])
        weights = loss[begin:end] & (labels[begin:end] >= 0)
        tokens = np.append(ids[begin], np.where(weights, labels[begin:end], after))
        kinds = [_CONTEXT, *(_LOSS if weight else _CONTEXT for weight in weights)]
        if "image" in arrays:
            images = np.append(arrays["image"][begin:end], 0)
            kinds = [_IMAGE if i else kind for i, kind in zip(images, kinds, strict=True)]
        keep = tokens >= 0
        texts.append((tokens[keep], [k for k, good in zip(kinds, keep, strict=True) if good]))
    packed = "span" in arrays
    if row.eos_id is not None and not packed:
        texts = [piece for tokens, kinds in texts for piece in _ended(tokens, kinds, row.eos_id)]
        packed = len(texts) > 1
    passages = _apart(title, texts, packed=packed)
    padding = len(ids) - sum(end - begin for begin, end in documents)
    if padding:
        last = passages.pop() if passages and not packed else Passage(title, ids[:0], [])
        whole = np.append(last.ids, np.zeros(padding, ids.dtype))
        passages.append(Passage(last.name, whole, [*last.kinds, *[_PADDING] * padding]))
    return passages


def _used(loss: np.ndarray, labels: np.ndarray, arrays: Row) -> int:
    """Positions before the padding at a row's end."""
    used = loss & (labels != IGNORED)
    for key in ("span", "place"):
        used = used | (arrays[key] > 0) if key in arrays else used
    if "ignored" in arrays:
        used = used | (arrays["ignored"] == 0)
    positions = np.flatnonzero(used)
    return int(positions[-1]) + 1 if len(positions) else len(loss)


def _spans(row: Row, used: int) -> list[tuple[int, int]]:
    """Where documents begin and end."""
    if "span" not in row:
        return [(0, used)]
    spans, begin = [], 0
    while begin < used:
        end = min(begin + int(max(row["span"][begin], 0)) + 1, used)
        if end > begin + 1 or row.get("mask", row["span"])[begin]:  # else padding between two texts
            spans.append((begin, end))
        begin = end
    return spans


def _ended(tokens: np.ndarray, kinds: list[str], eos_id: int) -> list[tuple[np.ndarray, list[str]]]:
    ends = [*(np.flatnonzero(tokens == eos_id) + 1).tolist(), len(tokens)]
    starts = [0, *ends[:-1]]
    return [(tokens[a:b], kinds[a:b]) for a, b in zip(starts, ends, strict=True) if a < b]


def _apart(
    title: str, pieces: Sequence[tuple[np.ndarray, list[str]]], *, packed: bool
) -> list[Passage]:
    name = lambda i: f"{title} document {i}".strip() if packed else title
    return [Passage(name(i), tokens, kinds) for i, (tokens, kinds) in enumerate(pieces, 1)]


def runs(passage: Passage, tokenizer: Tokenizer | None) -> Iterator[tuple[str, int, str]]:
    """Stretches of a text that are of one kind.

    Args:
        passage: from ``passages``.
        tokenizer: decodes its tokens; None gives their numbers.

    Yields:
        Kind, tokens, and text; '' for padding and images. A character whose tokens are of two
        kinds belongs to the later.
    """
    kinds, ids, start, decoded = passage.kinds, passage.ids.tolist(), 0, ""
    for end in range(1, len(ids) + 1):
        if end < len(ids) and kinds[end] == kinds[start]:
            continue
        if kinds[start] in (_PADDING, _IMAGE):
            yield kinds[start], end - start, ""
        else:
            text = [i for i, kind in zip(ids[:end], kinds, strict=False) if kind in _TEXT]
            whole = _decoded(text, tokenizer)
            whole = whole if end == len(ids) else whole.rstrip("\ufffd")
            yield kinds[start], end - start, plain(whole[len(decoded) :])
            decoded = whole
        start = end


def _decoded(ids: list[int], tokenizer: Tokenizer | None) -> str:
    """Text of tokens; those that the tokenizer lacks as numbers."""
    if tokenizer is None:
        return "".join(f"{i} " for i in ids)
    text, known = "", list[int]()
    for i in [*ids, None]:
        if i is not None and tokenizer.id_to_token(i) is not None:
            known.append(i)
            continue
        with tokenizing("the tokenizer cannot decode the tokens"):
            text += tokenizer.decode(known, skip_special_tokens=False)
        text, known = text + ("" if i is None else f"<{i}>"), []
    return text


def values_line(name: str, value: object) -> str:
    """A feature that is no text, in one line: its shape and values, the first where it is long."""
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        texts = [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in array.flat]
        return plain(f"{name}: {', '.join(map(str, texts[:8]))}")
    first = ", ".join(f"{v:g}" for v in array.ravel()[:8].tolist())
    if array.size <= 8:
        return f"{name}: {first}"
    low, high = array.min(), array.max()
    return f"{name}: {array.dtype}{list(array.shape)} from {low:g} to {high:g}: {first}, ..."
