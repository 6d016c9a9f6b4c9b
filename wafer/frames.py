"""Drawing what a grid of PEs did: heat maps, filmstrips, GIFs, and events in Chrome's form."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["draw_filmstrip", "draw_heat_map", "picked", "write_events", "write_gif"]

_STYLE = {"vmin": 0, "cmap": "inferno", "aspect": "auto"}


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
        highest: value of the brightest colour; 0 is black.
        path: file to write too.
    """
    from matplotlib import figure

    fig = figure.Figure(figsize=(6, 4))
    axes = fig.subplots()
    fig.colorbar(axes.imshow(plane, vmax=highest, **_STYLE), label=meaning)
    axes.set(title=title, xlabel="x", ylabel="y")
    if path:
        fig.savefig(path)
    return fig


def draw_filmstrip(
    planes: np.ndarray, titles: Sequence[str], *, highest: float, path: str | None = None
) -> Any:
    """Draw frames side by side; returns the matplotlib figure.

    Args:
        planes: [n, H, W].
        titles: of the frames.
        highest: value of the brightest colour; 0 is black.
        path: file to write too.
    """
    from matplotlib import figure

    fig = figure.Figure(figsize=(2 * len(planes), 2.4))
    axes = np.atleast_1d(fig.subplots(1, len(planes)))
    for axis, title, plane in zip(axes, titles, planes, strict=True):
        axis.imshow(plane, vmax=highest, **_STYLE)
        axis.set(title=title, xticks=[], yticks=[])
    if path:
        fig.savefig(path)
    return fig


def write_gif(planes: np.ndarray, titles: Sequence[str], *, highest: float, path: str) -> None:
    """Write the same frames as an animation.

    Args:
        planes: [n, H, W].
        titles: of the frames.
        highest: value of the brightest colour; 0 is black.
        path: of the file.
    """
    from matplotlib import animation, figure

    fig = figure.Figure(figsize=(4, 3))
    axes = fig.subplots()
    image = axes.imshow(planes[0], vmax=highest, **_STYLE)
    writer = animation.PillowWriter(fps=10)
    with writer.saving(fig, path, dpi=80):
        for title, plane in zip(titles, planes, strict=True):
            image.set_data(plane)
            axes.set_title(title)
            writer.grab_frame()


def write_events(events: list[dict[str, Any]], path: str | None = None) -> dict[str, Any]:
    """A trace in Chrome's form (chrome://tracing, Perfetto).

    Args:
        events: each with name, ph, ts, pid, ….
        path: file to write too.
    """
    out = {"traceEvents": events, "displayTimeUnit": "ms"}
    if path:
        pathlib.Path(path).write_text(json.dumps(out), encoding="utf-8")
    return out
