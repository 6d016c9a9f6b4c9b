"""A host's script run with recording on: its options, and the files that show the run."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wafer.errors import CompileError, WaferError
from wafer.models.errors import optional
from wafer.models.files import require_path

if TYPE_CHECKING:  # the machine need not be loaded to say which options there are
    from wafer.machine.base import WaferMachine
    from wafer.machine.tools.recording import Recording, Trace

# Option -> name of a function of wafer.machine.tools.trace, and what it writes.
_FILES = {
    "chrome": ("chrome_trace", "events for chrome://tracing and Perfetto (JSON)"),
    "picture": ("timeline", "timeline of tasks and operations, a row per PE (PNG, SVG, PDF)"),
}


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """Declare what may be asked of a run, before or after the script."""
    for option, (_, what) in _FILES.items():
        parser.add_argument(f"--{option}", type=Path, metavar="FILE", help=what)
    parser.add_argument("--profile", action="store_true", help="print cycles by source line")
    parser.add_argument("--energy", action="store_true", help="print counts and picojoules")
    add_window_options(parser)


def add_view_options(parser: argparse.ArgumentParser) -> None:
    """Declare where the view goes and what it shows, before or after the script."""
    page = "page (FILE.html), or the recording alone (any other ending)"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=page)
    add_window_options(parser)


def add_window_options(parser: argparse.ArgumentParser) -> None:
    """Declare which part of a run is recorded."""
    parser.add_argument("--from", dest="begin", type=int, metavar="CYCLE", help="first recorded")
    parser.add_argument("--to", dest="end", type=int, metavar="CYCLE", help="first not recorded")
    parser.add_argument("--pes", type=_four, metavar="X,Y,W,H", help="rectangle that is recorded")
    parser.add_argument("--events", type=int, metavar="N", help="at most (default: 2,000,000)")


def _four(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != 4:
        raise argparse.ArgumentTypeError(f"'{text}' is not X,Y,W,H, as in 0,0,4,2")
    return numbers


def _split(
    args: argparse.Namespace, declare: Callable[[argparse.ArgumentParser], None]
) -> list[str]:
    """The script's arguments, all behind ``--`` among them; our options go into ``args``."""
    words, own = list(args.arguments), list[str]()
    if "--" in words:
        at = words.index("--")
        words, own = words[:at], words[at + 1 :]
    options = argparse.ArgumentParser("wafer csl", allow_abbrev=False, add_help=False)
    declare(options)
    for action in options._actions:
        action.default = getattr(args, action.dest)
    given, rest = options.parse_known_args(words)
    vars(args).update(vars(given))
    return rest + own


def trace_script(args: argparse.Namespace) -> int:
    """Run a script and write what was asked for, also when it ends with an error.

    Args:
        args: of ``add_trace_options``, with ``script`` and ``arguments``.

    Returns:
        The script's exit status.

    Raises:
        CompileError: nothing was asked for, or the script ran no program.
    """
    from wafer.machine.tools.recording import Recording

    arguments = _split(args, add_trace_options)
    wanted = {option: getattr(args, option) for option in _FILES if getattr(args, option)}
    if not wanted and not args.profile and not args.energy:
        raise CompileError(
            "nothing to show; give --chrome, --picture (FILE), --profile or --energy"
        )
    _check_endings(wanted)
    _check_writable(wanted.values())
    return _record(args.script, arguments, _recording(args, Recording()), _show, wanted, args)


def _recording(args: argparse.Namespace, whole: "Recording") -> "Recording":
    """What is to be recorded: all of it, in the window that the options name."""
    given = {"begin": args.begin, "end": args.end, "rectangle": args.pes, "events": args.events}
    return whole._replace(**{name: value for name, value in given.items() if value is not None})


def _record(
    script: Path,
    arguments: list[str],
    recording: "Recording",
    show: Callable[..., None],
    *options: Any,
) -> int:
    """Run a script, then show each of its machines: (machine, number or 0, problem, …)."""
    from wafer.csl.host.tools.scripts import run_here
    from wafer.machine.tools.recording import recorded

    problem: BaseException | None = None
    with recorded(recording) as machines:
        try:
            status = run_here(script, arguments)
        except (
            Exception,
            KeyboardInterrupt,
        ) as error:  # a deadlock, a wrong result, a run too long
            problem, status = error, 1
    if not machines and problem is None:
        raise CompileError(f"{script} ran no program on PEs, so there is nothing to show")
    for number, machine in enumerate(machines, 1):
        last = problem if machine is machines[-1] else None
        show(machine, number if len(machines) > 1 else 0, last, *options)
    if problem is not None:
        raise problem
    return status


