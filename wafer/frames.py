"""Drawing what a grid of PEs did: heat maps, filmstrips, GIFs, and events in Chrome's form."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wafer.models.errors import optional
from wafer.models.shown.figures import new_figure

_STYLE = {"vmin": 0, "cmap": "inferno", "interpolation": "nearest"}  # a PE is a square
_WIDEST = 9.0  # inches of a row of frames, as wide as a notebook's page


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
    wide, tall = _size(plane.shape, 5.0)
    fig = new_figure(figsize=(wide + 1.6, max(tall, 1.2) + 1.0), layout="constrained")
    axes = fig.subplots()
    fig.colorbar(axes.imshow(plane, vmax=highest, **_STYLE), label=meaning)
    axes.set(title=title, xlabel="x", ylabel="y")
    axes.locator_params(integer=True)
    if path:
        fig.savefig(path)
    return fig


def _size(shape: tuple[int, ...], longest: float) -> tuple[float, float]:
    """(width, height) in inches of a plane [H, W] whose PEs are square."""
    height, width = shape[-2:]
    scale = longest / max(height, width)
    return width * scale, height * scale


def _meanings(
    fig: Any, image: Any, axes: Any, meaning: str | Sequence[str], highest: float
) -> None:
    """Say what the colors are: a scale, or a legend of the values."""
    from matplotlib.patches import Patch

    if isinstance(meaning, str):
        fig.colorbar(image, ax=axes, label=meaning)
        return
    patches = [Patch(facecolor=image.cmap(v / highest), label=n) for v, n in enumerate(meaning)]
    fig.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False)


def draw_filmstrip(
    planes: np.ndarray,
    titles: Sequence[str],
    meaning: str | Sequence[str],
    *,
    highest: float,
    path: str | None = None,
) -> Any:
    """Draw frames in rows, or below each other where they are wide; returns the figure.

    Args:
        planes: [n, H, W].
        titles: of the frames.
        meaning: of the values; or a name for each of the values 0, 1, ….
        highest: value of the brightest color; 0 is black.
        path: file to write too.
    """
    count, height, width = planes.shape
    below = width > 3 * height
    wide, tall = _size(planes.shape, min(8.0, 0.5 * width) if below else 2.0)
    columns = 1 if below else min(count, int(_WIDEST / wide))
    rows = -(-count // columns)
    size = (columns * wide + (2.0 if below else 1.4), rows * (tall + 0.35) + 0.8)
    fig = new_figure(figsize=size, layout="constrained")
    grid = fig.subplots(rows, columns, squeeze=False).ravel()
    axes = grid[:count]
    for unused in grid[count:]:
        unused.set_visible(False)
    images = [axis.imshow(p, vmax=highest, **_STYLE) for axis, p in zip(axes, planes, strict=True)]
    for axis, title in zip(axes, titles, strict=True):
        axis.set(xticks=[], yticks=[])
        if below:
            axis.set_ylabel(title, rotation=0, ha="right", va="center")
        else:
            axis.set_title(title, fontsize=10)
    _meanings(fig, images[0], list(axes), meaning, highest)
    if path:
        fig.savefig(path)
    return fig


def write_gif(
    planes: np.ndarray,
    titles: Sequence[str],
    meaning: str | Sequence[str],
    *,
    highest: float,
    path: str,
) -> None:
    """Write the same frames as an animation.

    Args:
        planes: [n, H, W].
        titles: of the frames.
        meaning: of the values; or a name for each of the values 0, 1, ….
        highest: value of the brightest color; 0 is black.
        path: of the file.
    """
    animation = optional("matplotlib.animation", "drawing")
    wide, tall = _size(planes.shape, 4.0)
    fig = new_figure(figsize=(wide + 1.4, max(tall, 0.6) + 1.0), layout="constrained")
    axes = fig.subplots()
    image = axes.imshow(planes[0], vmax=highest, **_STYLE)
    _meanings(fig, image, axes, meaning, highest)
    writer = animation.PillowWriter(fps=10)
    with writer.saving(fig, path, dpi=80):
        for title, plane in zip(titles, planes, strict=True):
            image.set_data(plane)
            axes.set_title(title)
            writer.grab_frame()


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
