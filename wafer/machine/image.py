"""What a compiled CSL program is: one :class:`Program` per distinct PE code, one :class:`Image`.

Tables are int32 arrays of rows; their columns are listed here and nowhere else.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from wafer.machine.arch import ARCHITECTURES

_HARDWARE = ARCHITECTURES["wse2"]  # as many of each in WSE-3
COLORS, NO_COLOR = _HARDWARE.colors, -1  # colors with routes; none of them
PAD = 64  # bytes behind a program's memory that read as zero
# A program's tables of first instructions by id -> how many ids there are.
ENTRIES = {
    "local_tasks": _HARDWARE.local_tasks,
    "data_tasks": COLORS,
    "control_tasks": _HARDWARE.control_tasks,
    "teardown_handlers": COLORS,
    "empty_handlers": len(_HARDWARE.output_depths),
}

# Table -> its columns. An id of -1 means none.
COLUMNS = {
    "operations": (
        *("op", "dest", "src0", "src1", "scalar"),  # a DsdOp, then Operand kinds
        *("asynchronous", "action", "target"),  # an Action with its id
        *("control_ends", "control_action", "control_target"),  # on_control
        # priority: of a microthread, 0 low to 2 high. index -1: none, else in a register
        *("thread", "priority", "index", "simd"),
    ),
    "fabrics": (
        *("sends", "queue", "color", "control", "advances"),
        *("indexed", "priority", "simd", "clears"),  # indexed: first word offset, clears: 1 src0 …
        *("control_ends", "control_action", "control_target"),
        "transform",  # above 0: control wavelets pass through the PE as words
    ),
    "fifos": (
        *("address", "bytes", "push_task", "pop_task", "priority"),
        # 0 ends what the task waits for, 1 all operations, 2 none. push_task is activated
        # when there is room again after a push found none, pop_task when there is data.
        *("empty_ends", "full_ends"),
    ),
    "shapes": ("n0", "n1", "n2", "n3", "s0", "s1", "s2", "s3"),  # outermost first, in elements
    "dsr_loads": (
        *("file", "id", "kind"),  # kind: an Operand
        *("asynchronous", "action", "target"),
        *("control_ends", "control_action", "control_target"),
        *("thread", "saves_address", "single_step"),
    ),
    "queues": (  # [16]: input queues 0-7, output queues 0-7
        *("color", "priority"),
        # entry: the control task of its control wavelets with id 0. Its data task gives way to that
        # one when as many words as the limit have started it, `turn` of them before the first.
        *("entry", "limit", "turn"),
    ),
    "filters": (  # per color
        *("kind", "counts_data", "counts_control", "start", "most", "limit1", "limit2"),
        *("controls_filtered", "low", "high"),  # kind 0 none, 1 counter, 2 sparse counter, 3 range
    ),
}


class TableRows:
    """Rows of a program's tables while it is written, each once.

    Args:
        default: of columns that are not given.
        others: columns with another default.
    """

    def __init__(self, default: int = -1, others: Mapping[str, int] | None = None) -> None:
        self._default, self._others = default, others or {}
        names = [name for name in COLUMNS if name not in {"queues", "filters"}]
        self._rows: dict[str, dict[tuple[int, ...], int]] = {name: {} for name in names}

    def row(self, table: str, **values: int) -> int:
        """The place of a row in a table, which is added if it is not there."""
        given = {name: self._others.get(name, self._default) for name in COLUMNS[table]} | values
        assert len(given) == len(COLUMNS[table]), values
        return self._rows[table].setdefault(tuple(map(int, given.values())), len(self._rows[table]))

    def at(self, table: str, place: int) -> tuple[int, ...]:
        """The row at a place."""
        return list(self._rows[table])[place]

    def arrays(self) -> dict[str, np.ndarray]:
        """[rows, columns] int32 of each table."""
        return {
            name: np.array([*rows], np.int32).reshape(-1, len(COLUMNS[name]))
            for name, rows in self._rows.items()
        }


class Symbol(NamedTuple):
    """A global of a program."""

    address: int  #: in bytes
    bytes: int  #: how many
    type: str  #: as a host understands it: 'f32', 'u16', '[*]f32', 'fn(i16)void', …


class Footprint(NamedTuple):
    """Bytes of a PE's memory that a program takes, by what is in them."""

    variables: int  #: with the gaps between them
    code: int  #: estimated
    stack: int  #: of the runtime
    rest: int  #: of the runtime: its code and data, the table of tasks

    def total(self, error: float = 0.0) -> int:
        """Return the bytes of all, with the code off by a fraction."""
        return self.variables + round(self.code * (1 + error)) + self.stack + self.rest


