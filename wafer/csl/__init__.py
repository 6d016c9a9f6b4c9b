"""CSL: programs written in the vendor's language for the fabric, read, checked and laid out.

``source`` owns places and messages, ``lexer`` words, ``tree`` the syntax tree, ``parser`` the
grammar, ``format`` the one way to lay out a file.
"""

from wafer.csl.format import format_text
from wafer.csl.parser import Parsed, parse, read
from wafer.csl.source import CslError, Position, Problem, Source

__all__ = ["CslError", "Parsed", "Position", "Problem", "Source", "format_text", "parse", "read"]
