"""What sums along a line of PEs cost, drawn. Matplotlib is imported when a picture is."""

from collections.abc import Sequence

from wafer.hpc.mesh import tree


def sums(  # noqa: ANN201
    sizes: Sequence[int],
    words: int,
    simulated: dict[int, tuple[int, int, int]],
    path: str | None = None,
):
    """Draw the cycles of a sum by the length of its line, for three ways; returns the figure.

    Args:
        sizes: PEs of a line, at which the closed forms are drawn.
        words: of a vector.
        simulated: by PEs of a line, cycles of the chain, of two chains and of the tree.
        path: of a file to write, too.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    ways = {
        "one chain": [tree.cycles(size, words, chain=True) for size in sizes],
        "two chains": [tree.cycles(size, words, group=size) for size in sizes],
        "tree of two levels": [tree.cycles(size, words) for size in sizes],
    }
    for k, (name, cycles) in enumerate(ways.items()):
        axes.plot(sizes, cycles, label=name, color=f"C{k}")
        spent = [counts[k] for counts in simulated.values()]
        axes.plot(list(simulated), spent, "o", color=f"C{k}", markersize=4)
    axes.set(xlabel="PEs of the line", ylabel=f"cycles of a sum of {words} words")
    axes.set(xscale="log", yscale="log")
    axes.legend(title="closed form; dots: simulated")
    if path is not None:
        figure.savefig(path, dpi=110)
    return figure
