"""The time table of the most expensive modules, as text, JSON and a Chrome trace."""

import collections
import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from wafer.errors import DataError
from wafer.models.shown.html import table
from wafer.profiling.trace import Operation

TOP = 10
_REPORT = "op_profile.json"
_HEADS = ("", "PYTORCH MODULE NAME", "CSX TIME (in ms)", "% CSX TIME")


@dataclasses.dataclass(frozen=True)
class ModuleShare:
    """One module's share."""

    module: str  #: parameter path with .fwd, .bwd or .upd
    time_ms: float  #: self time over all profiled steps, all threads added, ms
    percent: float  #: of the time of all operations
    count: int  #: operations executed


class Profile(NamedTuple):
    """What a profiled run left; printed, its table."""

    steps: tuple[int, int]  #: first and last profiled step
    total_ms: float  #: time of all operations, all threads added, ms
    modules: tuple[ModuleShare, ...]  #: the most expensive first

    def __repr__(self) -> str:
        return text_table(self.modules, self.steps)

    def _repr_html_(self) -> str:
        heads = ("module", "ms", "% of the time", "operations")
        rows = [dataclasses.astuple(module) for module in self.modules]
        return table(_title(self.modules, self.steps), heads, rows)


def read_report(folder: pathlib.Path) -> Profile:
    """Read what ``write_report`` wrote.

    Raises:
        DataError: there is none.
    """
    path = folder / _REPORT
    if not path.is_file():
        raise DataError(
            f"{path} is not there; expected the profile of a run whose runconfig has "
            "op_profiler_config: {start_step: N, end_step: M}"
        )
    record = json.loads(path.read_text(encoding="utf-8"))
    modules = tuple(ModuleShare(**module) for module in record["modules"])
    return Profile((record["start_step"], record["end_step"]), record["total_ms"], modules)


def summarize(operations: Sequence[Operation]) -> list[ModuleShare]:
    """Add the self times of each module's operations up, the most expensive first."""
    spent: collections.Counter[str] = collections.Counter()
    count: collections.Counter[str] = collections.Counter()
    for op in operations:
        spent[op.module] += op.self_ns  # type: ignore[assignment]
        count[op.module] += 1
    total = max(sum(spent.values()), 1e-9)
    return [
        ModuleShare(module, ns / 1e6, 100 * ns / total, count[module])
        for module, ns in spent.most_common()
    ]


def text_table(rows: Sequence[ModuleShare], steps: tuple[int, int]) -> str:
    """Lay the ten most expensive modules out.

    The times are of the devices that ran, whatever the heads call them.
    """
    cells = [
        (str(i), row.module, f"{row.time_ms:.3f}", f"{row.percent:.2f}")
        for i, row in enumerate(rows[:TOP])
    ]
    widths = [max(map(len, column)) for column in zip(_HEADS, *cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        name = f" {row[1]:<{widths[1]}} "
        numbers = [f" {row[i]:>{widths[i]}} " for i in (0, 2, 3)]
        return "|" + "|".join([numbers[0], name, *numbers[1:]]) + "|"

    rule = "+".join("-" * (width + 2) for width in widths)
    body = [f"+{rule}+", line(_HEADS), f"|{rule}|", *map(line, cells), f"+{rule}+"]
    return "\n".join([_title(rows, steps), *body])


def _title(rows: Sequence[ModuleShare], steps: tuple[int, int]) -> str:
    total = sum(row.time_ms for row in rows)
    return f"Operations of steps {steps[0]} to {steps[1]}: {total:.3f} ms (all threads added)"


def chrome_trace(operations: Sequence[Operation]) -> dict[str, object]:
    """Build the trace that chrome://tracing and ui.perfetto.dev open, in µs.

    Follows the Trace Event Format: complete events ("X") that nest within a thread, and metadata
    ("M") that names process and threads.
    """
    threads = {line: i for i, line in enumerate(dict.fromkeys(op.line for op in operations))}
    begin = min((op.start_ns for op in operations), default=0.0)
    named = [
        ("process_name", 0, "wafer"),
        *(("thread_name", t, name) for name, t in threads.items()),
    ]
    events: list[dict[str, Any]] = [
        {"name": kind, "ph": "M", "pid": 0, "tid": tid, "args": {"name": name}}
        for kind, tid, name in named
    ]
    events += [
        {
            "name": op.module,
            "ph": "X",
            "ts": (op.start_ns - begin) / 1e3,
            "dur": op.duration_ns / 1e3,
            "pid": 0,
            "tid": threads[op.line],
            "args": {"hlo_op": op.instruction, "self_us": op.self_ns / 1e3},
        }
        for op in operations
    ]
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def write_report(
    operations: Sequence[Operation], steps: tuple[int, int], folder: pathlib.Path
) -> str:
    """Write ``op_profile.txt``, ``op_profile.json`` and ``chrome_trace.json``; returns the table.

    Args:
        operations: what ran.
        steps: first and last profiled step.
        folder: created.
    """
    rows = summarize(operations)
    table = text_table(rows, steps)
    record = {
        "start_step": steps[0],
        "end_step": steps[1],
        "total_ms": sum(row.time_ms for row in rows),
        "modules": [dataclasses.asdict(row) for row in rows],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "op_profile.txt").write_text(table + "\n")
    (folder / _REPORT).write_text(json.dumps(record, indent=2) + "\n")
    (folder / "chrome_trace.json").write_text(json.dumps(chrome_trace(operations)))
    return table
