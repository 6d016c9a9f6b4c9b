"""Names of the vendor's Python API that are not here, with what to use instead."""

import json
import pathlib
from typing import NoReturn

from wafer.models.errors import did_you_mean

# Name below the package -> what to use.
ELSEWHERE: dict[str, str] = json.loads(
    pathlib.Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
)


def explain(module: str, name: str) -> NoReturn:
    """Raise the error of a name that a module of this package lacks.

    Raises:
        ImportError: with what to use instead, where the vendor has the name. (``from ... import``
            would swallow the text of an AttributeError.)
        AttributeError: no release has it.
    """
    below = module.removeprefix("wafer.loop").removeprefix(".")
    full = f"{below}.{name}" if below else name
    if full in ELSEWHERE:
        raise ImportError(f"{full} of cerebras.pytorch is not here: {ELSEWHERE[full]}")
    near = did_you_mean(full, ELSEWHERE)
    raise AttributeError(f"module {module!r} has no attribute {name!r}{near}")
