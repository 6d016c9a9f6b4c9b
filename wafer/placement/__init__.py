"""Rectangles on the wafer: the placement contest and its solver."""
