"""Programs in CSL: ``wafer csl check``, ``format``, ``compile``, ``run``, ``view``, and more."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from wafer.errors import CompileError

if TYPE_CHECKING:
    from wafer.csl import Source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    from wafer.csl.host.tools.compiler import ARCHS, add_program_options

    commands = parser.add_subparsers(required=True, metavar="ACTION")
    check = commands.add_parser("check", help="list what is wrong with programs; writes nothing")
    check.set_defaults(run=_check)
    check.add_argument("--arch", choices=ARCHS, help="of layouts (default: either will do)")
    add_program_options(check)
    layout = commands.add_parser("format", help="lay files out in the one style, in place")
    layout.add_argument("--check", action="store_true", help="change nothing; fail where it would")
    layout.set_defaults(run=_format)
    for command in (check, layout):
        command.add_argument("paths", nargs="+", type=Path, help=".csl files, or folders of them")
    _add_host_commands(commands)


def _add_host_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    from wafer.csl.host.tools import traced
    from wafer.csl.host.tools.compiler import add_options

    build = commands.add_parser("compile", help="compile a program into a folder, as cslc does")
    build.set_defaults(run=_compile)
    add_options(build)
    script = commands.add_parser("run", help="run a Python script that imports cerebras.sdk")
    script.set_defaults(run=_run)
    script.add_argument("script", type=Path, help="its file, most often run.py")
    script.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    for name, what, declare, function in (
        ("trace", "as run, and show what the PEs did when", *traced.TRACE),
        ("view", "as run, and write a page that shows the run", *traced.VIEWED),
    ):
        command = commands.add_parser(name, help=what, allow_abbrev=False)
        command.set_defaults(run=function)
        declare(command)
        also = "" if name == "trace" else "; or a compiled program's folder, or a recording"
        command.add_argument("script", type=Path, help=f"its file, most often run.py{also}")
        rest = "of the script; the options above may follow"
        command.add_argument("arguments", nargs=argparse.REMAINDER, help=rest)
    example = commands.add_parser("example", help="list the example programs, or write one")
    example.set_defaults(run=_example)
    example.add_argument("name", nargs="?", help="of the example; without it all are listed")
    example.add_argument("folder", nargs="?", type=Path, help="where (default: NAME)")
    shims = commands.add_parser("shims", help="write the commands cslc and cs_python")
    shims.set_defaults(run=_shims)
    shims.add_argument("folder", type=Path, help="where; put it on the PATH of programs' scripts")


def _compile(args: argparse.Namespace) -> int:
    from wafer.csl import CslError
    from wafer.csl.host.tools.compiler import compile_to_folder

    try:
        folder = compile_to_folder(args)
    except CslError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"compiled {args.layout} to {folder}\n")
    return 0


def _run(args: argparse.Namespace) -> int:
    from wafer.csl.host.tools.scripts import run_script

    return run_script(args.script, args.arguments)


def _example(args: argparse.Namespace) -> int:
    from wafer.csl.host.tools.examples import summaries, write_example

    if args.name is None:
        sys.stdout.writelines(f"{name:<12} {text}\n" for name, text in summaries().items())
        return 0
    for file in write_example(args.name, args.folder or Path(args.name)):
        sys.stdout.write(f"{file}\n")
    return 0


def _shims(args: argparse.Namespace) -> int:
    from wafer.csl.host.tools.scripts import write_commands

    for file in write_commands(args.folder):
        sys.stdout.write(f"{file}\n")
    return 0


def _sources(paths: list[Path]) -> "tuple[list[Source], int]":
    """The files that can be read, and how many cannot, whose errors are written."""
    from wafer.csl import CslError, Source

    files = [file for path in paths for file in (_folder(path) if path.is_dir() else [path])]
    sources = list[Source]()
    for file in files:
        try:
            sources.append(Source.open(file))
        except CslError as error:
            sys.stderr.write(f"{error}\n")
    return sources, len(files) - len(sources)


def _folder(path: Path) -> list[Path]:
    files = sorted(path.rglob("*.csl"))
    if not files:
        raise CompileError(f"{path}: no .csl file in this folder or below")
    return files


def _check(args: argparse.Namespace) -> int:
    from wafer.csl.host.tools.checker import check_sources

    sources, unread = _sources(args.paths)
    report = check_sources(sources, args)
    for error in report.errors:
        sys.stderr.write(f"{error}\n")
    for file, missing in report.without_types.items():
        hint = f"--params={','.join(f'{name}:…' for name in missing)}"
        sys.stdout.write(f"{file}: types were not checked; give {hint}\n")
    text = f", {report.layouts} layout(s) with their types" if report.layouts else ""
    count, bad = len(sources) + unread, len(report.errors) + unread
    sys.stdout.write(f"{count} file(s){text}, {bad} with errors\n")
    return int(bad > 0)


def _format(args: argparse.Namespace) -> int:
    from wafer.csl import CslError, format_text
    from wafer.models.files import write_text

    (sources, bad), changed = _sources(args.paths), 0
    count = len(sources) + bad
    for source in sources:
        try:
            text = format_text(source)
        except CslError as error:
            bad += 1
            sys.stderr.write(f"{error}\n")
            continue
        if text != source.text:
            changed += 1
            sys.stdout.write(f"{source.file}\n")
            if not args.check:
                write_text(Path(source.file), text)
    verb = "would change" if args.check else "changed"
    sys.stdout.write(f"{count} file(s), {changed} {verb}, {bad} with errors\n")
    return int(bad > 0 or (args.check and changed > 0))
