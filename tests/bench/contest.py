"""The ISPD 2020 contest "Wafer-Scale Deep Learning Accelerator Placement": files, costs, score.

A kernel is one convolution or a residual block of several that share their split over the image;
forward, backward and update lie side by side (James et al., ISPD 2020). Formal arguments come with
the graph, execution arguments are chosen: ``h`` and ``w`` split the image, ``c`` and ``k`` the
channels. ``score`` computes sizes, times and memories again, from the contest's statement and for
one kernel at a time; it shares only the data types with what chooses them.
"""

import dataclasses
import functools
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from wafer.compiler.slicing_floorplan import NEVER, Piece
from wafer.errors import DataError

__all__ = [
    "Arguments",
    "ContestGraph",
    "ContestKernel",
    "Conv",
    "Placed",
    "Score",
    "cblock",
    "dblock",
    "fill",
    "read_graph",
    "score",
    "unmatched",
    "write_placement",
]

_SETTINGS = ("width", "height", "wdeltat", "wlength", "wadapter", "memlimit")
_NODE = re.compile(r"(\w+)\[\s*(\d+)\]\s+(.*)")
_EDGE = re.compile(r"(\w+)\[\s*(\d+)\]:\w+\s*->\s*(\w+)\[\s*(\d+)\]:\w+")
_ARGUMENT = re.compile(r"(\w+)=(\d+)")


