"""Slicing trees of any shape, and annealing that changes the tree itself.

A tree knows the exact least height for every width of all plans of its shape (Stockmeyer 1983).
Trees are never changed: a move builds the nodes from the changed place to the root anew and shares
all others. A plan may leave the wafer on its way, for a price per PE, as in Wong and Liu (1986). A
wheel in a tree keeps its boxes while moves change what lies in them.
"""

import dataclasses
import math
import random
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from wafer.placement.slicing import Piece

__all__ = ["Room", "Tree", "join", "leaf", "leaves_of", "optimise", "rejoin", "tree_of", "wheel"]

Path = tuple[int, ...]
Box = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Tree:
    """A kernel, parts side by side or stacked (no part is cut the same way), or a wheel of parts.

    Attributes:
        parts: empty for a kernel.
        beside: whether the parts lie side by side.
        heights: [points] least height for each width, ``points`` if none.
        widths: [points] least width for each height.
        kernel: position of the kernel in its order, -1 if there are parts.
        count: kernels.
        boxes: fixed (x, y, width, height) of a wheel's parts, which no cuts make.
    """

    parts: tuple["Tree", ...]
    beside: bool
    heights: np.ndarray
    widths: np.ndarray
    kernel: int
    count: int
    boxes: tuple[Box, ...] = ()


def _inverse(curve: np.ndarray) -> np.ndarray:
    """As ``slicing.inverse`` for one curve whose "none" is its length, which a move can afford."""
    n = len(curve)
    return n - np.bincount(curve, minlength=n + 1)[:n].cumsum()


def leaf(kernel: int, curve: np.ndarray) -> Tree:
    """A kernel from its least height for each width."""
    high = np.minimum(curve, len(curve)).astype(np.int64)
    return Tree((), False, high, _inverse(high), kernel, 1)


def join(beside: bool, parts: Sequence[Tree]) -> Tree:
    """One tree of several, side by side or stacked."""
    if len(parts) == 1:
        return parts[0]
    flat: list[Tree] = []
    for part in parts:
        same = part.parts and part.beside == beside and not part.boxes
        flat += part.parts if same else (part,)
    curves = [part.widths if beside else part.heights for part in flat]
    total = curves[0]
    for curve in curves[1:]:
        total = total + curve
    one = np.minimum(total, len(total))
    other = _inverse(one)
    high, wide = (other, one) if beside else (one, other)
    return Tree(tuple(flat), beside, high, wide, -1, sum(part.count for part in flat))


def wheel(parts: Sequence[Tree], boxes: Sequence[Box]) -> Tree:
    """One tree of parts in fixed boxes; it fits nowhere if a part is larger than its box."""
    points = len(parts[0].heights)
    width, height = (max(box[at] + box[at + 2] for box in boxes) for at in (0, 1))
    sized = zip(parts, boxes, strict=True)
    if not all(int(part.heights[box[2]]) <= box[3] for part, box in sized):
        width = height = points
    high = np.where(np.arange(points) < width, points, height)
    count = sum(part.count for part in parts)
    return Tree(tuple(parts), False, high, _inverse(high), -1, count, tuple(boxes))


def rejoin(tree: Tree, parts: Sequence[Tree]) -> Tree:
    """A tree of other parts, made as this one is; a wheel that lost a part becomes a stack."""
    if tree.boxes and len(parts) == len(tree.boxes):
        return wheel(parts, tree.boxes)
    return join(tree.beside, parts)


def tree_of(piece: Piece, kernels: Sequence[Tree]) -> Tree:
    """The tree of a plan, from its kernels by position."""
    if not piece.parts:
        return kernels[piece.i]
    if len(piece.parts) != 2:  # a wheel
        boxes = [(p.x - piece.x, p.y - piece.y, p.width, p.height) for p in piece.parts]
        return wheel([tree_of(part, kernels) for part in piece.parts], boxes)
    a, b = piece.parts
    beside = a.x + a.width <= b.x or b.x + b.width <= a.x
    if (b.x < a.x) if beside else (b.y < a.y):
        a, b = b, a
    return join(beside, [tree_of(a, kernels), tree_of(b, kernels)])


