"""Short-wired starting plans: the order laid out in rows like a snake.

A kernel as tall as its row is only as wide as it must be, so a chain through R rows has wires of
about R times the wafer's width: few rows are short, many rows (and a few columns of stacked
kernels) waste less. One recursion gives the least height for every number of rows and stackings.
"""

import numpy as np

from wafer.placement.blocks import NEVER
from wafer.placement.slicing import Piece, Table, leaves, mirror

__all__ = ["Snakes"]


class Snakes:
    """Row plans of a table's order within one width.

    Attributes:
        least: [rows + 1, stacked + 1] least height in PEs, ``NEVER`` if there is no such plan;
            [rows + 1, 1] if any number may be stacked.
    """

    def __init__(
        self, table: Table, width: int, rows: int, stacked: int | None, column: int = 3
    ) -> None:
        """Fill the recursion.

        Args:
            table: segments at one time cap.
            width: PEs in x.
            rows: most rows.
            stacked: most kernels that share a column with the one before; None for any number.
            column: most kernels of one column.
        """
        self.table, self.width, self.column = table, width, column
        self._counts = stacked is not None
        stacked = stacked or 0
        n, points = table.n, table.widths.shape[-1]
        need = np.full((n + 1, n + 1, stacked + 1, points), NEVER, np.int16)  # [end, start, s, H]
        high = np.full((n + 1, n + 1, stacked + 1), NEVER, np.int32)
        for end in range(n + 1):
            need[end, end, 0] = 0
            for size in self._sizes(end, stacked):
                m, extra = end - size, self._extra(size)
                more = need[m, : m + 1, : stacked + 1 - extra] + table.widths[m, end]
                into = need[end, : m + 1, extra:]
                np.minimum(into, more, out=into)
            np.minimum(need[end], NEVER, out=need[end])
            count = (need[end] > width).sum(-1)
            high[end] = np.where(count < points, count, NEVER)
        self._need, self._high = need, high
        self._total = np.full((rows + 1, n + 1, stacked + 1), NEVER, np.int32)
        self._total[0, 0, 0] = 0
        for row in range(1, rows + 1):
            for end in range(1, n + 1):
                for s in range(stacked + 1):
                    options = self._total[row - 1, :end, s::-1] + high[end, :end, : s + 1]
                    self._total[row, end, s] = min(options.min(), NEVER)
        self.least = self._total[:, n]

    def _extra(self, size: int) -> int:
        """How many of ``stacked`` a column of so many kernels uses up."""
        return size - 1 if self._counts else 0

    def _sizes(self, most: int, stacked: int) -> range:
        """Columns worth trying when ``most`` kernels and ``stacked`` are left."""
        return range(1, min(self.column, most, stacked + 1 if self._counts else most) + 1)

    def plan(self, rows: int, stacked: int, height: int) -> Piece:
        """The plan of ``least[rows, stacked]``, its spare height shared among the rows.

        Raises:
            ValueError: it is higher than ``height``.
        """
        spare = height - int(self.least[rows, stacked])
        if spare < 0:
            raise ValueError(
                f"{rows} rows need {self.least[rows, stacked]} PEs, more than {height}"
            )
        end, s, segments = self.table.n, stacked, []
        for row in range(rows, 0, -1):
            options = self._total[row - 1, :end, s::-1] + self._high[end, :end, : s + 1]
            begin, taken = divmod(int(options.argmin()), s + 1)
            segments.append((begin, end, taken, int(self._high[end, begin, taken])))
            end, s = begin, s - taken
        lines = []
        for number, (begin, end, taken, least) in enumerate(reversed(segments)):
            extra = spare // (rows - number)
            spare -= extra
            lines.append((self._columns(begin, end, taken, least + extra), least + extra))
        edge = max(sum(c[2] for c in columns) for columns, _ in lines)
        pieces, y, last = [], 0, None
        for number, (columns, tall) in enumerate(lines):
            x, row = (edge if number % 2 else 0), []
            for i, j, size in columns:  # every second row runs back
                x -= size if number % 2 else 0
                column, last = _turned(self._stack(Piece(i, j, x, y, size, tall)), last)
                row.append(column)
                x += 0 if number % 2 else size
            pieces.append(_pair(row))
            y += tall
        return _pair(pieces)

    def _columns(self, begin: int, end: int, s: int, height: int) -> list[tuple[int, int, int]]:
        """The columns (i, j, width) of one row, in order."""
        columns, e = [], end
        while e > begin:
            goal = self._need[e, begin, s, height]
            sizes = self._sizes(e - begin, s)
            least = [int(self.table.widths[e - size, e, height]) for size in sizes]
            rest = [self._need[e - n, begin, s - self._extra(n), height] for n in sizes]
            at = [a + b for a, b in zip(rest, least, strict=True)].index(goal)
            columns.append((e - sizes[at], e, least[at]))
            e, s = e - sizes[at], s - self._extra(sizes[at])
        return columns[::-1]

    def _stack(self, box: Piece) -> Piece:
        return self.table.sample(np.random.default_rng(box.i), box, 0.0)


def _turned(piece: Piece, last: Piece | None) -> tuple[Piece, Piece]:
    """The reflection whose first kernel is nearest to ``last``, and its last kernel."""

    def far(one: Piece) -> int:
        first = min(leaves(one), key=lambda leaf: leaf.i)
        near = last or first
        x = abs(2 * first.x + first.width - 2 * near.x - near.width)
        return x + abs(2 * first.y + first.height - 2 * near.y - near.height)

    sides = (piece, mirror(piece, piece, True))
    best = min([one for side in sides for one in (side, mirror(side, piece, False))], key=far)
    return best, max(leaves(best), key=lambda leaf: leaf.i)


def _pair(pieces: list[Piece]) -> Piece:
    """Neighbours in a row or column joined two by two, balanced."""
    if len(pieces) == 1:
        return pieces[0]
    middle = len(pieces) // 2
    a, b = _pair(pieces[:middle]), _pair(pieces[middle:])
    x, y = min(a.x, b.x), min(a.y, b.y)
    width = max(a.x + a.width, b.x + b.width) - x
    height = max(a.y + a.height, b.y + b.height) - y
    return Piece(a.i, b.j, x, y, width, height, (a, b))
