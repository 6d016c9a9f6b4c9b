"""Tables of results as HTML for notebooks: escaped, without scripts, and short."""

import html
import numbers
import re
from collections.abc import Sequence

from wafer.models.errors import plain

_ROWS, _BYTES, _LETTERS = 50, 24_000, 300  # the most of a table, and of a cell


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a table for ``_repr_html_``, of at most 24 KB.

    Args:
        title: above it.
        heads: of the columns; () for none.
        rows: cells. Of a long table the first and last rows are shown, and a line between them
            says how many are left out.
    """
    most = _ROWS
    while len((text := _table(title, heads, rows, most)).encode()) > _BYTES and most:
        most //= 2
    return text


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]], most: int) -> str:
    hidden, begin = max(len(rows) - most, 0), most - most // 2
    shown = [*rows[:begin], *rows[begin + hidden :]] if hidden else rows
    lines = [f"<tr>{''.join(map(_cell, row))}</tr>" for row in shown]
    if hidden:
        line = f'<tr><td colspan="{max(len(heads), 2)}">… {hidden:,} more rows</td></tr>'
        lines.insert(begin, line)
    if heads:
        lines.insert(0, f"<tr>{''.join(_cell(head, 'th') for head in heads)}</tr>")
    caption = f"<caption><b>{_text(title)}</b></caption>" if title else ""
    return f"<table>{caption}{''.join(lines)}</table>"


def _cell(value: object, tag: str = "td") -> str:
    text = _text(value)  # notebooks align cells to the right, as numbers should be
    style = "" if re.match(r"[-+.]?\d", text) else ' style="text-align:left"'
    return f"<{tag}{style}>{text}</{tag}>"


def _text(value: object) -> str:
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        value = f"{value:,}" if isinstance(value, numbers.Integral) else f"{value:.5g}"
    text = plain(str(value))
    return html.escape(text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…")
