"""How a step runs: resident, streamed, pipelined, on simulated PEs; one state for all.

    engine = engines.make(experiment)
    state = engine.init(jax.random.key(0))
    state, metrics = engine.step(state, engine.place(features))  # [N systems, A micro-batches, ...]

Public names are loaded when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wafer.engines.base import Engine
    from wafer.engines.choose import make
    from wafer.engines.stagewise.pipeline.schedule import bubble, schedule, spans
    from wafer.engines.stagewise.timeline import draw_schedule, draw_spans, draw_sweep
    from wafer.optim.step import TrainState

__all__ = [
    "Engine",
    "TrainState",
    "bubble",
    "draw_schedule",
    "draw_spans",
    "draw_sweep",
    "make",
    "schedule",
    "spans",
]

_OWNERS = {
    "base": ("Engine", "TrainState"),
    "choose": ("make",),
    "stagewise.pipeline.schedule": ("bubble", "schedule", "spans"),
    "stagewise.timeline": ("draw_schedule", "draw_spans", "draw_sweep"),
}
_OWNER = {name: module for module, names in _OWNERS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _OWNER:
        raise AttributeError(f"module 'wafer.engines' has no attribute {name!r}")
    return getattr(importlib.import_module(f"wafer.engines.{_OWNER[name]}"), name)
