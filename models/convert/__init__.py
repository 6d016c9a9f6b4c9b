"""Checkpoints of other libraries: key tables per family, one engine, files, commands."""

from wafer.models.convert.api import config_from_hf, config_to_hf, from_hf, register, to_hf
from wafer.models.convert.config_map import ConfigMap, read_rope, write_rope
from wafer.models.convert.engine import embedding, fused, linear, norm
from wafer.models.convert.tables.decoder_tables import decoder_table

__all__ = [
    "ConfigMap",
    "config_from_hf",
    "config_to_hf",
    "decoder_table",
    "embedding",
    "from_hf",
    "fused",
    "linear",
    "norm",
    "read_rope",
    "register",
    "to_hf",
    "write_rope",
]
