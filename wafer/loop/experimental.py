"""The vendor's first name of its loops: ``import cerebras_pytorch.experimental as cstorch``."""

from typing import Any

from wafer.loop import *  # noqa: F403  the same names, whatever they are
from wafer.loop import __all__  # noqa: F401
from wafer.loop.elsewhere import explain


def __getattr__(name: str) -> Any:
    """Say what to use for a name of the vendor's that is not here."""
    explain(__name__, name)
