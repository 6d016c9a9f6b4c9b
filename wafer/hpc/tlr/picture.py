"""What do ranks and chunks look like?"""

import numpy as np

from wafer.hpc.tlr.factors import Factors
from wafer.hpc.tlr.program import chunks

_MOST_NUMBERS = 24  # tiles along an axis, beyond which ranks are colors only


def draw(factors: Factors, terms: int, path: str | None = None):  # noqa: ANN201
    """Draw the ranks of tiles, and how many terms each PE has; returns the matplotlib figure.

    Args:
        factors: of the matrix.
        terms: most of a PE's chunk.
        path: file to write too.
    """
    from matplotlib import figure

    plan = chunks(factors, terms)
    fig = figure.Figure(figsize=(9, 3.6), layout="constrained")
    tiles, bars = fig.subplots(1, 2)
    image = tiles.imshow(factors.ranks, cmap="viridis", vmin=0)
    fig.colorbar(image, ax=tiles, label="rank")
    if max(factors.ranks.shape) <= _MOST_NUMBERS:
        for (row, column), rank in np.ndenumerate(factors.ranks):
            dark = rank < factors.ranks.max() / 2
            color = "white" if dark else "black"
            tiles.text(column, row, str(rank), color=color, ha="center", va="center", fontsize=7)
    tiles.set(title=f"tiles of {factors.tile} x {factors.tile}", xlabel="column", ylabel="row")
    colors = [f"C{column % 2}" for column in plan[:, 0].tolist()]
    bars.bar(np.arange(len(plan)), plan[:, 2] - plan[:, 1], color=colors, width=0.9)
    bars.axhline(terms, color="black", linewidth=0.8, linestyle="--")
    bars.set(title="PEs; the color changes with the tile column", xlabel="PE", ylabel="terms")
    if path:
        fig.savefig(path, dpi=80)
    return fig
