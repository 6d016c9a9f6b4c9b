"""Read operations out of a ``jax.profiler`` trace, with the time each spent itself."""

import dataclasses
import pathlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from wafer.profiling.scopes import OTHER, instruction_scopes, module_of


@dataclasses.dataclass
class Operation:
    """One execution of one instruction."""

    module: str  #: parameter path and phase, 'layers_0/attn.fwd'
    instruction: str  #: XLA's name
    line: str  #: thread or stream it ran on
    start_ns: float  #: begin on the trace's clock, ns
    duration_ns: float  #: until its end, ns
    self_ns: float  #: the same without the operations nested inside, ns
    program: tuple[Any, ...] = ()  #: tells programs apart


def read_operations(
    folder: pathlib.Path, programs: Sequence[str], params: Mapping[str, object]
) -> list[Operation]:
    """Parse the newest trace in a folder.

    Args:
        folder: what ``jax.profiler.start_trace`` was given.
        programs: HLO text of every program that may have run.
        params: parameter tree whose paths name the modules.

    Returns:
        Operations of these programs in the order they began.
    """
    events: list[Operation] = []
    for path in sorted(folder.rglob("*.xplane.pb"))[-1:]:
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                events += _nest(_events(line, f"{plane.name} {line.name}"))
    names = (hlo.partition("HloModule ")[2].partition(",")[0].strip() for hlo in programs)
    scopes = _match(events, [*zip(names, map(instruction_scopes, programs), strict=True)])
    known = [op for op in events if op.program in scopes]
    for op in known:
        if scope := scopes[op.program].get(op.instruction, ""):
            op.module = module_of(scope, params)
    return sorted(known, key=lambda op: op.start_ns)


def _events(line: Any, name: str) -> Iterable[Operation]:
    for event in line.events:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the binding, on 3.12
            stats = dict(event.stats)
        if "hlo_op" in stats and event.duration_ns > 0:
            program = (stats.get("hlo_module"), stats.get("program_id"))
            duration = float(event.duration_ns)
            start = float(event.start_ns)
            yield Operation(OTHER, str(stats["hlo_op"]), name, start, duration, duration, program)


def _nest(events: Iterable[Operation]) -> list[Operation]:
    """Take the time of nested events out of the one around them (loops, calls)."""
    ordered = sorted(events, key=lambda e: (e.start_ns, -e.duration_ns))
    open_events: list[Operation] = []
    for event in ordered:
        while (
            open_events and open_events[-1].start_ns + open_events[-1].duration_ns <= event.start_ns
        ):
            open_events.pop()
        if open_events:
            open_events[-1].self_ns = max(open_events[-1].self_ns - event.duration_ns, 0.0)
        open_events.append(event)
    return ordered


def _match(
    events: Iterable[Operation], programs: Sequence[tuple[str, dict[str, str]]]
) -> dict[tuple[object, ...], dict[str, str]]:
    """Find each traced program's text: of its name, the one that knows most of its instructions."""
    used: dict[tuple[object, ...], set[str]] = {}
    for event in events:
        used.setdefault(event.program, set()).add(event.instruction)
    matched = {}
    for key, instructions in used.items():
        alike = [scopes for name, scopes in programs if name == key[0]]
        if alike:
            matched[key] = max(alike, key=lambda scopes: len(instructions & scopes.keys()))
    return matched
