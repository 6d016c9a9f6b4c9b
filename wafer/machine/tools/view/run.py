"""The view of a recorded run: what the page shows of PEs, words, source lines and memory."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wafer.machine.base import WaferMachine
from wafer.machine.branches import JUMPS
from wafer.machine.codes import CONDITIONAL, Op
from wafer.machine.costs import costs_for
from wafer.machine.image import Image, Program
from wafer.machine.timing import instruction_cycles
from wafer.machine.tools.causes import explain
from wafer.machine.tools.recording import Trace
from wafer.machine.tools.reports import Reason, Waiting
from wafer.machine.tools.view.block import pack, page

_LANES = 8  # of output queues, behind the colors
_MEMORY = 4 << 20  # bytes of all PEs
_KEPT = (1 << 16, 1024, 256, 64, 16, 0)  # of each symbol
_TEXT = 2 << 20  # characters of sources
_REPORTED = 1000
# Columns of instructions, and their kinds from 1 on; 0: goes on to the next one.
_CODE = ("code_kind", "code_cycles", "code_taken", "code_jump", "code_line")
_KINDS = ((Op.JUMP,), CONDITIONAL, (Op.CALL,), (Op.RETURN,), (Op.CALL_AT, Op.FAULT))


def is_page(path: Path) -> bool:
    """Whether a file is to be a page; else it has the block alone."""
    return path.suffix.lower() in (".html", ".htm")


class View:
    """A page that shows a run; a notebook shows it in its cell.

    Args:
        block: of ``view`` or of a floor plan.
        address: behind the page's name: the cycle and the PE of the likely cause; or ''.
    """

    def __init__(self, block: bytes, address: str = "") -> None:
        self.block, self.address = block, address

    def save(self, path: str | Path) -> None:
        """Write the page, or the block alone to a file that does not end in .html."""
        path = Path(path)
        path.write_bytes(page(self.block).encode() if is_page(path) else self.block)

    def __repr__(self) -> str:
        return "a page of a run or floor plan; save(path) writes it"

    def _repr_html_(self) -> str:
        text = page(self.block).replace("&", "&amp;").replace('"', "&quot;")
        return f'<iframe srcdoc="{text}" style="width:100%;height:620px;border:0"></iframe>'


class _Sources:
    """Files and their lines, each with a number."""

    def __init__(self) -> None:
        self.lines = dict[tuple[str, int], int]()

    def line(self, file: str, line: int) -> int:
        """The number of a line; -1 without a file."""
        return self.lines.setdefault((file, line), len(self.lines)) if file else -1

    def of(self, program: Program, pc: int) -> int:
        """The number of the line of an instruction; -1 without one."""
        if not 0 <= pc < len(program.lines):
            return -1
        file, line = program.lines[pc].tolist()
        return self.line(program.files[file], line)

    def tables(self) -> dict[str, Any]:
        """'files', each with its name and text, and 'lines', each with a file and a number."""
        files = list(dict.fromkeys(file for file, _ in self.lines))
        texts, room = dict[str, str | None].fromkeys(files), _TEXT
        for file in files:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                texts[file] = Path(file).read_text(encoding="utf-8")[:room]
                room -= len(texts[file] or "")
        lines = [(files.index(file), line) for file, line in self.lines]
        return {"files": list(texts.items()), "lines": lines}


def view(run: Any, title: str = "", ending: str = "") -> View:
    """Return the view of a run that was recorded with ``Recording`` ``VIEW``.

    Args:
        run: a machine, or what has one as ``machine``: a ``Runtime``, a ``FabricState``.
        title: of the page.
        ending: how the run ended, if not well.

    Raises:
        CompileError: the machine records nothing.
    """
    machine: WaferMachine = getattr(run, "machine", run)
    image, trace, sources = machine.image, machine.trace, _Sources()
    x, y, width, height = trace.rectangle
    tiles = image.tiles[y : y + height, x : x + width].reshape(-1)
    kept, memory = _memory(machine, tiles, trace)
    columns = {"tile": tiles, **_states(image, trace, tiles, sources)}
    columns |= _tasks(trace, sources) | _words(image, trace, sources) | memory
    lines = [(sources.line(*line), count) for line, count in machine.profile.items()]
    waiting, causes = explain(image, machine.waiting())
    report = _report(waiting, sources)
    fault = _fault(machine, sources)
    header = {
        "kind": "run",
        "title": title,
        "ending": ending or machine.fault,
        "arch": image.arch,
        "size": image.tiles.shape[::-1],
        "rectangle": trace.rectangle,
        "cycles": (trace.cycles[0], max(trace.cycles[0] + 1, trace.cycles[1] + bool(fault))),
        "sampled": trace.detail.sampled,
        "every": trace.every,
        "words_until": trace.detail.words_until + bool(fault),
        "values_until": trace.detail.values_until,
        "notes": _notes(trace, image, kept, machine.cycle),
        "names": trace.names,
        "colors": trace.detail.colors,
        "programs": [_program(program, kept) for program in image.programs],
        "report": report,
        "causes": causes if ending and not fault else [],
        "fault": fault,
        "profile": lines,
        **sources.tables(),
    }
    cause = [fault] if fault else report if ending else []
    where = [f"#cycle={header['cycles'][1] - 1}&pe={row['x']},{row['y']}" for row in cause[:1]]
    return View(pack(header, columns), "".join(where))


def _places(trace: Trace, cells: np.ndarray, columns: int) -> np.ndarray:
    """The places of PEs in the recorded rectangle, row by row."""
    x, y, width, _ = trace.rectangle
    return (cells // columns - y) * width + cells % columns - x


def _states(
    image: Image, trace: Trace, tiles: np.ndarray, sources: _Sources
) -> dict[str, np.ndarray]:
    """States, and the instructions that their paths go over."""
    states = trace.detail.states
    places = _places(trace, states["cell"], image.tiles.shape[1])
    kinds, which = np.unique(
        np.stack([tiles[places], states["pc"]], axis=1), axis=0, return_inverse=True
    )
    lines = [sources.of(image.programs[tile], pc) for tile, pc in kinds.tolist()]
    along = states["path"] > 0
    starts, code = _code(image, np.unique(tiles[places[along]]).tolist(), sources)
    return {
        "state_pe": places,
        "state_cycle": states["cycle"],
        "state": states["state"],
        "state_line": np.array(lines, int)[which.reshape(-1)],
        "state_code": np.where(along, starts[tiles[places]] + states["pc"], -1),
        **{f"state_{name}": states[name] for name in ("path", "turns", "stride")},
        **code,
    }


def _code(
    image: Image, tiles: list[int], sources: _Sources
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """[programs] where the instructions of some programs begin, and their columns."""
    costs, starts = costs_for(image.arch, image.timing), np.zeros(len(image.programs) + 1, int)
    parts, begin = [np.zeros((0, len(_CODE)), int)], dict[bytes, int]()
    for tile in tiles:
        program = image.programs[tile]
        cycles = instruction_cycles(program, costs)
        op, to = program.code[:, 0], program.code[:, 2]
        jump = np.where(np.isin(op, JUMPS), to - np.arange(len(op)), 0)
        kind = np.select([np.isin(op, ops) for ops in _KINDS], range(1, len(_KINDS) + 1))
        lines, which = np.unique(program.lines, axis=0, return_inverse=True)
        numbers = [sources.line(program.files[file], line) for file, line in lines.tolist()]
        line = np.array(numbers, int)[which.reshape(-1)]
        rows = np.stack([kind, cycles.own, cycles.taken, jump, line], axis=1)
        end = sum(map(len, parts))
        starts[tile] = begin.setdefault(
            rows.tobytes(), end
        )  # programs may differ in constants only
        parts += [rows] if starts[tile] == end else []
    return starts, dict(zip(_CODE, np.concatenate(parts).T, strict=True))


def _tasks(trace: Trace, sources: _Sources) -> dict[str, np.ndarray]:
    x, y, width, _ = trace.rectangle
    kinds, which = np.unique(np.stack([trace.file, trace.line], 1), axis=0, return_inverse=True)
    lines = [sources.line(trace.files[file], line) for file, line in kinds.tolist()]
    places = (trace.y - y) * width + trace.x - x
    columns = {
        "task_pe": places,
        "task_begin": trace.begin,
        "task_end": trace.end,
        "task_thread": trace.thread,
        "task_name": trace.name,
        "task_line": np.array(lines, int)[which.reshape(-1)],
        "task_elements": trace.elements,
    }
    order = np.argsort(places, kind="stable")
    return {name: values[order] for name, values in columns.items()}


def _words(image: Image, trace: Trace, sources: _Sources) -> dict[str, np.ndarray]:
    """Runs of words, routers' ports, values, and words over links where there are no runs."""
    detail, width = trace.detail, image.tiles.shape[1]
    slots = len(detail.colors)
    lanes = slots + _LANES
    runs, routes, values = detail.runs, detail.routes, detail.values
    key = lambda rows, per: _places(trace, rows["cell"], width).astype(np.int64) * per
    ports = routes["rx"].astype(int) | routes["tx"].astype(int) << 5
    links = trace.links.reshape(-1)
    after = (detail.words_until - trace.cycles[0]) // trace.every * trace.links[0:1].size
    moved = np.flatnonzero(links[after:]) + after if detail.words_until < trace.cycles[1] else []
    return {
        "run_key": runs["key"] >> 5,
        "run_begin": runs["begin"],
        "run_count": runs["count"],
        "run_stride": runs["stride"],
        "run_ports": runs["key"] & 31,
        "route_key": key(routes, slots) + routes["slot"],
        "route_cycle": routes["cycle"],
        "route": ports | routes["position"].astype(int) << 10,
        "route_line": _route_lines(image, trace, sources),
        "value_key": key(values, lanes) + values["lane"],
        "value": values["word"].view("<i4"),
        "link_index": np.array(moved, np.int64),
        "link_words": links[moved] if len(moved) else np.zeros(0, int),
    }


