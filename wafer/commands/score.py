"""How likely a model is to write given answers: ``wafer score``, the reference of DPO."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import models
from models.preference import pair_log_probabilities
from sparsity import sentinel
from wafer.commands.generate import newest_checkpoint
from wafer.config import RunConfig
from wafer.data.batching.batches import to_batch
from wafer.data.readers.preferences import LOGP_KEYS, Pair, pair_row, read_pairs
from wafer.errors import ConfigError, Problem
from wafer.session.checkpoint import load_checkpoint

__all__ = ["score_pairs"]


def score_pairs(
    cfg: RunConfig,
    checkpoint_path: str | pathlib.Path,
    source: str | pathlib.Path,
    target: str | pathlib.Path,
) -> str:
    """Write preference pairs with the log-probabilities a model gives their answers.

    Args:
        cfg: a run whose ``train_input`` is a PreferenceDataProcessor: tokenizer, keys, lengths.
        checkpoint_path: the reference model: a checkpoint, or a model_dir (its newest).
        source: JSON lines with the pairs.
        target: the file to write: the same lines with two numbers more, nats.

    Returns:
        A line that says what was done.

    Raises:
        ConfigError: the run file is about something else.
        CheckpointError: no readable checkpoint there.
        DataError: a wrong row.
    """
    section: Any = cfg.train_input
    if section is None or section.task != "dpo":
        message = "wafer score needs data_processor: PreferenceDataProcessor there"
        raise ConfigError([Problem(("train_input",), message)])
    tree, meta = load_checkpoint(newest_checkpoint(checkpoint_path))
    model = models.build(meta["config"]["model"])
    params = jax.tree.map(jnp.asarray, sentinel.decode(tree["params"], {}).params)
    reading = section.model_copy(update={"data_dir": (str(source),)})
    pairs, skipped = read_pairs(reading, model.config.vocab_size, training=True)
    length, size = section.max_sequence_length, min(section.batch_size, len(pairs))

    @jax.jit
    def logps(rows: Any) -> Any:
        batch = to_batch(rows)
        out = model.apply(params, batch)
        return pair_log_probabilities(out[0] if isinstance(out, tuple) else out, batch)

    path = pathlib.Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")  # a kill must not leave half a file
    with partial.open("w", encoding="utf-8") as out:
        for start in range(0, len(pairs), size):
            part = pairs[start : start + size]
            values = np.asarray(logps(_rows(part, length, size)), np.float64)
            for pair, numbers in zip(part, values, strict=False):
                scored = dict(zip(LOGP_KEYS, numbers.tolist(), strict=True))
                out.write(json.dumps({**pair.row.values, **scored}) + "\n")
    partial.replace(path)
    return f"{path}: {len(pairs):,} pairs scored, {skipped:,} longer than {length} tokens left out"


def _rows(pairs: Sequence[Pair], length: int, size: int) -> dict[str, np.ndarray]:
    """Stack pairs, the last one again until there are ``size``."""
    filled = [*pairs, *[pairs[-1]] * (size - len(pairs))]
    rows = [pair_row(pair.answers, length) for pair in filled]
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}
