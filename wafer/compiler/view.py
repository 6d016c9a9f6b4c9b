"""The floor plan as a page: kernels as rectangles; a click shows layer, shape, cycles and bound."""

from typing import Any

from wafer.compiler.picture import fill_color, layer_colors, plan_figures
from wafer.compiler.plan import Compiled
from wafer.machine.tools.view.block import pack
from wafer.machine.tools.view.run import View


def floor_view(compiled: Compiled) -> View:
    """Return the view of a floor plan.

    Args:
        compiled: from ``compile_graph``.
    """
    colors = layer_colors(compiled)
    kernels = list[dict[str, Any]]()
    for kernel, region in zip(compiled.kernels, compiled.plan.regions, strict=True):
        color = fill_color(colors[kernel.layer], kernel.kind)
        bound = "the slowest kernel: it bounds the throughput"
        if kernel != compiled.slowest:
            bound = f"{kernel.cycles / compiled.cycles:.0%} of {compiled.slowest.name}, the slowest"
        facts = {
            "layer": kernel.layer,
            "kind": kernel.kind,
            "shape in PEs": f"{region.width} x {region.height}",
            "cycles per sample": f"{kernel.cycles:,}",
            **{phase: f"{getattr(kernel, phase):,}" for phase in ("forward", "backward", "update")},
            "bound": bound,
            "parameters": f"{kernel.weights:,}, {kernel.density:.0%} kept",
            "bytes of the fullest PE": f"{kernel.sram:,}",
        }
        kernels.append(
            {
                "name": kernel.name,
                "color": "#" + "".join(f"{round(255 * part):02x}" for part in color),
                **{side: getattr(region, side) for side in ("x", "y", "width", "height")},
                "facts": list(facts.items()),
            }
        )
    header = {
        "kind": "floor plan",
        "title": f"{compiled.name} on {compiled.spec.name}",
        "size": (compiled.plan.width, compiled.plan.height),
        "kernels": kernels,
        "replicas": compiled.plan.replicas,
        "facts": plan_figures(compiled),
    }
    return View(pack(header))
