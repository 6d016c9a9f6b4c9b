"""Programs of FABRICA (arXiv 2608.25124), with their cycles on the vendor's simulator.

Public repository luozoupi/FABRICA-CUDA2CSL-Optmization-Benchmark-and-Agentic-Framework. Programs
whose names begin with n to z are not listed: they are kept for a later check. All listed
ones were in view while rules and numbers were chosen.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

import wafer.csl
from wafer.csl import Machine, Rectangle, Status
from wafer.csl.host.tools.scripts import write_commands

__all__ = ["ROWS", "SCRIPTS", "Case", "measure", "measure_script"]

_MOST = 20_000_000  # cycles
# Cycles of a command of the host on the vendor's simulator; none here. Of four programs cycles are
# published with stamps by two commands of the host, and without: 3,999 and 3,670, 51,738 and 51,425
# (4 x 4 PEs), 1,709 and 1,274, 25,627 and 25,195 (2 x 2).
_COMMAND = (329 + 313 + 435 + 432) / 8


class Case(NamedTuple):
    """A row.

    Attributes:
        folder: of the program.
        params: of its layout.
        calls: functions that the host calls, with their arguments.
        symbols: of the start and the end; one name: both in it, packed.
        commands: of the host between the start and the end.
    """

    folder: str
    params: dict[str, int]
    calls: dict[str, tuple[int, ...]] = {"compute": ()}  # noqa: RUF012 -- never changed
    symbols: tuple[str, ...] = ("tsc_start_buf", "tsc_end_buf")
    commands: int = 0


_STAMPS = ("tscStartBuffer", "tscEndBuffer")
_GRID = {"f_enable_timer": (), "main": ()}
_STEP = {"f_enable_timer": (), "step": (1,)}
_LIFE = {"f_enable_timer": (), "f_tic": (), "generate": (20,), "f_toc": ()}
_ATTENTION = ("startBuffer", "finishBuffer")


def _gemv(side: int) -> Case:
    sizes = {"matrix_rows": 8 * side, "matrix_cols": 4 * side}
    params = {"kernel_rows": side, "kernel_cols": side, **sizes}
    return Case("GEMV Collectives 2D", params, _GRID, _STAMPS)


def _attention(side: int, rows: int, keys: int) -> Case:
    params = {"P": side, "St_q": rows, "S": keys, "d": 32 if side > 1 else 16, "causal": 0}
    name = "Attention-QP" if side > 1 else "Attention-1PE"
    return Case(name, params, symbols=_ATTENTION)


def _laplacian(side: int) -> Case:
    params = {"width": 2, "height": 2, "Mt": side, "Nt": side}
    return Case("Laplacian2D-Halo", params, _STEP, _STAMPS)


ROWS = [
    (Case("Cross-Entropy-Loss-1PE", {"n_classes": 256}), 29_283),
    (Case("Dot-Product-1PE", {"n": 512}), 10_254),
    (Case("GEMM-1PE", {"M": 16, "K": 16, "N": 16}), 119_197),
    (Case("Max-Reduction-1PE", {"n": 512}), 8_188),
    (_gemv(4), 3_670),
    (_attention(4, 4, 64), 68_764),
    (_attention(2, 4, 16), 21_089),
    (_attention(8, 2, 128), 65_962),
    (_attention(1, 64, 64), 838_551),
    (Case("DFT-1PE", {"N": 64}), 145_233),
    (Case("GELU-1PE", {"n": 512}), 111_134),
    (Case("Game of Life", {"x_dim": 12, "y_dim": 12}, _LIFE, _STAMPS, 2), 7_838),
    (
        Case("GEMM Collectives 2D", {"P": 4, "Mt": 14, "Kt": 14, "Nt": 14}, _GRID, _STAMPS),
        51_425,
    ),
    (_gemv(2), 3_212),
    (_gemv(8), 3_921),
    (Case("Histogram-1PE", {"n": 256, "n_buckets": 16, "bucket_size": 64}), 6_191),
    (Case("L2-Norm-1PE", {"n": 512}), 18_112),
    (_laplacian(4), 1_274),
    (_laplacian(16), 25_195),
    (Case("MSE-Loss-1PE", {"n": 512}), 11_282),
]


def _words(machine: Machine, x: int, y: int, address: int) -> int:
    return int(machine.read(x, y, address, 6).view("<u2").astype(np.int64) @ (1, 1 << 16, 1 << 32))


def measure(folder: Path, case: Case) -> tuple[float, float]:
    """Return the cycles from the first PE's start to the last one's end, and the scalar share.

    Args:
        folder: the repository's ``kernels``.
        case: the row.

    Raises:
        RuntimeError: the program does not come to its end.
    """
    layout = folder / case.folder / "CSL" / "layout.csl"
    image = wafer.csl.compile(layout, case.params, arch="wse3")
    machine, (height, width) = Machine(image), image.tiles.shape
    for name, arguments in case.calls.items():
        machine.launch(Rectangle(0, 0, width, height), name, arguments)
        if machine.run(_MOST) not in {Status.QUIET, Status.READY}:
            raise RuntimeError(f"{layout}: {machine.fault}")
    stamps = []
    for y, x in np.ndindex(height, width):
        places = image.programs[image.tiles[y, x]].symbols
        stamps.append([_words(machine, x, y, places[name].address) for name in case.symbols])
    first, last = np.array(stamps).T
    return float(last.max() - first.min() + case.commands * _COMMAND), machine.scalar_share


_SEVEN = (
    "--params=width:5,height:5,MAX_ZDIM:{z} --params=BLOCK_SIZE:2"
    " --params=C0_ID:0,C1_ID:1,C2_ID:2,C3_ID:3,C4_ID:4,C5_ID:5,C6_ID:6,C7_ID:7,C8_ID:8"
)
# Of Cerebras/csl-examples, which FABRICA runs: folder, layout, script, depth, iterations -> cycles.
SCRIPTS = {
    ("7pt-stencil-spmv", "layout", "run", 5, 0): 2_129,
    ("7pt-stencil-spmv", "layout", "run", 60, 0): 17_134,
    ("bicgstab", "layout_bicgstab", "device_run", 5, 20): 59_385,
    ("conjugate-gradient", "layout_cg", "device_run", 5, 2): 11_635,
}


def measure_script(folder: Path, case: tuple[str, str, str, int, int]) -> float:
    """Return the cycles that a script of Cerebras/csl-examples prints.

    Args:
        folder: its ``benchmarks``.
        case: a key of ``SCRIPTS``.
    """
    name, layout, script, depth, iterations = case
    with tempfile.TemporaryDirectory() as parent:
        work = Path(parent, name)
        for part in (name, "benchmark-libs"):
            shutil.copytree(folder / part, Path(parent, part))
        write_commands(Path(parent))
        limit = f"--max-ite={iterations}" if iterations else ""
        line = (
            f"cslc src/{layout}.csl --arch wse3 --fabric-dims=12,7 --fabric-offsets=4,1"
            f" {_SEVEN.format(z=depth)} -o=out --memcpy --channels=1"
            f" && cs_python {script}.py -m=5 -n=5 -k={depth} --latestlink out --channels=1"
            f" --width-west-buf=0 --width-east-buf=0 --zDim={depth} --run-only {limit}"
        )
        said = subprocess.run(
            f'export PATH="{parent}:$PATH"; {line}',
            shell=True, cwd=work, capture_output=True, text=True, check=False,
        )  # fmt: skip
    found = [row for row in said.stdout.splitlines() if row.startswith("cycles_send")]
    if not found:
        raise RuntimeError(f"{name}: {said.stdout[-400:]} {said.stderr[-400:]}")
    return float(found[-1].split()[2])
