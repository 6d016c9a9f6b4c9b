"""Learning rates under muP: what transfers from a narrow model to a wide one (Yang et al. 2022)."""

import fnmatch
import logging
from collections.abc import Iterable
from typing import Any

from wafer.config import Optimizer

__all__ = ["with_mup_rates"]

_LOG = logging.getLogger(__name__)
# Kernels by what their inputs are as wide as.
_HIDDEN = ("*/attn/*/kernel", "*/cross/*/kernel", "*/up/kernel", "*/gate/kernel", "*/router/kernel")
_FILTER = ("*/down/kernel",)


def with_mup_rates(section: Optimizer, config: Any, names: Iterable[str]) -> Optimizer:
    """Add the learning-rate factors that follow from ``mup_base_hidden_size``.

    A kernel's rate is divided by how much wider its input is than in the base model; embeddings,
    norms, biases and the output keep theirs. ``adjust_learning_rate`` in the file wins.

    Args:
        section: the optimizer.
        config: the model's configuration.
        names: of all parameters.
    """
    if not getattr(config, "is_mup", False):
        return section
    names = list(names)
    factors = dict.fromkeys(_HIDDEN, 1 / config.mup_hidden_multiplier)
    factors |= dict.fromkeys(_FILTER, 1 / config.mup_filter_multiplier)
    derived = tuple(
        (glob, factor)
        for glob, factor in factors.items()
        if any(fnmatch.fnmatchcase(name, glob) for name in names)
    )
    _LOG.info(
        "muP: learning rates x %.4g for kernels over the hidden size, x %.4g over the filter size",
        1 / config.mup_hidden_multiplier,
        1 / config.mup_filter_multiplier,
    )
    adjusted = (*section.adjust_learning_rate, *derived)
    return section.model_copy(update={"adjust_learning_rate": adjusted})
