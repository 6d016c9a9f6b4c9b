"""Drawing what a grid of PEs did: heat maps, and events in Chrome's form."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wafer.models.shown.figures import new_figure

_STYLE = {"vmin": 0, "cmap": "inferno", "interpolation": "nearest"}  # a PE is a square


def picked(frames: int, count: int) -> list[int]:
    """At most ``count`` of ``frames`` frames, evenly spaced, the first and the last among them."""
    return np.linspace(0, frames - 1, min(count, frames)).astype(int).tolist()


def draw_heat_map(
    plane: np.ndarray, title: str, meaning: str, *, highest: float, path: str | None = None
) -> Any:
    """Draw a value of each PE; returns the matplotlib figure.

    Args:
        plane: [H, W].
        title: of the picture.
        meaning: of the values.
        highest: value of the brightest color; 0 is black.
        path: file to write too.
    """
    height, width = plane.shape
    wide, tall = (5.0 * side / max(height, width) for side in (width, height))  # PEs are square
    fig = new_figure(figsize=(wide + 1.6, max(tall, 1.2) + 1.0), layout="constrained")
    axes = fig.subplots()
    fig.colorbar(axes.imshow(plane, vmax=highest, **_STYLE), label=meaning)
    axes.set(title=title, xlabel="x", ylabel="y")
    axes.locator_params(integer=True)
    if path:
        fig.savefig(path)
    return fig


def write_events(
    events: Sequence[Mapping[str, object]], path: str | None = None
) -> dict[str, object]:
    """A trace in Chrome's form (chrome://tracing, Perfetto).

    Args:
        events: each with name, ph, ts, pid, ….
        path: file to write too.
    """
    out = {"traceEvents": events, "displayTimeUnit": "ms"}
    if path:
        pathlib.Path(path).write_text(json.dumps(out), encoding="utf-8")
    return out
