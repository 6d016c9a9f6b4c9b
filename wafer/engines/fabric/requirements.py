"""What a run must be for PEs to train it."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from wafer.errors import Problem
from wafer.experiment import Experiment
from wafer.optim.sections import SGD

__all__ = ["problems"]


def problems(experiment: Experiment) -> Iterator[Problem]:
    """What the PE programs do not do, by the keys that ask for it."""
    cfg, model = experiment.cfg, experiment.model
    if not model.config.is_dense_stack:
        message = (
            "fabric runs stacks of dense layers (model.name: fc_mnist); other kernels have a cost "
            "in `wafer compile`, no PE program. Use resident, weight_streaming or pipelined"
        )
        yield Problem(("runconfig", "execution_strategy"), message)
        return
    yield from _model(model.config)
    yield from _optimizer(cfg.optimizer)
    if cfg.runconfig.num_csx > 1:
        message = f"{cfg.runconfig.num_csx}: one wafer is simulated; use 1"
        yield Problem(("runconfig", "num_csx"), message)
    if any(algorithm.dynamic for _, algorithm in experiment.sparsifier.groups):
        message = "the PEs' program is written for one pattern; use static, or another execution"
        yield Problem(("sparsity", "algorithm"), message)


def _model(model: Any) -> Iterator[Problem]:
    if model.activation_fn != "relu":
        message = f"{model.activation_fn!r}: the PEs have relu"
        yield Problem(("model", "activation_fn"), message)
    if model.dropout > 0:
        yield Problem(("model", "dropout"), f"{model.dropout}: PEs draw no masks; use 0.0")
    if model.dtype != jnp.float32:
        message = f"activations of {model.dtype}: the PEs compute in float32; drop it"
        key = "mixed_precision" if model.compute_dtype is None else "compute_dtype"
        yield Problem(("model", key), message)


def _optimizer(section: Any) -> Iterator[Problem]:
    """SGD with or without momentum, one rate for all."""
    if section is None:
        return
    if not isinstance(section, SGD):
        message = f"{section.optimizer_type!r}: the PEs update by SGD, with or without momentum"
        yield Problem(("optimizer", "optimizer_type"), message)
        return
    decays = any(getattr(entry, "learning_rate", None) != 0 for entry in section.weight_decay)
    tagged = any(entry.param_group_tags for entry in section.learning_rate)
    asked = {
        "dampening": section.dampening != 0,
        "nesterov": section.nesterov,
        "maximize": section.maximize,
        "weight_decay": decays,
        "max_gradient_norm": section.max_gradient_norm is not None,
        "max_gradient_value": section.max_gradient_value is not None,
        "adjust_learning_rate": bool(section.adjust_learning_rate),
        "learning_rate": tagged,
        "loss_scaling_factor": section.loss_scaling_factor == "dynamic",
    }
    for key, is_asked in asked.items():
        if is_asked:
            message = "not in the PEs' update (w -= rate (momentum v + g), one rate for all)"
            yield Problem(("optimizer", key), f"{message}; drop it, or use another execution")
