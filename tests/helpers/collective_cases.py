"""Every collective: its program, its closed form, its input."""

import numpy as np

from wafer.fabric.library import collectives as co, lowering as lo

P, H, B, GROUP = 7, 2, 12, 3


def random(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = random((H, P, B))


ONE = random((6, P, 1), 1)


CASES = {
    "broadcast": (lo.broadcast_program(P, H, B, 2), lambda x, c: co.broadcast(x, c, root=2), X),
    "chain": (lo.chain_program(P, H, B), lambda x, c: co.reduce(x, c, algorithm="chain"), X),
    "two_phase": (
        lo.two_phase_program(P, H, B, GROUP),
        lambda x, c: co.reduce(x, c, algorithm="two_phase", group=GROUP),
        X,
    ),
    "tree": (lo.tree_program(P, H, B), lambda x, c: co.reduce(x, c, algorithm="tree"), X),
    "star": (lo.star_program(P, 6), None, ONE),
    "quadrant": (lo.quadrant_allreduce_program(P, 6), None, ONE),
    "scatter": (lo.scatter_program(P, H, 3), None, random((H, P, P * 3))),
    "gather": (lo.gather_program(P, H, B), None, X),
    "shift": (lo.shift_program(P, H, B), lambda x, c: co.shift(x, c, "E"), X),
    "shift3": (lo.shift_program(P, H, B, 3), lambda x, c: co.shift(x, c, "E", hops=3), X),
    "shift_short": (lo.shift_program(P, H, 2), lambda x, c: co.shift(x, c, "E"), X[..., :2]),
    "overheads": (lo.two_phase_program(P, H, B, GROUP, overheads=True), None, X),
    "tree_overheads": (lo.tree_program(P, H, B, overheads=True), None, X),
}
