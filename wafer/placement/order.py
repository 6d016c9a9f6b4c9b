"""The order in which a graph's kernels lie side by side."""

from collections.abc import Sequence

__all__ = ["chain"]


def chain(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """A topological order that stays on a branch as long as it can.

    A chain comes out as itself; of two branches that meet again, one follows the other.

    Args:
        count: nodes 0 .. count - 1.
        edges: (source, target) pairs of an acyclic graph.

    Raises:
        ValueError: the edges close a circle.
    """
    waiting = [0] * count
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        waiting[target] += 1
        after[source].append(target)
    ready = [node for node in reversed(range(count)) if not waiting[node]]
    order = []
    while ready:
        node = ready.pop()
        order.append(node)
        for target in sorted(after[node], reverse=True):
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    if len(order) < count:
        raise ValueError(f"kernels {sorted(set(range(count)) - set(order))} lie on a circle")
    return order
