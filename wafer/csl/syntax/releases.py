"""What only some releases of the SDK have, one row per feature; docs/guides/csl-releases.md.

A program's release is recognised by what it uses. With ``cslc --sdk=1.0`` what another release has
is an error. A builtin beside the one that replaced it is always one: no release has both.
"""

from typing import NamedTuple

from wafer.errors import CompileError


class Feature(NamedTuple):
    """What some releases have."""

    name: str  #: a builtin with its @, a system module in <>, or words
    first: str  #: release that has it
    last: str = ""  #: release that has it; '' if all since do
    instead: str = ""  #: what replaced it, or what came before it
    beside: tuple[str, ...] = ()  #: builtins that replaced it, which no release has beside it

    @property
    def text(self) -> str:
        """The row in words."""
        until = f" to {self.last}" if self.last else " and later"
        word = "now" if self.last else "before"
        return f"{self.name} is of SDK {self.first}{until}" + (
            f"; {word}: {self.instead}" if self.instead else ""
        )

    def is_in(self, sdk: str) -> bool:
        """Whether a release has it."""
        last = release(self.last) if self.last else (99,)
        return release(self.first) <= release(sdk)[:2] <= last


def release(text: str) -> tuple[int, ...]:
    """``1.4.0`` as numbers.

    Raises:
        CompileError: no release of the vendor's.
    """
    numbers = tuple(int(part) for part in text.split(".") if part.isdecimal())
    if not any(first <= numbers[:2] <= last for first, last in _RELEASES):
        ranges = ", ".join(f"{a}.{b} to {a}.{c}" for (a, b), (_, c) in _RELEASES)
        raise CompileError(f"'{text}' is no release of the SDK; there are {ranges}")
    return numbers


_RELEASES = (((0, 4), (0, 9)), ((1, 0), (1, 4)), ((2, 0), (2, 10)))  # first and last of a number
CALLED_TASK = Feature("a task called as a function", "0.4", "1.3", "@activate")
_BIND = ("@bind_local_task", "@bind_data_task", "@bind_control_task")
FEATURES = (
    Feature("@bind_task", "0.4", "0.9", ", ".join(_BIND), _BIND),
    Feature("@get_color_id", "0.8", "0.9", "@get_int", ("@get_int",)),
    *(Feature(name, "1.0", instead="@bind_task") for name in _BIND),
    *(
        Feature(f"@get_{kind}_task_id", "1.0", instead="a color")
        for kind in ("local", "data", "control")
    ),
    Feature("@get_int", "1.0", instead="@get_color_id"),
    Feature("@initialize_queue", "0.8", instead="data tasks on colors"),
    Feature("@get_dsr", "0.8"),
    Feature("@load_to_dsr", "0.8"),
    Feature("@rpc", "0.8", "1.0", "nothing: calls need no task of the program's"),
    Feature("@concat_structs", "0.4", "1.4", "structs with names"),
    Feature("<memcpy_multi/get_params>", "0.6", "0.9", "<memcpy/get_params>"),
    Feature("<memcpy_multi/memcpy>", "0.6", "0.9", "<memcpy/memcpy>"),
    Feature("<memcpy_multi/memcpy_switches>", "0.8", "0.9", "<memcpy/memcpy_switches>"),
    Feature("four colors per axis in <collectives_2d/params>", "0.6", "0.9", "entrypoints"),
    Feature("<collectives_2d/common>", "0.6", "0.6", "nothing: init takes no pendings"),
    Feature("<kernels/tally/pe> without callback", "0.4", "0.8", ".callback"),
    Feature("<kernels/tally/pe> without input_queues", "0.4", "1.0", ".input_queues"),
    Feature("a color from 24 on that stands for none", "0.4", "1.2", "a param of void"),
    Feature("a control wavelet that starts a data task (WSE-2)", "0.4", "1.2", "a control task"),
    Feature("streams of <memcpy/memcpy> that @block takes as colors", "1.0", "1.1", "@get_color"),
    Feature("imports relative to the layout's folder", "1.2", "1.2", "to the importer's"),
    Feature("priorities of microthreads at 0x7f58", "0.8", "1.3", ".priority"),
    CALLED_TASK,
    Feature("convert_input_tensor and its like", "0.6", "0.9", "memcpy_h2d of an array"),
    Feature("CSELFRunner", "0.4", "0.8", "SdkRuntime"),
    Feature("colors configured without .routes and .switches", "0.4", "0.4", "both"),
    Feature("@set_tile_code without a file", "0.4", "0.8", "a file with the PEs' code"),
    Feature("a fabric without margins for memcpy", "0.4", "0.8", "--memcpy"),
    Feature("<debug> without key", "0.4", "0.8", ".key"),
    Feature("SdkLayout", "1.4", "", "a layout block"),
    Feature("<kernels/fft/fft3d_layout>", "1.4"),
    Feature("<string>", "2.10"),
    Feature("<message_passing>", "1.2"),
    Feature("@bind_rotating_tasks", "2.10"),
    Feature("@load_to_dsr_xdsr_sr", "2.10", instead="@load_to_dsr"),
    Feature("@has_exported_tensors", "0.9"),
)
_BY_NAME = {feature.name: feature for feature in FEATURES}


def feature_of(name: str) -> Feature | None:
    """The row of a builtin, a module or another feature."""
    return _BY_NAME.get(name)
