"""Slicing plans whose kernels need not keep their order: exact within a window of it.

``Table`` keeps the order, so that a plan is a cut of an interval. Here any part of ``window``
consecutive kernels may lie together, in any arrangement of cuts. Equal kernels are told apart only
when a plan is drawn, so the table has one row per multiset of kinds, which in networks of repeated
blocks are few: for the 16 blocks of a ResNet-50 all 3,456 are exact in half a second.
"""

from collections.abc import Sequence

import numpy as np

from wafer.placement.blocks import NEVER
from wafer.placement.slicing import Piece, Table, inverse

__all__ = ["Windows"]


class Windows(Table):
    """Least heights and widths of every interval of an order, rearranged within windows.

    Attributes:
        n, heights, widths: as in ``Table``.
        pairs: ways to cut in two over all multisets, a measure of the work.
        high, wide: [rows, limit + 1] least heights and widths of every multiset.
    """

    def __init__(
        self, curves: np.ndarray, kinds: Sequence[int], window: int, budget: int = 400_000
    ) -> None:
        """Fill the table.

        Args:
            curves: [n, limit + 1] least height of each kernel for each width.
            kinds: [n] equal numbers for equal kernels, from 0.
            window: most kernels that are arranged freely.
            budget: most ``pairs``; the window shrinks until they are enough.
        """
        self.n, self._kinds, points = len(curves), np.asarray(kinds), curves.shape[1]
        totals = np.bincount(self._kinds)
        self._radix = totals + 1
        self._place = np.concatenate([[1], np.cumprod(self._radix[:-1].astype(np.int64))])
        window = min(window, self.n)
        while (rows := self._rows(window))[1] > budget and window > 1:
            window -= 1
        self.window, self.pairs, self._codes = window, rows[1], rows[0]
        self._cuts: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.high = np.full((len(self._codes), points), NEVER, np.int16)
        self.wide = self.high.copy()
        counts = self._split(self._codes)
        sizes = counts.sum(1)
        for row in np.argsort(sizes, kind="stable")[1:]:
            if sizes[row] == 1:
                member = int(np.flatnonzero(self._kinds == counts[row].argmax())[0])
                high = np.asarray(curves[member], np.int16)
            else:
                high = self._joined(int(self._codes[row]), counts[row])
            self.high[row], self.wide[row] = high, inverse(high)
        self._fill_intervals(points)

    def counts(self) -> np.ndarray:
        """[rows, kinds] how many kernels of each kind every row's multiset has; the last: all."""
        return self._split(self._codes)

    def rows(self, counts: np.ndarray) -> np.ndarray:
        """Rows of multisets, which must be in the table."""
        return np.searchsorted(self._codes, counts @ self._place)

    def _split(self, codes: np.ndarray) -> np.ndarray:
        return codes[:, None] // self._place % self._radix

    def _parts(self, counts: np.ndarray) -> np.ndarray:
        """Codes of everything contained in a multiset, itself and nothing included."""
        codes = np.zeros(1, np.int64)
        for at in np.flatnonzero(counts):
            step = self._place[at] * np.arange(counts[at] + 1)
            codes = (codes[:, None] + step).ravel()
        return codes

    def _rows(self, window: int) -> tuple[np.ndarray, int]:
        """Multisets inside windows, ascending codes, and over how many cuts they are tried."""
        kinds, codes_of = len(self._radix), [np.zeros(1, np.int64)]
        for i in range(self.n - window + 1):
            counts = np.bincount(self._kinds[i : i + window], minlength=kinds)
            if np.prod(counts + 1.0) > 1e6:
                return codes_of[0], 1 << 60
            codes_of.append(self._parts(counts))
        codes = np.unique(np.concatenate(codes_of))
        return codes, int(np.prod(self._split(codes) + 1, axis=1).sum()) // 2

    def _joined(self, code: int, counts: np.ndarray) -> np.ndarray:
        """Least heights of a multiset from all cuts in two."""
        one = self._parts(counts)
        one = one[(one > 0) & (2 * one <= code)]
        cut = np.searchsorted(self._codes, one), np.searchsorted(self._codes, code - one)
        self._cuts[code] = cut
        points = self.high.shape[1]
        high, wide = (np.full(points, NEVER, np.int16) for _ in range(2))
        for at in range(0, len(one), 64):  # blocks that stay in the cache
            a, b = cut[0][at : at + 64], cut[1][at : at + 64]
            np.minimum(high, (self.high[a] + self.high[b]).min(0), out=high)
            np.minimum(wide, (self.wide[a] + self.wide[b]).min(0), out=wide)
        return np.minimum(high, inverse(wide))

    def _fill_intervals(self, points: int) -> None:
        shape = (self.n + 1, self.n + 1, points)
        self.heights = np.full(shape, NEVER, np.int16)
        self.widths = np.full(shape, NEVER, np.int16)
        for length in range(1, self.n + 1):
            for i in range(self.n + 1 - length):
                j = i + length
                if length <= self.window:
                    row = np.searchsorted(self._codes, self._code(range(i, j)))
                    self.heights[i, j], self.widths[i, j] = self.high[row], self.wide[row]
                    continue
                m = np.arange(i + 1, j)
                wide = np.minimum((self.widths[i, m] + self.widths[m, j]).min(0), NEVER)
                high = np.minimum((self.heights[i, m] + self.heights[m, j]).min(0), NEVER)
                self.heights[i, j] = np.minimum(high, inverse(wide))
                self.widths[i, j] = inverse(self.heights[i, j])

    def _code(self, members: Sequence[int]) -> int:
        return int(self._place[self._kinds[list(members)]].sum())

    def sample(self, rng: np.random.Generator, box: Piece, across: float = 0.5) -> Piece:
        """A random plan of ``box``, which must be large enough; as ``Table.sample``.

        Pieces of several kernels do not say which: only those of one kernel are intervals.
        """
        return self.arranged(rng, tuple(range(box.i, box.j)), box, across)

    def arranged(
        self, rng: np.random.Generator, members: tuple[int, ...], box: Piece, across: float
    ) -> Piece:
        """A random plan of some kernels of a window, or of an interval, in a box that is enough."""
        if len(members) == 1:
            return Piece(members[0], members[0] + 1, box.x, box.y, box.width, box.height)
        codes = None
        if len(members) <= self.window:
            a, b = self._cuts[self._code(members)]
            ends = (self.high[a], self.high[b]), (self.wide[a], self.wide[b])
            codes = self._codes[a]
        else:
            m = np.arange(box.i + 1, box.j)
            ends = tuple((of[box.i, m], of[m, box.j]) for of in (self.heights, self.widths))
        stack = ends[0][0][:, box.width] + ends[0][1][:, box.width]
        side = ends[1][0][:, box.height] + ends[1][1][:, box.height]
        sides, stacks = np.flatnonzero(side <= box.width), np.flatnonzero(stack <= box.height)
        beside = len(stacks) == 0 or (len(sides) > 0 and rng.random() < across)
        options = sides if beside else stacks
        pick = int(options[int(rng.random() * len(options))])
        near = ends[beside][0][pick, box.height if beside else box.width]
        if codes is None:
            first = members[: pick + 1]
        else:
            row = int(np.searchsorted(self._codes, codes[pick]))
            first = self.members(members, row, rng.random() < 0.5)
        second = tuple(k for k in members if k not in first)
        return self._cut(rng, box, (first, second), (beside, int(near)), across)

    def members(self, members: tuple[int, ...], row: int, ahead: bool) -> tuple[int, ...]:
        """Which of some kernels make up a row's multiset: of equal ones the first or the last."""
        left = self._split(self._codes[row : row + 1])[0].copy()
        taken = []
        for k in members if ahead else members[::-1]:
            if left[self._kinds[k]]:
                left[self._kinds[k]] -= 1
                taken.append(k)
        return tuple(sorted(taken))

    def _cut(
        self,
        rng: np.random.Generator,
        box: Piece,
        members: tuple[tuple[int, ...], tuple[int, ...]],
        line: tuple[bool, int],
        across: float,
    ) -> Piece:
        """The box cut at ``line`` (whether left from right, least length of the first part)."""
        beside, length = line
        whole = box.width if beside else box.height
        sized = [(members[0], length), (members[1], whole - length)]
        parts, offset = [], 0
        for part, size in sized if rng.random() < 0.5 else sized[::-1]:
            x, y = (box.x + offset, box.y) if beside else (box.x, box.y + offset)
            width, height = (size, box.height) if beside else (box.width, size)
            inner = Piece(part[0], part[-1] + 1, x, y, width, height)
            parts.append(self.arranged(rng, part, inner, across))
            offset += size
        return Piece(box.i, box.j, box.x, box.y, box.width, box.height, tuple(parts))
