"""Energy of a run: counts of what was done, times picojoules for each.

Counts are of the simulated machine and exact. Picojoules are of other chips of a like process, from
public sources; no figure of the wafer itself is public. Docs: docs/guides/energy.md.
"""

from collections.abc import Iterable
from typing import NamedTuple, Self

_WATTS = "; at {gigahertz} GHz {watts:.3g} W, {milliwatts:.3g} mW for each of {pes:,} PEs"


class Counts(NamedTuple):
    """What all PEs have done together."""

    #: adds16, adds32: sums, differences and larger ones of floats, by bits of the result
    adds16: int = 0
    adds32: int = 0
    #: multiplies16, multiplies32: products and quotients of floats, by bits of the factors
    multiplies16: int = 0
    multiplies32: int = 0
    integers: int = 0  #: steps of 16 bits on integers; conversions, too
    #: cycles of scalar code and of the issue of operations, an instruction each
    instructions: int = 0
    #: reads, writes: 16-bit words of the memory, by loads, stores, operations and FIFOs
    reads: int = 0
    writes: int = 0
    hops: int = 0  #: wavelets over a link from one PE to the next

    def plus(self, other: Self) -> "Counts":
        """Both together."""
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    def less(self, before: Self) -> "Counts":
        """What came after an earlier count of the same machine."""
        return Counts(*(a - b for a, b in zip(self, before, strict=True)))

    @property
    def flops(self) -> int:
        """Operations on floats."""
        return self.adds16 + self.adds32 + self.multiplies16 + self.multiplies32


class Picojoules(NamedTuple):
    """Energy of one of each kind in ``Counts``, in pJ.

    cycle is of each PE in each cycle, busy or not (clock, leakage); no public figure: 0.
    """

    adds16: float
    adds32: float
    multiplies16: float
    multiplies32: float
    integers: float
    instructions: float
    reads: float
    writes: float
    hops: float
    cycle: float = 0.0


# 48 KB in 8 banks of the memory are 6 KB each: the tables' 8 KB, 64 bits at a time, for 16 bits
# a quarter. An instruction is one fetch of 64 bits. A hop is 37 bits (word and color) over the
# distance of two PEs, 0.233 mm (46,225 mm2 for 850,000), at 0.1 pJ per bit and mm: Dally, Turakhia
# and Han, "Domain-specific hardware accelerators", CACM 2020, second hand.
_HOP = 37 * 0.233 * 0.1
# Horowitz, "Computing's energy problem (and what we can do about it)", ISSCC 2014: 45 nm, 0.9 V.
HOROWITZ_45NM = Picojoules(0.4, 0.9, 1.1, 3.7, 0.05, 10.0, 2.5, 2.5, _HOP)
# Jouppi et al., "Ten lessons from three generations shaped Google's TPUv4i", ISCA 2021, table 2:
# the same table at 7 nm. Second hand: the paper itself was not at hand.
SEVEN_NM = Picojoules(0.16, 0.38, 0.34, 1.31, 0.015, 7.5, 1.875, 1.875, _HOP)


class Energy(NamedTuple):
    """Energy in pJ, by what it went into."""

    arithmetic: float  #: on floats and integers
    instructions: float  #: fetched
    memory: float  #: reads and writes
    fabric: float  #: hops
    cycles: float  #: of all PEs, whatever they did

    @property
    def total(self) -> float:
        """All of it, in pJ."""
        return sum(self)


def energy_of(counts: Counts, each: Picojoules = SEVEN_NM, *, pe_cycles: int = 0) -> Energy:
    """What was done, in pJ.

    Args:
        counts: of a run.
        each: energy of one of each; ``SEVEN_NM._replace(hops=2.0)`` replaces one.
        pe_cycles: cycles times PEs, for ``each.cycle``.
    """
    spent = Counts._make(n * pj for n, pj in zip(counts, each, strict=False))
    return Energy(
        arithmetic=sum(spent[: Counts._fields.index("instructions")]),
        instructions=spent.instructions,
        memory=spent.reads + spent.writes,
        fabric=spent.hops,
        cycles=pe_cycles * each.cycle,
    )


def report(
    counts: Counts,
    *,
    cycles: int,
    pes: int,
    each: Picojoules = SEVEN_NM,
    gigahertz: float = 0.85,
) -> str:
    """The account as a table with its sum and power.

    Args:
        counts: of a run.
        cycles: of the run.
        pes: with a program.
        each: as in ``energy_of``.
        gigahertz: of the clock.
    """
    spent = energy_of(counts, each, pe_cycles=cycles * pes)
    rows = [*zip(Counts._fields, counts, each, strict=False)]
    if each.cycle:
        rows.append(("pe_cycles", cycles * pes, each.cycle))
    picojoules = spent.total / max(1, cycles)  # a cycle
    text = _table(rows, spent.total)
    power = {"watts": picojoules * gigahertz / 1000, "milliwatts": 0.0}
    power["milliwatts"] = power["watts"] * 1000 / max(1, pes)
    return (
        f"{text}{picojoules:.3g} pJ a cycle"
        + _WATTS.format(gigahertz=gigahertz, pes=pes, **power)
        + "\n"
    )


def _table(rows: Iterable[tuple[str, int, float]], total: float) -> str:
    out = [f"{'':12} {'count':>16} {'pJ each':>8} {'nJ':>12}  share"]
    for name, count, each in rows:
        share = count * each / total if total else 0.0
        out.append(
            f"{name:12} {count:>16,} {each:>8.3f} {count * each / 1000:>12,.3f}  {share:>5.1%}"
        )
    out.append(f"{'total':12} {'':>16} {'':>8} {total / 1000:>12,.3f}")
    return "\n".join(out) + "\n"
