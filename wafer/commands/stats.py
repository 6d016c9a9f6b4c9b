"""What padding costs: ``wafer data stats``."""

import vsl
from wafer.config import RunConfig
from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.batching.lengths import sequence_lengths
from wafer.errors import ConfigError, Problem

__all__ = ["padding_stats"]


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
    data = build_dataset(section, cfg.runconfig.model_dir, context)
    if data.row_length == 1:
        return f"{data.summary}\none value per example (no sequences): nothing is padded"
    lengths = sequence_lengths(data)
    budget = section.batch_size * data.row_length if section.use_vsl else None
    report = vsl.padding_report(
        lengths, section.batch_size, max_length=data.row_length, budget=budget
    )
    return f"{data.summary}\n{report}"
