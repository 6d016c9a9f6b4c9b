"""The floor plan as a picture: kernels colored by layer, shaded by kind, data paths drawn."""

import base64
import colorsys
import importlib.util
import io
import pathlib
from typing import Any

from wafer.compiler.plan import Compiled
from wafer.models.errors import optional
from wafer.models.shown.figures import new_figure
from wafer.spec import Region

_INK, _QUIET, _EDGE, _PAPER, _WAFER = "#1f2733", "#5b6675", "#9aa5b4", "#ffffff", "#eef1f5"
_LIGHTER = {  # lightness of a kind within its layer's hue
    "matmul": 0.0, "convolution": 0.0, "attention": -0.13, "embedding": -0.06, "norm": 0.16,
    "elementwise": 0.2, "loss": -0.2,
}  # fmt: skip
_LEGEND = 18  # layers named beside the picture
_MOST_BYTES, _MOST_REGIONS = 36_000, 1000  # of a picture in a notebook
_STEP, _SMALL = 0.44, 2.0  # inches: of a figure beside the plan, and of the whole wafer below them


def layer_colors(compiled: Compiled) -> dict[str, tuple[float, float, float]]:
    """Layer -> (hue, lightness, saturation): neighbours differ, the order runs round the wheel."""
    layers = list(dict.fromkeys(kernel.layer for kernel in compiled.kernels))
    count = max(len(layers), 1)
    return {
        name: ((0.58 + 0.82 * at / count) % 1.0, 0.58 if at % 2 else 0.66, 0.55)
        for at, name in enumerate(layers)
    }


def fill_color(color: tuple[float, float, float], kind: str) -> tuple[float, float, float]:
    """Return a kernel's (red, green, blue), from its layer's color and its kind."""
    hue, light, saturation = color
    return colorsys.hls_to_rgb(hue, min(0.9, max(0.3, light + _LIGHTER.get(kind, 0.0))), saturation)


def _label(ax: Any, region: Region, text: str, scale: float, color: str) -> None:
    """Write inside a region, along its longer side, if there is room; scale: points per PE."""
    along = max(region.width, region.height) * scale
    across = min(region.width, region.height) * scale
    size = min(9.5, along / (0.62 * len(text) + 0.6), across / 1.25)
    if size < 3.2:
        return
    ax.text(
        region.x + region.width / 2,
        region.y + region.height / 2,
        text,
        rotation=0 if region.width >= region.height else 90,
        fontsize=size,
        ha="center",
        va="center",
        color=color,
        clip_on=True,
        zorder=5,
    )


def _port(region: Region, share: float) -> tuple[float, float]:
    """Where paths meet a region: off its middle, so that they leave the name free."""
    if region.width >= 2.5 * region.height:
        return region.x + share * region.width, region.y + region.height / 2
    return region.x + region.width / 2, region.y + share * region.height


def _paths(ax: Any, compiled: Compiled) -> None:
    """Curved lines from region to region, as wide as their traffic asks for."""
    from matplotlib.patches import FancyArrowPatch

    most = max((n for _, _, n in compiled.edges), default=1)
    thick = 0.45 if len(compiled.kernels) > 40 else 1.2
    near = {(i, i + 1) for i in range(len(compiled.kernels))}
    for a, b, count in compiled.edges:
        share = 0.78 if (a, b) in near else 0.9  # what skips kernels runs further out
        source, target = (compiled.plan.regions[i] for i in (a, b))
        ax.add_patch(
            FancyArrowPatch(
                _port(source, share),
                _port(target, share),
                connectionstyle=f"arc3,rad={0.1 if (a, b) in near else 0.2}",
                arrowstyle="-|>",
                mutation_scale=3.5 + 4 * thick,
                shrinkA=0,
                shrinkB=0,
                linewidth=thick * (0.7 + 1.3 * count / max(most, 1)),
                color=_INK,
                alpha=0.6,
                zorder=4,
            )
        )


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


def _page(width: float, height: float, beside: float) -> tuple[float, float, float, float]:
    """(figure width, figure height, plan width, plan height) in inches."""
    tall = 9.6
    wide = min(tall * width / height, 12.0)
    tall = min(tall, wide * height / width)
    return wide + 3.5, max(tall, beside) + 0.9, wide, tall


def _window_text(compiled: Compiled, window: tuple[float, float, float, float]) -> str:
    """What part of the wafer the plan shows, in PEs."""
    plan, (x, y, width, height) = compiled.plan, window
    whole = f"{plan.width:,} x {plan.height:,} PEs"
    if (x, y, width, height) == (0, 0, plan.width, plan.height):
        return f"shown: the whole wafer, {whole}"
    right, low = min(plan.width, round(x + width)), min(plan.height, round(y + height))
    return f"shown: columns 0-{right - 1:,}, rows 0-{low - 1:,} of {whole}"


