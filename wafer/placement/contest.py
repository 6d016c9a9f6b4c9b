"""The contest's files: kernel graphs in, execution arguments and placements out."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping

from wafer.errors import DataError
from wafer.placement.blocks import Arguments, ContestKernel, Conv, cblock, dblock

__all__ = ["ContestGraph", "Placed", "read_graph", "write_placement"]

_SETTINGS = ("width", "height", "wdeltat", "wlength", "wadapter", "memlimit")
_NODE = re.compile(r"(\w+)\[\s*(\d+)\]\s+(.*)")
_EDGE = re.compile(r"(\w+)\[\s*(\d+)\]:\w+\s*->\s*(\w+)\[\s*(\d+)\]:\w+")
_ARGUMENT = re.compile(r"(\w+)=(\d+)")


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
