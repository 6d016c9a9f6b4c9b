"""CSL that tools write: ``python tests/csl_tools.py --stencils CLONE --xdsl CLONE``.

``--stencils`` is a clone of xdslproject/wse-stencil: its kernels are lowered at small sizes by its
own ``driver.sh`` with the ``xdsl-opt`` (0.35, as its requirements say) and the ``mlir-opt`` of
``PATH``, compiled here, run, and compared with a NumPy run of the same MLIR text. ``--xdsl`` is a
clone of xdslproject/xdsl: the texts that ``xdsl-opt -t csl`` makes of its tests are read here. The
last line is JSON. The exit code is 1 if a program does not end as ``KNOWN`` says, or with equal
values.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from helpers.stencil_mlir import run_stencil

import wafer.csl
from wafer.csl import CslError, HostError, Source, check

STEPS = 4
# Tests of xDSL -> passes before the printer. What a pass has not lowered yet is a comment in the
# text ("unknown op").
_LOWER = "csl-wrapper-hoist-buffers,memref-to-dsd,lower-csl-wrapper"
PRINTED = {
    "backend/csl/print_csl.mlir": "",
    "dialects/csl/ops.mlir": "",
    "dialects/csl/csl-wrapper-ops.mlir": "lower-csl-wrapper",
    "transforms/csl-wrapper-hoist-buffers.mlir": _LOWER,
    "transforms/lower-csl-wrapper.mlir": "lower-csl-wrapper",
    "transforms/lower-csl-stencil.mlir": f"lower-csl-stencil,{_LOWER}",
    "transforms/csl-stencil-materialize-stores.mlir": (
        "csl-stencil-materialize-stores,csl-stencil-handle-async-flow{task_ids=8},"
        f"lower-csl-stencil,{_LOWER}"
    ),
}


class Kernel(NamedTuple):
    """A kernel of wse-stencil at a small size.

    Attributes:
        profile: of ``driver.sh``.
        low: elements of a field before index 0.
        size: of a field along x, y and z.
        halo: elements of a field outside of the domain, along an axis.
        edits: (found, text): sizes that the file spells out, replaced by these.
    """

    profile: str
    low: int
    size: tuple[int, int, int]
    halo: int
    edits: tuple[tuple[str, str], ...] = ()


def _sized(profile: str, side: int, depth: int, margin: int, rounds: str) -> Kernel:
    """A kernel whose file spells its sizes out, with a domain of 6 x 6 x 8.

    Args:
        profile: of ``driver.sh``.
        side: columns of its domain.
        depth: elements of its domain along z.
        margin: elements that it reads outside of the domain.
        rounds: in place of its 100,000.
    """
    edits = (f"-4,{side + 4}]", "-4,10]"), (f"-4,{depth + 4}]", "-4,12]"), ("100000", rounds)
    bounds = f"[{side}, {side}, {depth}]", "[6, 6, 8]"
    size = (6 + 2 * margin, 6 + 2 * margin, 8 + 2 * margin)
    return Kernel(profile, margin, size, 2 * margin, (*edits, bounds))


KERNELS = [
    Kernel("smoke-test", 1, (8, 8, 12), 2),
    Kernel("loop-kernel-small", 1, (6, 6, 10), 2),
    Kernel("25-point-stencil-small", 4, (12, 12, 12), 8),
    _sized("acoustic-small", 96, 600, 2, str(STEPS)),
    _sized("diffusion-small", 96, 700, 2, str(STEPS - 1)),  # it counts from 0
    _sized("uvbke-small", 98, 598, 1, ""),
]


_COMMENT = "is not declared"  # what the text uses is a comment in it: not lowered
# Program -> part of its row, if it does not end with the values of NumPy.
KNOWN = {
    "acoustic-small, wse2": "differ",  # the text reads u_t2 two elements below the MLIR
    "acoustic-small, wse3": "differ",
    "uvbke-small, wse2": "differ",  # the text overwrites what it received, and its accumulator
    "uvbke-small, wse3": "differ",
    "print_csl.mlir: program.csl": "expected a declaration",  # a call outside of functions
    "ops.mlir: program": "is not a number",  # a type of MLIR
    "ops.mlir: layout": _COMMENT,
    "csl-wrapper-ops.mlir: pe_program_layout": _COMMENT,
    "lower-csl-wrapper.mlir: gauss_seidel_func_program": _COMMENT,
    "lower-csl-wrapper.mlir: params_as_consts_func_layout": _COMMENT,
}


class ToolRow(NamedTuple):
    """A program of a tool and how far it comes here."""

    tool: str
    program: str
    compiles: str
    runs: str = ""
    values: str = ""
    cycles: str = ""


def lower(kernel: Kernel, clone: Path, work: Path, arch: str) -> str:
    """Write a kernel's CSL into a folder; the MLIR text with its sizes, or '' if it fails.

    Args:
        kernel: to lower.
        clone: of wse-stencil.
        work: folder for the CSL.
        arch: 'wse2' or 'wse3'.
    """
    shutil.copytree(clone, work, ignore=shutil.ignore_patterns(".git"))
    file = work / f"{kernel.profile}.mlir"
    text = file.read_text(encoding="utf-8").replace("^0(", "^bb0(")
    for found, new in kernel.edits:
        text = text.replace(found, new)
    file.write_text(text, encoding="utf-8")
    sizes = dict(zip(("xdim", "ydim", "zdim"), map(str, kernel.size), strict=True))
    command = ["bash", "driver.sh", kernel.profile, "-c", "-r", f"--target={arch[-1]}"]
    environment = os.environ | sizes | {"iter_count": str(STEPS)}
    subprocess.run(command, cwd=work, env=environment, capture_output=True, check=False)
    ends = {f"#{a}_dim_pad": n - kernel.halo // 2 for a, n in zip("xyz", kernel.size, strict=True)}
    ends |= {f"#{a}_dim": n - kernel.halo for a, n in zip("xyz", kernel.size, strict=True)}
    for name, number in ends.items():
        text = text.replace(name, str(number))
    return text if list(work.glob("layout_*.csl")) else ""


def run_kernel(kernel: Kernel, clone: Path, arch: str) -> ToolRow:
    """Lower, compile and run a kernel, and compare its fields with NumPy's."""
    row = ToolRow("xDSL 0.35, wse-stencil", f"{kernel.profile}, {arch}", "not lowered")
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch, "work")
        if not (text := lower(kernel, clone, work, arch)):
            return row
        layout = next(work.glob("layout_*.csl"))
        try:
            image = wafer.csl.compile(layout, arch=arch)
        except CslError as error:
            return row._replace(compiles=str(error).split("\n", 1)[0].partition("error: ")[2])
    row = row._replace(compiles="yes")
    try:
        return _compare(kernel, text, wafer.csl.Runtime(image), row._replace(runs="yes"))
    except HostError as error:
        return row._replace(runs=str(error).split("\n", 1)[0])


