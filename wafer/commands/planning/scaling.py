"""Predicted steps on N systems, as a table and as a figure."""

import dataclasses
import io
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wafer.errors import ConfigError, Problem
from wafer.models.shown.figures import new_figure
from wafer.models.shown.html import table

if TYPE_CHECKING:
    from wafer.roofline import Prediction, SystemRates

_GIB = 2**30
_COLUMNS = (
    "systems", "tokens/step", "s/step", "tokens/s", "of linear", "compute s", "wait s",
    "latency s", "GiB/system", "GiB streamed",
)  # fmt: skip
_SOLID_TO = 16  # systems; from here the line is dashed


@dataclasses.dataclass(frozen=True)
class ScalingPlan:
    """A streamed training step of one model on N systems, predicted.

    The batch is the configuration's for one system and grows with N (weak scaling): every
    system keeps its share.
    """

    name: str  #: of the model
    machine: "SystemRates"  #: the roofline used
    predictions: "tuple[Prediction, ...]"  #: one per N
    parameters: int  #: how many the model has
    tokens: int  #: of a step of one system
    store_bytes: int  #: weights and optimizer state that MemoryX holds
    pipeline: tuple[str, ...]  #: names of the stages that a pipeline of it would have
    micro_batches: int  #: of a pipelined step
    copies: int = 1  #: of the pipeline, which share the micro-batches

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        notes = [(line,) for line in self._notes]
        return table(self._title, _COLUMNS, self._rows) + table("", (), notes)

    @property
    def _title(self) -> str:
        return f"{self.name}, {self.parameters:,} parameters, streamed"

    @property
    def _rows(self) -> list[tuple[str, ...]]:
        """A row of cells for each N."""
        first = self.predictions[0]
        return [
            (
                str(p.systems),
                f"{self.tokens * p.systems:,}",
                f"{p.seconds:.4g}",
                f"{self.tokens * p.systems / p.seconds:,.0f}",
                f"{first.seconds / p.seconds:.1%}",
                f"{p.compute:.4g}",
                f"{p.waited:.4g}",
                f"{p.latency:.2g}",
                f"{p.memory / _GIB:.2f}",
                f"{p.streamed / _GIB:.2f}",
            )
            for p in self.predictions
        ]

    @property
    def _notes(self) -> tuple[str, ...]:
        """Sentences on the machine, the store, and a pipeline."""
        from wafer.engines.stagewise.pipeline.schedule import bubble, in_flight

        count, depth, copies = self.micro_batches, len(self.pipeline), self.copies
        sharded = "; ".join(
            f"{p.systems}: {p.sharded_memory / _GIB:.2f} GiB, {p.sharded_seconds:.4g} s"
            for p in self.predictions
        )
        copied = "" if copies == 1 else f"{copies} copies of "
        return (
            f"{self.machine.name}: {self.machine.note}.",
            f"Sharded state (shard_state), GiB on each system and s/step: {sharded}.",
            f"MemoryX holds {self.store_bytes / _GIB:.2f} GiB of weights and optimizer state.",
            f"Pipelined: {copied}{depth} stages ({', '.join(self.pipeline)}), {count} "
            f"micro-batch(es) a step: {float(bubble(depth, count, copies=copies)):.1%} of the "
            f"timetable idle, at most {copies * in_flight(depth, count // copies, 0)} "
            "micro-batch(es) in flight.",
        )

    def table(self, *, stages: bool = False) -> str:
        """Write the predictions as text.

        Args:
            stages: add the time of every stage for the first N.
        """
        from rich.console import Console
        from rich.table import Table

        first = self.predictions[0]
        scaled = Table(title=self._title)
        for column in _COLUMNS:
            scaled.add_column(column, justify="right")
        for row in self._rows:
            scaled.add_row(*row)
        text = io.StringIO()
        console = Console(  # plain text, in a notebook, too
            file=text, width=120, highlight=False, force_jupyter=False, color_system=None
        )
        console.print(scaled)
        if stages:
            title = f"N = {first.systems}"
            detail = Table("stage", "forward s", "backward and update s", title=title)
            for name, (forward, backward) in first.stages.items():
                detail.add_row(name, f"{forward:.4g}", f"{backward:.4g}")
            console.print(detail)
        console.print("\n".join(self._notes), soft_wrap=True)
        return text.getvalue()


def short_count(parameters: int) -> str:
    """Three digits and a unit.

    >>> short_count(20_556_613_632), short_count(255_980_000)
    ('20.6 B', '256 M')
    """
    unit, size = ("B", 1e9) if parameters >= 1e9 else ("M", 1e6)
    return f"{parameters / size:.3g} {unit}"


def draw_scaling(plans: Sequence[ScalingPlan], path: str | None = None) -> Any:
    """Draw the speed-up over one system of each model; returns the matplotlib figure.

    Every point is a prediction by roofline. Up to 16 systems the line is drawn through, beyond
    them dashed.

    Args:
        plans: one per model, each with at least two numbers of systems.
        path: file to write, .png, .svg or .pdf; None writes none.

    Raises:
        ConfigError: one number of systems, or a file name that matplotlib cannot write.
    """
    from matplotlib import ticker

    if any(len({p.systems for p in plan.predictions}) < 2 for plan in plans):
        message = "a picture needs at least two numbers of systems, for example 1,4,16,64"
        raise ConfigError([Problem(("num_csx",), message)])
    fig = new_figure(figsize=(6.4, 4.4), layout="constrained")
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


def _line(axes: Any, plan: ScalingPlan, color: str) -> None:
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
