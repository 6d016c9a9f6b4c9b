"""A matrix of low-rank tiles times a vector, as for seismic imaging (Ltaief et al. 2023)."""

from wafer.hpc.tlr.factors import Factors, compress
from wafer.hpc.tlr.picture import draw
from wafer.hpc.tlr.program import bandwidth, chunks, cycles, run

__all__ = ["Factors", "bandwidth", "chunks", "compress", "cycles", "draw", "run"]