def _nodes(tree: Tree, path: Path = ()) -> Iterator[tuple[Path, Tree]]:
    yield path, tree
    for at, part in enumerate(tree.parts):
        yield from _nodes(part, (*path, at))


def leaves_of(tree: Tree) -> list[Tree]:
    """The kernels of a tree, by position."""
    kernels = [node for _, node in _nodes(tree) if not node.parts]
    return sorted(kernels, key=lambda node: node.kernel)


def _with(tree: Tree, changes: Mapping[Path, Tree | None]) -> Tree | None:
    """The tree with other nodes at some paths, of which none leads to another; None takes away."""
    if () in changes:
        return changes[()]
    below: dict[int, dict[Path, Tree | None]] = {}
    for path, new in changes.items():
        below.setdefault(path[0], {})[path[1:]] = new
    parts = [_with(part, below[at]) if at in below else part for at, part in enumerate(tree.parts)]
    kept = [part for part in parts if part is not None]
    return rejoin(tree, kept) if kept else None


class Room:
    """The wafer and the connections that plans are measured with.

    Args:
        width, height: PEs.
        edges: connections between positions.
    """

    def __init__(self, width: int, height: int, edges: Sequence[tuple[int, int]]) -> None:
        """Remember them."""
        self.width, self.height, self.edges = width, height, edges
        self._x = [0.0] * (1 + max((max(e) for e in edges), default=0))
        self._y = list(self._x)

    def measure(self, tree: Tree) -> tuple[float, int]:
        """Wire length, and by how many PEs in x and y the best plan of a tree is too large."""
        high = np.maximum(tree.heights[self.width :], self.height)
        extra = int((high + np.arange(len(high))).argmin())
        tall = int(high[extra])
        if tall >= len(tree.heights):
            return math.inf, len(tree.heights)
        if not self.edges:
            return 0.0, extra + tall - self.height
        x, y = self._x, self._y
        for box in _boxes(tree, 0, 0, self.width + extra, tall):
            x[box.i], y[box.i] = box.x + box.width / 2, box.y + box.height / 2
        length = sum(abs(x[a] - x[b]) + abs(y[a] - y[b]) for a, b in self.edges)
        return length, extra + tall - self.height

    def plan(self, tree: Tree) -> Piece:
        """The rectangles of a tree that fits, as one piece's parts.

        Raises:
            ValueError: it does not fit.
        """
        if int(tree.heights[self.width]) > self.height:
            raise ValueError(f"needs height {tree.heights[self.width]}, more than {self.height}")
        pieces = tuple(_boxes(tree, 0, 0, self.width, self.height))
        return Piece(0, tree.count, 0, 0, self.width, self.height, pieces)


def _boxes(tree: Tree, x: int, y: int, width: int, height: int) -> list[Piece]:
    """The kernels' rectangles in a box."""
    if not tree.parts:
        return [Piece(tree.kernel, tree.kernel + 1, x, y, width, height)]
    pieces: list[Piece] = []
    for part, box in zip(tree.parts, tree.boxes, strict=False):
        pieces += _boxes(part, x + box[0], y + box[1], box[2], box[3])
    for part in tree.parts if not tree.boxes else ():
        if tree.beside:
            size = int(part.widths[height])
            pieces += _boxes(part, x, y, size, height)
            x += size
        else:
            size = int(part.heights[width])
            pieces += _boxes(part, x, y, width, size)
            y += size
    return pieces


def _swapped(tree: Tree, nodes: list[tuple[Path, Tree]], rng: random.Random) -> Tree | None:
    """Two nodes change places: any two, or two kernels, mostly near ones."""
    if rng.random() < 0.6:
        (a, one), (b, two) = rng.choice(nodes), rng.choice(nodes)
    else:
        single = [node for node in nodes if not node[1].parts]
        a, one = rng.choice(single)
        if rng.random() < 0.6:
            single = [node for node in single if abs(node[1].kernel - one.kernel) <= 3]
        b, two = rng.choice(single)
    if a[: len(b)] == b or b[: len(a)] == a:
        return None
    return _with(tree, {a: two, b: one})


