"""Published SpMM programs (public repository pr0f3ss/SpMM_Cerebras) on their published matrices.

Its converter and its host script: random matrices of glibc's ``rand``, cut into one tile per PE,
in four sparse formats, padded to the longest tile.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import wafer.csl
from wafer.csl import Machine, Rectangle, Status

__all__ = ["ROWS", "Case", "measure"]

_MOST = 20_000_000  # cycles
_RAND_MAX = 2**31 - 1


class Case(NamedTuple):
    """A row of the repository's tables.

    Attributes:
        kind: of the sparse matrix: coo, csr, csc or ellpack.
        n: rows of the sparse matrix.
        k: its columns.
        percent: of its values are not zero.
        height: PEs.
        width: PEs.
        m: columns of the dense matrix.
    """

    kind: str
    n: int
    k: int
    percent: int
    height: int
    width: int
    m: int

    def __str__(self) -> str:
        return (f"{self.kind.upper()} {self.width} x {self.height}, {self.n} x {self.k}"
                f" x {self.m}, {self.percent} %")  # fmt: skip


def _square(kind: str, n: int, m: int) -> Case:
    return Case(kind, n, n, 100, 2, 2, m)


# What the vendor's simulator counted (``benchmarks/memory_access_latency``, the rows of all
# cycles), by the programs of commit 6174dab. The rows of ``benchmarks/*.csv`` are of a CS-2: their
# scripts compile for its 757 x 996 PEs since commit 7c01150, "adjusted for real machine".
ROWS = [
    (_square("coo", 16, 32), 7_179),
    (_square("coo", 64, 32), 112_779),
    (_square("coo", 16, 128), 19_659),
    (_square("csr", 16, 32), 7_522),
    (_square("csr", 64, 32), 114_490),
    (_square("csr", 16, 128), 19_810),
    (_square("csr", 64, 128), 311_098),
    (_square("csc", 16, 32), 7_592),
    (_square("csc", 64, 32), 115_544),
    (_square("csc", 16, 128), 19_880),
    (_square("csc", 64, 128), 312_152),
    (_square("ellpack", 16, 32), 6_146),
    (_square("ellpack", 64, 32), 112_703),
    (_square("ellpack", 16, 128), 18_434),
]


def random_matrix(n: int, k: int, percent: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrix, [n, k] float32, and the places that were drawn, [n, k] bool."""
    libc = ctypes.CDLL(None)
    libc.srand(0)
    values, drawn = np.zeros(n * k, np.float32), np.zeros(n * k, bool)
    for _ in range(int(percent * n * k / 100)):
        place = libc.rand() % (n * k)
        while drawn[place]:
            place = libc.rand() % (n * k)
        values[place], drawn[place] = libc.rand() / _RAND_MAX, True
    return values.reshape(n, k), drawn.reshape(n, k)


def _padded(rows: list[np.ndarray], length: int) -> np.ndarray:
    return np.stack([np.pad(row, (0, length - len(row))) for row in rows])


def _tiles(case: Case) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The tiles of the PEs, row by row."""
    rows, columns = case.n // case.height, case.k // case.width
    values, drawn = random_matrix(case.n, case.k, case.percent)
    for y in range(0, case.n, rows):
        for x in range(0, case.k, columns):
            part = np.s_[y : y + rows, x : x + columns]
            yield values[part], drawn[part]


def arrays(case: Case) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Return the arrays of the tiles, by name, [PEs, length], and the layout's params."""
    turned = case.kind == "csc"  # by columns
    tiles = [(v.T, d.T) if turned else (v, d) for v, d in _tiles(case)]
    places = [np.nonzero(drawn) for _, drawn in tiles]
    values = [v[place] for (v, _), place in zip(tiles, places, strict=True)]
    outer = [row.astype(np.int32) for row, _ in places]
    inner = [column.astype(np.int32) for _, column in places]
    length = max(map(len, values))
    if case.kind == "coo":
        length += 1  # as run_benchmark.sh says
        lists = zip(("A_val", "A_y", "A_x"), (values, outer, inner), strict=True)
        return {name: _padded(rows, length) for name, rows in lists}, {"A_len": length}
    counts = np.stack([drawn.sum(1) for _, drawn in tiles])
    if case.kind == "ellpack":
        length = int(counts.max())
        ranks = [np.concatenate([np.arange(c) for c in row]) for row in counts]
        kept = np.zeros((*counts.shape, length), np.float32)
        indices = kept.astype(np.int32)
        for pe, place in enumerate(zip(outer, ranks, strict=True)):
            kept[pe][place], indices[pe][place] = values[pe], inner[pe]
        flat = (len(tiles), -1)
        out = {"A_val": kept.reshape(flat), "A_indices": indices.reshape(flat)}
        return out, {"A_len": length}
    index, pointer = ("row", "col") if turned else ("col", "row")
    starts = np.pad(np.cumsum(counts, 1), ((0, 0), (1, 0))).astype(np.int32)
    params = {"A_val_len": length, f"A_{index}idx_len": length}
    params[f"A_{pointer}ptr_len"] = starts.shape[1]
    out = {"A_val": _padded(values, length), f"A_{index}_idx": _padded(inner, length)}
    return out | {f"A_{pointer}_ptr": starts}, params


def measure(folder: Path, case: Case) -> tuple[float, float]:
    """Return the cycles of the local product, as the program's stamps count them; the scalar share.

    Args:
        folder: check-out of the repository.
        case: the row.

    Returns:
        the mean of the PEs, and of all their cycles those of scalar instructions as a fraction.

    Raises:
        RuntimeError: the program does not come to its end.
    """
    data, params = arrays(case)
    height, width = case.height, case.width
    params |= {"width": width, "height": height, "M": case.m, "LAUNCH_ID": 4}
    params |= {"Nt": case.n // case.height, "Kt": case.k // case.width}
    layout = folder / "src" / f"grid_{case.kind}" / "layout.csl"
    image = wafer.csl.compile(layout, params, arch="wse2")
    machine = Machine(image)
    tiles = [
        (x, y, image.programs[image.tiles[y, x]].symbols) for y, x in np.ndindex(height, width)
    ]
    for x, y, symbols in tiles:
        for name, rows in data.items():
            machine.write(x, y, symbols[name].address, rows[y * width + x].view(np.uint8))
    machine.launch(Rectangle(0, 0, width, height), "bcast_B")
    if machine.run(_MOST) not in {Status.QUIET, Status.READY}:
        raise RuntimeError(f"{layout}: {machine.fault}")
    stamps = [machine.read(x, y, symbols["time_buf_f32"].address, 12) for x, y, symbols in tiles]
    words = np.stack([stamp.view("<u2") for stamp in stamps]).astype(np.int64)
    since, until = (words[:, k : k + 3] @ (1, 1 << 16, 1 << 32) for k in (0, 3))
    return float((until - since).mean()), machine.scalar_share
