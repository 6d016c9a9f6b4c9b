"""How do bodies move, and does their energy stay?"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from wafer.hpc.nbody import States


def draw(states: "States", energies: np.ndarray) -> "Figure":
    """Ways of the bodies, and the drift of their energy; needs matplotlib.

    Args:
        states: of ``run``, two or more.
        energies: [states], as ``energy`` returns them.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    ways, drift = figure.subplots(1, 2, width_ratios=(1.2, 1))
    for body in range(states.places.shape[1]):
        x, y, _ = states.places[:, body].T
        (line,) = ways.plot(x, y, linewidth=0.7)
        ways.plot(x[-1], y[-1], ".", color=line.get_color())
    ways.set(xlabel="x", ylabel="y", title="Ways, and where they end", aspect="equal")
    drift.plot(energies / energies[0] - 1)
    drift.ticklabel_format(axis="y", scilimits=(-2, 2))
    drift.set(xlabel="state", title="Energy, change since the start")
    return figure
