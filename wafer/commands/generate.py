"""Sample text from a checkpoint: ``wafer generate``."""

import pathlib
from collections.abc import Iterator

import jax
import numpy as np

import models
from models.convert.tokenizer import find_tokenizer
from sparsity import sentinel
from wafer.data.text.tokenizer import END_OF_TEXT, load_tokenizer
from wafer.errors import CheckpointError, DataError
from wafer.session.checkpoint import Checkpoints, load_checkpoint

__all__ = ["generate_text", "newest_checkpoint"]


def newest_checkpoint(path: str | pathlib.Path) -> pathlib.Path:
    """Resolve a checkpoint folder, or a model_dir to its newest checkpoint.

    Raises:
        CheckpointError: neither.
    """
    path = pathlib.Path(path)
    if (path / "state").is_dir():
        return path
    if not (path / "checkpoints").is_dir():
        raise CheckpointError(
            f"{path} is neither a checkpoint (<model_dir>/checkpoints/<step>) nor a model_dir "
            "with checkpoints"
        )
    checkpoints = Checkpoints(path)
    steps = checkpoints.steps()
    checkpoints.close()
    if not steps:
        raise CheckpointError(f"{path / 'checkpoints'} holds no complete checkpoint")
    return checkpoints.path(steps[-1])


def _tokenizer_of(path: pathlib.Path) -> pathlib.Path:
    """Find the run's tokenizer in a checkpoint or in the nearest folder above it."""
    found = find_tokenizer(path)
    if found is None:
        raise DataError(
            f"no tokenizer.json in {path} or the folders above: text needs the tokenizer of the "
            f"run; copy it to {path}"
        )
    return found


def generate_text(
    checkpoint_path: str | pathlib.Path,
    prompt: str,
    *,
    max_new_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
    num_samples: int = 1,
) -> Iterator[str]:
    """Continue a prompt with a trained model; sparse and finalized checkpoints alike.

    Args:
        checkpoint_path: a checkpoint folder, or a model_dir (its newest checkpoint).
        prompt: text to continue; '' starts a document.
        max_new_tokens: at most so many; a sample ends at its end-of-text mark.
        temperature: 0 is greedy.
        top_k: sample from the k likeliest tokens only.
        seed: the same seed gives the same samples.
        num_samples: how many.

    Yields:
        Prompt and continuation.

    Raises:
        CheckpointError: no readable checkpoint there.
        DataError: the run had no tokenizer, or the prompt is too long for the model.
    """
    path = newest_checkpoint(checkpoint_path)
    tree, meta = load_checkpoint(path)
    tokenizer = load_tokenizer(_tokenizer_of(path))
    model = models.build(meta["config"]["model"])
    params = sentinel.decode(tree["params"], {}).params
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = [end, *tokenizer.encode(prompt).ids]
    room = model.config.max_position_embeddings - len(ids)
    if room < 1:
        raise DataError(
            f"the prompt has {len(ids)} tokens and the model {room + len(ids)} positions; "
            "shorten the prompt"
        )
    out = models.generate(
        model,
        params,
        np.tile(np.asarray(ids, np.int32), (num_samples, 1)),
        min(max_new_tokens, room),
        temperature=temperature,
        top_k=top_k,
        key=jax.random.key(seed),
    )
    for row in np.asarray(out):
        new = row.tolist()
        yield prompt + tokenizer.decode(new[: new.index(end)] if end in new else new)
