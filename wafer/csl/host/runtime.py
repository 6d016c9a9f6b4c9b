"""Runs a compiled program as its host: calls functions, copies memory, feeds and reads streams."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wafer.csl.host.commands import IN_FLIGHT, SETTLES, Copy, HostCall, Receive, Send, Task
from wafer.csl.host.errors import DeadlockError, FaultError, HostError, warn_host
from wafer.csl.host.order import places
from wafer.csl.host.region import CopyRegion, flat_words
from wafer.csl.host.symbols import find_symbol
from wafer.csl.host.words import argument_types, arguments, dtype_of, raw_arguments
from wafer.energy import SEVEN_NM, Counts, Energy, Picojoules, energy_of, report
from wafer.errors import CompileError
from wafer.machine.arch import ARCHITECTURES
from wafer.machine.base import Rectangle, Status, WaferMachine
from wafer.machine.engine import machine_for
from wafer.machine.image import HostPort, Image
from wafer.machine.tools.causes import COMMAND, HELD, explain
from wafer.machine.tools.recording import Recording, Trace
from wafer.machine.tools.trace import LineProfile, profile_of
from wafer.models.errors import did_you_mean

_MOST_CYCLES = 200_000_000  # of one wait
_SHOWN = 12  # lines of a report on what waits


class Runtime:
    """The host of one program.

    Coordinates count in the program's rectangle. Every method that moves data or calls a function
    returns a task: done, unless ``nonblock``, and then for ``task_wait``.

    Args:
        image: compiled.
        machine: with that image loaded; None: a new one.
        log: file that ``stop`` writes the program's printed lines to; None: no file.
        offsets: columns and rows before the rectangle, in the log.
        record: what ``trace`` is to hold, by a new machine; None: nothing.
        check_bounds: whether an operation that reads or writes beyond a variable is a fault, of a
            new machine.
    """

    _refused = ""  # why no command can be taken now; '' if one can

    def __init__(
        self,
        image: Image,
        machine: WaferMachine | None = None,
        *,
        log: str | Path | None = None,
        offsets: tuple[int, int] = (4, 1),
        record: Recording | None = None,
        check_bounds: bool = False,
    ) -> None:
        self.image = image
        self.machine = machine or machine_for(image, record, check_bounds=check_bounds)
        self._log, self._offsets = log, offsets
        self._commands = list[HostCall | Copy | Send | Receive]()  # that are not done, in order
        self._reads = list[Receive]()  # and those of ports
        self._ids = {export.name: k for k, export in enumerate(image.exports)}
        self._prepare()

    def _prepare(self) -> None:
        """Write what differs between the PEs of a program, and open the ports to the host."""
        for preset in self.image.presets:
            for y, x in np.ndindex(preset.values.shape[:2]):
                column, row = preset.x + x, preset.y + y
                symbol = find_symbol(self.image, column, row, preset.name)
                self.machine.write(column, row, symbol.address, preset.values[y, x])
        for color, x, y, side, to_host in self.image.ports.values():
            if to_host:
                self.machine.receivable(color, (x, y, side))
        self.machine.hold_streams(IN_FLIGHT)

    @property
    def cycles(self) -> int:
        """Cycles that have passed on the wafer; how exact: docs/results/csl.md."""
        return self.machine.cycle

    @property
    def trace(self) -> Trace:
        """What was recorded, for ``wafer.machine.tools.trace``.

        Raises:
            CompileError: nothing was.
        """
        return self.machine.trace

    @property
    def profile(self) -> LineProfile:
        """Cycles of each source line over all PEs, most first."""
        return profile_of(self.machine.profile)

    @property
    def counts(self) -> Counts:
        """What all PEs have done so far: floats, words of memory, hops, …."""
        return self.machine.counts

    def energy(self, each: Picojoules = SEVEN_NM) -> Energy:
        """What that took, in pJ; docs/guides/energy.md.

        Args:
            each: energy of one of each.
        """
        return energy_of(self.counts, each, pe_cycles=self.cycles * self._pes)

    def energy_text(self, each: Picojoules = SEVEN_NM) -> str:
        """The same as a table, with the power."""
        clock = ARCHITECTURES[self.image.arch].clock_hz / 1e9
        return report(self.counts, cycles=self.cycles, pes=self._pes, each=each, gigahertz=clock)

    @property
    def _pes(self) -> int:
        """PEs with a program."""
        return int((self.image.tiles >= 0).sum())

    @property
    def whole(self) -> Rectangle:
        """All PEs of the program."""
        height, width = self.image.tiles.shape
        return Rectangle(0, 0, width, height)

    def get_id(self, name: str) -> int:
        """The number of an exported symbol, for copies.

        Raises:
            HostError: there is none.
        """
        if name not in self._ids:
            hint, there = did_you_mean(name, self._ids) or ".", ", ".join(self._ids) or "nothing"
            raise HostError(f"no exported symbol '{name}'{hint} The layout exports {there}")
        return self._ids[name]

    def launch(self, name: str, *args: object, nonblock: bool = False) -> Task:
        """Call an exported function on every PE that has it.

        The next copy waits for each PE until its program unblocks the command stream.

        Args:
            name: of the function.
            args: numbers that its types can hold.
            nonblock: return at once.

        Raises:
            HostError: no such function, or other arguments.
        """
        kind = self.image.exports[self.get_id(name)].type
        return self._call(name, arguments(name, kind, args), nonblock)

    def call(self, name: str, words: Sequence[int], nonblock: bool = False) -> Task:
        """Run an exported function, as ``launch`` does.

        Args:
            name: of the function.
            words: its arguments as 32-bit words.
            nonblock: return at once.
        """
        kind = self.image.exports[self.get_id(name)].type
        return self._call(name, raw_arguments(name, kind, words), nonblock)

    def _check_running(self) -> None:
        if self._refused:
            raise HostError(self._refused)

    def _call(self, name: str, words: list[int], nonblock: bool) -> Task:
        self._check_running()
        having = {k for k, p in enumerate(self.image.programs) if name in p.functions}
        at = [(x, y) for x, y in self.whole.pes() if self.image.tiles[y, x] in having]
        if not at:
            raise HostError(f"no PE exports the function '{name}' with @export_symbol")
        task = HostCall(f"the call of '{name}'", at, name, words)
        return self._begin(task, self._commands, nonblock)

    def memcpy_h2d(self, dest: int, src: np.ndarray, *region: int, **options: Any) -> Task:
        """Copy, or stream, items from the host's array to PEs.

        Args:
            dest: id of a symbol; with ``streaming``, a color.
            src: 32-bit items, as many as the PEs take together.
            region: first column, first row, columns, rows, items of each PE.
            options: of ``Options``.
        """
        return self._send(dest, src, CopyRegion.of(region, options))

    def memcpy_h2d_rowbcast(self, dest: int, src: np.ndarray, *region: int, **options: Any) -> Task:
        """As ``memcpy_h2d`` of height x items: all PEs of a row get the same."""
        return self._send(dest, src, CopyRegion.of(region, options, same_along="x"))

    def memcpy_h2d_colbcast(self, dest: int, src: np.ndarray, *region: int, **options: Any) -> Task:
        """As ``memcpy_h2d`` of width x items: all PEs of a column get the same."""
        return self._send(dest, src, CopyRegion.of(region, options, same_along="y"))

    def memcpy_h2d_stride(self, dest: int, src: np.ndarray, *region: int, **options: Any) -> Task:
        """As a copying ``memcpy_h2d``, to every n-th element; n is the last of ``region``."""
        return self._send(dest, src, CopyRegion.of(region[:-1], options, stride=region[-1]))

    def memcpy_d2h(self, dest: np.ndarray, src: int, *region: int, **options: Any) -> Task:
        """Copy, or read from a stream, items of PEs into the host's array, in place."""
        todo = CopyRegion.of(region, options)
        array = flat_words(dest, result=True)
        where = self._places(todo, array)
        if not todo.options.streaming:
            return self._copy(src, array, todo, where, to_host=True)
        self._check_stream(src, "D2H")
        what = f"{todo.items} word(s) of each PE in {todo.text} from the stream of color {src}"
        ports = [(x, y, "RAMP") for x, y in todo.rectangle.pes()]
        places = where.reshape(len(ports), -1)
        task = Receive(what, src, src, ports, places, array)
        return self._begin(task, self._commands, todo.options.nonblock)

    def send(self, port: str, array: np.ndarray, nonblock: bool = False) -> Task:
        """Queue words for a port of a Python layout; they enter as fast as routers take them.

        Args:
            port: of ``create_input_stream``.
            array: [n] 32-bit items.
            nonblock: without effect: the host never waits here.

        Raises:
            HostError: no such port, or one to the host.
        """
        color, x, y, side, _ = self._port(port, to_host=False)
        words = flat_words(np.ascontiguousarray(array))
        self.machine.send(color, (x, y, side), words)
        return Task(f"the stream to '{port}'", finished=True)

    def receive(self, port: str, array: np.ndarray, size: int, nonblock: bool = False) -> Task:
        """Take words that leave by a port of a Python layout into the host's array, in place.

        Args:
            port: of ``create_output_stream``.
            array: [n] 32-bit items, n at least ``size``.
            size: words.
            nonblock: return at once; the words are there after ``task_wait`` or ``stop``.

        Raises:
            HostError: no such port, one from the host, or an array that is too small.
        """
        color, x, y, side, _ = there = self._port(port, to_host=True)
        words = flat_words(array, result=True)
        if size > len(words):
            raise HostError(f"'{port}': {size} words for an array of {len(words)}")
        at, what = [(x, y, side)], f"{size} word(s) from '{port}'"
        task = Receive(what, there, color, at, np.arange(size)[None], words, begun=True)
        return self._begin(task, self._reads, nonblock)

    def get_port_id(self, name: str) -> str:
        """The name of a port of a Python layout, once it is known to be one.

        Raises:
            HostError: it is none.
        """
        if name not in self.image.ports:
            there = ", ".join(f"'{port}'" for port in self.image.ports) or "none"
            hint = "" if self.image.ports else "; of a layout file, use get_id and memcpy_h2d"
            raise HostError(f"no stream '{name}' of a Python layout; there are {there}{hint}")
        return name

    def _port(self, name: str, *, to_host: bool) -> HostPort:
        self._check_running()
        port = self.image.ports[self.get_port_id(name)]
        if port.to_host != to_host:
            does = ("takes words from the host: send", "sends words to the host: receive")
            raise HostError(f"'{name}' {does[port.to_host]}(…)")
        return port

    def _send(self, dest: int, src: np.ndarray, region: CopyRegion) -> Task:
        array = flat_words(np.ascontiguousarray(src))
        where = self._places(region, array)
        if not region.options.streaming:
            if region.options.nonblock:
                array = array.copy()  # the caller may reuse its own
            return self._copy(dest, array, region, where, to_host=False)
        self._check_stream(dest, "H2D")
        what = f"the stream of color {dest} to PEs {region.text}"
        task = Send(what, dest, region.rectangle, array[where].reshape(-1, region.items))
        return self._begin(task, self._commands, region.options.nonblock)

    def _copy(
        self,
        symbol: int,
        array: np.ndarray,
        region: CopyRegion,
        where: np.ndarray,
        *,
        to_host: bool,
    ) -> Task:
        name = self._exported(symbol, region)
        if not to_host and not self.image.exports[symbol].mutable:
            warn_host(
                f"the layout exports '{name}' as not mutable; @export_name('{name}', T, true)"
            )
        verb = "from" if to_host else "to"
        task = Copy(
            f"the copy {verb} '{name}' of PEs {region.text}",
            self.image,
            region.rectangle,
            name,
            where,
            region.stride,
            region.options.data_type.bits,
            array,
            to_host,
        )
        return self._begin(task, self._commands, region.options.nonblock)

    def _exported(self, symbol: int, region: CopyRegion) -> str:
        exports = self.image.exports
        if symbol not in range(len(exports)):
            raise HostError(
                f"there is no symbol {symbol!r}: get_id gives 0 to {len(exports) - 1};"
                " a color needs streaming=True"
            )
        export = exports[symbol]
        if argument_types(export.type) is not None:
            raise HostError(f"'{export.name}' is a {export.type}: launch it instead of copying")
        for x, y in region.rectangle.pes():
            tile = self.image.tiles[y, x]
            if tile < 0 or export.name not in self.image.programs[tile].exports:
                raise HostError(f"PE ({x}, {y}) does not export '{export.name}'")
        return export.name

    def _places(self, region: CopyRegion, array: np.ndarray) -> np.ndarray:
        """[height, width, items], once the region and the array are known to fit."""
        self._check_running()
        at, width, height = region.rectangle, region.rectangle.width, region.rectangle.height
        beyond = at.x + width > self.whole.width or at.y + height > self.whole.height
        if min(at.x, at.y) < 0 or beyond:
            raise HostError(
                f"PEs {region.text} are not all inside the program's"
                f" {self.whole.width} x {self.whole.height}"
            )
        where = places(region.options.order, width, height, region.items, region.same_along)
        count = where.max(initial=-1) + 1
        text = f"the host's array has {array.size} item(s); {region.items} for each PE in"
        text += f" {region.text} are {count}"
        if array.size < count:
            raise HostError(text)
        if array.size > count:
            warn_host(f"{text}, and the rest is left; give the items of each PE, or a part")
        return where

    def _check_stream(self, color: int, direction: str) -> None:
        streams = self.image.streams
        if direction not in streams.get(color, ""):
            there = ", ".join(f"{name} = {c}" for c, name in streams.items()) or "none"
            raise HostError(
                f"color {color} is no MEMCPY{direction} stream of this program; there are {there}"
            )

    def read_symbol(
        self, x: int, y: int, name: str, dtype: npt.DTypeLike | None = None
    ) -> np.ndarray:
        """A global of a PE's program, exported or not, as it is now.

        Args:
            x: column of the PE.
            y: row.
            name: of the variable.
            dtype: of its elements; None: that of its type.
        """
        symbol = find_symbol(self.image, x, y, name)
        data = self.machine.read(x, y, symbol.address, symbol.bytes)
        return data.view(dtype or dtype_of(symbol.type) or np.uint8)

    def is_task_done(self, task: Task) -> bool:
        """Whether a ``nonblock`` call has happened; runs nothing."""
        self._advance(quiet=False)
        return task.finished and not (isinstance(task, HostCall) and self._called(task))

    def task_wait(self, task: Task) -> None:
        """Run until a ``nonblock`` call has happened.

        Raises:
            DeadlockError: it cannot happen.
            FaultError: the program did what the machine forbids.
        """
        self._wait(task)

    def stop(self) -> None:
        """Finish what was asked for, let the program settle, and write the log.

        Raises:
            DeadlockError: a copy or a stream that cannot happen; that programs still wait is none.
        """
        try:
            for task in [*self._commands, *self._reads]:
                self._wait(task)
            end = self.machine.cycle + _MOST_CYCLES
            while self.machine.commands_waiting(self.whole) and self.machine.cycle < end:
                if self._run() == Status.QUIET:
                    return
            self._run()
        finally:
            if self._log is not None:
                Path(self._log).write_text(self.printed(), encoding="utf-8")

    def printed(self) -> str:
        """Lines that the program wrote, each with its cycle and the PE's place on the fabric."""
        left, top = self._offsets
        return "".join(
            f"@{line.cycle} P{line.x + left}.{line.y + top}: {line.text}\n"
            for line in self.machine.prints
        )

    def _begin(self, task: Task, waiting: list[Any], nonblock: bool) -> Task:
        waiting.append(task)
        self._advance(quiet=False)
        if not nonblock:
            self._wait(task)
        return task

    def _called(self, call: HostCall) -> bool:
        """Whether the PEs of a call have still to answer it, or one after it."""
        waiting = self.machine.commands_waiting
        return any(waiting(Rectangle(x, y, 1, 1)) for x, y in call.at)

    def _advance(self, *, quiet: bool) -> bool:
        """Do what can be done now; whether anything was."""
        advanced = False
        while self._commands:
            try:
                advanced |= self._commands[0].advance(self.machine, quiet=quiet)
            except HostError:  # it cannot happen: what comes after it still can
                self._commands.pop(0)
                raise
            if not self._commands[0].finished:
                break
            # What a call or a stream sets off may change what the next copy finds.
            quiet = quiet and isinstance(self._commands[0], Copy)
            del self._commands[0]
        held = set[object]()  # streams with an earlier reader
        for read in list(self._reads):
            if read.stream not in held:
                advanced |= read.advance(self.machine, quiet=quiet)
            if read.finished:
                self._reads.remove(read)
            held.add(read.stream)
        return advanced

    def _wait(self, task: Task) -> None:
        end = self.machine.cycle + _MOST_CYCLES
        while not task.finished or (isinstance(task, HostCall) and self._called(task)):
            status = self._run()
            advanced = self._advance(quiet=status == Status.QUIET)
            if status == Status.QUIET and not advanced:
                if task.finished:  # a call; a stream that comes later may help it on
                    return
                raise self._deadlock(task)
            if self.machine.cycle > end:
                where = ""
                with contextlib.suppress(CompileError):  # the JAX machine counts no cycles
                    places = self.machine.profile
                    where = ", most at {}:{}".format(*max(places, key=places.__getitem__))
                raise DeadlockError(
                    f"{task.what} has not happened in {_MOST_CYCLES} cycles, though PEs are busy"
                    f"{where}: does a loop, or a task that activates itself, end?"
                )

    def _run(self) -> int:
        status = self.machine.run(SETTLES)
        if status == Status.FAULT:
            raise FaultError(f"cycle {self.machine.cycle}: {self.machine.fault}")
        return status

    def _deadlock(self, task: Task) -> DeadlockError:
        """Why nothing moves any more."""
        lines = [f"cycle {self.machine.cycle}: nothing can move any more, but the host waits for"]
        lines[0] += f" {task.what}"
        first = self._commands[0] if task in self._commands else task
        if first is not task:
            lines.append(f"the host's commands run in order, and {first.what} comes before it")
        read = first.color if isinstance(first, Receive) else None
        streams = [each for each in self._commands if isinstance(each, Send | Receive)]
        held = {each.color for each in streams if not each.begun}
        waiting, causes = explain(self.image, self.machine.waiting(), read, held)
        lines += causes
        freed = causes and not any(cause.startswith((COMMAND, HELD)) for cause in causes)
        if first.begun:
            lines += first.missing(self.machine)
        elif not freed and self.machine.commands_waiting(self.whole):
            lines.append("the calls before it have not freed the command stream: every exported")
            lines[-1] += " function must lead to unblock_cmd_stream() on its PE"
        shown = [str(each) for each in waiting]
        if len(lines) + len(shown) > _SHOWN:
            more = len(lines) + len(shown) - _SHOWN
            shown = [*shown[: max(1, _SHOWN - len(lines))], f"and {more} more: see .waiting"]
        return DeadlockError("\n  ".join(lines + shown), waiting)
