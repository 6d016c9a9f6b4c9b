"""Numbers for symbolic colors: connected ones get one, those that meet at a router differ."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from wafer.csl.regions.routing import Cell, Sides, step
from wafer.csl.semantics.builtins.routes import SWITCHED_WSE3
from wafer.machine.image import COLORS


class AllocationError(ValueError):
    """A net gets no number.

    Attributes:
        net: which.
    """

    def __init__(self, net: "ColorGroup", message: str) -> None:
        super().__init__(message)
        self.net = net


class ColorGroup(NamedTuple):
    """Colors that connections make one: words keep their color on the way."""

    names: tuple[str, ...]  #: full names of the colors
    value: int | None  #: the number that the script gives it, if it gives one

    @property
    def text(self) -> str:
        """For messages."""
        return " = ".join(f"'{name}'" for name in self.names)


def joined(names: Iterable[str], pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """For each name, the names that pairs join with it, sorted.

    Args:
        names: all.
        pairs: that are to be one.
    """
    groups = {name: {name} for name in names}
    for a, b in pairs:
        group = groups[a] | groups[b]
        groups |= dict.fromkeys(group, group)
    return {name: tuple(sorted(group)) for name, group in groups.items()}


def meetings(
    used: Mapping[Cell, Mapping[ColorGroup, tuple[Sides, ...]]],
) -> dict[ColorGroup, dict[ColorGroup, Cell]]:
    """For each net, those that need another number, and a cell where they meet.

    Two nets meet where both are used, and where one sends into a router that the other uses.

    Args:
        used: cell -> nets, with what its router does with each; () where only the PE names it.
    """
    out = dict[ColorGroup, dict[ColorGroup, Cell]]()
    for cell, nets in used.items():
        for net, positions in nets.items():
            out.setdefault(net, {})
            outputs = {k for sides in positions for k in range(4) if sides.outputs >> k & 1}
            for at in (cell, *(step(cell, side) for side in outputs)):
                for other in used.get(at, ()):
                    if other != net:
                        out[net].setdefault(other, at)
                        out.setdefault(other, {}).setdefault(net, at)
    return out


def allocate(
    meets: Mapping[ColorGroup, Mapping[ColorGroup, Cell]], switched: Iterable[ColorGroup], arch: str
) -> dict[ColorGroup, int]:
    """The number of each net: those that meet most choose first, the lowest that is free.

    Args:
        meets: of ``meetings``.
        switched: nets with switch positions; on WSE-3 only some colors have them.
        arch: 'wse2' or 'wse3'.

    Raises:
        AllocationError: two given numbers clash, or there are not enough colors; in words.
    """
    limited = set(switched) if arch == "wse3" else set()
    out = dict[ColorGroup, int]()
    for net in sorted(meets, key=lambda n: (n.value is None, n not in limited, -len(meets[n]), n)):
        taken = {out[other]: other for other in meets[net] if other in out}
        if net.value in taken:
            other = taken[net.value]
            x, y = meets[net][other]
            raise AllocationError(
                net,
                f"color {net.value} is given to {net.text} and to {other.text}, which meet at PE"
                f" ({x}, {y})",
            )
        possible = sorted(SWITCHED_WSE3) if net in limited else range(COLORS)
        if net.value is not None and net.value not in possible:
            raise AllocationError(
                net,
                f"color {net.value} of {net.text} is none of {', '.join(map(str, possible))}"
                + (", those with switches on WSE-3" if net in limited else ""),
            )
        chosen = next((c for c in possible if c not in taken), None)
        if net.value is None and chosen is None:
            raise AllocationError(
                net,
                f"no color is left for {net.text}: it meets {len(meets[net])} others, and there"
                f" are {len(possible)}" + (" with switches on WSE-3" if net in limited else ""),
            )
        out[net] = chosen if net.value is None else net.value  # type: ignore[assignment]
    return out
