"""The floor plan as a picture: kernels coloured by layer, shaded by kind, data paths drawn."""

import colorsys
import pathlib
from typing import Any

from wafer.compiler.plan import Compiled, Region

__all__ = ["draw", "layer_colors", "save"]

_INK, _PAPER, _WAFER = "#1f2733", "#ffffff", "#eef1f5"
_LIGHTER = {  # lightness of a kind within its layer's hue
    "matmul": 0.0, "convolution": 0.0, "attention": -0.13, "embedding": -0.06, "norm": 0.16,
    "elementwise": 0.2, "loss": -0.2,
}  # fmt: skip
_LEGEND = 18  # layers named beside the picture


def layer_colors(compiled: Compiled) -> dict[str, tuple[float, float, float]]:
    """Layer -> (hue, lightness, saturation): neighbours differ, the order runs round the wheel."""
    layers = list(dict.fromkeys(kernel.layer for kernel in compiled.kernels))
    count = max(len(layers), 1)
    return {
        name: ((0.58 + 0.82 * at / count) % 1.0, 0.58 if at % 2 else 0.66, 0.55)
        for at, name in enumerate(layers)
    }


def _fill(color: tuple[float, float, float], kind: str) -> tuple[float, float, float]:
    hue, light, saturation = color
    return colorsys.hls_to_rgb(hue, min(0.9, max(0.3, light + _LIGHTER.get(kind, 0.0))), saturation)


def _label(ax: Any, region: Region, text: str, size: float, scale: float) -> bool:
    """Write inside a region, along its longer side, if there is room; scale: points per PE."""
    along = max(region.width, region.height) * scale
    across = min(region.width, region.height) * scale
    fits = min(size, along / (0.62 * len(text) + 0.6), across / 1.25)
    if fits < 3.2:
        return False
    ax.text(
        region.x + region.width / 2,
        region.y + region.height / 2,
        text,
        rotation=0 if region.width >= region.height else 90,
        fontsize=fits,
        ha="center",
        va="center",
        color=_INK,
        clip_on=True,
    )
    return True


def _paths(ax: Any, compiled: Compiled, scale: float) -> None:
    """Curved lines from centre to centre, as wide as their traffic asks for."""
    from matplotlib.patches import FancyArrowPatch

    most = max((n for _, _, n in compiled.edges), default=1)
    thick = 0.5 if len(compiled.kernels) > 40 else 1.1
    for a, b, count in compiled.edges:
        ends = [compiled.plan.regions[i] for i in (a, b)]
        points = [(r.x + r.width / 2, r.y + r.height / 2) for r in ends]
        ax.add_patch(
            FancyArrowPatch(
                *points,
                connectionstyle="arc3,rad=0.16",
                arrowstyle="-|>",
                mutation_scale=4 + 4 * thick,
                shrinkA=1,
                shrinkB=1,
                linewidth=thick * (0.6 + 0.9 * count / max(most, 1)),
                color=_INK,
                alpha=0.55,
                zorder=4,
            )
        )
    del scale


def _short(name: str, layer: str) -> str:
    rest = name.removeprefix(layer).lstrip("/")
    return rest.replace("attn/", "") or name


def _window(compiled: Compiled) -> tuple[float, float, float, float]:
    """(x, y, width, height) to show: the wafer, or the plan where it would be a speck."""
    plan = compiled.plan
    if len(plan.replicas) > 1:
        return 0, 0, plan.width, plan.height
    right = max(r.x + r.width for r in plan.regions)
    low = max(r.y + r.height for r in plan.regions)
    if right * 3 > plan.width or low * 3 > plan.height:
        return 0, 0, plan.width, plan.height
    return -0.03 * right, -0.03 * low, 1.06 * right, 1.06 * low


