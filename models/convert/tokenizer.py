"""The tokenizer that belongs to weights: where it lies, and that it goes along with them."""

import os
import shutil
from pathlib import Path

__all__ = ["carry_tokenizer", "find_tokenizer"]

_NAME = "tokenizer.json"


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
