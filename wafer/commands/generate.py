"""Sample text from a checkpoint: ``wafer generate``."""

import argparse
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import models

__all__ = ["Loaded", "Samples", "add_arguments", "generate", "open_model", "sample"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("--checkpoint_path", required=True, help="checkpoint, or a model_dir")
    parser.add_argument("--prompt", default="", help="text to continue")
    parser.add_argument("-i", "--input", help="JSON lines with a key `prompt`, instead of --prompt")
    parser.add_argument("--interactive", action="store_true", help="ask for prompts until the end")
    parser.add_argument("--max_new_tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.8, help="0 is greedy")
    parser.add_argument("--top_k", type=int, default=None, help="sample from the k likeliest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num_samples", type=int, default=1)
    parser.set_defaults(run=_main)


def _main(args: argparse.Namespace) -> int:
    loaded = open_model(args.checkpoint_path)
    options = {
        "max_new_tokens": args.max_new_tokens,
        "temperature": args.temperature,
        "top_k": args.top_k,
        "seed": args.seed,
        "num_samples": args.num_samples,
    }
    for prompt in _prompts(args):
        samples = sample(loaded, prompt, **options)
        if args.input is None:
            sys.stdout.writelines(text + "\n" for text in samples.texts)
        else:
            line = {"prompt": prompt, "texts": samples.texts}
            sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
        sys.stdout.flush()
        sys.stderr.write(samples.summary + "\n")
    return 0


def _prompts(args: argparse.Namespace) -> Iterator[str]:
    """The prompts of a call, one after another."""
    from wafer.data.text.textfiles import read_rows
    from wafer.errors import DataError

    if args.interactive:
        yield from _asked()
    elif args.input is None:
        yield args.prompt
    else:
        for row in read_rows(pathlib.Path(args.input)):
            prompt = row.values.get("prompt")
            if not isinstance(prompt, str):
                raise DataError(f"{row.where}: expected a key `prompt` with text")
            yield prompt


def _asked() -> Iterator[str]:
    while True:
        sys.stderr.write("> ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return
        yield line.rstrip("\n")


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
    return sample(
        open_model(checkpoint),
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        num_samples=num_samples,
    ).texts


class Loaded(NamedTuple):
    """A model that is ready to continue prompts.

    model: the model
    params: its parameters, dense, pruned weights 0
    tokenizer: ``tokenizers.Tokenizer``
    """

    model: "models.Model"
    params: Any
    tokenizer: Any


class Samples(NamedTuple):
    """What a prompt became.

    texts: prompt and continuation, once for each sample
    tokens: that the model added, of all samples, before the end-of-text marks
    seconds: of wall time; with the compilation, at the first prompt of its length
    summary: tokens, seconds, tokens per second, and what computed them
    """

    texts: list[str]
    tokens: int
    seconds: float
    summary: str


def open_model(checkpoint: str | os.PathLike[str]) -> Loaded:
    """Load a model and its tokenizer.

    Raises:
        CheckpointError: no readable checkpoint there.
        DataError: the run had no tokenizer.
    """
    from wafer.commands.inputs import load, newest_checkpoint
    from wafer.data.text.tokenizer import load_tokenizer

    path = newest_checkpoint(checkpoint)
    tokenizer = load_tokenizer(_tokenizer_of(path))
    model, params, _ = load(path)
    return Loaded(model, params, tokenizer)


def sample(
    loaded: Loaded,
    prompt: str,
    *,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    seed: int,
    num_samples: int,
) -> Samples:
    """Continue a prompt; see ``generate``.

    Raises:
        DataError: the prompt is too long for the model.
    """
    import jax
    import numpy as np

    import models
    from wafer.data.text.tokenizer import END_OF_TEXT
    from wafer.errors import DataError

    model, params, tokenizer = loaded
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = [end, *tokenizer.encode(prompt).ids]
    room = model.config.max_position_embeddings - len(ids)
    if room < 1:
        raise DataError(
            f"the prompt has {len(ids)} tokens and the model {room + len(ids)} positions; "
            "shorten the prompt"
        )
    began = time.perf_counter()
    samples = models.generate(
        model,
        params,
        np.tile(np.asarray(ids, np.int32), (num_samples, 1)),
        min(max_new_tokens, room),
        temperature=temperature,
        top_k=top_k,
        key=jax.random.key(seed),
    )
    seconds = time.perf_counter() - began
    ends = [row[: row.index(end)] if end in row else row for row in samples.tolist()]
    texts = [prompt + tokenizer.decode(tokens) for tokens in ends]
    summary = (
        f"{samples.size:,} tokens in {seconds:.2f} s, {samples.size / seconds:.1f} tokens/s: "
        f"{model.config.dtype} on {jax.default_backend().upper()}, dense kernels"
    )
    return Samples(texts, sum(map(len, ends)), seconds, summary)


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
