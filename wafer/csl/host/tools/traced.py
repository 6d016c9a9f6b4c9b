"""A host's script run with recording on: its options, and the files that show the run."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wafer.errors import CompileError, WaferError
from wafer.models.errors import optional

if TYPE_CHECKING:  # the machine need not be loaded to say which options there are
    from wafer.csl.host.runtime import Runtime
    from wafer.machine.tools.recording import Recording, Trace

# Option -> name of a function of wafer.machine.tools.trace, and what it writes.
_FILES = {
    "chrome": ("chrome_trace", "events for chrome://tracing and Perfetto (JSON)"),
    "picture": ("timeline", "timeline of tasks and operations, a row per PE (PNG, SVG, PDF)"),
    "film": ("gif", "film of the words that routers pass on (GIF)"),
}

RECORDED: "ContextVar[tuple[Recording, list[Runtime]] | None]" = ContextVar(
    "recorded", default=None
)
"""What runtimes record, and those that were made meanwhile."""


@contextmanager
def recorded(recording: "Recording") -> "Iterator[list[Runtime]]":
    """Let every runtime made within record its run; they are in the list, in order."""
    runtimes: list[Runtime] = []
    token = RECORDED.set((recording, runtimes))
    try:
        yield runtimes
    finally:
        RECORDED.reset(token)


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """Declare what may be asked of a run, before or after the script."""
    for option, (_, what) in _FILES.items():
        parser.add_argument(f"--{option}", type=Path, metavar="FILE", help=what)
    parser.add_argument("--profile", action="store_true", help="print cycles by source line")
    parser.add_argument("--energy", action="store_true", help="print counts and picojoules")
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


def _split(args: argparse.Namespace) -> list[str]:
    """The script's arguments, all behind ``--`` among them; our options go into ``args``."""
    words, own = list(args.arguments), list[str]()
    if "--" in words:
        at = words.index("--")
        words, own = words[:at], words[at + 1 :]
    options = argparse.ArgumentParser("wafer csl trace", allow_abbrev=False, add_help=False)
    add_trace_options(options)
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
    from wafer.csl.host.tools.scripts import run_here
    from wafer.machine.tools.recording import Recording

    arguments = _split(args)
    wanted = {option: getattr(args, option) for option in _FILES if getattr(args, option)}
    if not wanted and not args.profile and not args.energy:
        raise CompileError(
            "nothing to show; give --chrome, --picture, --film (FILE), --profile or --energy"
        )
    _check_endings(wanted)
    given = {"begin": args.begin, "end": args.end, "rectangle": args.pes, "events": args.events}
    recording = Recording(**{name: value for name, value in given.items() if value is not None})
    problem = None
    with recorded(recording) as runtimes:
        try:
            status = run_here(args.script, arguments)
        except WaferError as error:  # a deadlock or a fault: most wanted of all
            problem, status = error, 1
    if not runtimes and problem is None:
        raise CompileError(f"{args.script} made no SdkRuntime, so there is nothing to show")
    for number, runtime in enumerate(runtimes, 1):
        _show(runtime, wanted, number if len(runtimes) > 1 else 0, args)
    if problem is not None:
        raise problem
    return status


def _check_endings(wanted: dict[str, Path]) -> None:
    """Refuse files of an unknown kind, or that nothing draws, before the run, not after it."""
    known = {"film": {"gif", "png", "webp"}}
    for option in wanted.keys() - {"chrome"}:
        bases = optional("matplotlib.backend_bases", f"--{option}")
        if option == "picture":
            known["picture"] = set(bases.FigureCanvasBase.get_supported_filetypes())
    for option, path in wanted.items():
        endings = known.get(option)
        if endings and path.suffix.removeprefix(".").lower() not in endings:
            raise CompileError(
                f"--{option} {path}: unknown kind of file; endings: {', '.join(sorted(endings))}"
            )


def _show(
    runtime: "Runtime", wanted: dict[str, Path], number: int, args: argparse.Namespace
) -> None:
    """Write and print what was asked for; files of one of several runtimes get its number."""
    from wafer.machine.tools import trace as drawing

    trace = runtime.trace
    for option, path in wanted.items():
        file = path.with_stem(f"{path.stem}-{number}") if number else path
        draw: Callable[..., Any] = getattr(drawing, _FILES[option][0])
        draw(trace, path=str(file))
        sys.stdout.write(f"wrote {file}\n")
    if wanted:
        sys.stdout.write(_summary(trace))
    if args.profile:
        sys.stdout.write(drawing.profile_text(runtime.profile))
    if args.energy:
        sys.stdout.write(runtime.energy_text())


def _summary(trace: "Trace") -> str:
    first, last = trace.cycles
    text = f"{len(trace.begin)} tasks and operations in cycles {first} to {last}\n"
    if trace.full is not None:
        text += (
            f"the limit of events was reached in cycle {trace.full}; what came later is not shown:"
            " name a window (--from, --to), fewer PEs (--pes), or a higher limit (--events)\n"
        )
    return text
