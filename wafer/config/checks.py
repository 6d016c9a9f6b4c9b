"""Checks of the sections that other packages own, joined to the configuration's own report.

They import those packages (and jax) only when called, so ``wafer --help`` stays quick.
"""

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["CHECKS"]


def _model(section: Any) -> object:
    from models.registry import parse_config

    return parse_config(section)


CHECKS: Mapping[str, Callable[[Any], object]] = {"model": _model}
"""For ``wafer.config.load`` and ``parse_config``: section -> function that raises ValueError."""
