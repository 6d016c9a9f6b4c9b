"""The tokenizer that belongs to weights: where it lies, and that it goes along with them."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.files import read_json

__all__ = ["carry_tokenizer", "find_tokenizer", "special_ids", "text_marks"]

_NAME, _CONFIG = "tokenizer.json", "config.json"
# Key of config.json -> the tokens that mean it, the surest first.
_SPECIAL: Mapping[str, tuple[str, ...]] = {
    "bos_token_id": ("<s>", "<|begin_of_text|>", "<bos>", "<|endoftext|>"),
    "eos_token_id": ("</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>"),
}


def find_tokenizer(weights: str | os.PathLike[str]) -> Path | None:
    """Find the ``tokenizer.json`` of a checkpoint or weight file.

    Args:
        weights: a folder that holds it, or a path at most three levels below one
            (``model_dir/checkpoints/300``).

    Returns:
        The nearest, or None.
    """
    path = Path(weights).resolve()
    places = [path, *list(path.parents)[:3]]
    return next((place / _NAME for place in places if (place / _NAME).is_file()), None)


def carry_tokenizer(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy the tokenizer of ``source``, where it has one, to ``target``, where that has none.

    A ``config.json`` there gets the ids of the tokenizer's own first and last tokens: those of the
    family's published model belong to another vocabulary, and generation would not end.

    Args:
        source: weights.
        target: folder that was written from them.
    """
    tokenizer = find_tokenizer(source)
    if (
        tokenizer is not None
        and find_tokenizer(target) != tokenizer
        and not (Path(target) / _NAME).exists()
    ):
        shutil.copyfile(tokenizer, Path(target) / _NAME)
        config = Path(target) / _CONFIG
        if config.is_file():
            content = read_json(config) | special_ids(tokenizer)
            config.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def text_marks(tokenizer: Any) -> tuple[int | None, int | None]:
    """Ids of the tokens with which texts begin and end, the surest; None where there is none.

    Args:
        tokenizer: ``tokenizers.Tokenizer``.
    """
    begin, end = (
        next((i for i in map(tokenizer.token_to_id, names) if i is not None), None)
        for names in _SPECIAL.values()
    )
    return begin, end


def special_ids(tokenizer: str | os.PathLike[str]) -> dict[str, int]:
    """Read ``bos_token_id`` and ``eos_token_id`` out of a tokenizer.json; what it has of them."""
    added = read_json(Path(tokenizer)).get("added_tokens") or []
    ids = {token["content"]: int(token["id"]) for token in added}
    special = {
        key: next((ids[name] for name in names if name in ids), None)
        for key, names in _SPECIAL.items()
    }
    return {key: number for key, number in special.items() if number is not None}
