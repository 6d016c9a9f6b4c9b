"""Problems of a Python layout, at the script's line."""

import sys
from pathlib import Path
from typing import NoReturn

from wafer.csl.syntax.source import CslError, Diagnostic, Position, Source

_HERE = str(Path(__file__).parent)


def script_position() -> Position:
    """The line of the script that called into this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return Position(frame.f_code.co_filename, frame.f_lineno, 1)


def fail(at: Position, message: str, hint: str = "") -> NoReturn:
    """Refuse a layout.

    Args:
        at: line of the script.
        message: what was found and what was expected.
        hint: the likely fix.

    Raises:
        CslError: always.
    """
    source = Source.open(at.file) if Path(at.file).is_file() else None
    raise CslError([Diagnostic(at, message, hint)], source)
