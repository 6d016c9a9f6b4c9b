"""Programs of FABRICA (arXiv 2608.25124), with their cycles on the vendor's simulator.

Public repository luozoupi/FABRICA-CUDA2CSL-Optmization-Benchmark-and-Agentic-Framework. Programs
whose names begin with n to z are not listed: they are kept for a later check. All listed
ones were in view while rules and numbers were chosen.

Inputs, compared symbols and tolerances are those of the programs' ``run.py`` (Attention-1PE has
none stored: those of Attention-QP, which its ``spec.yaml`` names); the references are our own.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import wafer.csl
from wafer.csl import Runtime
from wafer.csl.host.tools.scripts import write_commands
from wafer.errors import WaferError

__all__ = ["ROWS", "SCRIPTS", "Case", "measure", "measure_script"]

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
        symbols: of the start and the end.
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
_GENERATIONS = 20
_LIFE = {"f_enable_timer": (), "f_tic": (), "generate": (_GENERATIONS,), "f_toc": ()}
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


class Values(NamedTuple):
    """What a host copies to a program and compares.

    An array is [items] of one PE, or [rows, columns, ...] of PEs; float arrays are float32 on the
    PEs, others uint32.

    Attributes:
        inputs: by symbol, of the PEs from the first one on.
        expected: by symbol, of the PEs up to the last one.
        relative: tolerance, of the expected values.
        absolute: tolerance.
    """

    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    relative: float = 0
    absolute: float = 0


_SEED = 7


def _normal(*shape: int) -> np.ndarray:
    """Draw float32 values."""
    return np.random.default_rng(_SEED).standard_normal(shape).astype(np.float32)


def _tiles(matrix: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Return the tiles of the PEs, [rows, columns, rows of a tile, columns of a tile]."""
    return matrix.reshape(rows, -1, columns, matrix.shape[1] // columns).swapaxes(1, 2)


def _attention_values(side: int, rows: int, keys: int, width: int, causal: int) -> Values:
    """Queries are in blocks, one for each PE; keys and values are on all of them."""
    assert not causal
    query, key, value = _normal(3, keys, width)
    weights = np.exp(query.astype(float) @ key.T / np.sqrt(width))
    out = weights @ value / weights.sum(1, keepdims=True)
    of_pes = lambda matrix: matrix.reshape(side, side, rows, width)
    on_all = lambda matrix: np.broadcast_to(matrix, (side, side, keys, width))
    inputs = {"Q": of_pes(query), "K": on_all(key), "V": on_all(value)}
    return Values(inputs, {"O": of_pes(out)}, 1e-4, 1e-4)


def _cross_entropy(n: int) -> Values:
    draw = np.random.default_rng(_SEED)
    logits = draw.standard_normal(n).astype(np.float32) * 3
    label = draw.integers(0, n, 1, np.uint32)
    loss = np.log(np.exp(logits.astype(float)).sum()) - logits[label]
    return Values({"logits": logits, "label": label}, {"result": loss}, 1e-3, 1e-4)


def _dot(n: int) -> Values:
    x, y = _normal(2, n)
    return Values({"x": x, "y": y}, {"result": x[None] @ y}, 1e-3, 1e-3)


def _dft(n: int) -> Values:
    x = np.random.default_rng(_SEED).random(n).astype(np.float32)
    angles = 2 * np.pi * np.outer(np.arange(n), np.arange(n)).ravel() / n
    out = np.fft.fft(x)
    inputs = {"x": x, "cosT": np.cos(angles), "sinT": -np.sin(angles)}
    return Values(inputs, {"Xre": out.real, "Xim": out.imag}, 1e-3, 1e-3 * np.abs(out).max())


def _gelu(n: int) -> Values:
    x = _normal(n) * 2
    out = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return Values({"x": x}, {"out": out}, 1e-3, 1e-4)


def _gemm_one(m: int, k: int, n: int) -> Values:
    draw = np.random.default_rng(_SEED)
    a, b = (draw.random(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    return Values({"A": a.ravel(), "B": b.ravel()}, {"C": (a @ b).ravel()}, 1e-4, 1e-4)


def _gemm_grid(side: int, m: int, k: int, n: int) -> Values:
    """Tiles are stored by columns."""
    draw = np.random.RandomState(_SEED)
    a, b = (draw.rand(side * h, side * w).astype(np.float32) for h, w in ((m, k), (k, n)))
    tiles = lambda matrix: _tiles(matrix, side, side).swapaxes(2, 3)
    return Values({"A": tiles(a), "B": tiles(b)}, {"C": tiles(a @ b)}, 1e-5, 1e-6)


def _gemv_values(rows: int, columns: int, m: int, n: int) -> Values:
    """The vectors are on the first PE, the result is on the last one."""
    draw = np.random.RandomState(_SEED)
    a, x, b = (draw.rand(*shape).astype(np.float32) for shape in ((m, n), (n,), (m,)))
    return Values({"A": _tiles(a, rows, columns), "x": x, "b": b}, {"y": a @ x + b}, 0, 0.01)


def _life(columns: int, rows: int) -> Values:
    """The first state is a glider in each 4 x 4 cells, turned in every second row or column."""
    glider = np.array([[0, 0, 1], [1, 0, 1], [0, 1, 1]])
    whole, mirrored, flipped = (np.pad(g, (0, 1)) for g in (glider, glider[:, ::-1], glider[::-1]))
    block = np.block([[whole, mirrored], [flipped, flipped]])
    states = [np.tile(block, (rows, columns))[:rows, :columns]]
    for _ in range(1, _GENERATIONS):
        around = np.lib.stride_tricks.sliding_window_view(np.pad(states[-1], 1), (3, 3))
        alive = around.sum((2, 3)) - states[-1]
        states.append((alive == 3) | (alive == 2) & (states[-1] == 1))
    return Values({"states": states[0][..., None]}, {"states": np.stack(states, 2)})


def _histogram(n: int, buckets: int, size: int) -> Values:
    drawn = np.random.default_rng(_SEED).integers(0, buckets * size, n, np.uint32)
    return Values({"input": drawn}, {"hist": np.bincount(drawn // size, minlength=buckets)})


def _l2_norm(n: int) -> Values:
    x = _normal(n)
    return Values({"x": x}, {"out": x / np.sqrt((x**2).sum() + 1e-8)}, 1e-4, 1e-5)


def _laplacian_values(columns: int, rows: int, height: int, width: int) -> Values:
    """Zero is beyond the edges; the sum is in the program's order, as the tolerance is exact."""
    shape = rows * height, columns * width
    grid = np.random.default_rng(0).random(shape).astype(np.float32) * np.float32(np.prod(shape))
    wide = np.pad(grid, 1)
    out = (wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]) / 4
    tiles = lambda matrix: _tiles(matrix, rows, columns)
    return Values({"tile": tiles(grid)}, {"new_tile": tiles(out)}, 0, 1e-5)


def _max(n: int) -> Values:
    x = _normal(n)
    return Values({"x": x}, {"result": x.max(keepdims=True)}, 1e-5, 1e-7)


def _mse(n: int) -> Values:
    x, y = _normal(2, n)
    loss = ((x - y) ** 2).mean(keepdims=True)
    return Values({"pred": x, "target": y}, {"result": loss}, 1e-3, 1e-4)


# Program -> values, of the sizes of its rows in their order.
_VALUES: dict[str, Callable[..., Values]] = {
    "Attention-1PE": _attention_values,
    "Attention-QP": _attention_values,
    "Cross-Entropy-Loss-1PE": _cross_entropy,
    "DFT-1PE": _dft,
    "Dot-Product-1PE": _dot,
    "GELU-1PE": _gelu,
    "GEMM Collectives 2D": _gemm_grid,
    "GEMM-1PE": _gemm_one,
    "GEMV Collectives 2D": _gemv_values,
    "Game of Life": _life,
    "Histogram-1PE": _histogram,
    "L2-Norm-1PE": _l2_norm,
    "Laplacian2D-Halo": _laplacian_values,
    "MSE-Loss-1PE": _mse,
    "Max-Reduction-1PE": _max,
}


def _of_pes(array: np.ndarray) -> np.ndarray:
    """Return what is copied, [rows, columns, items] of float32 or uint32."""
    array = array.astype(np.float32 if array.dtype.kind == "f" else np.uint32)
    return array[None, None] if array.ndim == 1 else array.reshape(*array.shape[:2], -1)


def _check(runtime: Runtime, values: Values) -> None:
    """Compare what the PEs hold with what is expected.

    Raises:
        RuntimeError: a value differs by more than the tolerances.
    """
    for name, array in values.expected.items():
        expected = _of_pes(array)
        height, width, items = expected.shape
        x, y = runtime.whole.width - width, runtime.whole.height - height
        received = np.zeros_like(expected)
        runtime.memcpy_d2h(received, runtime.get_id(name), x, y, width, height, items)
        allowed = values.absolute + values.relative * np.abs(expected)
        excess = np.abs(received.astype(float) - expected) - allowed
        row, column, item = worst = np.unravel_index(np.argmax(excess), excess.shape)
        if not excess[worst] <= 0:
            raise RuntimeError(
                f"'{name}' of PE ({x + column}, {y + row}): element {item} is wrong"
                f" ({received[worst]}); expected {expected[worst]}, within {allowed[worst]:.3g}"
            )


def measure(folder: Path, case: Case) -> tuple[float, float]:
    """Return the cycles from the first PE's start to the last one's end, and the scalar share.

    Args:
        folder: the repository's ``kernels``.
        case: the row.

    Raises:
        RuntimeError: the program does not come to its end, or computes a wrong value.
    """
    layout = folder / case.folder / "CSL" / "layout.csl"
    values = _VALUES[case.folder](*case.params.values())
    runtime = Runtime(wafer.csl.compile(layout, case.params, arch="wse3"))
    try:
        for name, array in values.inputs.items():
            data = _of_pes(array)
            height, width, items = data.shape
            runtime.memcpy_h2d(runtime.get_id(name), data, 0, 0, width, height, items)
        for name, arguments in case.calls.items():
            runtime.launch(name, *arguments)
        _check(runtime, values)
    except (RuntimeError, WaferError) as error:
        raise RuntimeError(f"{layout}: {error}") from error
    read = runtime.read_symbol
    stamps = [[read(x, y, name) for name in case.symbols] for x, y in runtime.whole.pes()]
    first, last = (np.array(stamps, np.int64) @ (1, 1 << 16, 1 << 32)).T
    return float(last.max() - first.min() + case.commands * _COMMAND), runtime.machine.scalar_share


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


def measure_script(folder: Path, case: tuple[str, str, str, int, int]) -> tuple[float, float]:
    """Return the cycles that a script of Cerebras/csl-examples prints, and 1 for the scalar share.

    The script compares the result with SciPy's or NumPy's (relative tolerance 1e-5), and that of
    bicgstab also its residual.

    Args:
        folder: its ``benchmarks``.
        case: a key of ``SCRIPTS``.

    Raises:
        RuntimeError: the script fails, as it does if a value is wrong.
    """
    name, layout, script, depth, iterations = case
    with tempfile.TemporaryDirectory() as parent:
        work = Path(parent, name)
        for part in (name, "benchmark-libs"):
            shutil.copytree(folder / part, Path(parent, part))
        write_commands(Path(parent))
        host = work / f"{script}.py"  # NumPy 2 keeps 16 bits of its time stamps
        host.write_text(re.sub(r"(words\[\d\])", r"int(\1)", host.read_text("utf-8")), "utf-8")
        limit = f"--max-ite={iterations}" if iterations else ""
        line = (
            f"cslc src/{layout}.csl --arch wse3 --fabric-dims=12,7 --fabric-offsets=4,1"
            f" {_SEVEN.format(z=depth)} -o=out --memcpy --channels=1"
            f" && cs_python {host.name} -m=5 -n=5 -k={depth} --latestlink out --channels=1"
            f" --width-west-buf=0 --width-east-buf=0 --zDim={depth} --run-only {limit}"
        )
        said = subprocess.run(
            f'export PATH="{parent}:$PATH"; {line}',
            shell=True, cwd=work, capture_output=True, text=True, check=False,
        )  # fmt: skip
    found = [row for row in said.stdout.splitlines() if row.startswith("cycles_send")]
    if said.returncode or not found or "SUCCESS" not in said.stdout:
        raise RuntimeError(f"{name}: {said.stdout[-400:]} {said.stderr[-400:]}")
    return float(found[-1].split()[2]), 1.0
