"""What padding costs: ``wafer data stats``."""

import pathlib

import numpy as np

import vsl
from wafer.config import RunConfig
from wafer.data.batching.batches import row_lengths
from wafer.data.batching.dataset import Context, Dataset
from wafer.data.registry import build_dataset
from wafer.errors import ConfigError, Problem

__all__ = ["padding_stats", "sequence_lengths"]


def sequence_lengths(data: Dataset, most: int | None = None) -> np.ndarray:
    """[N] tokens of the sequences of a dataset; rows packed for VSL are taken apart.

    Args:
        data: the dataset.
        most: examples looked at, spread evenly over all; None for every one.
    """
    found: list[np.ndarray] = []
    size = len(data.source)
    for index in np.linspace(0, size - 1, min(size, most or size)).astype(int).tolist():
        example = data.source[index]
        mask = example["attention_mask"]
        if "position_ids" in example:
            starts = (example["position_ids"] == 0) & (mask != 0)
            found.append(example["attention_span"][starts] + 1)
        else:
            found.append(np.atleast_1d(row_lengths(mask)))
    lengths = np.concatenate(found)
    return lengths[lengths > 0]


def padding_stats(cfg: RunConfig, split: str) -> str:
    """Report longest, mean, expected speed-up and compiled shapes of a run's data.

    Args:
        cfg: the run's configuration.
        split: 'train' or 'eval'.

    Raises:
        ConfigError: the file has no such input section.
    """
    section = cfg.train_input if split == "train" else cfg.eval_input
    if section is None:
        raise ConfigError([Problem((f"{split}_input",), "missing; there is no data to look at")])
    context = Context(training=split == "train")
    data = build_dataset(section, pathlib.Path(cfg.runconfig.model_dir), context)
    if data.row_length == 1:
        return f"{data.summary}\none value per example (no sequences): nothing is padded"
    lengths = sequence_lengths(data)
    budget = section.batch_size * data.row_length if section.use_vsl else None
    report = vsl.padding_report(
        lengths, section.batch_size, max_length=data.row_length, budget=budget
    )
    return f"{data.summary}\n{report}"
