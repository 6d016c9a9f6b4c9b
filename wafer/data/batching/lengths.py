"""How long the sequences of a dataset are."""

import numpy as np

from wafer.data.batching.batches import row_lengths
from wafer.data.batching.dataset import Dataset


def sequence_lengths(data: Dataset, most: int | None = None) -> np.ndarray:
    """[N] tokens of the sequences of a dataset; rows packed for VSL are taken apart.

    Args:
        data: the dataset.
        most: examples looked at, spread evenly over all; None for every one.
    """
    lengths_per_example: list[np.ndarray] = []
    size = len(data.source)
    for index in np.linspace(0, size - 1, min(size, most or size)).astype(int).tolist():
        example = data.example(index)
        mask = example["attention_mask"]
        if "position_ids" in example:
            starts = (example["position_ids"] == 0) & (mask != 0)
            lengths_per_example.append(example["attention_span"][starts] + 1)
        else:
            lengths_per_example.append(np.atleast_1d(row_lengths(mask)))
    lengths = np.concatenate(lengths_per_example)
    return lengths[lengths > 0]
