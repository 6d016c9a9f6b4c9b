"""The vendor's first name of its loops: ``import cerebras_pytorch.experimental as cstorch``."""

import functools

from wafer.loop import *  # noqa: F403  the same names, whatever they are
from wafer.loop import __all__  # noqa: F401
from wafer.loop.elsewhere import explain

__getattr__ = functools.partial(explain, __name__)
