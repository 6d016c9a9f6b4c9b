"""How likely a model is to write given answers: ``wafer score``, the reference of DPO."""

import argparse
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from wafer.models.user.flags import own_flags
from wafer.models.user.trust import add_option, trusting

if TYPE_CHECKING:
    import numpy as np

    from wafer import models
    from wafer.commands.inputs import Source

    Scorer = Callable[[Sequence[dict[str, np.ndarray]]], Iterator[np.ndarray]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("-p", "--params", required=True, help="params YAML of the DPO run")
    parser.add_argument("--checkpoint_path", required=True, help="the reference model")
    parser.add_argument(
        "-i", "--input", required=True, help="JSON lines: prompt, chosen, rejected; or HDF5 folder"
    )
    parser.add_argument(
        "-o", "--output", help="the same lines with the numbers added; none for a folder"
    )
    add_option(parser)
    parser.set_defaults(run=_main)


def _main(args: argparse.Namespace) -> int:
    sys.stdout.write(score(args.params, args.checkpoint_path, args.input, args.output) + "\n")
    return 0


@own_flags()
def score(
    source: "Source",
    checkpoint: str | os.PathLike[str],
    input: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
) -> str:
    """Write preference pairs with the log-probabilities a model gives their answers.

    Args:
        source: a run whose ``train_input`` reads pairs: tokenizer, keys, lengths.
        checkpoint: the reference model: a checkpoint, or a model_dir (its newest).
        input: JSON lines with the pairs, for a PreferenceDataProcessor; a folder of HDF5 rows for
            a DpoHDF5DataProcessor.
        output: the file to write: the same lines with two numbers more, nats. Those of a folder
            are written into it, as ``reference_logps.npy``.

    Returns:
        A line that says what was written.

    Raises:
        ConfigError: the run file is about something else, or ``output`` is missing or too much.
        CheckpointError: no readable checkpoint there.
        DataError: a wrong row.
    """
    from wafer.commands.inputs import code_of, experiment_of, load
    from wafer.errors import ConfigError, Problem

    section: Any = experiment_of(source).cfg.train_input
    if section is None or section.task != "dpo":
        message = (
            "wafer score needs data_processor: PreferenceDataProcessor (or the HDF5 one) there"
        )
        raise ConfigError([Problem(("train_input",), message)])
    hdf5 = section.data_processor == "DpoHDF5DataProcessor"
    if hdf5 == (output is not None):
        message = "a folder's numbers are written into it; drop --output"
        message = message if hdf5 else "missing; --output is the file of lines to write"
        raise ConfigError([Problem(("output",), message)])
    with trusting(code_of(source)):
        model, params, _ = load(checkpoint)
    logps = _scorer(model, params, section.batch_size)
    if output is None:
        return _score_folder(str(input), model.config.vocab_size, logps)
    return _score_lines(section, (str(input), output), model.config.vocab_size, logps)


def _scorer(model: "models.Model", params: Any, batch_size: int) -> "Scorer":
    """Make the function: rows of pairs -> [2] log-probabilities of each, in float32."""
    import jax
    import numpy as np

    from wafer.data.batching.batches import to_batch
    from wafer.models.families.preference import pair_log_probabilities

    @jax.jit
    def logps(rows: dict[str, jax.Array]) -> jax.Array:
        batch = to_batch(rows)
        out = model.apply(params, batch)
        return pair_log_probabilities(out[0] if isinstance(out, tuple) else out, batch)

    def score_rows(rows: "Sequence[dict[str, np.ndarray]]") -> "Iterator[np.ndarray]":
        size = min(batch_size, len(rows))
        for start in range(0, len(rows), size):
            places = range(start, start + size)  # the last row again until there are `size`
            part = [rows[min(place, len(rows) - 1)] for place in places]
            stacked = {key: np.stack([row[key] for row in part]) for key in part[0]}
            yield from np.asarray(logps(stacked))[: len(rows) - start]

    return score_rows


def _score_folder(folder: str, vocab_size: int, logps: "Scorer") -> str:
    import numpy as np

    from wafer.data.readers.row_pairs import REFERENCE, PairSource
    from wafer.models.files import atomic_write

    rows: Any = PairSource([folder], vocab_size, reference=False)
    path = pathlib.Path(folder) / REFERENCE
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.save(file, np.stack(list(logps(rows))))
    return f"{path}: {len(rows):,} pairs scored"


def _score_lines(
    section: Any,
    files: "tuple[str, str | os.PathLike[str]]",
    vocab_size: int,
    logps: "Scorer",
) -> str:
    from wafer.data.readers.text.preferences import LOGP_KEYS, pair_row, read_pairs
    from wafer.data.text.textfiles import find_files
    from wafer.models.files import atomic_write

    source = pathlib.Path(files[0])
    lines = find_files([files[0]], ["train.jsonl"], "input") if source.is_dir() else [source]
    pairs, skipped = read_pairs(section, lines, vocab_size)
    length, path = section.max_sequence_length, pathlib.Path(files[1])
    scored = logps([pair_row(pair.answers, length) for pair in pairs])
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8") as lines:
        for pair, values in zip(pairs, scored, strict=True):
            logp = dict(zip(LOGP_KEYS, values.astype(float).tolist(), strict=True))
            lines.write(json.dumps({**pair.row.values, **logp}) + "\n")
    return f"{path}: {len(pairs):,} pairs scored, {skipped:,} longer than {length} tokens left out"
