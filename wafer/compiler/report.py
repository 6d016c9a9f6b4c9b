"""What a compilation tells: ``compile_report.txt``, JSON, the console.

The first seven lines have the form that ALCF's user guide prints. "Compute Utilization" is the
share of the time in which the active PEs run kernel code, as that guide defines it; what part of
that would do at full arithmetic rate stands below, as "Arithmetic Efficiency".
"""

import dataclasses
import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from wafer.compiler.graph import Graph
from wafer.compiler.plan import Compiled, Decoding, FloorPlan, Mesh, PlacedKernel
from wafer.models.files import JsonObject
from wafer.models.shown.html import table
from wafer.spec import Region, WaferSpec

_VERSION = 1
_KIB = 1024
_COLUMNS = (
    "kernel", "kind", "at", "PEs", "split", "forward", "backward", "update", "busy", "KiB/PE",
    "weights", "kept",
)  # fmt: skip


def _head(compiled: Compiled) -> list[tuple[str, str]]:
    return [
        ("Samples/s", f"{compiled.samples:.1f}"),
        ("Compute Samples/s", f"{compiled.compute_samples:.1f}"),
        ("Transmission Samples/s", f"{compiled.transmission_samples:.1f}"),
        ("Active PEs", f"{compiled.active_share:.0%}"),
        ("Compute Utilization", f"{compiled.busy_share:.0%}"),
    ]


def _more(compiled: Compiled) -> list[tuple[str, str]]:
    spec, slowest = compiled.spec, compiled.slowest
    replicas = len(compiled.plan.replicas)
    regions = sum(r.width * r.height for r in compiled.plan.regions)
    lines = [
        ("Model", compiled.name),
        ("Machine", f"{spec.name}, {compiled.plan.width} x {compiled.plan.height} PEs"),
        ("Passes", "forward, backward, update" if compiled.train else "forward"),
        ("Kernels", f"{len(compiled.kernels)} on {regions:,} PEs"),
        ("Slowest Kernel", f"{slowest.name}, {compiled.cycles:,} cycles per sample"),
        ("Area Bound", f"{compiled.bound:,.0f} cycles per sample"),
        ("Arithmetic Efficiency", f"{compiled.arithmetic_share:.0%}"),
        ("FLOPs per Sample", f"{sum(k.flops for k in compiled.kernels):,}"),
        ("Bytes per Sample", f"{compiled.sample_bytes:,}"),
        ("Replicas", str(replicas)),
    ]
    if replicas > 1:
        lines.append(("Speed-up of Replicas", f"{compiled.speedup:.2f}"))
    return lines


def _decoding(compiled: Compiled) -> list[tuple[str, str]]:
    """Lines of a plan for inference."""
    decoding, clock = compiled.decoding, compiled.spec.clock_hz
    if decoding is None:
        return []
    sequences = decoding.sequences * len(compiled.plan.replicas)
    lines = [
        ("Tokens/s", f"{compiled.tokens:,.0f}"),
        ("Tokens/s of a Sequence", f"{compiled.tokens / sequences:,.0f}"),
        ("Tokens/s of a Prompt", f"{compiled.samples:,.0f}"),
        ("Bounded by", compiled.bounded_by),
        ("Context", f"{decoding.context:,} tokens, {sequences:,} sequence(s) at once"),
        ("Cycles of a Token", f"{decoding.latency:,}"),
        *((f"  {kind}", f"{cycles:,}") for kind, cycles in decoding.kinds.items()),
        ("Keys and Values", f"{decoding.cache:,} bytes per sequence"),
        ("  of the fullest PE", f"{decoding.cache_pe / _KIB:.1f} KiB"),
    ]
    if (mesh := decoding.mesh) is not None:
        rate = f"{clock / mesh.cycles:,.0f} tokens/s, {mesh.cycles:,} cycles"
        lines.append(("On One Mesh", f"{rate}, {mesh.height} x {mesh.width} PEs"))
    return lines


