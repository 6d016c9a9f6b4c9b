"""CSL: programs written in the vendor's language for the fabric, compiled and run here, unchanged.

``syntax`` knows the text of one file, ``semantics`` what a program says and the code that comes of
it, ``regions`` lays programs out from Python, ``library`` holds the system modules, ``host`` is
the vendor's runtime, ``examples`` (the folder ``EXAMPLES``) are programs with host scripts;
``trace`` draws what a run did when. ``wafer.machine`` executes programs.
"""

from wafer.csl import trace
from wafer.csl.host.errors import DeadlockError, FaultError, HostError
from wafer.csl.host.runtime import Runtime
from wafer.csl.host.tools.examples import EXAMPLES
from wafer.csl.semantics.compile import compile_layout as compile
from wafer.csl.syntax.check import check
from wafer.csl.syntax.format import format_text
from wafer.csl.syntax.parser import Parsed, parse, read
from wafer.csl.syntax.source import CslError, CslWarning, Diagnostic, Position, Source
from wafer.machine.base import Rectangle, Status
from wafer.machine.engine import Machine
from wafer.machine.image import Image
from wafer.machine.tools.recording import Recording, Trace

__all__ = [
    "EXAMPLES",
    "CslError",
    "CslWarning",
    "DeadlockError",
    "Diagnostic",
    "FaultError",
    "HostError",
    "Image",
    "Machine",
    "Parsed",
    "Position",
    "Recording",
    "Rectangle",
    "Runtime",
    "Source",
    "Status",
    "Trace",
    "check",
    "compile",
    "format_text",
    "parse",
    "read",
    "trace",
]