def _compare(kernel: Kernel, text: str, runtime: wafer.csl.Runtime, row: ToolRow) -> ToolRow:
    """Run a compiled kernel on random fields."""
    exports = {export.name: export.type for export in runtime.image.exports}
    rng, image = np.random.default_rng(0), runtime.image
    fields, inner = dict[str, np.ndarray](), dict[str, slice]()
    width, height, depth = kernel.size
    for name in [name for name, kind in exports.items() if kind == "[*]f32"]:
        fields[name] = rng.integers(-8, 9, (height, width, depth)).astype(np.float32)
        count = image.programs[image.tiles[0, 0]].symbols[name].bytes // 4
        inner[name] = slice((depth - count) // 2, (depth + count) // 2)  # PEs may hold no halo
        content = np.ascontiguousarray(fields[name][..., inner[name]])
        runtime.memcpy_h2d(runtime.get_id(name), content.ravel(), 0, 0, width, height, count)
    runtime.launch(next(name for name, kind in exports.items() if kind == "fn()void"))
    cycles, differ = runtime.cycles, []
    along = {f"%{name}": field.transpose(1, 0, 2) for name, field in fields.items()}
    run_stencil(text, along, kernel.low, STEPS)
    for name, field in fields.items():
        want = field[..., inner[name]]
        got = np.zeros(want.shape, np.float32)
        region = (0, 0, width, height, want.shape[-1])
        runtime.memcpy_d2h(got.reshape(-1), runtime.get_id(name), *region)
        if not np.allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max()):
            differ.append(name)
    values = f"differ: {', '.join(differ)}" if differ else "equal"
    return row._replace(values=values, cycles=f"{cycles:,}")


def printed_texts(clone: Path) -> dict[str, str]:
    """The CSL that ``xdsl-opt -t csl`` makes of its tests: test and module -> text.

    Of a test that this ``xdsl-opt`` cannot print, '' under the test's name.
    """
    out = {}
    for test, passes in PRINTED.items():
        path = clone / "tests" / "filecheck" / test
        command = ["xdsl-opt", "-t", "csl", str(path), *(["-p", passes] if passes else [])]
        printed = subprocess.run(command, capture_output=True, text=True, check=False)
        if printed.returncode:
            out[path.name] = ""
            continue
        for number, part in enumerate(printed.stdout.split("// -----")):
            name = re.search(r"// FILE: (\S+)", part)
            out[f"{path.name}: {name[1] if name else number}"] = part
    return out


def read_text(name: str, text: str) -> ToolRow:
    """Whether a printed text is CSL here; else the first problem."""
    if not text:
        return ToolRow("xDSL's printer", name, "not printed")
    try:
        check(Source(name, text))
    except CslError as error:
        return ToolRow("xDSL's printer", name, str(error).split("\n", 1)[0].partition(name)[2])
    return ToolRow("xDSL's printer", name, "yes")


def _as_known(row: ToolRow) -> bool:
    if known := KNOWN.get(row.program):
        return known in f"{row.compiles} {row.values}"
    if row.compiles == "not printed":
        return True
    return row.compiles == "yes" and row.runs in ("", "yes") and row.values in ("", "equal")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stencils", type=Path, help="clone of xdslproject/wse-stencil")
    parser.add_argument("--xdsl", type=Path, help="clone of xdslproject/xdsl")
    parser.add_argument("--only", default="", help="part of the names of the kernels")
    args = parser.parse_args()
    rows = [read_text(*each) for each in printed_texts(args.xdsl).items()] if args.xdsl else []
    printed = ("| {} " * len(ToolRow._fields) + "|").format
    print(printed(*ToolRow._fields) + "\n" + "|---" * len(ToolRow._fields) + "|")
    for row in rows:
        print(printed(*row), flush=True)
    if args.stencils:
        for kernel in (kernel for kernel in KERNELS if args.only in kernel.profile):
            for arch in ("wse2", "wse3"):
                rows.append(row := run_kernel(kernel, args.stencils, arch))
                print(printed(*row), flush=True)
    good = [row for row in rows if _as_known(row)]
    print(json.dumps({"programs": len(rows), "as_expected": len(good)}))
    return int(len(good) < len(rows))


if __name__ == "__main__":
    sys.exit(main())
