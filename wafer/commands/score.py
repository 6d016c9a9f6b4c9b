"""How likely a model is to write given answers: ``wafer score``, the reference of DPO."""

import argparse
import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from wafer.commands.inputs import Source
    from wafer.data.readers.text.preferences import Pair

__all__ = ["add_arguments", "score"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("-p", "--params", required=True, help="params YAML of the DPO run")
    parser.add_argument("--checkpoint_path", required=True, help="the reference model")
    parser.add_argument("-i", "--input", required=True, help="JSON lines: prompt, chosen, rejected")
    parser.add_argument("-o", "--output", required=True, help="the same with the numbers added")
    parser.set_defaults(run=_main)


def _main(args: argparse.Namespace) -> int:
    sys.stdout.write(score(args.params, args.checkpoint_path, args.input, args.output) + "\n")
    return 0


def score(
    source: "Source",
    checkpoint: str | os.PathLike[str],
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
) -> str:
    """Write preference pairs with the log-probabilities a model gives their answers.

    Args:
        source: a run whose ``train_input`` is a PreferenceDataProcessor: tokenizer, keys, lengths.
        checkpoint: the reference model: a checkpoint, or a model_dir (its newest).
        input: JSON lines with the pairs.
        output: the file to write: the same lines with two numbers more, nats.

    Returns:
        A line that says what was written.

    Raises:
        ConfigError: the run file is about something else.
        CheckpointError: no readable checkpoint there.
        DataError: a wrong row.
    """
    import jax
    import numpy as np

    from models.families.preference import pair_log_probabilities
    from models.files import appearing_whole
    from wafer.commands.inputs import experiment_of, load
    from wafer.data.batching.batches import to_batch
    from wafer.data.readers.text.preferences import LOGP_KEYS, read_pairs
    from wafer.errors import ConfigError, Problem

    section: Any = experiment_of(source).cfg.train_input
    if section is None or section.task != "dpo":
        message = "wafer score needs data_processor: PreferenceDataProcessor there"
        raise ConfigError([Problem(("train_input",), message)])
    model, params, _ = load(checkpoint)
    reading = section.model_copy(update={"data_dir": (str(input),)})
    pairs, skipped = read_pairs(reading, model.config.vocab_size, training=True)
    length, size = section.max_sequence_length, min(section.batch_size, len(pairs))

    @jax.jit
    def logps(rows: Any) -> Any:
        batch = to_batch(rows)
        out = model.apply(params, batch)
        return pair_log_probabilities(out[0] if isinstance(out, tuple) else out, batch)

    path = pathlib.Path(output)
    with appearing_whole(path) as partial, partial.open("w", encoding="utf-8") as lines:
        for start in range(0, len(pairs), size):
            part = pairs[start : start + size]
            values = np.asarray(logps(_rows(part, length, size)), np.float64)
            for pair, numbers in zip(part, values, strict=False):
                logp = dict(zip(LOGP_KEYS, numbers.tolist(), strict=True))
                lines.write(json.dumps({**pair.row.values, **logp}) + "\n")
    return f"{path}: {len(pairs):,} pairs scored, {skipped:,} longer than {length} tokens left out"


def _rows(pairs: "Sequence[Pair]", length: int, size: int) -> "dict[str, np.ndarray]":
    """Stack pairs, the last one again until there are ``size``."""
    import numpy as np

    from wafer.data.readers.text.preferences import pair_row

    filled = [*pairs, *[pairs[-1]] * (size - len(pairs))]
    rows = [pair_row(pair.answers, length) for pair in filled]
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}
