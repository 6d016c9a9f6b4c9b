"""Sample text from a checkpoint: ``wafer generate``."""

import argparse
import os
import pathlib
import sys

__all__ = ["add_arguments", "generate"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("--checkpoint_path", required=True, help="checkpoint, or a model_dir")
    parser.add_argument("--prompt", default="", help="text to continue")
    parser.add_argument("--max_new_tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.8, help="0 is greedy")
    parser.add_argument("--top_k", type=int, default=None, help="sample from the k likeliest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num_samples", type=int, default=1)
    parser.set_defaults(run=_main)


def _main(args: argparse.Namespace) -> int:
    texts = generate(
        args.checkpoint_path,
        args.prompt,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        seed=args.seed,
        num_samples=args.num_samples,
    )
    sys.stdout.writelines(text + "\n" for text in texts)
    return 0


def generate(
    checkpoint: str | os.PathLike[str],
    prompt: str = "",
    *,
    max_new_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
    num_samples: int = 1,
) -> list[str]:
    """Continue a prompt with a trained model; sparse and finalized checkpoints alike.

    Args:
        checkpoint: a checkpoint folder, or a model_dir (its newest checkpoint).
        prompt: text to continue; '' starts a document.
        max_new_tokens: at most so many; a sample ends at its end-of-text mark.
        temperature: 0 is greedy.
        top_k: sample from the k likeliest tokens only.
        seed: the same seed gives the same samples.
        num_samples: how many.

    Returns:
        Prompt and continuation, ``num_samples`` times.

    Raises:
        CheckpointError: no readable checkpoint there.
        DataError: the run had no tokenizer, or the prompt is too long for the model.

    Examples:
        >>> wafer.generate("runs/demo", "def read_", num_samples=2)  # doctest: +SKIP
    """
    import jax
    import numpy as np

    import models
    from wafer.commands.inputs import load, newest_checkpoint
    from wafer.data.text.tokenizer import END_OF_TEXT, load_tokenizer
    from wafer.errors import DataError

    path = newest_checkpoint(checkpoint)
    tokenizer = load_tokenizer(_tokenizer_of(path))
    model, params, _ = load(path)
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = [end, *tokenizer.encode(prompt).ids]
    room = model.config.max_position_embeddings - len(ids)
    if room < 1:
        raise DataError(
            f"the prompt has {len(ids)} tokens and the model {room + len(ids)} positions; "
            "shorten the prompt"
        )
    samples = models.generate(
        model,
        params,
        np.tile(np.asarray(ids, np.int32), (num_samples, 1)),
        min(max_new_tokens, room),
        temperature=temperature,
        top_k=top_k,
        key=jax.random.key(seed),
    )
    continuations = (row[: row.index(end)] if end in row else row for row in samples.tolist())
    return [prompt + tokenizer.decode(tokens) for tokens in continuations]


def _tokenizer_of(path: pathlib.Path) -> pathlib.Path:
    """Find the run's tokenizer in a checkpoint or in the nearest folder above it."""
    from models.convert.tokenizer import find_tokenizer
    from wafer.errors import DataError

    tokenizer = find_tokenizer(path)
    if tokenizer is None:
        raise DataError(
            f"no tokenizer.json in {path} or the folders above: text needs the tokenizer of the "
            f"run; copy it to {path}"
        )
    return tokenizer
