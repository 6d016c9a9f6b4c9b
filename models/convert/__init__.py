"""Checkpoints of other libraries: key tables per family, one engine, files, commands."""

from models.convert.api import config_from_hf, config_to_hf, from_hf, to_hf

__all__ = ["config_from_hf", "config_to_hf", "from_hf", "to_hf"]
