"""Preprocessing files to begin with, one for each kind of rows: ``templates/NAME.yaml``."""

import pathlib

from wafer.errors import DataError
from wafer.models.errors import did_you_mean

_FOLDER = pathlib.Path(__file__).with_name("templates")


def template_names() -> dict[str, str]:
    """Return name -> what the file is about, from its first line."""
    files = sorted(_FOLDER.glob("*.yaml"))
    return {file.stem: file.read_text().partition(";")[0].removeprefix("# ") for file in files}


def preprocessing_file(name: str) -> str:
    """Return the YAML of a template; its paths are ``texts``, ``tokenizer`` and ``rows``.

    Args:
        name: of ``template_names``.

    Raises:
        DataError: no such template.
    """
    known = template_names()
    if name not in known:
        hint = did_you_mean(name, known)
        raise DataError(f"{name}: no such template{hint}; known: {', '.join(known)}")
    return (_FOLDER / f"{name}.yaml").read_text()
