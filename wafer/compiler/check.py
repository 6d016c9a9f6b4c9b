"""An independent check of a model's floor plan.

Every replica is painted on the wafer, and of each kernel it is shown that its PEs have room for
what it holds and the cycles for its arithmetic, whatever the formulas of the costs were.
"""

import numpy as np

from wafer.compiler.graph import Graph
from wafer.compiler.plan import Compiled


def check_plan(compiled: Compiled, graph: Graph) -> None:
    """Prove a model's floor plan possible.

    Raises:
        ValueError: the kernel that is missing, outside, on another, whose split is not its
            region's, that does not fit its PEs' memory or whose cycles its work exceeds.
    """
    plan, spec = compiled.plan, compiled.spec
    names = [kernel.name for kernel in graph.kernels]
    if [r.name for r in plan.regions] != names or [k.name for k in compiled.kernels] != names:
        raise ValueError("the plan's kernels are not the graph's")
    owner = np.full((plan.height, plan.width), -1)
    for copy, (dx, dy) in enumerate(plan.replicas):
        for at, region in enumerate(plan.regions):
            box = region.x + dx, region.y + dy, region.width, region.height
            _paint(owner, copy * len(names) + at, box, names)
    for kernel, placed, region in zip(graph.kernels, compiled.kernels, plan.regions, strict=True):
        pes = region.width * region.height
        if pes != placed.rows * placed.columns:
            raise ValueError(f"kernel {kernel.name}: {placed.rows}x{placed.columns} on {pes} PEs")
        weights = kernel.weights * kernel.density * (4 if compiled.train else 2)
        if placed.sram > spec.sram_bytes or weights > pes * placed.sram:
            raise ValueError(
                f"kernel {kernel.name}: {placed.sram} bytes on the fullest of {pes} PEs, limit"
                f" {spec.sram_bytes}, for {weights:.0f} bytes of weights"
            )
        lanes = spec.simd_16bit if kernel.bits == 16 else 1
        if kernel.macs * kernel.density > lanes * pes * placed.forward * 1.0001:
            raise ValueError(
                f"kernel {kernel.name}: {kernel.macs:,} multiply-accumulates do not fit"
                f" {placed.forward:,} cycles of {pes} PEs"
            )


def _paint(
    owner: np.ndarray, number: int, box: tuple[int, int, int, int], names: list[str]
) -> None:
    """Give a rectangle (x, y, width, height) to kernel ``number``.

    Raises:
        ValueError: it leaves the wafer or lies on another.
    """
    (x, y, width, height), (high, wide) = box, owner.shape
    name = names[number % len(names)]
    if not (x >= 0 <= y and x + width <= wide and y + height <= high):
        raise ValueError(
            f"kernel {name}: {width}x{height} at ({x}, {y}) leaves the {wide}x{high} wafer"
        )
    region = owner[y : y + height, x : x + width]
    if (region >= 0).any():
        other = names[int(region.max()) % len(names)]
        raise ValueError(f"kernels {other} and {name} overlap at ({x}, {y})")
    region[:] = number
