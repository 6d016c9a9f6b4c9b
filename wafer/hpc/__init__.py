"""Programs of high-performance computing in CSL, each with a host function and its cycles."""

from wafer.hpc import (
    decoder,
    fft,
    krylov,
    mandelbrot,
    md,
    montecarlo,
    nbody,
    tlr,
    wave,
)
from wafer.hpc.host import counted

__all__ = [
    "counted",
    "decoder",
    "fft",
    "krylov",
    "mandelbrot",
    "md",
    "montecarlo",
    "nbody",
    "tlr",
    "wave",
]
