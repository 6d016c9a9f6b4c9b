"""How much faster N systems are than one, as a picture: the vendor's scaling figure."""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wafer.errors import ConfigError, Problem

if TYPE_CHECKING:
    from wafer.commands.plan import ScalingPlan

__all__ = ["draw_scaling", "short_count"]

_SOLID_TO = 16  # systems; the vendor's figure continues with dashes from here, and so do we


def short_count(parameters: int) -> str:
    """Three digits and a unit.

    >>> short_count(20_556_613_632), short_count(255_980_000)
    ('20.6 B', '256 M')
    """
    unit, size = ("B", 1e9) if parameters >= 1e9 else ("M", 1e6)
    return f"{parameters / size:.3g} {unit}"


def draw_scaling(plans: "Sequence[ScalingPlan]", path: str | None = None) -> Any:
    """Draw the speed-up over one system of each model; returns the matplotlib figure.

    Every point is a prediction by roofline. Up to 16 systems the line is drawn through, beyond
    them dashed, as in the vendor's figure.

    Args:
        plans: one per model, each with at least two numbers of systems.
        path: file to write, .png, .svg or .pdf; None writes none.

    Raises:
        ConfigError: one number of systems, or a file name that matplotlib cannot write.
    """
    from matplotlib import figure, ticker

    if any(len({p.systems for p in plan.predictions}) < 2 for plan in plans):
        message = "a picture needs at least two numbers of systems, for example 1,4,16,64"
        raise ConfigError([Problem(("num_csx",), message)])
    fig = figure.Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = fig.subplots()
    most = max(p.systems for plan in plans for p in plan.predictions)
    least = min(p.systems for plan in plans for p in plan.predictions)
    axes.plot([least, most], [least, most], color="0.75", linewidth=1, label="linear")
    for at, plan in enumerate(plans):
        _line(axes, plan, f"C{at}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ticker.ScalarFormatter())
    axes.set(
        title=f"Weight streaming, predicted for {plans[0].machine.name}",
        xlabel=f"systems (dashed: beyond {_SOLID_TO})",
        ylabel="tokens per second, in those of one system",
    )
    axes.legend(frameon=False)
    if path is not None:
        _save(fig, path)
    return fig


def _line(axes: Any, plan: "ScalingPlan", color: str) -> None:
    """One model's speed-up: each system keeps its share of the batch, so N / (time ratio)."""
    points = sorted({p.systems: p.seconds for p in plan.predictions}.items())
    systems, alone = [n for n, _ in points], points[0][1]
    speed = [n * alone / seconds for n, seconds in points]
    solid = sum(n <= _SOLID_TO for n in systems)
    label = f"{plan.name}, {short_count(plan.parameters)}"
    axes.plot(systems[:solid], speed[:solid], "o-", color=color, markersize=4, label=label)
    if solid == len(systems):
        return
    rest = slice(max(solid - 1, 0), None)
    axes.plot(systems[rest], speed[rest], "o--", color=color, markersize=4, fillstyle="none")


def _save(fig: Any, path: str) -> None:
    known = sorted(fig.canvas.get_supported_filetypes())
    ending = pathlib.Path(path).suffix.removeprefix(".")
    if ending not in known:
        message = f"{path!r}: unknown kind of picture; endings: {', '.join(known)}"
        raise ConfigError([Problem(("picture",), message)])
    fig.savefig(path, dpi=150)
