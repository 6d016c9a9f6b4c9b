"""Matplotlib figures made without pyplot that notebooks show as pictures."""

import functools
import io
from typing import TYPE_CHECKING, Any

from wafer.models.errors import optional

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(**options: Any) -> "Figure":
    """Return an empty figure that Jupyter, VS Code and nbconvert show as a picture.

    It needs no pyplot: no backend is chosen, and no figure stays in memory.

    Args:
        options: of matplotlib's ``Figure``.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    figure = optional("matplotlib.figure", "drawing").Figure(**options)
    figure._repr_png_ = functools.partial(_png, figure)  # IPython asks for it; it can be pickled
    return figure


def _png(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
