"""Programs of high-performance computing in CSL, each with a host function and its cycles."""

from wafer.hpc import life, mandelbrot

__all__ = ["life", "mandelbrot"]
