"""The vendor's first name of its loops: ``import cerebras_pytorch.experimental as cstorch``."""

from wafer.loop import *  # noqa: F403  the same names, whatever they are
from wafer.loop import __all__  # noqa: F401
