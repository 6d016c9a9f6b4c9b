"""CSL: programs written in the vendor's language for the fabric, read, checked and laid out.

``source`` owns places and messages, ``lexer`` words, ``tree`` the syntax tree, ``parser`` the
grammar, ``check`` what can be said of a file before anything is evaluated, ``format`` the one way
to lay it out.
"""

from wafer.csl.check import check
from wafer.csl.format import format_text
from wafer.csl.parser import Parsed, parse, read
from wafer.csl.source import CslError, Position, Problem, Source

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
