"""Columns of the formats of numbers: HDF5 rows, the vendor's CSV of ids, images."""

from collections.abc import Sequence

import numpy as np
from helpers.data_sets.files import Files

Draw = np.random.Generator
LENGTH, _VOCAB, _FIRST = 16, 64, 5  # S; V; the first id that is no special token
IMAGE_TOKEN = 50  # image_token_index of the model
_AFTER = {"mask_id": 4, "vocab_size": _VOCAB, "special_ids": [0, 1, 2, 3, 4]}


def _ragged(rng: Draw, count: int, length: int = LENGTH) -> tuple[np.ndarray, np.ndarray]:
    """Draw ids that count on from a random one, and the mask of their lengths: [N, S] each."""
    start = rng.integers(_FIRST, _VOCAB, (count, 1))
    ids = _FIRST + (start + np.arange(length)) % (_VOCAB - _FIRST)
    mask = np.arange(length) < rng.integers(length // 2, length + 1, (count, 1))
    return ids * mask, mask.astype(np.int64)


def _next(ids: np.ndarray) -> np.ndarray:
    """Return the tokens [N, S] that follow each: the labels of next-token rows."""
    return np.where(ids, _FIRST + (ids + 1 - _FIRST) % (_VOCAB - _FIRST), 0)


def _rows(*features: np.ndarray) -> np.ndarray:
    return np.stack(features, axis=1).astype(np.int32)


def _named(names: Sequence[str]) -> dict[str, object]:
    return {"features": list(names), "post-process": _AFTER}


def bert_rows(rng: Draw, count: int) -> Files:
    """Return [N, 2, S]: input_ids, attention_mask; tokens are hidden while they are read."""
    names = ("input_ids", "attention_mask")
    return {"rows.h5": {"data": _rows(*_ragged(rng, count))}, "data_params.json": _named(names)}


def epigenetic_rows(rng: Draw, count: int) -> Files:
    """Return [N, 3, S]: as BERT's, and a state for each token, -1 for none."""
    ids, mask = _ragged(rng, count)
    states = np.where(mask, ids % 3, -1)
    names = ("input_ids", "attention_mask", "epigenetic")
    return {"rows.h5": {"data": _rows(ids, mask, states)}, "data_params.json": _named(names)}


def dpo_rows(rng: Draw, count: int) -> Files:
    """Return [N, 6, S]: ids, loss mask and labels of two answers; log-probabilities beside them."""
    ids, mask = _ragged(rng, count)
    other = np.where(np.arange(LENGTH) < 4, ids, ids[:, ::-1]) * mask
    loss = mask * (np.arange(LENGTH) >= 4)
    answers = (part for own in (ids, other) for part in (own, loss, _next(own)))
    return {
        "rows.h5": {"data": _rows(*answers)},
        "reference_logps.npy": -rng.uniform(3, 6, (count, 2)).astype(np.float32),
    }


def dpr_rows(rng: Draw, count: int) -> Files:
    """Return questions [N, 3, S] and their contexts [N, 3, K, S], each question's own first."""
    sides = {"questions": _ragged(rng, count), "ctx": _ragged(rng, count * 2)}
    names = ("input_ids", "attention_mask", "token_type_ids")
    data, described = {}, {}
    for i, (side, (ids, mask)) in enumerate(sides.items()):
        rows = _rows(ids, mask, 0 * ids)
        shape = (count, 2, *rows.shape[1:])
        data[f"data_{i}"] = rows if side == "questions" else rows.reshape(shape).swapaxes(1, 2)
        described[f"data_{i}_features"] = [f"{side}_{name}" for name in names]
    return {"rows.h5": data, "data_params.json": described}


def t5_rows(rng: Draw, count: int) -> Files:
    """Return sources [N, 2, S] and targets [N, 3, S / 2]."""
    source, target = _ragged(rng, count), _ragged(rng, count, LENGTH // 2)
    shifted = np.pad(target[0], ((0, 0), (1, 0)))[:, :-1]
    return {
        "rows.h5": {"data_0": _rows(*source), "data_1": _rows(shifted, target[1], target[0])},
        "data_params.json": {
            "data_0_features": ["input_ids", "attention_mask"],
            "data_1_features": ["decoder_input_ids", "decoder_attention_mask", "labels"],
        },
    }


def _listed(array: np.ndarray) -> list[str]:
    """Write rows [N, S] as a CSV's lists."""
    return [str(row.tolist()) for row in array]


def bert_csv(rng: Draw, count: int) -> Files:
    """Return the vendor's CSV with masks drawn beforehand."""
    ids, mask = _ragged(rng, count)
    places = np.sort(rng.permuted(np.tile(np.arange(LENGTH // 2), (count, 1)), axis=1)[:, :3])
    labels = np.take_along_axis(ids, places, axis=1)
    hidden = ids.copy()
    np.put_along_axis(hidden, places, _AFTER["mask_id"], axis=1)
    second = (np.arange(LENGTH) >= 4) * mask
    columns = {
        "input_ids": hidden,
        "attention_mask": mask,
        "token_type_ids": second,
        "masked_lm_positions": places,
        "masked_lm_weights": np.ones_like(places),
        "labels": labels,
        "next_sentence_label": rng.integers(0, 2, (count, 1)),
    }
    return {"part-1.csv": {name: _listed(column) for name, column in columns.items()}}


def qa_csv(rng: Draw, count: int) -> Files:
    """Return the vendor's CSV of SQuAD; the answer is the tokens 4 to 6."""
    ids, mask = _ragged(rng, count)
    segments = (np.arange(LENGTH) >= 3) * mask
    lists = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
    columns = {"unique_id": range(count)} | {name: _listed(a) for name, a in lists.items()}
    return {"part-1.csv": columns | {"start_position": [4] * count, "end_position": [6] * count}}


def llava(rng: Draw, count: int) -> Files:
    """Return rows [<image> x 4, question, color]: red pictures say token 20, blue ones 21."""
    del rng
    data = np.zeros((count, 6, 8), np.int32)
    files: dict[str, object] = {}
    for i in range(count):
        files[f"{i}.png"] = (255, 0, 0) if i % 2 else (0, 0, 255)
        tokens = [*[IMAGE_TOKEN] * 4, 10, 20 + i % 2]
        data[i, 0, :6] = tokens
        data[i, 1, 4] = 1
        data[i, 2, :5] = tokens[1:]
        data[i, 5, :6] = 1
    paths = np.array([[f"{i}.png".encode()] for i in range(count)], dtype="S16")
    return {**files, "rows.h5": {"data": data, "img_path": paths}}