@dataclasses.dataclass(frozen=True)
class Conv:
    """Formal arguments of one convolution: image H x W, filter R x S, channels C to K, stride T."""

    H: int
    W: int
    R: int
    S: int
    C: int
    K: int
    T: int = 1


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Execution arguments: the image's splits and, per convolution, the channels' splits."""

    h: int
    w: int
    c: tuple[int, ...]
    k: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ContestKernel:
    """A kernel of the graph.

    Attributes:
        name: as in the file, 'k3'.
        kind: 'conv', 'dblock' or 'cblock'.
        parts: its convolutions, in the order of the contest's statement.
        last: index of the part that produces the output (a cblock's shortcut is its fourth).
    """

    name: str
    kind: str
    parts: tuple[Conv, ...]

    @property
    def last(self) -> int:
        """Index of the part whose ``k`` the output protocol carries."""
        return min(2, len(self.parts) - 1)

    def size(self, a: Arguments) -> tuple[int, int]:
        """(width, height) in PEs, not rotated."""
        return 3 * sum(a.k), max(a.h * a.w * (c + 1) for c in a.c)

    def choices(self, cap: float, memlimit: int, limit: int) -> "ContestChoices":
        """All useful execution arguments of time at most ``cap`` on at most ``limit`` rows."""
        return _choices(self.parts, float(cap), memlimit, limit)


@dataclasses.dataclass(frozen=True)
class ContestChoices:
    """Arguments in columns, one entry per way to run a kernel in time.

    h, w: [N] splits of the image; c, k: [N, parts]; width, height: [N] PEs, not rotated.
    """

    h: np.ndarray
    w: np.ndarray
    c: np.ndarray
    k: np.ndarray
    width: np.ndarray
    height: np.ndarray

    def __getitem__(self, index: int) -> Arguments:
        """The arguments in row ``index``."""
        c, k = self.c[index].tolist(), self.k[index].tolist()
        return Arguments(int(self.h[index]), int(self.w[index]), tuple(c), tuple(k))

    def curve(self, limit: int) -> np.ndarray:
        """Least height for each width 0..limit in either rotation, ``NEVER`` where none fits."""
        best = np.full(limit + 1, NEVER, np.int32)
        for width, height in ((self.width, self.height), (self.height, self.width)):
            fits = (width <= limit) & (height <= limit)
            np.minimum.at(best, width[fits], height[fits].astype(np.int32))
        return np.minimum.accumulate(best)


@functools.lru_cache(maxsize=256)
def _choices(parts: tuple[Conv, ...], cap: float, memlimit: int, limit: int) -> ContestChoices:
    """For each image split and height: the fewest columns that meet time and memory."""
    h, w, c = _rows(parts[0].H, parts[0].W, max(p.C for p in parts), limit)
    fresh = np.concatenate([[True], c[1:] <= c[:-1]])  # where another image split begins
    taken_c, taken_k = [], []
    for p in parts:
        rounds = -(-p.H // h) * -(-p.W // w) * -(-p.C // c)
        share = np.floor(cap * p.T**2 / (p.R * p.S * rounds) + 1e-9).astype(np.int64)
        words = p.C / c * p.R * p.S + (p.W + p.S - 1) / w * ((p.H + p.R - 1) / h)
        k = np.where(share >= 1, -(-p.K // np.maximum(share, 1)), NEVER)
        k = np.maximum(k, np.ceil(p.K * words / memlimit - 1e-9).astype(np.int64))
        first = fresh | np.concatenate([[True], k[1:] != k[:-1]])  # the least c for this many k
        taken_c.append(c[np.maximum.accumulate(np.where(first, np.arange(len(c)), 0))])
        taken_k.append(k)
    c_all, k_all = np.stack(taken_c, -1), np.stack(taken_k, -1)
    width, height = 3 * k_all.sum(-1), h * w * (c_all.max(-1) + 1)
    row = np.flatnonzero((width <= limit) & (height <= limit))
    return ContestChoices(*(x[row].astype(np.int32) for x in (h, w, c_all, k_all, width, height)))


@functools.lru_cache(maxsize=64)
def _rows(H: int, W: int, C: int, limit: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All (h, w, c) of at most ``limit`` rows, c ascending for each split of the image."""
    h, w = (x.ravel() for x in np.meshgrid(np.arange(1, H + 1), np.arange(1, W + 1), indexing="ij"))
    most = np.minimum(limit // (h * w) - 1, C)
    h, w, most = (x[most >= 1] for x in (h, w, most))
    c = np.arange(most.sum()) - np.repeat(np.cumsum(most) - most, most) + 1
    return np.repeat(h, most), np.repeat(w, most), c


def dblock(name: str, H: int, W: int, F: int) -> ContestKernel:
    """A residual block that keeps its size."""
    q = F // 4
    parts = (Conv(H, W, 1, 1, F, q), Conv(H, W, 3, 3, q, q), Conv(H, W, 1, 1, q, F))
    return ContestKernel(name, "dblock", parts)


def cblock(name: str, H: int, W: int, F: int) -> ContestKernel:
    """A residual block that halves the image and doubles the channels, shortcut included."""
    q = F // 4
    parts = (
        Conv(H, W, 1, 1, F // 2, q),
        Conv(H, W, 3, 3, q, q, 2),
        Conv(H // 2, W // 2, 1, 1, q, F),
        Conv(H, W, 1, 1, F // 2, F, 2),
    )
    return ContestKernel(name, "cblock", parts)


@dataclasses.dataclass(frozen=True)
class ContestGraph:
    """A contest case.

    Attributes:
        test: its name.
        kernels: those to place; inputs and outputs are ports outside the wafer.
        edges: connections between kernels, as pairs of indices into ``kernels``.
        width: PEs in x; height: PEs in y.
        memlimit: words of one PE.
        wdeltat, wlength, wadapter: weights of the score's three terms.
    """

    test: str
    kernels: tuple[ContestKernel, ...]
    edges: tuple[tuple[int, int], ...]
    width: int
    height: int
    wdeltat: int
    wlength: int
    wadapter: int
    memlimit: int


@dataclasses.dataclass(frozen=True)
class Placed:
    """A kernel's execution arguments and the corner (least x, least y) of its rectangle."""

    arguments: Arguments
    x: int
    y: int
    rotated: bool

    def size(self, kernel: ContestKernel) -> tuple[int, int]:
        """(width, height) on the wafer."""
        width, height = kernel.size(self.arguments)
        return (height, width) if self.rotated else (width, height)


def _kernel(kind: str, rest: str, where: str) -> ContestKernel:
    values = {name: int(value) for name, value in _ARGUMENT.findall(rest)}
    named = re.findall(r"name='([^']*)'", rest)
    try:
        if kind == "conv":
            formal = Conv(*(values[name] for name in "HWRSCK"), T=values["T"])
            return ContestKernel(named[-1], kind, (formal,))
        make = {"dblock": dblock, "cblock": cblock}[kind]
        return make(named[-1], values["h"], values["w"], values["f"])
    except (KeyError, IndexError) as error:
        raise DataError(
            f"{where}: kernel {kind!r} lacks {error}; known are conv (H W R S C K T), dblock and"
            " cblock (f h w), each with name='...'"
        ) from None


def read_graph(path: str | pathlib.Path) -> ContestGraph:
    """Read a ``.kgraph`` file.

    Raises:
        DataError: file and line of what cannot be read.
    """
    path = pathlib.Path(path)
    head = dict(re.findall(r"^(\w+)=(\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE))
    missing = [name for name in _SETTINGS if not head.get(name, "").isdigit()]
    if missing:
        raise DataError(f"{path}: the head lacks whole numbers for {', '.join(missing)}")
    kernels: list[ContestKernel] = []
    index: dict[str, int] = {}
    edges = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        where = f"{path}:{number}"
        if edge := _EDGE.match(line):
            source, target = edge[2], edge[4]
            if not {edge[1], edge[3]} & {"input", "output"}:
                if source not in index or target not in index:
                    raise DataError(f"{where}: connects a kernel that no line above defines")
                edges.append((index[source], index[target]))
        elif (node := _NODE.match(line)) and node[1] not in ("input", "output"):
            index[node[2]] = len(kernels)
            kernels.append(_kernel(node[1], node[3], where))
    if not kernels:
        raise DataError(f"{path}: no kernels; expected lines like \"conv[1] W=14 ... name='k1'\"")
    settings = {name: int(head[name]) for name in _SETTINGS}
    return ContestGraph(head.get("test", path.stem), tuple(kernels), tuple(edges), **settings)


def _formal(kernel: ContestKernel) -> list[int]:
    first = kernel.parts[0]
    if kernel.kind == "conv":
        return [first.H, first.W, first.R, first.S, first.C, first.K, first.T, first.T]
    return [first.H, first.W, kernel.parts[kernel.last].K]


def write_placement(
    path: str | pathlib.Path, graph: ContestGraph, placed: Mapping[str, Placed]
) -> None:
    """Write execution arguments and places, two lines per kernel, in the contest's form.

    Blocks list their arguments as h w, all c, all k.
    """
    lines = []
    for kernel in graph.kernels:
        at = placed[kernel.name]
        a = at.arguments
        numbers = [*_formal(kernel), a.h, a.w, *a.c, *a.k]
        lines.append(f"{kernel.name} = {kernel.kind}( {' '.join(map(str, numbers))} )")
        lines.append(f"{kernel.name} : place({at.x} {at.y} {'R90' if at.rotated else 'R0'})")
    pathlib.Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


class Score(NamedTuple):
    """The score's terms and their weighted sum.

    time: cycles per sample of the slowest kernel
    wire: sum over connections of the L1 distance of centres, in PEs
    adapters: unmatched protocol arguments over all connections
    total: wdeltat * time + wlength * wire + wadapter * adapters
    """

    time: float
    wire: float
    adapters: int
    total: float


def unmatched(source: ContestKernel, a: Placed, target: ContestKernel, b: Placed) -> int:
    """Protocol arguments that differ between a connection's ends, 0 to 3.

    The contest's stored text does not define the adapter cost; here it is how many of
    (h', w', the producer's output k' against the consumer's input c') differ.
    """
    last = 0 if source.kind == "conv" else 2
    pairs = (
        (a.arguments.h, b.arguments.h),
        (a.arguments.w, b.arguments.w),
        (a.arguments.k[last], b.arguments.c[0]),
    )
    return sum(x != y for x, y in pairs)


def _measure(kernel: ContestKernel, at: Placed, memlimit: int) -> tuple[float, int, int]:
    """(time, width, height) of one kernel after its arguments have been checked."""
    a, width, height, slowest = at.arguments, 0, 0, 0.0
    for p, c, k in zip(kernel.parts, a.c, a.k, strict=True):
        if min(a.h, a.w, c, k) < 1:
            raise ValueError(f"kernel {kernel.name}: execution arguments {a} must be at least 1")
        width += 3 * k
        height = max(height, a.h * a.w * (c + 1))
        rounds = -(-p.H // a.h) * -(-p.W // a.w) * -(-p.C // c) * -(-p.K // k)
        slowest = max(slowest, rounds * p.R * p.S / (p.T * p.T))
        weights = p.C / c * p.K / k * p.R * p.S
        words = weights + (p.W + p.S - 1) / a.w * (p.H + p.R - 1) / a.h * p.K / k
        if words > memlimit:
            raise ValueError(
                f"kernel {kernel.name}: {math.ceil(words)} words per PE, limit {memlimit}"
            )
    return (slowest, height, width) if at.rotated else (slowest, width, height)


def score(graph: ContestGraph, placed: Mapping[str, Placed]) -> Score:
    """Prove a placement legal and compute its score.

    Raises:
        ValueError: the kernel that is missing, too large for its memory, outside, or on another.
    """
    owner = np.full((graph.height, graph.width), -1)
    slowest, centres = 0.0, []
    names = [kernel.name for kernel in graph.kernels]
    for number, kernel in enumerate(graph.kernels):
        if kernel.name not in placed:
            raise ValueError(f"kernel {kernel.name} is not placed")
        at = placed[kernel.name]
        time, width, height = _measure(kernel, at, graph.memlimit)
        if min(at.x, at.y) < 0 or at.x + width > graph.width or at.y + height > graph.height:
            raise ValueError(
                f"kernel {kernel.name}: {width}x{height} at ({at.x}, {at.y}) leaves the"
                f" {graph.width}x{graph.height} wafer"
            )
        region = owner[at.y : at.y + height, at.x : at.x + width]
        if (region >= 0).any():
            raise ValueError(f"kernels {names[region.max()]} and {kernel.name} overlap")
        region[:] = number
        slowest = max(slowest, time)
        centres.append((at.x + width / 2, at.y + height / 2))
    wire, adapters = 0.0, 0
    for i, j in graph.edges:
        wire += abs(centres[i][0] - centres[j][0]) + abs(centres[i][1] - centres[j][1])
        a, b = graph.kernels[i], graph.kernels[j]
        adapters += unmatched(a, placed[a.name], b, placed[b.name])
    total = graph.wdeltat * slowest + graph.wlength * wire + graph.wadapter * adapters
    return Score(slowest, wire, adapters, total)


def fill(graph: ContestGraph, cap: float, boxes: Sequence[Piece]) -> dict[str, Placed]:
    """Choose each kernel's arguments of least area in its box, and put it in the box's middle.

    Args:
        graph: the case.
        cap: cycles per sample that no kernel may exceed.
        boxes: a rectangle per kernel of the graph, each large enough.
    """
    placed = {}
    for kernel, box in zip(graph.kernels, boxes, strict=True):
        choices = kernel.choices(cap, graph.memlimit, max(graph.width, graph.height))
        upright = (choices.width <= box.width) & (choices.height <= box.height)
        turned = (choices.width <= box.height) & (choices.height <= box.width)
        rows = np.flatnonzero(upright | turned)
        pick = int(rows[(choices.width * choices.height)[rows].argmin()])
        at = Placed(choices[pick], 0, 0, not upright[pick])
        width, height = at.size(kernel)
        x, y = box.x + (box.width - width) // 2, box.y + (box.height - height) // 2
        placed[kernel.name] = dataclasses.replace(at, x=x, y=y)
    return placed
