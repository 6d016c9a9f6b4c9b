"""Pictures of what ran when: the stages of a pipeline, and the sweep of weight streaming.

Notebooks call these; they need matplotlib and import it when called.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from wafer.engines.stagewise.pipeline.record import Span
from wafer.engines.stagewise.pipeline.schedule import PHASES, StageTask
from wafer.engines.stagewise.streaming.traffic import Event

_COLORS: dict[str, str] = dict(zip(PHASES, ("#4c78a8", "#f58518", "#54a24b"), strict=True))
_LANES = ("fetch", "forward", "backward", "update", "write")


class _Bar(NamedTuple):
    """A rectangle of a timeline; ``begin`` and ``length`` along the axis."""

    row: str
    begin: float
    length: float
    color: Any
    text: str = ""


def _draw(ax: Any, bars: Iterable[_Bar], rows: Sequence[str]) -> None:
    """Draw bars into matplotlib axes, the first row on top."""
    for bar in bars:
        at = rows.index(bar.row)
        ax.barh(at, bar.length, left=bar.begin, color=bar.color, edgecolor="white", linewidth=0.3)
        if bar.text:
            middle = bar.begin + bar.length / 2
            ax.text(middle, at, bar.text, ha="center", va="center", fontsize=7, color="white")
    ax.set_yticks(range(len(rows)), rows)
    ax.invert_yaxis()


def _legend(ax: Any) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=color, label=phase) for phase, color in _COLORS.items()]
    ax.legend(handles=patches, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _number(task: StageTask) -> str:
    return "" if task.micro < 0 else str(task.micro)


def _lane(task: StageTask, names: Sequence[str], copies: int) -> str:
    """The row of a task: its stage, and with several copies which of them."""
    name = names[task.stage]
    return name if copies == 1 else f"{name} ({task.copy(copies) + 1})"


def _lanes(names: Sequence[str], copies: int) -> list[str]:
    """All rows, copy after copy."""
    if copies == 1:
        return list(names)
    return [f"{name} ({copy + 1})" for copy in range(copies) for name in names]


def _bars(
    events: Sequence[Any],
    row: Callable[[Any], Any],
    color: Callable[[Any], Any],
    text: Callable[[Any], str] = lambda _: "",
) -> list[_Bar]:
    """A bar for each event, in milliseconds since the first began."""
    first = min(event.begin for event in events)
    return [
        _Bar(row(e), 1e3 * (e.begin - first), 1e3 * (e.end - e.begin), color(e), text(e))
        for e in events
    ]


def draw_schedule(
    ax: Any, tasks: Iterable[StageTask], names: Sequence[str], copies: int = 1
) -> Any:
    """Draw a timetable, steps against layers.

    Args:
        ax: matplotlib axes.
        tasks: from ``wafer.engines.stagewise.pipeline.schedule``.
        names: of the stages, the input's end first.
        copies: of the pipeline that the timetable is for.
    """
    lane = lambda task: _lane(task, names, copies)
    bars = [_Bar(lane(t), t.step - 0.5, 1, _COLORS[t.phase], _number(t)) for t in tasks]
    _draw(ax, bars, _lanes(names, copies))
    _legend(ax)
    ax.set_xlabel("step (number: micro-batch)")
    return ax


def draw_spans(ax: Any, spans: Sequence[Span], names: Sequence[str], copies: int = 1) -> Any:
    """Draw what ran when, milliseconds against layers.

    Args:
        ax: matplotlib axes.
        spans: of one step, as the pipelined engine recorded them.
        names: of the stages, the input's end first.
        copies: of the pipeline that ran.
    """
    wide = 0.012 * (max(span.end for span in spans) - min(span.begin for span in spans))
    text = lambda span: _number(span.task) if span.end - span.begin > wide else ""
    lane = lambda span: _lane(span.task, names, copies)
    bars = _bars(spans, lane, lambda span: _COLORS[span.task.phase], text)
    _draw(ax, bars, _lanes(names, copies))
    _legend(ax)
    ax.set_xlabel("ms since the step began (number: micro-batch)")
    return ax


def draw_sweep(ax: Any, events: Sequence[Event], color: Callable[[str], Any]) -> Any:
    """Draw a step of weight streaming: what was fetched, computed and written when.

    Args:
        ax: matplotlib axes.
        events: of one step, as the streaming engine recorded them.
        color: of a stage or branch, by name.
    """
    bars = _bars(events, lambda event: event.lane, lambda event: color(event.name.split("/")[0]))
    _draw(ax, bars, _LANES)
    ax.set_xlabel("ms since the step began")
    return ax
