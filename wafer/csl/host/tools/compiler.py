"""The vendor's compiler command: its options, and the folder that it leaves."""

import argparse
import collections
import functools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wafer.csl.host.artifacts import save
from wafer.csl.syntax.releases import release
from wafer.csl.syntax.source import CslError, Source
from wafer.errors import CompileError
from wafer.machine.arch import ARCHITECTURES
from wafer.machine.codes import HALVES
from wafer.machine.costs import TIMINGS

if TYPE_CHECKING:
    from wafer.machine.image import Image

ARCHS = ("wse2", "wse3")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options; those of the vendor's that change nothing here are taken too.

    Each may have one hyphen or two, as with the vendor's command.
    """
    parser.add_argument("layout", type=Path, help="the .csl file with the layout block")
    parser.add_argument("-o", "--output", default="out", help="folder of the result (default: out)")
    add = functools.partial(_add, parser)
    add("--arch", choices=ARCHS, default="wse2")
    add("--timing", choices=TIMINGS, default=TIMINGS[0], help="what cycles are counted by")
    add_program_options(parser)
    add("--fabric-offsets", type=_two, metavar="X,Y", help="of the first PE there (default: 4,1)")
    add("--sdk", type=_release, default="", metavar="X.Y", help="release that the program is of")
    for side in ("west", "east"):
        add(f"--width-{side}-buf", type=int, default=0, help="columns of the fabric")
    add("--verbose", action="store_true", help="list what is in the memory of a PE")
    for flag in ("--memcpy", "--no-memcpy"):
        add(flag, action="store_true", help=argparse.SUPPRESS)
    for name in ("--channels", "--max-parallelism"):
        add(name, type=int, help=argparse.SUPPRESS)
    add("--fp16-format", choices=HALVES, default="f16", help="of 16-bit floats at run time")


def _add(parser: argparse.ArgumentParser, option: str, **how: Any) -> None:
    parser.add_argument(option, option[1:], **how)


def add_program_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a program depends on besides its files."""
    add, several = functools.partial(_add, parser), {"action": "append", "default": []}
    add("--params", **several, metavar="NAME:VALUE,…", help="params of the layout")
    add("--colors", **several, metavar="NAME:ID,…", help="params that are colors")
    add("--fabric-dims", type=_two, metavar="W,H", help="whole fabric (default: what is needed)")
    add("--import-path", **several, help="folder of imported files; repeatable")
    limit = {"type": _positive, "metavar": "N"}
    rounds = "rounds of one inline loop; above 1,000,000 the limit of all steps, too"
    add("--max-inlined-iterations", **limit, help=rounds)
    add("--strict", action="store_true", help="warnings are errors")
    depth = "calls or imports within each other while compiling (default: 200)"
    add("--comptime-func-depth-limit", **limit, help=depth)


def compile_to_folder(args: argparse.Namespace) -> Path:
    """Compile what the options say.

    Returns:
        The folder.

    Raises:
        CslError: problems of the program; a fabric that is too small.
        CompileError: options that are not understood.
    """
    from wafer.csl.semantics.compile import compile_layout

    params, colors = pairs("--params", args.params), pairs("--colors", args.colors)
    alone = args.fabric_dims is None and args.fabric_offsets is None
    memcpy = args.memcpy or alone or _imports_memcpy(args.layout)
    offsets = args.fabric_offsets or ((4, 1) if memcpy else (0, 0))  # before 0.9 without memcpy
    image = compile_layout(
        args.layout,
        params | colors,
        arch=args.arch,
        fabric=args.fabric_dims,
        offsets=offsets,
        buffers=(args.width_west_buf, args.width_east_buf),
        import_paths=tuple(args.import_path),
        sdk=args.sdk,
        memcpy=memcpy,
        max_inlined_iterations=args.max_inlined_iterations,
        comptime_func_depth_limit=args.comptime_func_depth_limit,
        strict=args.strict,
        timing=args.timing,
        fp16_format=args.fp16_format,
    )
    folder = Path(args.output.removeprefix("="))  # "-o=out"
    save(folder, image, params, colors, offsets=offsets)
    if args.verbose:
        sys.stdout.writelines(f"{line}\n" for line in memory_lines(image))
    return folder


def memory_lines(image: "Image") -> Iterator[str]:
    """Yield what each program of CSL takes of a PE's memory: a line, and one for each variable."""
    sram, counts = ARCHITECTURES[image.arch].sram_bytes, collections.Counter[Any]()
    for k, program in enumerate(image.programs):
        rows = sorted(program.symbols.items(), key=lambda row: -row[1].bytes)
        if program.footprint is not None:
            counts[program.name, program.footprint, tuple(rows)] += int((image.tiles == k).sum())
    for (name, taken, rows), pes in counts.items():
        others = taken.variables - sum({s.address: s.bytes for _, s in rows}.values())
        yield (
            f"{name}: {taken.total():,} of {sram:,} bytes on {pes} PE{'s' * (pes > 1)}: variables"
            f" {taken.variables:,}, code about {taken.code:,}, stack {taken.stack}, rest"
            f" {taken.rest:,}"
        )
        yield from (f"  {symbol.bytes:>6,}  {name}: {symbol.type}" for name, symbol in rows)
        yield f"  {others:>6,}  others: constants, libraries, gaps"


def _imports_memcpy(layout: Path) -> bool:
    try:
        return '"<memcpy' in Source.open(layout).text
    except (OSError, CslError):
        return True  # the compiler says what is wrong with the file


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """``["a:1,b:-2", "c:x"]`` as a dictionary.

    Raises:
        CompileError: a part that is no pair, or two values for one name.
    """
    out: dict[str, str] = {}
    for text in texts:
        for part in filter(None, text.split(",")):
            name, colon, value = (piece.strip() for piece in part.partition(":"))
            if not (name and colon and value):
                raise CompileError(f"{option}={text}: '{part}' is not NAME:VALUE")
            if out.setdefault(name, value) != value:
                raise CompileError(f"{option}: '{name}' is given as {out[name]} and as {value}")
    return out


def _release(text: str) -> str:
    try:
        return text and ".".join(map(str, release(text)))
    except CompileError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 1 on")
    return int(text)


def _two(text: str) -> tuple[int, int]:
    try:
        first, second = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not two numbers, as in 8,3") from None
    return first, second