def _whole_wafer(ax: Any, scale: Any, compiled: Compiled, window: tuple[float, ...]) -> None:
    """The wafer, small: active PEs colored by how much of the time they run, the window framed."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.patches import Rectangle

    plan, colors = compiled.plan, colormaps["viridis"]
    frame = Rectangle((0, 0), plan.width, plan.height, facecolor=_WAFER, edgecolor=_EDGE, lw=0.8)
    ax.add_patch(frame)
    for dx, dy in plan.replicas:
        for region, kernel in zip(plan.regions, compiled.kernels, strict=True):
            corner, busy = (region.x + dx, region.y + dy), kernel.cycles / max(compiled.cycles, 1)
            ax.add_patch(Rectangle(corner, region.width, region.height, facecolor=colors(busy)))
    x, y, width, height = window
    ax.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor="#d62728", lw=1.0))
    ax.set(xlim=(-0.02 * plan.width, 1.02 * plan.width), aspect="equal", anchor="NW")
    ax.set_ylim(1.02 * plan.height, -0.02 * plan.height)
    ax.axis("off")
    bar = ax.figure.colorbar(ScalarMappable(cmap=colors), cax=scale, ticks=(0, 0.5, 1))
    bar.ax.set_yticklabels(("0 %", "50 %", "100 %"), fontsize=7.5)
    bar.set_label("active PEs: time busy", fontsize=8)


def _regions(ax: Any, compiled: Compiled, scale: float) -> None:
    from matplotlib.patches import Rectangle

    plan, colors = compiled.plan, layer_colors(compiled)
    line = 0.35 if len(compiled.kernels) * len(plan.replicas) > 40 else 0.9
    for number, (dx, dy) in enumerate(plan.replicas):
        for region, kernel in zip(plan.regions, compiled.kernels, strict=True):
            shifted = region._replace(x=region.x + dx, y=region.y + dy)
            fill = fill_color(colors[kernel.layer], kernel.kind)
            corner = shifted.x, shifted.y
            ax.add_patch(
                Rectangle(
                    corner,
                    shifted.width,
                    shifted.height,
                    facecolor=fill,
                    edgecolor=_PAPER,
                    linewidth=line,
                    alpha=1.0 if number == 0 else 0.6,
                    zorder=2,
                )
            )
            if number == 0:
                red, green, blue = fill  # dark letters on light regions, light ones on dark
                ink = _INK if 0.3 * red + 0.59 * green + 0.11 * blue > 0.46 else _PAPER
                rest = kernel.name.removeprefix(kernel.layer).lstrip("/").replace("attn/", "")
                _label(ax, shifted, rest or kernel.name, scale, ink)


def draw(compiled: Compiled) -> Any:
    """Draw a compilation; returns a matplotlib figure."""
    from matplotlib.patches import Rectangle

    x, y, width, height = window = _window(compiled)
    under = _STEP * (len(plan_figures(compiled)) + 0.4) + 0.19 * (
        len(_named_layers(compiled)) + 2.5
    )
    across, down, wide, tall = _page(width, height, under + _SMALL)
    figure = new_figure(figsize=(across, down), facecolor=_PAPER)
    left, top = 0.35 / across, 1 - 0.75 / down
    ax = figure.add_axes((left, top - tall / down, wide / across, tall / down))
    ax.set_xlim(x, x + width)
    ax.set_ylim(y + height, y)
    ax.set_aspect("equal", anchor="NW")
    ax.axis("off")
    plan = compiled.plan
    wafer = Rectangle((0, 0), plan.width, plan.height, facecolor=_WAFER, edgecolor=_EDGE, lw=1.0)
    ax.add_patch(wafer)
    _regions(ax, compiled, 72 * min(wide / width, tall / height))
    _paths(ax, compiled)
    _beside(figure, compiled, ((wide + 0.65) / across, top, _STEP / down))
    edge, low = (wide + 0.65) / across, top - (under + _SMALL - 0.1) / down
    small = figure.add_axes((edge, low, (_SMALL - 0.3) / across, (_SMALL - 0.3) / down))
    scale = figure.add_axes(
        (edge + (_SMALL - 0.35) / across, low, 0.11 / across, (_SMALL - 0.3) / down)
    )
    _whole_wafer(small, scale, compiled, window)
    figure.text(
        left, 1 - 0.63 / down, _window_text(compiled, window), fontsize=9, color=_QUIET, va="center"
    )
    title = f"{compiled.name} on {compiled.spec.name}"
    figure.text(left, 1 - 0.4 / down, title, fontsize=15, weight="bold", color=_INK, va="center")
    return figure


def plan_figures(compiled: Compiled) -> list[tuple[str, str]]:
    """Return the figures of a plan, each with its name."""
    lines = [
        ("samples/s", f"{compiled.samples:,.0f}"),
        ("cycles per sample", f"{compiled.cycles:,}"),
        ("slowest", compiled.slowest.name),
        ("active PEs", f"{compiled.active_share:.{0 if compiled.active_share >= 0.1 else 2}%}"),
        ("compute utilization", f"{compiled.busy_share:.0%}"),
        ("arithmetic efficiency", f"{compiled.arithmetic_share:.0%}"),
        ("kernels", str(len(compiled.kernels))),
    ]
    if len(compiled.plan.replicas) > 1:
        lines += [
            ("replicas", str(len(compiled.plan.replicas))),
            ("speed-up", f"{compiled.speedup:.2f}x"),
        ]
    return lines


def _named_layers(compiled: Compiled) -> list[str]:
    """The layers of the legend: all, or the ends and some between."""
    names = list(layer_colors(compiled))
    if len(names) <= _LEGEND:
        return names
    keep = {round(i * (len(names) - 1) / (_LEGEND - 1)) for i in range(_LEGEND)}
    return [name for number, name in enumerate(names) if number in keep]


def _beside(figure: Any, compiled: Compiled, origin: tuple[float, float, float]) -> None:
    """The figures, and which color is which layer; origin: (x, top, step) in parts of the page."""
    from matplotlib.patches import Patch

    (x, top, step), colors, lines = origin, layer_colors(compiled), plan_figures(compiled)
    for number, (name, value) in enumerate(lines):
        y = top - step * (number + 0.45)
        figure.text(x, y, name, fontsize=8.5, color=_QUIET, va="bottom")
        figure.text(x, y, value, fontsize=10.5, color=_INK, va="top", weight="bold")
    named = _named_layers(compiled)
    layers = [Patch(facecolor=fill_color(colors[n], "matmul"), label=n) for n in named]
    under = top - step * (len(lines) + 0.4)

    def legend(patches: list[Any], title: str, position: float) -> Any:
        return figure.legend(
            handles=patches,
            title=title,
            loc="upper left",
            bbox_to_anchor=(position, under),
            frameon=False,
            fontsize=8.5,
            title_fontsize=9.5,
            alignment="left",
            labelspacing=0.35,
        )

    figure.add_artist(legend(layers, "layer", x - 0.008))
    kinds = [k for k in _LIGHTER if any(kernel.kind == k for kernel in compiled.kernels)]
    shades = [Patch(facecolor=fill_color((0.6, 0.62, 0.0), kind), label=kind) for kind in kinds]
    legend(shades, "shade: kind", x - 0.008 + 1.6 / figure.get_figwidth())


def save(compiled: Compiled, folder: pathlib.Path, stem: str = "floor_plan") -> list[pathlib.Path]:
    """Write a picture of a floor plan as SVG and PNG; the same compilation, the same bytes.

    Args:
        compiled: from ``compile_graph``.
        folder: where to write.
        stem: name of the files.
    """
    figure, paths = draw(compiled), [folder / f"{stem}.svg", folder / f"{stem}.png"]
    for path in paths:
        path.write_bytes(_bytes(figure, path.suffix[1:], 150))
    return paths


def _bytes(figure: Any, kind: str, dpi: int) -> bytes:
    """The picture as 'svg' or 'png'."""
    mpl, file = optional("matplotlib", "drawing"), io.BytesIO()
    options = {"metadata": {"Date": None}} if kind == "svg" else {"dpi": dpi}
    with mpl.rc_context({"svg.hashsalt": "wafer"}):
        figure.savefig(file, format=kind, **options)
    return file.getvalue()


def picture_html(compiled: Compiled) -> str:
    """Draw a floor plan for a notebook, in at most 50 KB, as SVG or PNG.

    Returns:
        '' without matplotlib, or for more than 1,000 regions, which take seconds to draw.
    """
    regions = len(compiled.kernels) * len(compiled.plan.replicas)
    if importlib.util.find_spec("matplotlib") is None or regions > _MOST_REGIONS:
        return ""
    figure = draw(compiled)
    tries = [("svg+xml", _bytes(figure, "svg", 0)), ("png", _bytes(figure, "png", 90))]
    mime, data = min(tries, key=lambda one: len(one[1]))
    if len(data) > _MOST_BYTES:
        mime, data = "png", _bytes(figure, "png", 45)
    text = base64.b64encode(data).decode()
    return f'<img alt="floor plan" style="max-width:100%" src="data:image/{mime};base64,{text}"/>'
