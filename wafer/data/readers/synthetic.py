"""Random tokens of random lengths, for timing and tests."""

import dataclasses
from typing import Any

import numpy as np

from wafer.data.batching.dataset import Context, Dataset


@dataclasses.dataclass(frozen=True)
class SyntheticSource:
    """Random tokens of random length, a function of (seed, index) alone; for smoke tests."""

    num_examples: int  #: examples in one epoch
    vocab_size: int  #: ids are drawn from [1, vocab_size)
    max_length: int  #: lengths are drawn from [max(1, max_length // 8), max_length]
    seed: int = 0  #: changes every example

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """One example; a repeated pattern, so that a model can learn something."""
        rng = np.random.default_rng((self.seed, index))
        length = int(rng.integers(max(1, self.max_length // 8), self.max_length + 1))
        period = rng.integers(1, self.vocab_size, size=4)
        tokens = np.resize(period, length + 1).astype(np.int32)
        return {
            "input_ids": tokens[:-1],
            "attention_mask": np.ones(length, np.int32),
            "labels": tokens[1:],
        }


def synthetic(cfg: Any, context: Context) -> Dataset:
    """Make the examples of a section."""
    del context
    length = cfg.max_sequence_length
    source = SyntheticSource(cfg.num_examples, cfg.vocab_size, length, cfg.shuffle_seed or 0)
    return Dataset(
        source=source,
        row_length=length,
        pack=cfg.use_vsl,
        summary=f"synthetic: {len(source):,} examples of up to {length} tokens",
    )
