"""The host of SDK 0.4 to 0.8: arrays enter and leave by the rectangle's sides; memory by name.

All that is asked for happens in ``connect_and_run``: memory is written, words enter by the ports
and are kept where they leave, until nothing moves any more.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wafer.csl.host.artifacts import load, load_cores, offsets_of, save_cores
from wafer.csl.host.errors import FaultError, HostError, check_keywords
from wafer.csl.host.symbols import find_symbol
from wafer.machine.engine import Machine, Status
from wafer.vendor.sdk.port_map import PortMap, output_array_from_u32, port_map
from wafer.vendor.sdk.sdk_utils import input_array_to_u32

_MOST_CYCLES = 50_000_000


class _Output(NamedTuple):
    """What leaves: the name and type of the array, the color, the map, the shape of the array."""

    name: str
    dtype: np.dtype
    color: int
    ports: PortMap
    shape: tuple[int, ...]


def _folder(paths: Sequence[str]) -> Path:
    """Where a program was compiled to, from the files below its folder bin."""
    if not paths:
        raise HostError("no ELF files; the folder of the compiled program has them in bin/")
    return Path(paths[0]).parent.parent


class CSELFRunner:
    """A compiled program, and the machine that runs it.

    Args:
        elf_paths: of files in ``bin`` of the folder that the program was compiled to.
        cmaddr: address of a system; only None, the simulator, is here.

    Raises:
        TypeError: another keyword.

    Attributes:
        out_tensor_dict: what has left, by name, after ``connect_and_run``.
    """

    def __init__(
        self, elf_paths: Sequence[str], cmaddr: str | None = None, **others: object
    ) -> None:
        check_keywords("CSELFRunner", others, ("elf_paths", "cmaddr"))
        if cmaddr:
            raise HostError(f"cmaddr={cmaddr!r}: there is no system here, only the simulator")
        self._folder = _folder(elf_paths).resolve()
        self._image = load(self._folder)
        self._left, self._top = offsets_of(self._folder)
        self._machine = Machine(self._image)
        self._outputs = list[_Output]()
        self.out_tensor_dict = dict[str, np.ndarray]()

    def add_input_tensor(
        self,
        color: int,
        port: str | tuple[str, int],
        array: np.ndarray,
        sentinel: int | None = None,
    ) -> None:
        """Let an array enter.

        Args:
            color: of its words.
            port: a map, or a side's name and the number of a row or column there.
            array: of 16- or 32-bit items. With a sentinel, 16-bit ones carry their place.
            sentinel: number of the control task that a wavelet behind the last one starts.
        """
        ports, array = self._ports(port, array.size), np.asarray(array).reshape(-1)
        words = input_array_to_u32(array[ports.order], sentinel, ports.items)
        self._enter(color, ports, words, sentinel)

    def add_input_array(
        self, name: str, color: int, side: str, array: np.ndarray, sentinel: int | None = None
    ) -> None:
        """Let row k of an array [ports, items] enter by the k-th PE of a side, N or W."""
        for k, row in enumerate(array):
            self.add_input_tensor(color, (side, k), row, sentinel)

    def add_output_tensor(
        self, color: int, port: str | tuple[str, int], dtype: npt.DTypeLike
    ) -> None:
        """Keep what leaves on a color; the map's name is that of the result."""
        if not isinstance(port, str):
            raise HostError("an output tensor needs a map, which names it and says its shape")
        ports = port_map(port)
        self._open(_Output(_name(port), np.dtype(dtype), int(color), ports, ports.shape))

    def add_output_array(self, name: str, color: int, side: str, array: np.ndarray) -> None:
        """Keep what leaves by a side, E or W, as rows of an array like the one given."""
        count, items = array.shape
        x = self._image.tiles.shape[1] if side[0] == "E" else -1
        ports = PortMap(array.shape, (x, 0, 1, count), np.arange(count * items))
        self._open(_Output(name, array.dtype, int(color), ports, array.shape))

    def _ports(self, port: str | tuple[str, int], items: int) -> PortMap:
        if isinstance(port, str):
            return port_map(port)
        side, k = port
        height, width = self._image.tiles.shape
        places = {"W": (-1, k), "E": (width, k), "N": (k, -1), "S": (k, height)}
        return PortMap((items,), (*places[side[0].upper()], 1, 1), np.arange(items))

    def _sides(self, ports: PortMap) -> Iterator[tuple[int, int, str]]:
        """PE and side of each port, row by row."""
        height, width = self._image.tiles.shape
        left, top, columns, rows = ports.rectangle
        for y in range(top, top + rows):
            for x in range(left, left + columns):
                side = {x == -1: "W", x == width: "E", y == -1: "N", y == height: "S"}.get(True)
                if side is None:
                    raise HostError(f"PE[{x}, {y}] is no port: it lies inside the rectangle")
                yield min(max(x, 0), width - 1), min(max(y, 0), height - 1), side

    def _enter(self, color: int, ports: PortMap, words: np.ndarray, sentinel: int | None) -> None:
        rows = words.reshape(-1, ports.items)
        for (x, y, side), row in zip(self._sides(ports), rows, strict=True):
            ends = [] if sentinel is None else [sentinel << 16]
            controls = np.arange(len(row) + len(ends)) >= len(row)
            sent = np.concatenate([row, np.array(ends, np.uint32)])
            self._machine.send(int(color), (x, y, side), sent, controls)

    def _open(self, output: _Output) -> None:
        for x, y, side in self._sides(output.ports):
            self._machine.receivable(output.color, (x, y, side))
        self._outputs.append(output)

    def connect_and_run(self, sim_out_path: str | None = None) -> None:
        """Run the program to its end.

        Raises:
            FaultError: it did what the machine forbids.
            HostError: fewer words have left than a map asks for.
        """
        if self._machine.run(_MOST_CYCLES) == Status.FAULT:
            raise FaultError(f"cycle {self._machine.cycle}: {self._machine.fault}")
        for output in self._outputs:
            self.out_tensor_dict[output.name] = self._collected(output)
        save_cores(self._folder, self._image, self._machine)

    def _collected(self, output: _Output) -> np.ndarray:
        ports, rows = output.ports, []
        for x, y, side in self._sides(ports):
            words = self._machine.receive(output.color, (x, y, side))
            if len(words) < ports.items:
                waiting = "\n  ".join(map(str, self._machine.waiting()[:12]))
                raise HostError(
                    f"'{output.name}': {len(words)} of {ports.items} words have left PE ({x}, {y})"
                    f" by side {side} on color {output.color}\n  {waiting}"
                )
            rows.append(words[: ports.items])
        out = np.empty(ports.order.size, output.dtype)
        out[ports.order] = output_array_from_u32(np.concatenate(rows), output.dtype)
        return out.reshape(output.shape)

    def set_symbol(self, col: int, row: int, name: str, array: np.ndarray) -> None:
        """Write a global of the PE at a column and row of the fabric."""
        x, y = col - self._left, row - self._top
        symbol, data = find_symbol(self._image, x, y, name), np.ascontiguousarray(array)
        if data.nbytes > symbol.bytes:
            raise HostError(
                f"'{name}' of PE ({col}, {row}) has {symbol.bytes} bytes, and the array"
                f" {data.nbytes}"
            )
        self._machine.write(x, y, symbol.address, data)

    def set_symbol_rect(
        self, name: str, array: np.ndarray, offset: tuple[int, int] = (0, 0)
    ) -> None:
        """Write a global of many PEs: ``array[columns, rows, …]``, from a place of the fabric."""
        for x in range(array.shape[0]):
            for y in range(array.shape[1]):
                self.set_symbol(offset[0] + x, offset[1] + y, name, array[x, y])

    def get_symbol(self, col: int, row: int, name: str, dtype: npt.DTypeLike) -> np.ndarray:
        """[items] of a global of the PE at a column and row of the fabric."""
        x, y = col - self._left, row - self._top
        symbol = find_symbol(self._image, x, y, name)
        return self._machine.read(x, y, symbol.address, symbol.bytes).view(dtype)

    def get_symbol_rect(
        self,
        rectangle: tuple[tuple[int, int], tuple[int, int]],
        name: str,
        dtype: npt.DTypeLike,
    ) -> np.ndarray:
        """[columns, rows, items] of a global, of ((column, row), (columns, rows)) of the fabric."""
        (left, top), (width, height) = rectangle
        at = lambda x, y: self.get_symbol(left + x, top + y, name, dtype)
        return np.array([[at(x, y) for y in range(height)] for x in range(width)])


