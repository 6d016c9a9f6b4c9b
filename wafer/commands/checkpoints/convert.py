"""``wafer convert``: the verbs of ``models.convert``, with whole params files between releases."""

import argparse
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from wafer.models.convert import cli


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs."""
    cli.add_arguments(parser, rewrite, _computes, _section_of, translate)


def _section_of(cfg: Any) -> dict[str, Any]:
    from wafer.config.loader import section_of

    return section_of(cfg)


def translate(section: dict[str, Any]) -> dict[str, Any]:
    """Return a ``model`` section of any release in our words."""
    from wafer.vendor.runfile import read

    return read({"model": section}).sections["model"]


def _computes(record: dict[str, Any], where: object) -> Callable[[str, Any], Any]:
    from wafer.sparsity.stored.inference import forward_of

    return forward_of(record, where)


def rewrite(
    path: pathlib.Path, name: str, source: str, target: str
) -> tuple[dict[str, Any], list[str]]:
    """Rewrite a params file of one release as another, or `wafer run`, reads it.

    Args:
        path: the file.
        name: of its model.
        source: one of ``FORMATS``.
        target: format; a file for 'wafer' is checked as `wafer run` does.

    Returns:
        (the sections, keys that the target has no place for).

    Raises:
        ConfigError: what cannot be said there, or what `wafer run` refuses.
    """
    from wafer.config import parse_config, unseen_lines
    from wafer.errors import ConfigError, Problem
    from wafer.experiment import Experiment
    from wafer.models.convert.vendor.weights import FORMATS
    from wafer.vendor.releases import convert_file
    from wafer.yamlfile import read_yaml

    raw, _ = read_yaml(path)
    if not isinstance(raw, dict) or not isinstance(raw.get("trainer", raw.get("model")), dict):
        message = "expected a params YAML with a model section, or one trainer"
        raise ConfigError([Problem((), message)], str(path))
    try:
        file, dropped = convert_file(raw, name, FORMATS[source], FORMATS.get(target))
        if target == "wafer" and {"model", "train_input", "optimizer"} <= set(file):
            cfg = parse_config(file)
            for line in unseen_lines(cfg):
                sys.stderr.write(f"{path}: {line}\n")
            if not cfg.unseen:
                Experiment.from_config(cfg)  # what is written, `wafer run` accepts
    except ConfigError as error:
        raise ConfigError(error.problems, str(path)) from error
    return file, dropped