def draw(compiled: Compiled) -> Any:
    """Draw a compilation; returns a matplotlib figure."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    x, y, width, height = _window(compiled)
    tall = 9.6
    wide = min(max(tall * width / height, 4.0), 14.0)
    figure = Figure(figsize=(wide + 3.4, tall + 0.9), facecolor=_PAPER)
    left = 0.35 / (wide + 3.4)
    ax = figure.add_axes((left, 0.03, wide / (wide + 3.4), tall / (tall + 0.9) - 0.02))
    ax.set_xlim(x, x + width)
    ax.set_ylim(y + height, y)
    ax.set_aspect("equal")
    ax.axis("off")
    scale = 72 * min(wide / width, tall / height)
    plan, colors = compiled.plan, layer_colors(compiled)
    shown = Rectangle((0, 0), plan.width, plan.height, facecolor=_WAFER, edgecolor=_INK, lw=0.8)
    ax.add_patch(shown)
    line = 0.35 if len(compiled.kernels) * len(plan.replicas) > 40 else 0.8
    for number, (dx, dy) in enumerate(plan.replicas):
        for region, kernel in zip(plan.regions, compiled.kernels, strict=True):
            here = region._replace(x=region.x + dx, y=region.y + dy)
            ax.add_patch(
                Rectangle(
                    (here.x, here.y),
                    here.width,
                    here.height,
                    facecolor=_fill(colors[kernel.layer], kernel.kind),
                    edgecolor=_PAPER,
                    linewidth=line,
                    alpha=1.0 if number == 0 else 0.55,
                    zorder=2,
                )
            )
            if number == 0:
                _label(ax, here, _short(kernel.name, kernel.layer), 9.0, scale)
    _paths(ax, compiled, scale)
    _beside(figure, compiled, colors, (wide + 0.55) / (wide + 3.4))
    figure.text(
        left,
        1 - 0.42 / (tall + 0.9),
        f"{compiled.name} on {compiled.spec.name}: floor plan",
        fontsize=15,
        weight="bold",
        color=_INK,
        va="center",
    )
    return figure


def _beside(figure: Any, compiled: Compiled, colors: dict, x: float) -> None:
    """The figures, and which colour is which layer."""
    from matplotlib.patches import Patch

    lines = [
        ("samples/s", f"{compiled.samples:,.0f}"),
        ("cycles per sample", f"{compiled.cycles:,}"),
        ("slowest", compiled.slowest.name),
        ("active PEs", f"{compiled.active_share:.0%}"),
        ("compute utilization", f"{compiled.busy_share:.0%}"),
        ("arithmetic efficiency", f"{compiled.arithmetic_share:.0%}"),
        ("kernels", str(len(compiled.kernels))),
    ]
    if len(compiled.plan.replicas) > 1:
        lines += [
            ("replicas", str(len(compiled.plan.replicas))),
            ("speed-up", f"{compiled.speedup:.2f}x"),
        ]
    top = 0.9
    for at, (name, value) in enumerate(lines):
        y = top - 0.042 * at
        figure.text(x, y, name, fontsize=8.5, color="#5b6675", va="bottom")
        figure.text(x, y, value, fontsize=10.5, color=_INK, va="top", weight="bold")
    names = list(colors)
    if len(names) > _LEGEND:  # the ends and some between
        keep = {round(i * (len(names) - 1) / (_LEGEND - 1)) for i in range(_LEGEND)}
        names = [name for at, name in enumerate(names) if at in keep]
    layers = [Patch(facecolor=_fill(colors[n], "matmul"), label=n) for n in names]
    under = top - 0.042 * len(lines) - 0.01
    box = figure.legend(
        handles=layers,
        title="layer",
        loc="upper left",
        bbox_to_anchor=(x - 0.008, under),
        frameon=False,
        fontsize=8.5,
        title_fontsize=9.5,
        alignment="left",
        labelspacing=0.35,
    )
    figure.add_artist(box)
    kinds = [k for k in _LIGHTER if any(kernel.kind == k for kernel in compiled.kernels)]
    shades = [Patch(facecolor=_fill((0.6, 0.62, 0.0), kind), label=kind) for kind in kinds]
    figure.legend(
        handles=shades,
        title="shade: kind",
        loc="lower left",
        bbox_to_anchor=(x - 0.008, 0.03),
        frameon=False,
        fontsize=8.5,
        title_fontsize=9.5,
        alignment="left",
        labelspacing=0.35,
    )


def save(compiled: Compiled, folder: pathlib.Path, stem: str = "floor_plan") -> list[pathlib.Path]:
    """Write ``floor_plan.svg`` and ``floor_plan.png``; the same compilation, the same bytes."""
    import matplotlib as mpl

    figure, paths = draw(compiled), [folder / f"{stem}.svg", folder / f"{stem}.png"]
    with mpl.rc_context({"svg.hashsalt": "wafer"}):
        figure.savefig(paths[0], metadata={"Date": None})
        figure.savefig(paths[1], dpi=150)
    return paths
