"""CSL: programs written in the vendor's language for the fabric, read, checked and laid out.

``syntax`` knows the text of one file, whatever it means.
"""

from wafer.csl.syntax.check import check
from wafer.csl.syntax.format import format_text
from wafer.csl.syntax.parser import Parsed, parse, read
from wafer.csl.syntax.source import CslError, Position, Problem, Source

__all__ = [
    "CslError",
    "Parsed",
    "Position",
    "Problem",
    "Source",
    "check",
    "format_text",
    "parse",
    "read",
]
