"""Where an atom's neighbours are: in the crystal, and on the PEs."""

import numpy as np

from wafer.hpc.md.potential import TANTALUM


def neighbourhood(  # noqa: ANN201
    positions: np.ndarray,
    pes: np.ndarray,
    reach: int,
    atom: int,
    *,
    cutoff: float = TANTALUM.cutoff,
    path: str | None = None,
):
    """Draw an atom's neighbours and candidates; returns the matplotlib figure.

    Args:
        positions: [atoms, 3], Angstrom.
        pes: [height, width], of ``assign``.
        reach: PEs on either side that it hears.
        atom: whose.
        cutoff: Angstrom.
        path: file to write too.
    """
    from matplotlib import figure, patches

    distance = np.linalg.norm(positions - positions[atom], axis=1)
    near = (distance < cutoff) & (distance > 0)
    away = np.abs(np.indices(pes.shape) - np.argwhere(pes == atom)[0].reshape(2, 1, 1)).max(axis=0)
    heard = pes[away <= reach]
    candidates = heard[(heard >= 0) & (heard != atom)]
    fig = figure.Figure(figsize=(8.5, 4.2), layout="constrained")
    left, right = fig.subplots(1, 2)
    x, y = positions[:, 0], positions[:, 1]
    left.scatter(x, y, s=12, color="0.8", label="atoms")
    left.scatter(x[candidates], y[candidates], s=22, color="tab:blue", label="candidates")
    left.scatter(x[near], y[near], s=46, color="tab:orange", label="neighbours")
    left.scatter(x[[atom]], y[[atom]], s=60, color="black", label="the atom")
    left.add_patch(patches.Circle((x[atom], y[atom]), cutoff, fill=False))
    left.set(xlabel="x (Angstrom)", ylabel="y (Angstrom)", aspect="equal")
    left.set_title("crystal, from above")
    left.legend(fontsize=7, loc="upper right")
    colors = np.full((*pes.shape, 3), 0.93)
    for group, color in ((candidates, (0.12, 0.47, 0.71)), (np.flatnonzero(near), (1, 0.5, 0.05))):
        colors[np.isin(pes, group)] = color
    colors[pes == atom] = 0
    colors[pes < 0] = 1
    right.imshow(colors)
    right.set(xlabel="column of PEs", ylabel="row of PEs")
    right.set_title(f"PEs: {len(candidates)} candidates, {int(near.sum())} neighbours")
    if path:
        fig.savefig(path, dpi=90)
    return fig
