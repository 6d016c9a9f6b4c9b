"""Draw the tables of docs/results from the rows in docs/results/data.

    python tests/bench/pages.py

A page has ``<!-- table: NAME -->`` and ``<!-- /table -->`` around what is drawn from
``data/NAME.json``: a column per processor, or, for rows called ``ROW / COLUMN``, one per COLUMN
and a table per processor. ``<!-- table: NAME; error: A / B -->`` adds how far column A is from
column B. In any page ``<!-- row: TABLE/NAME -->`` stands behind a figure that a row holds.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from harness import ANY, DATA, ROOT

PAGES = ROOT / "docs" / "results"
MARK = re.compile(
    r"<!-- table: (?P<name>\w+)(?:; error: (?P<ours>[^/]+?) / (?P<theirs>.+?))? -->\n"
    r".*?<!-- /table -->",
    re.DOTALL,
)
FIGURE = re.compile(r"([\d.,]+)[^\d\n|]*?<!-- row: (\w+)/(.+?) -->")
Row = dict[str, Any]


class Figure(NamedTuple):
    """A number of a page's text, and the row that holds it."""

    text: str
    table: str
    name: str


def rows_of(table: str) -> list[Row]:
    """The rows of ``data/TABLE.json``."""
    return json.loads((DATA / f"{table}.json").read_text(encoding="utf-8"))


def figures(text: str) -> Iterator[Figure]:
    """Numbers that have a row behind them."""
    return itertools.starmap(Figure, FIGURE.findall(text))


def agrees(figure: Figure) -> bool:
    """Whether a row of that name has the number, to the digits that are printed."""
    number = figure.text.strip(".,").replace(",", "")
    digits = len(number.partition(".")[2])
    values = [row["value"] for row in rows_of(figure.table) if row["name"] == figure.name]
    return any(f"{value:.{digits}f}" == number for value in values)


def number(row: Row | None, unit: bool = True) -> str:
    """A row's value, with four digits unless it is a count, and its unit."""
    if row is None:
        return "–"
    value = row["value"]
    if isinstance(value, str):
        return value
    text = f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} {row['unit']}".rstrip() if unit else text


def source(rows: list[Row], processor: str) -> str:
    """What rows of one processor were measured with."""
    parts = []
    for command, group in itertools.groupby(rows, lambda row: row["command"]):
        some = list(group)
        when = sorted({(row["date"], row["commit"]) for row in some})
        loads = sorted({str(row["load"]) for row in some if "load" in row})
        load = f", load {', '.join(loads)}" if loads else ""
        of = "exact counts" if processor == ANY else processor
        commits = ", ".join(f"{commit} ({date})" for date, commit in when)
        parts.append(f"`{command}`: {of}, commit {commits}{load}.")
    return " ".join(dict.fromkeys(parts))


def table_of(head: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def by_processor(rows: list[Row]) -> str:
    """One column per processor, and the target or published figure where a row has one."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    processors = list(dict.fromkeys(row["processor"] for row in rows))
    at = {(row["name"], row["processor"]): row for row in rows}
    more = [word for word in ("published", "target", "note") if any(word in row for row in rows)]
    last = {row["name"]: row for row in rows}
    body = [
        [name, *(number(at.get((name, where))) for where in processors),
         *(str(last[name].get(word, "")) for word in more)]
        for name in names
    ]  # fmt: skip
    sources = [source([r for r in rows if r["processor"] == where], where) for where in processors]
    head = ["", *("" if where == ANY else where for where in processors), *more]
    return f"{table_of(head, body)}\n\n" + "\n".join(sources)


def by_column(rows: list[Row], ours: str | None, theirs: str | None) -> str:
    """One table per processor, with a column for what stands behind the names' last " / "."""
    out = []
    for where in dict.fromkeys(row["processor"] for row in rows):
        some = [row for row in rows if row["processor"] == where]
        at = {tuple(row["name"].rsplit(" / ", 1)): row for row in some}
        names, columns = (list(dict.fromkeys(key[i] for key in at)) for i in (0, 1))
        units = {c: {row["unit"] for key, row in at.items() if key[1] == c} for c in columns}
        same = {c: len(units[c]) == 1 for c in columns}
        head = ["", *(f"{c}, {u}" if same[c] and (u := next(iter(units[c]))) else c
                      for c in columns)]  # fmt: skip
        body = [[name, *(number(at.get((name, c)), not same[c]) for c in columns)]
                for name in names]  # fmt: skip
        if ours and theirs:
            head.append("error")
            for line, name in zip(body, names, strict=True):
                pair = [at[name, c]["value"] for c in (ours, theirs) if (name, c) in at]
                line.append(f"{100 * (pair[0] / pair[1] - 1):+.1f} %" if len(pair) == 2 else "–")
        out.append(f"{table_of(head, body)}\n\n{source(some, where)}")
    return "\n\n".join(out)


def drawn(text: str) -> str:
    """A page with its tables drawn anew."""

    def one(match: re.Match[str]) -> str:
        rows = rows_of(match["name"])
        wide = any(" / " in row["name"] for row in rows)
        table = by_column(rows, match["ours"], match["theirs"]) if wide else by_processor(rows)
        return f"{match[0].splitlines()[0]}\n{table}\n<!-- /table -->"

    return MARK.sub(one, text)


if __name__ == "__main__":
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        page.write_text(drawn(text), encoding="utf-8")
