"""What masks look like and how they change: numbers, and pictures of them.

A mask is a bool array of its weight's shape, true where kept, its outputs last. ``masks`` reads
them from a checkpoint; ``draw`` and ``draw_flow`` need matplotlib.
"""

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import PyTree

from wafer.models.checkpoint.reader import open_params
from wafer.models.shown.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Masks = Mapping[str, np.ndarray]


class Degrees(NamedTuple):
    """Kept weights of each neuron."""

    incoming: np.ndarray  #: [out], of each output
    outgoing: np.ndarray  #: [in], of each input


def masks(checkpoint: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read the masks of a checkpoint: parameter -> mask, of those that hold a NaN.

    Raises:
        CheckpointError: not a checkpoint, or a damaged one.
        ValueError: none of its weights is pruned.
    """
    _, leaves = open_params(checkpoint)
    weights = {name: np.asarray(leaf) for name, leaf in leaves.items()}
    pruned = {name: np.isnan(weight) for name, weight in weights.items() if weight.ndim > 1}
    sparse_masks = {name: ~marked for name, marked in pruned.items() if marked.any()}
    if not sparse_masks:
        raise ValueError(f"{checkpoint}: no weight is pruned; expected a sparse checkpoint")
    return sparse_masks


def levels(masks: Masks) -> dict[str, float]:
    """Share of each parameter's weights that are pruned."""
    return {name: 1 - float(np.mean(mask)) for name, mask in masks.items()}


def degrees(mask: np.ndarray) -> Degrees:
    """Count the kept weights of each output and input of a mask [..., in, out]."""
    flat = np.asarray(mask).reshape(-1, mask.shape[-1])
    return Degrees(flat.sum(axis=0), flat.sum(axis=1))


def survivors(sequence: Sequence[Masks]) -> dict[str, list[float]]:
    """Share of the first mask's weights that each later one still keeps: parameter -> [masks].

    Raises:
        ValueError: masks of different parameters.
    """
    first = _alike(sequence)
    return {
        name: [float(np.sum(one[name] & mask) / max(np.sum(mask), 1)) for one in sequence]
        for name, mask in first.items()
    }


def moved(sequence: Sequence[Masks]) -> dict[str, list[float]]:
    """Share of each mask's weights that the one before did not keep: parameter -> [masks - 1].

    Raises:
        ValueError: masks of different parameters.
    """
    first, pairs = _alike(sequence), list(itertools.pairwise(sequence))
    return {
        name: [float(np.sum(b[name] & ~a[name]) / max(np.sum(b[name]), 1)) for a, b in pairs]
        for name in first
    }


def gradient_flow(grads: Mapping[str, PyTree], masks: Masks) -> dict[str, float]:
    """Root mean square of the gradients of kept weights (after Evci et al. 2022, 2010.03533)."""
    return {
        name: float(np.sqrt(np.mean(np.square(np.asarray(grads[name], np.float64)[mask]))))
        for name, mask in masks.items()
        if np.any(mask)
    }


def draw(sequence: Mapping[int, Masks]) -> "Figure":
    """Draw masks: levels, evolution, and in- and out-degrees, a parameter a color.

    Args:
        sequence: step -> masks, in order; levels and degrees are the last one's.

    Raises:
        ValueError: nothing to draw, or masks of different parameters.
    """
    survival, steps = survivors(list(sequence.values())), list(sequence)
    last = sequence[steps[-1]]
    fig = new_figure(figsize=(11, 7), layout="constrained")
    (level, evolution), (incoming, outgoing) = fig.subplots(2, 2)
    colors = {name: f"C{at % 10}" for at, name in enumerate(last)}
    names = [_short(name) for name in last]
    level.barh(names, list(levels(last).values()), color=list(colors.values()))
    level.invert_yaxis()
    level.set(xlabel=f"share that is pruned at step {steps[-1]}", xlim=(0, 1))
    for name, values in survival.items():
        evolution.plot(steps, values, ".-", color=colors[name], label=_short(name))
    evolution.set(xlabel="step", ylabel=f"share kept since step {steps[0]}", ylim=(0, 1.02))
    if len(survival) <= 10:  # as many as there are colors
        evolution.legend(frameon=False, fontsize="x-small", ncols=2)
    for name, mask in last.items():
        own = degrees(mask)
        _histogram(incoming, own.incoming, colors[name])
        _histogram(outgoing, own.outgoing, colors[name])
    incoming.set(xlabel="kept weights of an output", ylabel="share of outputs")
    outgoing.set(xlabel="kept weights of an input", ylabel="share of inputs")
    return fig


def draw_flow(flows: Mapping[int, Mapping[str, float]]) -> "Figure":
    """Draw the gradients of each layer over the steps.

    Raises:
        ValueError: nothing to draw.
    """
    if not flows:
        raise ValueError("flows: empty; expected step -> gradient_flow(grads, masks)")
    fig = new_figure(figsize=(6.4, 4.4), layout="constrained")
    axes = fig.subplots()
    for name in next(iter(flows.values())):
        axes.plot(list(flows), [flow[name] for flow in flows.values()], ".-", label=_short(name))
    axes.set(xlabel="step", ylabel="root mean square of gradients", yscale="log")
    axes.legend(frameon=False, fontsize="x-small", ncols=2)
    return fig


def _alike(sequence: Sequence[Masks]) -> Masks:
    """The first masks, after a check that all have the same parameters."""
    if not sequence:
        raise ValueError("no masks; expected at least one checkpoint's")
    first = {name: mask.shape for name, mask in sequence[0].items()}
    for at, one in enumerate(sequence):
        if {name: mask.shape for name, mask in one.items()} != first:
            raise ValueError(f"masks {at}: other parameters or shapes than masks 0; one run's only")
    return sequence[0]


def _histogram(axes: "Axes", counts: np.ndarray, color: str) -> None:
    bins = np.arange(counts.min(), counts.max() + 2) - 0.5
    shares = np.full(counts.shape, 1 / counts.size)
    axes.hist(counts, bins.tolist(), weights=shares, histtype="step", color=color)


def _short(name: str) -> str:
    return name.removesuffix("/kernel")
