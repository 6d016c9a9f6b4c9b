"""What is wrong with programs: names of every file, types of those that a layout puts on PEs."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from wafer.csl.host.tools.compiler import ARCHS, pairs
from wafer.csl.syntax import tree
from wafer.csl.syntax.check import check
from wafer.csl.syntax.parser import Parsed
from wafer.csl.syntax.source import CslError, Source


class Found(NamedTuple):
    """What checking has come to."""

    errors: list[CslError]  #: of files, and of layouts with the files that they use
    layouts: int  #: how many were compiled, which finds errors of types
    #: file of a layout that was not -> its params without a value
    without_types: dict[str, list[str]]


def check_sources(sources: Sequence[Source], args: argparse.Namespace) -> Found:
    """Check names in every file, then compile the layouts among them without writing anything.

    Args:
        sources: files.
        args: of ``add_program_options``, and ``arch``; None: any that the program compiles for.

    Raises:
        CompileError: options that are not understood.
    """
    errors, layouts, failed = list[CslError](), list[Parsed](), set[Path]()
    for source in sources:
        try:
            parsed = check(source)
        except CslError as error:
            errors.append(error)
            failed.add(Path(source.file).resolve())
            continue
        if any(isinstance(d, tree.LayoutBlock) for d in parsed.file.declarations):
            layouts.append(parsed)
    given = pairs("--params", args.params) | pairs("--colors", args.colors)
    compiled, without = 0, dict[str, list[str]]()
    for parsed in layouts:
        params = {  # whether they have a default
            node.name: node.value is not None
            for node in parsed.file.declarations
            if isinstance(node, tree.Variable) and node.kind == "param"
        }
        # Among several layouts each takes what it has a param for.
        own = given if len(layouts) == 1 else {n: v for n, v in given.items() if n in params}
        if missing := [name for name, default in params.items() if not default and name not in own]:
            without[parsed.source.file] = missing
            continue
        compiled += 1
        error = _compiled(parsed.source.file, own, args)
        # Of a file that does not even parse its own error is enough.
        if error and any(Path(p.at.file).resolve() not in failed for p in error.problems):
            errors.append(error)
    return Found(errors, compiled, without)


def _compiled(file: str, params: Mapping[str, str], args: argparse.Namespace) -> CslError | None:
    """The problems of a program: those for the architecture that it has the fewest for."""
    from wafer.csl.semantics.compile import compile_layout  # not for files without a layout

    errors = list[CslError]()
    for arch in [args.arch] if args.arch else ARCHS:
        paths = tuple(args.import_path)
        try:
            compile_layout(
                file,
                params,
                arch=arch,
                fabric=args.fabric_dims,
                import_paths=paths,
                max_inlined_iterations=args.max_inlined_iterations,
                comptime_func_depth_limit=args.comptime_func_depth_limit,
                strict=args.strict,
            )
        except CslError as error:
            errors.append(error)
        else:
            return None
    return min(errors, key=lambda error: len(error.problems))
