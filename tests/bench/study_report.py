"""The report of the study: rows of finished runs join its tables; the page and figures follow.

    python tests/bench/study_report.py [--folder runs/study runs/law ...]

With ``--folder`` the ``runs.csv`` and ``tuning.csv`` of sweeps (``wafer sweep ... --tables`` writes
them) join ``docs/results/study``. Then the tables between the marks of
``docs/results/sparsity-study.md``, the table of notebook 02 and the figures are drawn from these
CSVs alone.
"""

import argparse
import math
import pathlib
import re
import statistics
from collections.abc import Mapping, Sequence

import nbformat
from nbformat import NotebookNode
from study_claims import CLAIMS, RULERS, values_by, verdict, verdicts
from study_figures import draw_all
from study_rows import (
    HERE,
    RAW,
    Plan,
    merge_rows,
    of_arms,
    plans,
    read_known_rows,
    read_seconds,
)

from wafer.sweeps.grid import search
from wafer.sweeps.law import Law, fit_levels
from wafer.sweeps.table import PairedArms, TrialResult, paired

PAGE, PICTURES = HERE / "docs/results/sparsity-study.md", HERE / "docs/pictures"
NOTEBOOK = HERE / "notebooks/02_sparse_against_dense.ipynb"
SHORT = ("dense", "static80", "static90", "static95", "set80", "rigl80", "gmp80", "wide92")
SECONDS_A_RUN = 9  # of 300 steps, two at a time on two idle cores
LAW_RUNS = 25


