"""Prints rows as text, in color on a terminal: ``wafer data show``."""

import sys
from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text
from tokenizers import Tokenizer

from wafer.data.rowfiles.show import Passage, ShownRow, passages, runs, values_line
from wafer.models.errors import plain

_STYLES = {"loss": "green", "no loss": "", "padding": "dim", "image": "magenta"}


def print_rows(rows: Iterable[ShownRow], tokenizer: Tokenizer | None) -> int:
    """Print rows: a line for each stretch of tokens of one kind; return how many there were.

    Args:
        rows: to print.
        tokenizer: ``tokenizers.Tokenizer``, or None for numbers.
    """
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007
        texts, others = passages(row)
        kinds = Counter(kind for text in texts for kind in text.kinds)
        counts = ", ".join(f"{number:,} {kind}" for kind, number in kinds.items())
        console.print(Text(f"{plain(row.where)}: {counts or 'no tokens'}", "bold"), soft_wrap=True)
        if row.problem:
            console.print(Text(f"  cannot be trained on: {row.problem}", "red"), soft_wrap=True)
        for text in texts:
            _print_text(console, text, tokenizer)
        for name in others:
            console.print(f"  {values_line(name, row.values[name])}", soft_wrap=True)
    return count


def _print_text(console: Console, text: Passage, tokenizer: Tokenizer | None) -> None:
    if text.name and set(text.kinds) != {"padding"}:
        console.print(f"  {text.name}", style="bold", soft_wrap=True)
    for kind, tokens, words in runs(text, tokenizer):
        body = words.replace("\n", "\n          | ") if words else f"{tokens:,} tokens"
        line = Text.assemble((f"  {kind:<8}| ", "dim"), (body, _STYLES[kind]))
        console.print(line, soft_wrap=True)
