"""Inference of language models on a mesh of PEs: products, sums, a cache, and what they add up to.

The primitives of WaferLLM (He et al., OSDI 2025, arXiv:2502.04563) as CSL programs.
"""

from wafer.hpc.mesh import blocks, gemm, gemv, kvshift, llama, tree

__all__ = ["blocks", "gemm", "gemv", "kvshift", "llama", "tree"]
