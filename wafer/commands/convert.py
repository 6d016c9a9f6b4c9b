"""``wafer convert``: the verbs of ``models.convert``, with whole params files between releases."""

import argparse
import pathlib
from collections.abc import Callable
from typing import Any

from models.convert import cli

__all__ = ["add_arguments"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs."""
    cli.add_arguments(parser, _between, _computes)


def _computes(record: dict[str, Any], where: object) -> Callable[[str, Any], Any]:
    from sparsity.inference import forward_of

    return forward_of(record, where)


def _between(
    path: pathlib.Path, name: str, source: str, target: str
) -> tuple[dict[str, Any], list[str]]:
    from models.convert.vendor.weights import FORMATS
    from wafer.config.releases import convert_file
    from wafer.errors import ConfigError, Problem
    from wafer.yamlfile import read_yaml

    raw, _ = read_yaml(path)
    if not isinstance(raw, dict) or not isinstance(raw.get("trainer", raw.get("model")), dict):
        message = "expected a params YAML with a model section, or one trainer"
        raise ConfigError([Problem((), message)], str(path))
    try:
        return convert_file(raw, name, FORMATS[source], FORMATS.get(target))
    except ConfigError as error:
        raise ConfigError(error.problems, str(path)) from error