def report_text(compiled: Compiled) -> str:
    """Write ``compile_report.txt``: its head, further figures, a line per kernel."""
    lines = list[str]()
    for title, figures in (
        ("Estimated Overall Performance", _head(compiled)),
        ("Decoding (a sample is a token)", _decoding(compiled)),
        ("Compilation", _more(compiled)),
    ):
        if figures:
            lines += [title, "-" * 31, *(f"{name + ':':<30}{value}" for name, value in figures), ""]
    lines += ["Kernels (cycles per sample of the busiest PE)", "-" * 31]
    rows: list[list[str]] = [list(_COLUMNS)]
    for region, kernel in zip(compiled.plan.regions, compiled.kernels, strict=True):
        rows.append(
            [
                kernel.name,
                kernel.kind,
                f"{region.x},{region.y}",
                f"{region.width}x{region.height}",
                f"{kernel.rows}x{kernel.columns}",
                f"{kernel.forward:,}",
                f"{kernel.backward:,}",
                f"{kernel.update:,}",
                f"{kernel.cycles / compiled.cycles:.0%}",
                f"{kernel.sram / _KIB:.1f}",
                f"{kernel.weights:,}",
                f"{kernel.density:.0%}",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = map(str.rjust, row[2:], widths[2:])
        lines.append("  ".join([*map(str.ljust, row[:2], widths), *cells]).rstrip())
    return "\n".join(lines) + "\n"


def to_json(compiled: Compiled) -> JsonObject:
    """Everything of a compilation as plain values; ``from_json`` reads it back."""
    return {
        "version": _VERSION,
        "estimate": {
            "samples_per_s": compiled.samples,
            "compute_samples_per_s": compiled.compute_samples,
            "transmission_samples_per_s": compiled.transmission_samples,
            "active_pes": compiled.active_share,
            "compute_utilization": compiled.busy_share,
            "arithmetic_efficiency": compiled.arithmetic_share,
            "cycles_per_sample": compiled.cycles,
            "slowest_kernel": compiled.slowest.name,
            "replicas": len(compiled.plan.replicas),
            "speedup": compiled.speedup,
            "tokens_per_s": compiled.tokens,
            "bounded_by": compiled.bounded_by,
        },
        **dataclasses.asdict(compiled),
        "plan": {
            "width": compiled.plan.width,
            "height": compiled.plan.height,
            "regions": [region._asdict() for region in compiled.plan.regions],
            "replicas": compiled.plan.replicas,
        },
    }


def from_json(stored: JsonObject) -> Compiled:
    """Read what ``to_json`` made.

    Raises:
        ValueError: another version.
    """
    if stored.get("version") != _VERSION:
        raise ValueError(f"version {stored.get('version')} of a compilation; expected {_VERSION}")
    fields = {k: v for k, v in stored.items() if k not in {"version", "estimate"}}
    plan, spec = fields["plan"], fields["spec"]
    lists = {k: tuple(v) for k, v in spec.items() if isinstance(v, list)}
    fields["spec"] = WaferSpec(**(spec | lists))
    fields["plan"] = FloorPlan(
        plan["width"],
        plan["height"],
        tuple(Region(**region) for region in plan["regions"]),
        tuple((x, y) for x, y in plan["replicas"]),
    )
    fields["kernels"] = tuple(PlacedKernel(**kernel) for kernel in fields["kernels"])
    fields["edges"] = tuple((a, b, n) for a, b, n in fields["edges"])
    if decoding := fields.get("decoding"):
        mesh = decoding["mesh"] and Mesh(**decoding["mesh"])
        fields["decoding"] = Decoding(**{**decoding, "mesh": mesh})
    return Compiled(**fields)


def _by_layer(compiled: Compiled) -> dict[str, tuple[int, int, int, int]]:
    """Layer -> (kernels, PEs, weights, cycles of its slowest)."""
    layers: dict[str, list[PlacedKernel]] = {}
    for kernel in compiled.kernels:
        layers.setdefault(kernel.layer, []).append(kernel)
    return {
        layer: (
            len(kernels),
            sum(k.rows * k.columns for k in kernels),
            sum(k.weights for k in kernels),
            max(k.cycles for k in kernels),
        )
        for layer, kernels in layers.items()
    }


def _tables(compiled: Compiled) -> tuple[tuple[str, Sequence[str], list[tuple[str, ...]]], ...]:
    """(title, heads, rows) of figures, and of a line per layer."""
    figures = [*_decoding(compiled), *_head(compiled), *_more(compiled)[3:]]
    pes, slowest = compiled.plan.width * compiled.plan.height, compiled.cycles
    layers = [
        (
            layer,
            str(count),
            f"{area:,}",
            f"{area / pes:.1%}",
            f"{weights:,}",
            f"{cycles:,}",
            f"{cycles / slowest:.0%}",
        )
        for layer, (count, area, weights, cycles) in _by_layer(compiled).items()
    ]
    heads = ("layer", "kernels", "PEs", "of the wafer", "weights", "cycles", "busy")
    return (f"{compiled.name} on {compiled.spec.name}", (), figures), ("Layers", heads, layers)


def summary(compiled: Compiled) -> str:
    """Write the console's summary: figures, then a line per layer."""
    drawn = []
    for title, heads, rows in _tables(compiled):
        drawn.append(Table(title=title, show_header=bool(heads)))
        for number, head in enumerate(heads):
            drawn[-1].add_column(head, justify="right" if number else "left")
        for row in rows:
            drawn[-1].add_row(*row)
    return _render(*drawn)


def summary_html(compiled: Compiled) -> str:
    """Write the same for a notebook."""
    return "".join(table(*one) for one in _tables(compiled))


def _render(*tables: Table) -> str:
    text = io.StringIO()
    Console(  # plain text, in a notebook, too
        file=text, width=100, highlight=False, force_jupyter=False, color_system=None
    ).print(*tables, sep="")
    return text.getvalue()


def graph_table(graph: Graph, name: str) -> str:
    """Write what ``--validate_only`` shows: how many kernels of each kind, their work."""
    kinds: dict[str, list[int]] = {}
    for kernel in graph.kernels:
        row = kinds.setdefault(kernel.kind, [0, 0, 0, 0, 0])
        for at, value in enumerate((1, kernel.weights, *kernel.flops)):
            row[at] += value
    table = Table(title=f"{name}: {len(graph.kernels)} kernels, FLOPs per sample")
    table.add_column("kind")
    for column in ("kernels", "weights", "forward", "backward", "update"):
        table.add_column(column, justify="right")
    rows = [*sorted(kinds.items()), ("all", [sum(c) for c in zip(*kinds.values(), strict=True)])]
    for kind, row in rows:
        table.add_row(kind, *(f"{value:,}" for value in row))
    return _render(table)
