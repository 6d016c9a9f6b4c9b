"""Quality against what it costs, an arm a color, a run a point; and the curves of a fit."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wafer.models.shown.figures import new_figure
from wafer.sweeps.law import Law
from wafer.sweeps.table import TrialResult

COSTS = {  # field of a row -> label of its axis
    "training": "FLOPs of training",
    "inference": "FLOPs per token at inference",
    "kept": "weights kept",
    "seconds": "seconds",
}


def draw(rows: Sequence[TrialResult], metric: str, folder: pathlib.Path) -> list[pathlib.Path]:
    """Draw the metric against each cost; returns the files, ``COST.png``."""
    paths = []
    for field, label in COSTS.items():
        fig = new_figure(figsize=(6.4, 4.4), layout="constrained")
        axes = fig.subplots()
        for index, arm in enumerate(dict.fromkeys(row.arm for row in rows)):
            own = [row for row in rows if row.arm == arm]
            costs = [getattr(row, field) for row in own]
            axes.plot(costs, [row.metric for row in own], "o", color=f"C{index % 10}", label=arm)
        axes.set(xlabel=label, ylabel=metric, xscale="log")
        axes.legend(frameon=False)
        paths.append(folder / f"{field}.png")
        fig.savefig(paths[-1], dpi=150)
    return paths


def draw_law(
    rows: Sequence[TrialResult], laws: Mapping[str, Law], metric: str, path: pathlib.Path
) -> pathlib.Path:
    """Draw fits within their range: against weights, tokens and FLOPs of training.

    A group is a color. Against weights there is a curve for each number of tokens, against
    tokens one for each number of weights, against FLOPs one for each number of tokens: the FLOPs
    of a token between two sizes lie on the line between theirs.

    Args:
        rows: the runs that were fitted, drawn as points.
        laws: group -> its fit.
        metric: name of the loss.
        path: file to write.
    """
    fig = new_figure(figsize=(12.0, 4.0), layout="constrained")
    panels = fig.subplots(1, 3, sharey=True)
    for at, (group, law) in enumerate(laws.items()):
        own = [row for row in rows if row.group == group]
        _draw_group(panels, own, law, {"color": f"C{at % 10}"}, group)
    for axes, label in zip(panels, ("weights kept", "tokens", "FLOPs of training"), strict=True):
        axes.set(xlabel=label, xscale="log")
    panels[0].set(ylabel=metric)
    panels[0].legend(frameon=False)
    fig.savefig(path, dpi=150)
    return path


def _draw_group(
    panels: Sequence[Any],
    rows: Sequence[TrialResult],
    law: Law,
    style: Mapping[str, str],
    group: str,
) -> None:
    """Draw one fit: points of its runs, curves between its least and greatest run."""
    sizes, lengths = (sorted({getattr(row, key) for row in rows}) for key in ("kept", "tokens"))
    per_token = {row.kept: row.training / row.tokens for row in rows}
    weights, tokens = (np.geomspace(span[0], span[-1]) for span in (sizes, lengths))
    flops = np.interp(weights, sizes, [per_token[size] for size in sizes])
    losses = [row.metric for row in rows]
    for axes, field in zip(panels, ("kept", "tokens", "training"), strict=True):
        axes.plot([getattr(row, field) for row in rows], losses, "o", ms=4, **style)
    for length in lengths:
        curve = [law(n, length) for n in weights]
        panels[0].plot(weights, curve, lw=1, label=group if length == lengths[0] else None, **style)
        panels[2].plot(flops * length, curve, lw=1, **style)
    for size in sizes:
        panels[1].plot(tokens, [law(size, d) for d in tokens], lw=1, **style)
