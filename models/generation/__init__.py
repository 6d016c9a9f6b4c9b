"""Autoregressive generation: greedy, sampled, beams, a draft model."""