class Program(NamedTuple):
    """The code of a PE, shared by all PEs with the same file and parameters."""

    name: str  #: its file, for messages
    code: np.ndarray  #: [instructions, 5] int32
    lines: np.ndarray  #: [instructions, 2] int32; index into files, and line
    files: tuple[str, ...]  #: of source
    messages: tuple[str, ...]  #: of faults
    memory: np.ndarray  #: uint8; the SRAM at the start, as long as what the program declares
    tables: dict[str, np.ndarray]  #: by the names in COLUMNS but 'filters'
    local_tasks: np.ndarray  #: [31] int32; first instruction of each, -1 for none
    #: [24] int32; by color (WSE-2) or input queue (WSE-3). r[0] is the wavelet, as in the next ones
    data_tasks: np.ndarray
    control_tasks: np.ndarray  #: [64] int32
    teardown_handlers: np.ndarray  #: [24] int32; by color
    empty_handlers: np.ndarray  #: [8] int32; by output queue
    start: int  #: first instruction of what runs before any task, -1 for none
    active: int  #: bits of local tasks
    blocked: np.ndarray  #: [5] int32 bits; by Gate
    #: exported name -> first instruction; r[0], r[1], … are the arguments
    functions: dict[str, int]
    symbols: dict[str, Symbol]  #: by name
    exports: dict[str, Symbol]  #: name -> what the layout exports under it, if that is a variable
    frame: int  #: most registers that calls need at once
    #: name of a task -> its first instruction
    tasks: dict[str, int] = {}  # noqa: RUF012 -- a tuple of such a class is never changed
    high: int = 0  #: bits of tasks' ids that begin before others
    #: of its tasks among microthreads: 3 medium low, between their low and medium, to 6 high
    level: int = 3
    #: whether its waits are all that its code costs: loading operands, starting tasks and banks
    #: included. A ``Layout``'s, whose overheads were fitted to whole programs
    waits: bool = False
    footprint: Footprint | None = None  #: in the vendor's SDK; None: of a ``Layout``

    def variable_at(self, address: int) -> tuple[str, Symbol] | None:
        """The global that a byte address is in, with its name; None if it is in none."""
        for name, symbol in self.symbols.items():
            if symbol.address <= address < symbol.address + symbol.bytes:
                return name, symbol
        return None


class Export(NamedTuple):
    """A name that the host may use; its id is its place in the list."""

    name: str
    type: str
    mutable: bool


class HostPort(NamedTuple):
    """Where words of a color enter from, or leave to, the host by an edge of the rectangle."""

    color: int  #: of the words
    x: int  #: x, y: the PE at the edge
    y: int
    side: str  #: of its router: W, E, S or N
    to_host: bool  #: whether they leave


class Preset(NamedTuple):
    """Values of a variable that differ between the PEs of a program at the start."""

    name: str  #: of the variable
    x: int  #: x, y: the first PE
    y: int
    values: np.ndarray  #: [H, W, bytes] uint8


class Image(NamedTuple):
    """A compiled program."""

    arch: str  #: 'wse2' or 'wse3'
    programs: tuple[Program, ...]  #: distinct PE codes
    tiles: np.ndarray  #: [H, W] int32; the program of each PE, -1 for one without code
    colors: np.ndarray  #: [H, W, 24] int32; the color register at the start (codes.CONFIG)
    switches: np.ndarray  #: [H, W, 24] int32; the switch register (codes.switch_position)
    routed: np.ndarray  #: [H, W, 24] bool; whether the program configures the color there
    filters: np.ndarray  #: [H, W, 24, columns] int32
    exports: tuple[Export, ...] = ()  #: in order
    #: colors that memcpy carries from (name MEMCPYH2D_…) and to the host -> name
    streams: dict[int, str] = {}  # noqa: RUF012 -- never changed
    params: dict[str, Any] = {}  # noqa: RUF012 -- as the command line gave them
    edges: int = 0  #: sides on which the wafer ends with these PEs, bits W E S N from 0 on
    route_places: tuple[str, ...] = ("",)  #: files and lines that configure colors; '' first
    route_lines: np.ndarray | None = None  #: [H, W, 24] uint16; which of them
    #: of the host at the rectangle's edges, by name
    ports: dict[str, HostPort] = {}  # noqa: RUF012 -- never changed
    presets: tuple[Preset, ...] = ()  #: values of variables
    half: str = "f16"  #: of ``codes.HALVES``: the format of 16-bit floats
    timing: str = "simulator"  #: of ``costs.TIMINGS``: what cycles are counted by
