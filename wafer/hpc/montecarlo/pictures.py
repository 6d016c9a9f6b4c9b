"""How do lookups look: cross sections over energy, and who had how much to do?"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from wafer.hpc.montecarlo import Tally


def draw(tally: "Tally", sorted_loads: np.ndarray, channel: int = 0) -> "Figure":
    """The answers of a run and how its work was shared; needs matplotlib.

    Args:
        tally: of ``run``.
        sorted_loads: [height, width], particles of each PE before balancing, as ``loads`` returns
            them.
        channel: of the cross sections.

    Returns:
        Three axes: the macroscopic cross sections over energy, a color per row of PEs; the
        histogram of energies by row; particles per PE, sorted and balanced.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.2), layout="constrained")
    over_energy, by_row, by_pe = figure.subplots(1, 3)
    _draw_rows(over_energy, by_row, tally, channel)
    bins = (np.arange(int(max(sorted_loads.max(), tally.loads.max())) + 2) - 0.5).tolist()
    by_pe.hist(sorted_loads.ravel(), bins, alpha=0.6, label="sorted")
    by_pe.hist(tally.loads.ravel(), bins, alpha=0.6, label="balanced")
    by_pe.set(xlabel="particles of a PE", ylabel="PEs", title="Work")
    by_pe.legend(frameon=False)
    return figure


def _draw_rows(over_energy: "Axes", by_row: "Axes", tally: "Tally", channel: int) -> None:
    for energies, sections in zip(tally.energies, tally.sections, strict=True):
        of_row = np.concatenate(energies)
        values = np.concatenate(sections)[:, channel]
        (dots,) = over_energy.plot(of_row, values, ".", markersize=2)
        by_row.hist(of_row, np.linspace(0, 1, 41).tolist(), color=dots.get_color())
    over_energy.set(xlabel="energy", ylabel="cross section", title="Macroscopic, a color per row")
    by_row.set(xlabel="energy", ylabel="particles", title="Energies, a color per row")
