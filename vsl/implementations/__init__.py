"""Implementations of attention, and the scores and intervals they share."""
