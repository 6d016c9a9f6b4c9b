"""Kernels as, or plus, products of two factors: LoRA, adapters, factorized layers."""
