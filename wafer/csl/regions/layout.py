"""What a script calls to lay a program out: regions, routes, ports, connections, streams."""

import enum
import json
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wafer.csl.host.artifacts import save
from wafer.csl.host.errors import HostError, check_keywords
from wafer.csl.regions.build import build
from wafer.csl.regions.problems import fail, script_position
from wafer.csl.regions.region import CodeRegion, LayoutPlan, RegionPort
from wafer.csl.syntax.source import Position


class SdkTarget(enum.Enum):
    """The architecture that a layout is compiled for."""

    WSE2 = "wse2"
    WSE3 = "wse3"


class FP16TYPE(enum.Enum):
    """The format of 16-bit floats."""

    F16 = "f16"
    BF16 = "bf16"
    CB16 = "cb16"


class SimfabConfig:
    """Options of the vendor's simulator, without effect here.

    Raises:
        TypeError: a keyword that is none of them.
    """

    def __init__(self, **options: Any) -> None:
        known = ("num_threads", "suppress_trace", "dump_core", "core_path")
        check_keywords("SimfabConfig", options, known)
        self.options = options


class Platform(NamedTuple):
    """Where a layout runs: the simulator of an architecture."""

    target: SdkTarget


def get_platform(
    cmaddr: str | None, config: SimfabConfig | None = None, target: SdkTarget = SdkTarget.WSE3
) -> Platform:
    """The simulator.

    Args:
        cmaddr: address of a system; only none, the simulator, is here.
        config: of the vendor's simulator.
        target: architecture.

    Raises:
        HostError: an address.
    """
    if cmaddr:
        raise HostError(f"cmaddr={cmaddr!r}: there is no system here, only the simulator")
    return Platform(SdkTarget(target))


class SdkLayout:
    """A program laid out by a script.

    Args:
        platform: of ``get_platform``.

    Attributes:
        plan: what the script has said so far.
    """

    def __init__(self, platform: Platform) -> None:
        self.plan = LayoutPlan(platform.target.value, [], [], [])

    def create_code_region(self, file: str, name: str, width: int, height: int) -> CodeRegion:
        """A rectangle of PEs that run a file; at (0, 0) until it is placed.

        Args:
            file: path, from the working directory.
            name: that no other region has.
            width: columns.
            height: rows.
        """
        at = script_position()
        if any(region.name == name for region in self.plan.regions):
            fail(at, f"two regions are called '{name}'")
        if min(width, height) < 1:
            fail(at, f"region '{name}' of {width} x {height} PEs has none")
        region = CodeRegion(file, name, operator.index(width), operator.index(height), at)
        self.plan.regions.append(region)
        return region

    def connect(self, output: RegionPort, input: RegionPort) -> None:
        """Let the words of one port enter another: those of its k-th PE go to the k-th PE there."""
        at = script_position()
        self._use(output, at, is_input=False)
        self._use(input, at, is_input=True)
        counts = [len(port.cells) for port in (output, input)]
        sizes = [port.size for port in (output, input)]
        for what, (given, taken) in (("PEs", counts), ("words", sizes)):
            if given != taken:
                fail(
                    at,
                    f"'{output.name}' has {given} {what}, and '{input.name}' {taken}",
                    "connected ports have as many PEs and words",
                )
        self.plan.connections.append((output, input))

    def create_input_stream(self, port: RegionPort) -> str:
        """Let the host send to a port of one PE; the name is for ``SdkRuntime.send``."""
        return self._stream(port, is_input=True)

    def create_output_stream(self, port: RegionPort) -> str:
        """Let the host receive from a port of one PE; the name is for ``SdkRuntime.receive``."""
        return self._stream(port, is_input=False)

    def _stream(self, port: RegionPort, *, is_input: bool) -> str:
        at = script_position()
        self._use(port, at, is_input=is_input)
        if (count := len(port.cells)) != 1:
            fail(
                at,
                f"port '{port.name}' has {count} PEs, and a stream of the host goes to one",
                "put a region of one PE between that passes the words on",
            )
        self.plan.streams.append(port)
        return port.name

    def _use(self, port: RegionPort, at: Position, *, is_input: bool) -> None:
        kinds = ("an output port", "an input port")
        if port.is_input != is_input:
            fail(at, f"'{port.name}' is {kinds[port.is_input]}; expected {kinds[is_input]}")
        if port.users:
            fail(at, f"port '{port.name}' is used twice, first at {port.users[0]}")
        port.users.append(at)

    def compile(
        self,
        out_prefix: str = "out",
        libs: Sequence[str] = (),
        f16_type: FP16TYPE = FP16TYPE.F16,
        **options: Any,
    ) -> str:
        """Compile for the runtime.

        Args:
            out_prefix: folder of the result; ``colors.json`` there has the numbers of the colors.
            libs: folders of imported files.
            f16_type: the one format of 16-bit floats at run time.
            options: of the vendor's compiler, without effect: ``cslc_prefix``, ``save_port_map``.

        Returns:
            The folder, for ``SdkRuntime``.

        Raises:
            CslError: problems of the layout, at the script's line, or of the files.
            TypeError: a keyword that is none of these.
        """
        known = ("libs", "f16_type", "cslc_prefix", "save_port_map")
        check_keywords("SdkLayout.compile", options, known)
        plan = self.plan._replace(import_paths=tuple(libs), half=FP16TYPE(f16_type).value)
        image, colors = build(plan, Path.cwd())
        save(out_prefix, image, {}, offsets=(0, 0))
        text = json.dumps(colors, indent=1, sort_keys=True)
        Path(out_prefix, "colors.json").write_text(f"{text}\n", encoding="utf-8")
        return out_prefix
