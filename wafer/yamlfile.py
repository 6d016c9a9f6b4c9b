"""YAML files of a run by ``wafer.models.user.yamlfile``; what is wrong is a ``ConfigError``."""

from pathlib import Path
from typing import Any

from wafer.errors import errors_of_file
from wafer.models.user import yamlfile


def read_yaml(path: str | Path) -> tuple[Any, yamlfile.Lines]:
    """Parse one YAML document, as there.

    Raises:
        ConfigError: in place of its ``SectionError``.
    """
    with errors_of_file(path):
        return yamlfile.read_yaml(path)
