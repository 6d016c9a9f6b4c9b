"""Programs of high-performance computing in CSL, each with a host function and its cycles."""

from wafer.hpc import decoder, mesh
from wafer.hpc.host import counted

__all__ = [
    "counted",
    "decoder",
    "mesh",
]
