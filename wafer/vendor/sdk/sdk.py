"""The runtime under the names that public programs import."""

from pathlib import Path
from typing import Self

import numpy as np

from wafer.csl.host.artifacts import load, offsets_of, save_cores
from wafer.csl.host.commands import Send, Task
from wafer.csl.host.errors import HostError, check_keywords
from wafer.csl.host.order import MemcpyOrder
from wafer.csl.host.region import MemcpyDataType, flat_words
from wafer.csl.host.runtime import Runtime
from wafer.csl.regions.layout import Platform
from wafer.errors import CompileError
from wafer.machine.costs import uncertainty

__all__ = ["MemcpyDataType", "MemcpyOrder", "SdkRuntime"]


_KEYWORDS = ("suppress_simfab_trace", "simfab_numthreads", "msg_level", "memcpy_required")
_KEYWORDS += ("bindir", "cmaddr")


class SdkRuntime(Runtime):
    """A compiled program and the machine that runs it.

    Args:
        bindir: folder that the program was compiled to.
        cmaddr: address of a system, or a platform; only None and the simulator are here.
        suppress_simfab_trace: whether programs of SDK 0.6 to 0.9 leave no folder ``simfab_traces``.
        simfab_numthreads, msg_level, memcpy_required: of the vendor's
            simulator, without effect.
        simulator: as the class of ``cerebras.sdk.client`` has it.

    Raises:
        HostError: an address, or no simulator.
        CompileError: nothing was compiled to that folder.
        TypeError: another keyword.
    """

    def __init__(
        self,
        bindir: str | Path,
        cmaddr: str | Platform | None = None,
        *,
        suppress_simfab_trace: bool = False,
        simfab_numthreads: int | None = None,
        msg_level: str = "WARNING",
        memcpy_required: bool = True,
        simulator: bool = True,
        **others: object,
    ) -> None:
        check_keywords("SdkRuntime", others, _KEYWORDS)
        if not simulator or (cmaddr and not isinstance(cmaddr, Platform)):
            given = f"cmaddr={cmaddr!r}, simulator={simulator}"
            raise HostError(f"{given}: there is no system here, only the simulator")
        self._folder = Path(bindir).resolve()  # scripts change their working directory
        self._loaded, self._suppressed = False, suppress_simfab_trace
        self._refused = "the program does not run yet; call runner.load() and runner.run() first"
        super().__init__(load(bindir), log="sim.log", offsets=offsets_of(bindir))

    def load(self) -> None:
        """Load the program."""
        self._loaded = True

    def run(self) -> None:
        """Start the program, which runs whenever the host waits for it.

        Raises:
            HostError: it is not loaded.
        """
        if not self._loaded:
            raise HostError("run() of a program that is not loaded; call runner.load() first")
        self._refused = ""

    def dump_core(self, corefile: str | Path) -> None:
        """Keep the PEs' memory as it is now, for ``debug_util`` and in a file.

        Args:
            corefile: an .npz file with, for each program, the memories of its PEs.
        """
        Path(corefile).write_bytes(save_cores(self._folder, self.image, self.machine))

    def stop(self) -> None:
        """As ``Runtime.stop``; keeps the PEs' memory for ``debug_util``."""
        super().stop()
        self._refused = "the program was stopped; call stop() after the last copy or launch"
        with Path("sim.log").open("a", encoding="utf-8") as log:
            log.writelines(f"@{self.cycles} {line}\n" for line in self._closing_lines())
        save_cores(self._folder, self.image, self.machine)
        if any("memcpy_multi" in file for p in self.image.programs for file in p.files):
            self._save_traces()  # which scripts of SDK 0.6 to 0.8 move away

    def _save_traces(self) -> None:
        """Write ``simfab_traces/links.npy``: [rows, columns, ports] words that left each PE."""
        if not self._suppressed:
            Path("simfab_traces").mkdir(exist_ok=True)
            np.save("simfab_traces/links.npy", self.machine.links)

    def memcpy_launch(self, color: int, words: np.ndarray, nonblock: bool = False) -> Task:
        """Send a call to every PE, whose task of the color carries it out; SDK 0.6.

        Args:
            color: LAUNCH of the program.
            words: [n] 32-bit items: the number of parameters, those, the function's number.
            nonblock: return at once.
        """
        self._check_running()
        self._check_stream(color, "H2D")
        rows = np.tile(
            flat_words(np.ascontiguousarray(words)), (self.whole.width * self.whole.height, 1)
        )
        task = Send(f"the call by color {color}", color, self.whole, rows, launches=True)
        return self._begin(task, self._commands, nonblock)

    def _closing_lines(self) -> list[str]:
        """What the run took, as far as the machine counts it."""
        try:
            share, counts = self.machine.scalar_share, self.counts
        except CompileError as error:
            return [f"end; {error}"]
        return [
            f"end; {share:.0%} of the PEs' cycles are scalar instructions:"
            f" the count of cycles may be {uncertainty(share):.0%} off",
            f"timing: {self.image.timing}",
            f"energy {self.energy().total / 1e6:.3g} uJ, {counts.flops} flops, by constants of"
            " other chips",
        ]

    def __enter__(self) -> Self:
        self.load()
        self.run()
        return self

    def __exit__(self, kind: type | None, *error: object) -> None:
        if kind is None:
            self.stop()