def _route_lines(image: Image, trace: Trace, sources: _Sources) -> np.ndarray:
    """[PEs, colors] the line that configures a color at a PE, or -1."""
    x, y, width, height = trace.rectangle
    if image.route_lines is None:
        return np.full(width * height * len(trace.detail.colors), -1)
    numbers = []
    for place in image.route_places:
        file, _, line = place.rpartition(":")
        numbers.append(sources.line(file, int(line or 0)))
    own = image.route_lines[y : y + height, x : x + width, list(trace.detail.colors)]
    return np.array(numbers, int)[own.astype(int)].reshape(-1)


def _memory(
    machine: WaferMachine, tiles: np.ndarray, trace: Trace
) -> tuple[int, dict[str, np.ndarray]]:
    """How many bytes of each symbol are kept, and those of each PE, one after another."""
    programs = machine.image.programs
    counts = np.bincount(tiles[tiles >= 0], minlength=len(programs)).tolist()
    size = lambda program, most: sum(min(most, s.bytes) for s in program.symbols.values())
    total = lambda most: sum(n * size(p, most) for n, p in zip(counts, programs, strict=True))
    kept = next(most for most in _KEPT if total(most) <= _MEMORY)
    x, y, width, _ = trace.rectangle
    parts, starts = list[np.ndarray](), [0]
    for place, tile in enumerate(tiles.tolist()):
        parts.append(np.zeros(0, np.uint8))
        if tile >= 0 and kept:
            symbols = programs[tile].symbols.values()
            pe = x + place % width, y + place // width
            rows = [machine.read(*pe, s.address, min(kept, s.bytes)) for s in symbols]
            parts[-1] = np.concatenate([parts[-1], *rows])
        starts.append(starts[-1] + len(parts[-1]))
    return kept, {"memory": np.concatenate(parts), "memory_start": np.array(starts)}


