"""Figures of the study, from its tables alone."""

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from study_claims import DENSE, RULERS, costs_by, values_by
from study_rows import of_arms

from wafer.models.shown.figures import new_figure
from wafer.sweeps.law import Law
from wafer.sweeps.table import TrialResult

METHODS = ("static", "erk", "rigl", "set", "mest", "gmp", "acdc", "spdf", "wide", "dense")
LEVELS = (80, 90, 95)
MARKS = {None: "*", 50: "v", 75: "D", 80: "o", 90: "s", 92: "p", 95: "^"}
_NAME = re.compile(r"([a-z]+)(\d\d)?(-w64|-\d+|-then-dense)?")


class Look(NamedTuple):
    """How an arm is drawn."""

    method: str  #: its color
    level: int | None  #: its mark; None is dense


def look(arm: str) -> Look | None:
    """Return how an arm is drawn; None: an experiment of another table.

    SPDF is drawn after fine-tuning; before it, it is static.
    """
    match = _NAME.fullmatch(arm)
    if match is None or match[1] not in METHODS:
        return None
    level = None if match[2] is None else int(match[2])
    method = "static" if match[1] == "spdf" and match[3] is None else match[1]
    return Look(method, level)


def _style(method: str) -> dict[str, str]:
    return {"color": f"C{METHODS.index(method)}"}


def _points(axes: Any, runs: Sequence[TrialResult], costs: Mapping[str, float]) -> None:
    """Draw each arm at its cost: mean and two standard errors."""
    for arm, by_seed in values_by("steps", runs, {}).items():
        one = look(arm)
        if one is not None and arm in costs:
            values = np.array(list(by_seed.values()))
            error = 2 * values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
            mark = {"marker": MARKS[one.level], "ms": 5, "lw": 1, "fmt": " "}
            axes.errorbar(costs[arm], values.mean(), error, **mark, **_style(one.method))


def _legend(axes: Any, runs: Sequence[TrialResult]) -> None:
    """Name colors and marks that are drawn."""
    drawn = [one for one in map(look, dict.fromkeys(row.arm for row in runs)) if one]
    for method in METHODS:
        if any(one.method == method for one in drawn):
            axes.plot([], [], "o", ms=5, label=method, **_style(method))
    for level, mark in MARKS.items():
        if any(one.level == level for one in drawn):
            label = "dense" if level is None else f"{level} %"
            axes.plot([], [], mark, ms=5, color="0.4", label=label)
    axes.legend(frameon=False, ncols=2, fontsize=8)


def draw_costs(
    runs: Sequence[TrialResult], seconds: Mapping[str, float], path: pathlib.Path
) -> None:
    """Draw bits per byte against seconds, FLOPs and weights kept; dense lengths are a line.

    Args:
        runs: final ones.
        seconds: arm -> of its training.
        path: file to write.
    """
    costs = {
        "seconds of training, csr products": costs_by("seconds", runs, seconds),
        "FLOPs of training": costs_by("FLOPs", runs, seconds),
        "weights kept": {row.arm: float(row.kept) for row in runs},
    }
    costs = {label: by_arm for label, by_arm in costs.items() if by_arm}
    fig = new_figure(figsize=(6.0 * len(costs), 5.0), layout="constrained")
    panels = np.atleast_1d(fig.subplots(1, len(costs), sharey=True))
    means = {arm: np.mean([*v.values()]) for arm, v in values_by("steps", runs, {}).items()}
    for axes, (label, by_arm) in zip(panels, costs.items(), strict=True):
        _points(axes, runs, by_arm)
        if label != "weights kept":
            line = [(by_arm[arm], means[arm]) for arm in DENSE if arm in by_arm and arm in means]
            axes.plot(*np.transpose(sorted(line)), lw=1, **_style("dense"))
        axes.set(xscale="log", xlabel=label)
        axes.tick_params(which="both", labelsize=7)
    panels[0].set(ylabel="bits per byte, ± 2 standard errors")
    _legend(panels[-1], runs)
    fig.savefig(path, dpi=140)


def draw_levels(
    runs: Sequence[TrialResult], seconds: Mapping[str, float], path: pathlib.Path
) -> None:
    """Draw the gap to dense against the level, by each ruler.

    Args:
        runs: final ones.
        seconds: arm -> of its training.
        path: file to write.
    """
    by_ruler = {ruler: values_by(ruler, runs, seconds) for ruler in RULERS}
    by_ruler = {ruler: values for ruler, values in by_ruler.items() if "dense" in values}
    fig = new_figure(figsize=(4.6 * max(len(by_ruler), 1), 4.4), layout="constrained")
    panels = np.atleast_1d(fig.subplots(1, max(len(by_ruler), 1), sharey=True))
    for axes, (ruler, values) in zip(panels, by_ruler.items(), strict=False):
        for at, method in enumerate(METHODS[:7]):
            points = []
            for level in LEVELS:
                own = values.get(f"{method}{level}", {})
                gaps = np.array([own[s] - values["dense"][s] for s in own if s in values["dense"]])
                if len(gaps) > 1:
                    points.append((level, gaps.mean(), 2 * gaps.std(ddof=1) / len(gaps) ** 0.5))
            if points:
                levels, means, errors = np.transpose(points)
                axes.errorbar(
                    levels + 0.3 * (at - 3), means, errors, fmt="o-", ms=4, lw=1, label=method,
                    **_style(method),
                )  # fmt: skip
        axes.axhline(0, color="0.6", lw=0.8)
        axes.set(xlabel="level, % of weights pruned", title=f"equal {ruler}", xticks=LEVELS)
    panels[0].set(ylabel="bits per byte less dense, ± 2 standard errors")
    panels[0].legend(frameon=False, fontsize=8)
    fig.savefig(path, dpi=140)


def draw_law(runs: Sequence[TrialResult], law: Law, path: pathlib.Path) -> None:
    """Draw predicted against measured bits; runs that the fit has not seen are crosses.

    Args:
        runs: of the law and of its test.
        law: its fit.
        path: file to write.
    """
    fig = new_figure(figsize=(5.2, 4.6), layout="constrained")
    axes = fig.subplots()
    for mark, start, label in (("o", "law-", "fitted"), ("x", "test-", "not seen by the fit")):
        own = [row for row in runs if row.arm.startswith(start)]
        fits = [law(row.parameters, row.tokens, row.kept / row.parameters) for row in own]
        axes.plot([row.metric for row in own], fits, mark, ms=5, label=label)
    span = axes.get_xlim()
    axes.plot(span, span, color="0.6", lw=0.8)
    axes.set(xlabel="bits per byte, measured", ylabel="predicted")
    axes.legend(frameon=False)
    fig.savefig(path, dpi=140)


def draw_all(
    runs: Sequence[TrialResult],
    seconds: Mapping[str, float],
    law: Law | None,
    folder: pathlib.Path,
) -> list[pathlib.Path]:
    """Draw every figure that the rows allow; returns the files.

    Args:
        runs: all of ``runs.csv``.
        seconds: arm -> of its training.
        law: the fit of its runs; None where they are not finished.
        folder: where the figures are written.
    """
    final = of_arms(runs)
    paths = []
    if final:
        paths += [folder / "sparsity_study.png", folder / "sparsity_study_levels.png"]
        draw_costs(final, seconds, paths[0])
        draw_levels(final, seconds, paths[1])
    if law is not None:
        paths.append(folder / "sparsity_study_law.png")
        draw_law(runs, law, paths[-1])
    return paths