class ELFMemory:
    """The PEs that files of a compiled program are for."""

    def __init__(self, *elf_paths: str) -> None:
        folder = _folder(elf_paths)
        self._tiles, self._offsets = load(folder).tiles, offsets_of(folder)

    def iter_coordinates(self) -> Iterator[tuple[int, int]]:
        """Column and row of each PE on the fabric."""
        for y, x in np.argwhere(self._tiles >= 0).tolist():
            yield x + self._offsets[0], y + self._offsets[1]


class ELFLoader:
    """The PEs' memory after ``connect_and_run``; SDK 0.4.

    Args:
        elf_path: of a file of the compiled program.
        core_path: without effect.
    """

    def __init__(self, elf_path: str, core_path: str = "") -> None:
        self._folder = _folder([elf_path])

    def get_as_array(self, name: str, items: int, dtype: npt.DTypeLike) -> np.ndarray:
        """[columns, rows, items] of a global on the whole fabric; 0 where no PE has it."""
        image = load(self._folder)
        (left, top), (height, width) = offsets_of(self._folder), image.tiles.shape
        cores = load_cores(self._folder, image)
        out = np.zeros((left + width, top + height, items), dtype)
        for (x, y), memory in cores.items():
            symbol = find_symbol(image, x, y, name)
            content = memory[symbol.address : symbol.address + symbol.bytes].view(dtype)
            out[left + x, top + y] = content[:items]
        return out


def _name(text: str) -> str:
    """The array's name in a port map."""
    return text.strip().removeprefix("{").split("[", 1)[0].strip()