def _program(program: Program, kept: int) -> dict[str, Any]:
    """The input queues of its colors, and its symbols in the bytes that are kept of each PE."""
    rows, at = [], 0
    for name, symbol in program.symbols.items():
        here = min(kept, symbol.bytes)
        rows.append((name, symbol.type, at, here, symbol.bytes))
        at += here
    fabrics = program.tables["fabrics"][:, :3].tolist()  # sends, queue, color
    inputs = {color: queue for sends, queue, color in fabrics if not sends}
    inputs |= {color: queue for queue, color in enumerate(program.tables["queues"][:8, 0].tolist())}
    return {
        "name": program.name,
        "memory_bytes": at,
        "symbols": rows,
        "inputs": list(inputs.items()),
    }


def _report(waiting: Sequence[object], sources: _Sources) -> list[dict[str, Any]]:
    rows = [each for each in waiting[:_REPORTED] if isinstance(each, Waiting)]
    colored = (Reason.FOR_DATA, Reason.WORD_UNREAD, Reason.IN_ROUTER)
    return [
        {"x": each.x, "y": each.y, "text": str(each), "line": sources.line(each.file, each.line)}
        | {"color": each.detail if each.code in colored else -1}
        for each in rows
    ]


def _fault(machine: WaferMachine, sources: _Sources) -> dict[str, Any] | None:
    kind, cell, _, _, pc, *_ = machine._fault()
    if not kind:
        return None
    y, x = divmod(cell, machine.image.tiles.shape[1])
    program = machine.image.programs[machine.image.tiles[y, x]]
    where = {"x": x, "y": y, "cycle": machine.cycle, "line": sources.of(program, pc)}
    return where | {"text": machine.fault}


def _notes(trace: Trace, image: Image, kept: int, ended: int) -> list[str]:
    """What cycles are counted by, and what is not in the recording."""
    (x, y, width, height), (first, last), detail = trace.rectangle, trace.cycles, trace.detail
    rows, columns = image.tiles.shape
    part = f"PEs ({x}, {y}) to ({x + width - 1}, {y + height - 1}) of {columns} x {rows} (--pes)"
    every, windows = f"states every {detail.sampled} cycles", f"windows of {trace.every} cycles"
    notes = {
        f"timing: {image.timing}": True,
        part: (width, height) != (columns, rows),
        "nothing has run": last == 0,
        f"from cycle {first:,} on": first < last and first,
        f"until cycle {last:,}; the run ended in cycle {ended:,} (--to)": first < last < ended,
        f"no cycles: the run ended before cycle {first:,}": last == first > 0,
        f"{every} (--from, --to)": detail.sampled > 1,
        f"single words until cycle {detail.words_until:,}, then {windows}": detail.words_until
        < last,
        f"values of words until cycle {detail.values_until:,}": detail.values_until < last,
        f"tasks and operations until cycle {trace.full}": trace.full is not None,
        f"the first {kept} bytes of each symbol": kept < _KEPT[0],
    }
    return [text for text, applies in notes.items() if applies]