def view_script(args: argparse.Namespace) -> int:
    """Write the view of a script's run, of a compiled program, or of a recording.

    Args:
        args: of ``add_view_options``, with ``script`` and ``arguments``.

    Returns:
        The script's exit status.

    Raises:
        CompileError: no file to write to, or the script ran no program.
    """
    from wafer.machine.tools.recording import VIEW
    from wafer.machine.tools.view.block import unpack
    from wafer.machine.tools.view.run import View

    arguments = _split(args, add_view_options)
    if args.output is None:
        raise CompileError("no file to write; give -o FILE.html")
    require_path(args.script)
    _check_writable([args.output])
    if args.script.suffix == ".py":
        return _record(args.script, arguments, _recording(args, VIEW), _write_view, args)
    if args.script.is_dir():
        from wafer.csl.host.artifacts import load
        from wafer.machine.engine import machine_for

        machine = machine_for(load(args.script), _recording(args, VIEW))
        _write_view(machine, 0, None, args)
        return 0
    block = args.script.read_bytes()
    unpack(block)  # refuses other files
    View(block).save(args.output)
    sys.stdout.write(f"wrote {args.output}\n")
    return 0


def _write_view(
    machine: "WaferMachine", number: int, problem: BaseException | None, args: argparse.Namespace
) -> None:
    from wafer.machine.tools.view.run import is_page, view

    ending = str(problem).partition("\n")[0] if isinstance(problem, WaferError) else ""
    title = f"{args.script}, {number}" if number else str(args.script)
    path, shown = _numbered(args.output, number), view(machine, title, ending)
    shown.save(path)
    at = f"the likely cause: {path}{shown.address}\n" if shown.address and is_page(path) else ""
    sys.stdout.write(f"wrote {path}\n{at}")


def _numbered(path: Path, number: int) -> Path:
    """A file, with the number of one of several machines in its name."""
    return path.with_stem(f"{path.stem}-{number}") if number else path


def _check_endings(wanted: dict[str, Path]) -> None:
    """Refuse files of an unknown kind, or that nothing draws, before the run, not after it."""
    if path := wanted.get("picture"):
        bases = optional("matplotlib.backend_bases", "--picture")
        endings = set(bases.FigureCanvasBase.get_supported_filetypes())
        if path.suffix.removeprefix(".").lower() not in endings:
            raise CompileError(
                f"--picture {path}: unknown kind of file; endings: {', '.join(sorted(endings))}"
            )


def _check_writable(paths: Iterable[Path]) -> None:
    """Refuse files that cannot be written, before the run, not after it."""
    for path in paths:
        if path.is_dir():
            raise CompileError(f"{path}: it is a folder; expected a file")
        if not os.access(path.parent, os.W_OK):
            raise CompileError(f"{path}: its folder is missing or read-only; give another file")


def _show(
    machine: "WaferMachine",
    number: int,
    _problem: BaseException | None,
    wanted: dict[str, Path],
    args: argparse.Namespace,
) -> None:
    """Write and print what was asked for."""
    from wafer.energy import report
    from wafer.machine.arch import ARCHITECTURES
    from wafer.machine.tools import trace as drawing

    trace = machine.trace
    for option, path in wanted.items():
        file = _numbered(path, number)
        draw: Callable[..., Any] = getattr(drawing, _FILES[option][0])
        draw(trace, path=str(file))
        sys.stdout.write(f"wrote {file}\n")
    if wanted:
        sys.stdout.write(_summary(trace))
    image = machine.image
    if args.profile or args.energy:
        sys.stdout.write(f"timing: {image.timing}\n")
    if args.profile:
        sys.stdout.write(drawing.profile_text(drawing.profile_of(machine.profile)))
    if args.energy:
        pes, clock = int((image.tiles >= 0).sum()), ARCHITECTURES[image.arch].clock_hz / 1e9
        sys.stdout.write(report(machine.counts, cycles=machine.cycle, pes=pes, gigahertz=clock))


def _summary(trace: "Trace") -> str:
    first, last = trace.cycles
    text = f"{len(trace.begin)} tasks and operations in cycles {first} to {last}\n"
    if trace.full is not None:
        text += (
            f"the limit of events was reached in cycle {trace.full}; what came later is not shown:"
            " name a window (--from, --to), fewer PEs (--pes), or a higher limit (--events)\n"
        )
    return text


# Of each command: what declares its options, and what does its work.
TRACE, VIEWED = (add_trace_options, trace_script), (add_view_options, view_script)