def _moved(tree: Tree, nodes: list[tuple[Path, Tree]], rng: random.Random) -> Tree | None:
    """A node leaves its place and joins another one, often where its neighbours are."""
    a, one = rng.choice(nodes)
    if a == () or 3 * one.count > tree.count + 3:
        return None
    b, two = rng.choice(nodes)
    if rng.random() < 0.5:
        kernel = next(node.kernel for _, node in _nodes(one) if not node.parts)
        near = [(p, n) for p, n in nodes if not n.parts and abs(n.kernel - kernel) <= 2]
        b, two = rng.choice(near)
        if b and rng.random() < 0.4:
            b = b[:-1]
            two = next(n for p, n in nodes if p == b)
    if b[: len(a)] == a:
        return None
    beside, first = rng.random() < 0.5, rng.random() < 0.5
    if a[: len(b)] == b:
        rest = _with(two, {a[len(b) :]: None})
        if rest is None:
            return None
        return _with(tree, {b: join(beside, (one, rest) if first else (rest, one))})
    return _with(tree, {a: None, b: join(beside, (one, two) if first else (two, one))})


def _turned(tree: Tree, nodes: list[tuple[Path, Tree]], rng: random.Random) -> Tree | None:
    """A node's parts in another order, some of them grouped, or all cut the other way."""
    path, node = rng.choice([n for n in nodes if n[1].parts])
    parts, draw = list(node.parts), rng.random()
    if node.boxes:
        return _with(tree, {path: wheel(parts, _mirrored(node.boxes, draw < 0.5))})
    if draw < 0.2:
        parts.reverse()
    elif draw < 0.4:
        part = parts.pop(rng.randrange(len(parts)))
        parts.insert(rng.randrange(len(parts) + 1), part)
    elif draw < 0.7 and len(parts) > 2:
        i = rng.randrange(len(parts) - 1)
        j = min(len(parts), i + 2 + rng.randrange(2))
        parts[i:j] = [join(not node.beside, parts[i:j])]
    else:
        return _with(tree, {path: join(not node.beside, parts)})
    return _with(tree, {path: join(node.beside, parts)})


def _mirrored(boxes: Sequence[Box], across: bool) -> list[Box]:
    """A wheel's boxes with left and right changed over if ``across``, else top and bottom."""
    at = 0 if across else 1
    whole = max(box[at] + box[at + 2] for box in boxes)
    new = [whole - box[at] - box[at + 2] for box in boxes]
    turned = zip(new, boxes, strict=True)
    return [(x, b[1], *b[2:]) if across else (b[0], x, *b[2:]) for x, b in turned]


def optimise(
    tree: Tree, room: Room, seed: int, moves: int, *, heat: tuple[float, float], price: float
) -> tuple[Tree | None, float]:
    """Shorter wires by changes of the tree (simulated annealing).

    Args:
        tree: where to begin.
        room: wafer and connections.
        seed: of every random choice.
        moves: how many to try.
        heat: first and last temperature, in PEs of wire.
        price: PEs of wire that a PE too many in x or y is worth, towards the end.

    Returns:
        The best tree met that fits, None if none did, and its wire length in PEs.
    """
    rng = random.Random(seed)
    length, over = room.measure(tree)
    best = (None, math.inf) if over else (tree, length)
    nodes = list(_nodes(tree))
    for move in range(moves if len(nodes) > 1 else 0):
        progress = move / moves
        change = (_swapped, _moved, _turned)[int(rng.random() * 3)]
        changed = change(tree, nodes, rng)
        if changed is None:
            continue
        after, beyond = room.measure(changed)
        if after == math.inf:
            continue
        loss = after - length + price * (0.3 + 0.7 * min(1.0, 1.3 * progress)) * (beyond - over)
        if loss > 0 and rng.random() >= math.exp(
            -loss / (heat[0] * (heat[1] / heat[0]) ** progress)
        ):
            continue
        tree, length, over, nodes = changed, after, beyond, list(_nodes(changed))
        if not over and length < best[1]:
            best = tree, length
    return best
