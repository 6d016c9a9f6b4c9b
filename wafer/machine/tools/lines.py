"""Where a run's cycles went, by source line."""

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Line", "profile_of", "profile_text"]

_LIBRARY = Path(__file__).parents[2] / "csl" / "library"


class Line(NamedTuple):
    """What one source line took."""

    file: str  #: as the compiler named it; of a ``Layout``, the operation
    line: int  #: from 1 on; 0 of a ``Layout``
    cycles: int  #: of all PEs together: of instructions, and of the steps of operations
    share: float  #: of all lines' cycles
    text: str  #: of the line, or the operation; '' if the file is not there any more


@functools.lru_cache(maxsize=64)
def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def profile_of(cycles: Mapping[tuple[str, int], int]) -> list[Line]:
    """The lines that took any cycles, most first.

    Args:
        cycles: by file and line, as ``Machine.profile`` gives them.
    """
    total = max(1, sum(cycles.values()))
    rows = sorted(cycles.items(), key=lambda row: (-row[1], row[0]))
    text = lambda file, line: "".join(_lines(file)[line - 1 : line]).strip() if line else file
    return [
        Line(file, line, count, count / total, text(file, line))
        for (file, line), count in rows
        if count
    ]


def _place(row: Line) -> str:
    """File and line as a reader looks for them: from here on, or as the name of a system module.

    Nothing for an operation of a ``Layout``, which is the row's text.
    """
    if not row.line:
        return ""
    path = Path(row.file)
    if path.is_relative_to(_LIBRARY):
        name = str(path.relative_to(_LIBRARY).with_suffix("")).removeprefix("values/")
        return f"<{name}>:{row.line}"
    here = path.resolve().is_relative_to(Path.cwd())
    return f"{os.path.relpath(path) if here else path}:{row.line}"


def profile_text(profile: Sequence[Line], most: int = 30) -> str:
    """A profile as a table.

    Args:
        profile: of ``profile_of``.
        most: rows; the rest is one row.
    """
    shown = list(profile[:most])
    places = [_place(row) for row in shown]
    width = max([len(place) for place in places], default=0)
    out = [f"{'cycles':>12}  share  {'line':<{width}}  source"]
    for place, row in zip(places, shown, strict=True):
        out.append(f"{row.cycles:>12}  {row.share:>5.1%}  {place:<{width}}  {row.text}".rstrip())
    if rest := profile[most:]:
        cycles, share = sum(row.cycles for row in rest), sum(row.share for row in rest)
        out.append(f"{cycles:>12}  {share:>5.1%}  in {len(rest)} more lines")
    return "\n".join(out) + "\n"
