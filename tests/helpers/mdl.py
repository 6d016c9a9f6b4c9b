"""Weights of ``.mdl`` files."""

import pathlib

from wafer.vendor.mdl.file import MdlFile
from wafer.vendor.mdl.weights import open_weights


def read_weights(path, model):
    """Parameter path -> array, all of them."""
    with MdlFile(pathlib.Path(path)) as file:
        return dict(open_weights(file, model))