def table(heads: str, lines: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table; "Not yet run." without lines."""
    rule = "|---" * (heads.count("|") + 1) + "|"
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([f"| {heads} |", rule, *rows]) if rows else "Not yet run."


def signed(one: PairedArms | None) -> str:
    """Write a paired difference with its standard error."""
    if one is None or one.error is None:
        return ""
    return f"{one.difference:+.4f} ± {one.error:.4f}"


def plan_table(every: Sequence[Plan], runs: Sequence[TrialResult]) -> str:
    """Runs of each sweep: finished, planned, and the hours that the rest takes."""
    done = {(row.arm, row.seed) for row in runs}
    lines, left = [], 0.0
    for plan in every:
        final = [(arm, seed) for arm in plan.steps for seed in plan.seeds]
        rest = [plan.steps[arm] for arm, seed in final if (arm, seed) not in done]
        tuning = [plan.steps[arm] * max(0, n - plan.tuned[arm]) for arm, n in plan.tuning.items()]
        hours = (sum(rest) + sum(tuning)) / 300 * SECONDS_A_RUN / 3600
        left += hours
        cells = (len(plan.steps), sum(plan.tuned.values()), sum(plan.tuning.values()))
        cells = (*cells, len(final) - len(rest), len(final), f"{hours:.1f}")
        lines.append((plan.name, *map(str, cells)))
    lines.append(("all", "", "", "", "", "", f"{left:.1f}"))
    heads = "sweep | arms | tuning runs finished | planned | final runs finished | planned | "
    return table(f"{heads}hours left", lines)


def tuning_table(every: Sequence[Plan], rows: Sequence[TrialResult]) -> str:
    """What tuning tried and chose for each arm, on its seed."""
    reached = {row.arm: row.metric for row in rows}
    lines = []
    for plan in every:
        for arm, grid in plan.grids.items():
            value = lambda point, arm=arm, grid=grid: reached.get(f"{arm}@{grid.name(point)}")
            tried, left = search(grid.counts, value)
            if tried:
                best = min(tried, key=tried.__getitem__)
                own = [name for name in reached if name.startswith(f"{arm}@")]
                cells = (f"{tried[best]:.4f}", grid.name(best).replace("x", " × "), str(len(own)))
                lines.append((arm, *cells, "no" if left else "yes"))
    heads = "arm | bits per byte | multiples of rate and scale | tuning runs | tuning ended"
    return table(heads, lines)


def arm_table(
    runs: Sequence[TrialResult],
    tuning: Sequence[TrialResult],
    seconds: Mapping[str, float],
    short: Sequence[str] = (),
) -> str:
    """Every arm: bits over seeds, gaps to dense by each ruler, and what it costs.

    Args:
        runs: final ones.
        tuning: rows of it.
        seconds: arm -> of its training.
        short: arms of a table of bits and gaps alone.
    """
    by_ruler = {ruler: values_by(ruler, runs, seconds) for ruler in RULERS}
    by_arm = {row.arm: row for row in runs}
    dense = by_arm.get("dense")
    lines = []
    for arm, own in by_ruler["steps"].items():
        row = by_arm[arm]
        spread = f"{statistics.stdev(own.values()):.4f}" if len(own) > 1 else ""
        gaps = []
        for values in by_ruler.values():
            both = values.get(arm, {}), values.get("dense", {})
            gaps.append("" if arm == "dense" else signed(paired(arm, "dense", *both)))
        share = f"{row.training / dense.training:.2f}" if dense else ""
        time = f"{seconds[arm] / seconds['dense']:.2f}" if {arm, "dense"} <= seconds.keys() else ""
        count = sum(one.arm.startswith(f"{arm}@") for one in tuning)
        mean = f"{statistics.fmean(own.values()):.4f}"
        line = (arm, mean, *gaps)
        if not short:
            line = (
                arm,
                str(len(own)),
                str(count),
                mean,
                spread,
                *gaps,
                f"{row.kept:,}",
                share,
                time,
            )
        lines.append(line)
    gaps = "to dense at equal steps | at equal FLOPs | at equal seconds"
    if short:
        chosen = [line for arm in short for line in lines if line[0] == arm]
        return table(f"arm | bits per byte | {gaps}", chosen)
    heads = "arm | seeds | tuning runs | bits per byte | standard deviation | "
    return table(f"{heads}{gaps} | weights kept | FLOPs / dense | seconds / dense", lines)


def ordering_table(tested: Sequence[PairedArms]) -> str:
    """Published orderings by one ruler."""
    lines = []
    for claim, one in zip(CLAIMS, tested, strict=True):
        chance = "" if one.p is None else f"{one.p:.2g}"
        lines.append((claim.text, claim.difference, signed(one), chance, verdict(one)))
    return table("claim | difference of | bits per byte | p by Holm | verdict", lines)


def law_table(law: Law | None) -> str:
    """Constants with intervals, and the range."""
    if law is None:
        return "Not yet run."
    shown = lambda value: f"{value:.3g}" if value > 1e-6 else "0"
    lines = [
        (name, shown(value), f"{shown(law.low[name])} to {shown(law.high[name])}")
        for name, value in law.constants.items()
    ]
    text = table("constant | value | 95 % interval", lines)
    spans = [f"{a:,.0f} to {b:,.0f}" for a, b in (law.parameters, law.tokens)]
    return (
        f"{text}\n\n{law.runs} runs of {spans[0]} weights and {spans[1]} tokens; the worst of "
        + (f"them is {law.worst:.2%} off.")
    )


def test_table(law: Law | None, rows: Sequence[TrialResult]) -> str:
    """Runs that the fit has not seen, and by how much it misses them."""
    if law is None:
        return "Not yet run."
    lines = []
    for row in rows:
        fit = law(row.parameters, row.tokens, row.kept / row.parameters)
        off = f"{math.log(row.metric / fit):+.2%}"
        lines.append(
            (row.arm, f"{row.kept:,}", f"{row.tokens:,}", f"{row.metric:.4f}", f"{fit:.4f}", off)
        )
    return table("run | weights kept | tokens | bits per byte | predicted | missed by", lines)


def start_table(runs: Sequence[TrialResult]) -> str:
    """Dense, static, and dense from static's first weights."""
    values = values_by("steps", runs, {})
    names = ("dense", "static80", "dense-from-static80")
    lines = []
    for arm in names:
        own = values.get(arm, {})
        if own and "dense" in values:
            one = paired(arm, "dense", own, values["dense"])
            gap = "" if arm == "dense" else signed(one)
            lines.append((arm, str(len(own)), f"{statistics.fmean(own.values()):.4f}", gap))
    return table(
        "arm | seeds | bits per byte | to dense", lines if len(lines) == len(names) else []
    )


def filled(page: str, law: Law | None, folder: pathlib.Path = RAW) -> str:
    """Put the tables between the marks of the page.

    Args:
        page: text of the page.
        law: the fit of the law's runs; None where they are not finished.
        folder: with ``runs.csv``, ``tuning.csv``, ``seconds.csv`` and the sweep files.
    """
    runs, tuning = read_known_rows(folder)
    seconds, machine = read_seconds(folder)
    every = plans(folder, tuning)
    final = of_arms(runs)
    tested = verdicts(final, seconds)
    parts = {
        "plan": plan_table(every, runs),
        "tuning": tuning_table(every, tuning),
        "arms": arm_table(final, tuning, seconds),
        **{ruler: ordering_table(tested[ruler]) for ruler in RULERS},
        "machine": machine or "Not yet measured.",
        "law": law_table(law),
        "test": test_table(law, [row for row in runs if row.arm.startswith("test-")]),
        "start": start_table(runs),
    }
    return _put(page, parts)


def filled_notebook(notebook: NotebookNode, folder: pathlib.Path = RAW) -> NotebookNode:
    """Put the table of a few arms between the marks of a notebook's last cell.

    Args:
        notebook: changed in place.
        folder: as ``filled`` takes it.
    """
    short = arm_table(of_arms(read_known_rows(folder)[0]), [], read_seconds(folder)[0], SHORT)
    notebook.cells[-1].source = _put(notebook.cells[-1].source, {"short": short})
    return notebook


def _put(page: str, parts: Mapping[str, str]) -> str:
    for name, text in parts.items():
        marks = rf"(<!-- {name}: study_report.py -->\n).*?(<!-- end -->)"
        put = lambda match, text=text: f"{match[1]}\n{text}\n\n{match[2]}"
        page, count = re.subn(marks, put, page, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{count} places for {name!r}; expected one")
    return page


def law_of(runs: Sequence[TrialResult], draws: int = 200) -> Law | None:
    """Fit the law's runs, once there are enough."""
    rows = [row for row in runs if row.arm.startswith("law-")]
    return fit_levels(rows, draws) if len(rows) >= LAW_RUNS else None


def main() -> None:
    """Collect, then write tables and figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, nargs="+", default=[], help="of sweeps")
    args = parser.parse_args()
    for folder in args.folder:
        for name, rows in zip(("runs", "tuning"), read_known_rows(folder), strict=True):
            merge_rows(name, rows)
    runs, _ = read_known_rows(RAW)
    law = law_of(runs)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), law), encoding="utf-8")
    nbformat.write(filled_notebook(nbformat.read(NOTEBOOK, as_version=4)), NOTEBOOK)
    draw_all(runs, read_seconds(RAW)[0], law, PICTURES)


if __name__ == "__main__":
    main()
