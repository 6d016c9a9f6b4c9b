"""Coordinates of PEs."""

from wafer.csl.regions import IntRectangle, IntVector

__all__ = ["IntRectangle", "IntVector"]
