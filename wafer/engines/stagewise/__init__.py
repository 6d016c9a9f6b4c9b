"""Engines that hold one stage of the model at a time."""
