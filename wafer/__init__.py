"""Wafer: the machine, the training run and the command line.

    trained = wafer.train("params.yaml", model_dir="runs/demo")
    wafer.evaluate("params.yaml", model_dir="runs/demo")
    wafer.generate("runs/demo", "def read_")
    model, params, meta = wafer.load("runs/demo")
    losses = wafer.history("runs/demo").train["loss"]

Public names are loaded when they are first used, so ``import wafer`` costs no jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

from wafer.version import __version__

if TYPE_CHECKING:
    from wafer.commands.checkpoints.convert import convert
    from wafer.commands.checkpoints.evaluate import evaluate_tasks
    from wafer.commands.checkpoints.finalize import finalize
    from wafer.commands.checkpoints.prune import prune
    from wafer.commands.data import preprocess
    from wafer.commands.examples import example
    from wafer.commands.generate import generate
    from wafer.commands.inputs import load
    from wafer.commands.planning.compile import compile
    from wafer.commands.planning.plan import plan
    from wafer.commands.results import history, profile
    from wafer.commands.run import evaluate, train
    from wafer.commands.sweep import sweep
    from wafer.experiment import Experiment
    from wafer.registration import register_model, register_optimizer, register_task

__all__ = [
    "Experiment",
    "__version__",
    "compile",
    "convert",
    "evaluate",
    "evaluate_tasks",
    "example",
    "finalize",
    "generate",
    "history",
    "load",
    "plan",
    "preprocess",
    "profile",
    "prune",
    "register_model",
    "register_optimizer",
    "register_task",
    "sweep",
    "train",
]

_PACKAGES = ("models", "sparsity", "vsl")
_MODULES = {
    "Experiment": "wafer.experiment",
    "compile": "wafer.commands.planning.compile",
    "convert": "wafer.commands.checkpoints.convert",
    "evaluate": "wafer.commands.run",
    "evaluate_tasks": "wafer.commands.checkpoints.evaluate",
    "example": "wafer.commands.examples",
    "finalize": "wafer.commands.checkpoints.finalize",
    "generate": "wafer.commands.generate",
    "history": "wafer.commands.results",
    "load": "wafer.commands.inputs",
    "plan": "wafer.commands.planning.plan",
    "preprocess": "wafer.commands.data",
    "profile": "wafer.commands.results",
    "prune": "wafer.commands.checkpoints.prune",
    "register_model": "wafer.registration",
    "register_optimizer": "wafer.registration",
    "register_task": "wafer.registration",
    "sweep": "wafer.commands.sweep",
    "train": "wafer.commands.run",
}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"wafer.{name}")
    if name not in _MODULES:
        known = ", ".join(__all__)
        raise AttributeError(f"module 'wafer' has no attribute {name!r}; there are {known}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])
