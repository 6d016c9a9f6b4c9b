"""Files of a text model beside its weights: the tokenizer's, and the ids of special tokens."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from wafer.models.convert.tables.class_defaults import CLASS_IDS
from wafer.models.errors import CheckpointError
from wafer.models.files import JsonObject, atomic_write, contained_file, read_json, write_text

_END_OF_TEXT = "<|endoftext|>"  # ends the documents of tokenizers that Wafer trained
IDS = "special_ids.json"  # a Wafer folder's: the ids that config.json has in Hugging Face's form
_NAME, _CONFIG, _GENERATION = "tokenizer.json", "config.json", "generation_config.json"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_SEGMENTS = "token_type_ids"  # which of a pair's texts a token is of
_ANY = 2**31  # ids are int32
_CLASS_IDS = [i for ids in CLASS_IDS.values() for i in ids.values()]
_TAKE_SEGMENTS = ("Bert", "DPRQuestionEncoder", "DPRContextEncoder")  # classes' names begin so
_TEXT = "text_config"  # of LLaVA's config.json
_FILES = (
    _NAME,
    _TOKENIZER_CONFIG,
    _GENERATION,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
)
# Key of config.json -> key of tokenizer_config.json that names the token.
_KEYS: Mapping[str, str] = {
    "bos_token_id": "bos_token",
    "eos_token_id": "eos_token",
    "pad_token_id": "pad_token",
    "sep_token_id": "sep_token",
    "forced_bos_token_id": "",
    "forced_eos_token_id": "",
}


class TextMarks(NamedTuple):
    """Tokens with which texts begin and end."""

    begin: int | None  #: id, or None
    ends: tuple[int, ...]  #: ids, any of which ends a text; () where nothing gives one
    #: ``add_bos_token`` of the tokenizer's settings, or None where they lack it
    adds_begin: bool | None = None
    #: id of the tokenizer's own ``bos_token``, else of its ``eos_token``; None where it names none
    named: int | None = None


def _places(weights: str | os.PathLike[str]) -> list[Path]:
    path = Path(weights)  # a file of Hugging Face's cache is a link
    path = path.resolve() if path.is_dir() else path.parent.resolve() / path.name
    return [path, *list(path.parents)[:3]]


def find_tokenizer(weights: str | os.PathLike[str]) -> Path | None:
    """Find the ``tokenizer.json`` of a checkpoint or weight file.

    Args:
        weights: a folder that holds it, or a path at most three levels below one
            (``model_dir/checkpoints/300``).

    Returns:
        The nearest, or None.

    Raises:
        CheckpointError: it is a link out of its folder.
    """
    found = (place / _NAME for place in _places(weights) if (place / _NAME).is_file())
    return next(map(contained_file, found), None)


def text_folder(weights: str | os.PathLike[str]) -> Path | None:
    """Find the nearest folder, as ``find_tokenizer`` does, with any file of a text model.

    Raises:
        CheckpointError: a file of a text model is a link out of the folder, or has a special id
            that is none.
    """
    for level, place in enumerate(_places(weights)):
        names = (_NAME, IDS, _GENERATION, *((_CONFIG,) if level < 2 else ()))
        if any((place / name).is_file() for name in names):
            for name in (*_FILES, IDS, _CONFIG):
                contained_file(place / name)
            _ids_in(place, (_CONFIG, IDS, _GENERATION))
            return place
    return None


def carry_tokenizer(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, alone: bool = False
) -> None:
    """Copy the tokenizer's files and special ids of ``source`` to ``target``.

    A file that ``target`` has is never changed. The ids go into ``special_ids.json``.

    Args:
        source: weights; see ``find_tokenizer``.
        target: folder that was written from them.
        alone: copy even where the files lie above ``target``, which is to be complete by itself.

    Raises:
        CheckpointError: a file of them is a link out of its folder.
    """
    folder, target = text_folder(source), Path(target)
    if folder is None or (not alone and text_folder(target) == folder):
        return
    copy_files(folder, target)
    write_ids(target, special_ids(folder))


def copy_files(folder: Path, target: Path) -> None:
    """Copy the tokenizer's files that ``target`` lacks.

    Args:
        folder: from ``text_folder``.
        target: a folder.
    """
    for name in _FILES:
        if (folder / name).is_file() and not (target / name).exists():
            with atomic_write(target / name) as partial:
                shutil.copyfile(folder / name, partial)


def write_ids(folder: Path, ids: Mapping[str, object]) -> None:
    """Write ``special_ids.json``, which comes before ``config.json``; one that is there stays."""
    if ids and not (folder / IDS).exists():
        _write(folder / IDS, ids)


def with_ids(config: JsonObject, ids: JsonObject) -> JsonObject:
    """Return a ``config.json`` with the ids of ``special_ids``."""
    if _TEXT in config and _TEXT in ids:
        ids = {**ids, _TEXT: {**config[_TEXT], **ids[_TEXT]}}
    return {**config, **ids}


def _write(path: Path, content: Mapping[str, object]) -> None:
    write_text(path, json.dumps(dict(content), indent=2, sort_keys=True) + "\n")


def special_ids(folder: str | os.PathLike[str]) -> JsonObject:
    """Read what a folder says of its special tokens, with the keys of ``config.json``.

    ``special_ids.json`` or ``config.json`` comes first; the tokens that ``tokenizer_config.json``
    names follow, and ``<|endoftext|>`` of a tokenizer that was trained here.

    Raises:
        CheckpointError: an id or a token of another type, or an id beyond the vocabulary; names
            the file and the key.
    """
    return _special_ids(Path(folder), None)


def _special_ids(folder: Path, size: int | None) -> JsonObject:
    ids = _ids_in(folder, (_CONFIG, IDS), size)
    if not (folder / _NAME).is_file():
        return ids
    known = _vocabulary(folder / _NAME)
    named, text = _tokens_of(folder), ids.get(_TEXT, {})
    own = {"bos_token_id": _END_OF_TEXT, "eos_token_id": _END_OF_TEXT}
    for names in ({key: named.get(token) for key, token in _KEYS.items()}, own):
        if "eos_token_id" in ids | text:
            break
        ids = {key: known[name] for key, name in names.items() if name in known} | ids
    return ids


def _ids_in(folder: Path, files: Iterable[str], size: int | None = None) -> JsonObject:
    """Read the ids of files; those of later ones come before.

    Args:
        folder: of the files, any of which may be missing.
        files: names.
        size: of the vocabulary; None is that of ``config.json``.
    """
    if size is None:
        size = _size_of(_read_if_there(folder / _CONFIG))
    ids: dict[str, Any] = {}
    for path in (folder / name for name in files):
        ids |= _ids_of(_read_if_there(path), f"{path}: ", size)
    return ids


def _size_of(config: Mapping[str, object]) -> int | None:
    size = config.get("vocab_size")
    return size if type(size) is int else None


def _ids_of(content: Mapping[str, object], where: str, size: int | None) -> JsonObject:
    """Take the ids out of a config.json, or of ours; those of its text model lie deeper."""
    theirs = CLASS_IDS.get(str(content.get("model_type")), {})
    small = {key: i for key, i in theirs.items() if i < (_size_of(content) or 0)}
    merged = small | dict(content)
    ids = {key: _checked(merged.get(key), f"{where}{key}", size) for key in _KEYS}
    ids = {key: value for key, value in ids.items() if value is not None}
    text = content.get(_TEXT)
    if isinstance(text, dict):
        inner = _ids_of(text, f"{where}{_TEXT}.", _size_of(text) or size)
        ids |= {_TEXT: inner} if inner else {}
    return ids


def _checked(value: Any, where: str, size: int | None) -> int | list[int] | None:
    """Return an id, a list of ids, or None.

    Published files pad with -1 and ids beyond the vocabulary, which no model is given. Small models
    that transformers writes have its classes' ids: one beyond the vocabulary is none.
    """
    pads = where.endswith("pad_token_id")
    least, above = (-1, _ANY) if pads else (0, size or _ANY)
    many = value if isinstance(value, list) else [] if value is None else [value]
    kept = [i for i in many if pads or i not in _CLASS_IDS or i < above]
    if any(type(i) is not int or not least <= i < above for i in kept):
        raise CheckpointError(
            f"{where}: {value!r}; expected the id of a token, or a list of ids: whole numbers from "
            f"{least} to {above - 1:,}"
        )
    if not kept:
        return None
    return kept if isinstance(value, list) else kept[0]


def _tokens_of(folder: Path) -> dict[str, str]:
    """Read the tokens that tokenizer_config.json names, plain or with settings."""
    path = folder / _TOKENIZER_CONFIG
    content = _read_if_there(path)
    tokens = {}
    for key in filter(None, _KEYS.values()):
        value = content.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        if value is not None and not isinstance(text, str):
            raise CheckpointError(
                f"{path}: {key}: {value!r}; expected the text of a token, or its settings with "
                "content"
            )
        if text is not None:
            tokens[key] = text
    return tokens


def _read_if_there(path: Path) -> JsonObject:
    return read_json(contained_file(path)) if path.is_file() else {}


def _vocabulary(path: Path) -> dict[str, int]:
    """Map the added tokens of a tokenizer.json to their ids; its own vocabulary, too."""
    content = _read_if_there(path)
    model = content.get("model")
    own = model.get("vocab") if isinstance(model, dict) else None
    words = dict(own) if isinstance(own, dict) else {}
    try:
        return words | added_ids(content, words)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None


def added_ids(tokenizer: Mapping[str, object], known: Mapping[str, int]) -> dict[str, int]:
    """Return text -> id of the added tokens of a ``tokenizer.json``.

    The tokenizers library numbers them itself, and reads over the ids that the file has.

    Args:
        tokenizer: content of the file.
        known: text -> id that it gets, of texts for which that is known.

    Raises:
        ValueError: a token without a text and an id, or whose text gets another id than it has.
    """
    ids: dict[str, int] = {}
    listed = tokenizer.get("added_tokens") or []
    for token in listed if isinstance(listed, list) else [listed]:
        text, index = map(token.get, ("content", "id")) if isinstance(token, dict) else (None, None)
        if not isinstance(text, str) or type(index) is not int:
            expected = "content, the text of a token, and id, a whole number"
            raise ValueError(f"added_tokens: {token!r:.80}; expected {expected}")
        real = ids.get(text, known.get(text, index))
        if index != real:
            raise ValueError(
                f"added_tokens: {text!r} has id {index}, but its text gets id {real}; expected the "
                "id that it gets. Take the tokenizer.json that was written with the weights"
            )
        ids[text] = index
    return ids


def read_marks(weights: str | os.PathLike[str], size: int | None = None) -> TextMarks:
    """Read the ids with which texts begin and end.

    As in transformers, ``generation_config.json`` comes before what ``special_ids`` reads.

    Args:
        weights: see ``find_tokenizer``.
        size: of the model's vocabulary; None is that of ``config.json``.

    Raises:
        CheckpointError: as ``special_ids``.
    """
    folder = text_folder(weights)
    if folder is None:
        return TextMarks(None, ())
    ids = _special_ids(folder, size)
    ids = ids.pop(_TEXT, {}) | ids | _ids_in(folder, (_GENERATION,), size)
    path = folder / _TOKENIZER_CONFIG
    adds = _read_if_there(path).get("add_bos_token")
    if adds is not None and not isinstance(adds, bool):
        raise CheckpointError(f"{path}: add_bos_token: {adds!r}; expected true, false or null")
    begin = next(iter(_listed(ids.get("bos_token_id"))), None)
    tokens, known = _tokens_of(folder), _vocabulary(folder / _NAME)
    names = (tokens.get(key) for key in ("bos_token", "eos_token"))
    named = next((known[name] for name in names if name in known), None)
    return TextMarks(begin, _listed(ids.get("eos_token_id")), adds, named)


def _listed(ids: int | list[int] | None) -> tuple[int, ...]:
    """Return ids as a tuple: config.json gives one, several or none."""
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(ids)


def write_tokenizer_config(folder: str | os.PathLike[str], longest: int | None) -> None:
    """Write ``tokenizer_config.json``: transformers then takes tokenizer.json as it is.

    Without it, transformers builds the tokenizer of the model_type's first published model. One
    that is there keeps its keys, but ``model_input_names`` are those that the model takes:
    transformers 4 gives any model ``token_type_ids`` without them, which GPT-2 embeds as tokens.

    Args:
        folder: with config.json; left as it is without a tokenizer.json.
        longest: tokens that the model takes, or None.
    """
    folder = Path(folder)
    path = folder / _TOKENIZER_CONFIG
    if not (folder / _NAME).is_file():
        return
    content = read_json(path) if path.exists() else _new_tokenizer_config(folder, longest)
    classes = read_json(folder / _CONFIG).get("architectures") or []
    segments = any(name.startswith(_TAKE_SEGMENTS) for name in classes)
    names = content.get("model_input_names") or ["input_ids", _SEGMENTS, "attention_mask"]
    taken = [name for name in names if segments or name != _SEGMENTS]
    if content.get("model_input_names") != taken:
        _write(path, content | {"model_input_names": taken})


def _new_tokenizer_config(folder: Path, longest: int | None) -> JsonObject:
    ids = special_ids(folder)
    names = {index: name for name, index in _vocabulary(folder / _NAME).items()}
    content: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    if longest is not None:
        content["model_max_length"] = longest
    for key, token in _KEYS.items():
        index = next(iter(_listed(ids.get(key))), None)
        if token and index in names:
            content[token] = names[index]
    return content
