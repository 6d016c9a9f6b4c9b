"""The report of the study: raw numbers out of its folder, tables and pictures out of the numbers.

    python tests/bench/study_report.py [--folder runs/study]

With ``--folder`` the runs that are finished there join ``docs/results/study/STAGE.csv``, and the
sweep files of the last stages are copied. Then the tables between the marks of
``docs/results/sparsity-study.md`` and its pictures are drawn from these CSVs alone.
"""

import argparse
import pathlib
import re
import statistics
from typing import NamedTuple

import yaml
from study import HERE, METRIC, RAW, TUNING, arms, read_raw, write_raw

from wafer.sweeps.costs import costs_of
from wafer.sweeps.files import read_sweep
from wafer.sweeps.law import Law, fit_groups
from wafer.sweeps.pictures import draw_law
from wafer.sweeps.table import Summary, TrialResult, summaries
from wafer.sweeps.trials import trials_of

PAGE, PICTURES = HERE / "docs/results/sparsity-study.md", HERE / "docs/pictures"
STAGES = ("rate", "scale", "further", "final", "tune", "tuned", "law")
FILES = ("final", "tuned-1", "tuned-2", "tuned-3", "law")  # of the others the driver writes names
AFTER = ("spdf50", "spdf75")
LAW_RUNS = 14


class Ordering(NamedTuple):
    """A published ordering: the first arm has fewer bits than the second."""

    claim: str
    better: str
    than: str


ORDERINGS = (
    *(
        Ordering(f"Sparse-IFT (Saxena et al. 2023): wide, {what}, beats dense", f"l-wide{n}", than)
        for n, than, what in (
            (75, "l-dense", "75 % (FLOPs of the kernels equal)"),
            (92, "l-dense", "92 % (all FLOPs equal)"),
        )
    ),
    *(
        Ordering(
            f"ERK beats uniform (Evci et al. 2020), {size} {n} %", f"{s}-erk{n}", f"{s}-static{n}"
        )
        for s, size, n in (("l", "large", 80), ("l", "large", 90), ("s", "small", 80))
    ),
    *(
        Ordering(f"{who}, {size} {n} %", f"{s}-{m}{n}", f"{s}-static{n}")
        for m, who in (
            ("rigl", "RigL beats static, trained long enough (Evci et al. 2020)"),
            ("set", "SET beats static (Mocanu et al. 2018)"),
            ("gmp", "GMP beats static (Zhu & Gupta 2017)"),
            ("acdc", "AC/DC beats static (Peste et al. 2021)"),
        )
        for s, size, n in (("l", "large", 80), ("l", "large", 90), ("s", "small", 80))
    ),
    *(
        Ordering(f"RigL beats SET (Evci et al. 2020), {size} {n} %", f"{s}-rigl{n}", f"{s}-set{n}")
        for s, size, n in (("l", "large", 80), ("l", "large", 90), ("s", "small", 80))
    ),
    *(
        Ordering(
            f"static {n} % beats dense stopped at equal FLOPs", f"l-static{n}", f"l-dense-f{n}"
        )
        for n in (80, 90)
    ),
    Ordering(
        "large, 80 % sparse, beats the dense model of half the width", "l-static80", "s-dense"
    ),
)


class Tuned(NamedTuple):
    """The best pair of an arm, on the tuning seed.

    bits: reached
    rate, scale: of learning, of the first weights
    edge: which of both lies at the edge of what was tried
    """

    bits: float
    rate: float
    scale: float
    edge: str


def collect(folder: pathlib.Path) -> None:
    """Add what is finished in the study's folder to the raw numbers."""
    for file in sorted(folder.glob("*/sweep.yaml")):
        stage, sweep = file.parent.name, read_sweep(file)
        rows = {(row.arm, row.seed): row for row in read_raw(stage)}
        for trial in trials_of(sweep.arms, sweep.seeds, file.parent):
            result = trial.result()
            if result is None or (trial.arm.name, trial.seed) in rows:
                continue
            costs = costs_of(trial.arm.experiment, trial.arm.steps, result.levels)
            group = trial.arm.group or ("dense" if costs.kept == costs.parameters else "sparse")
            bits = result.metrics[METRIC]
            row = TrialResult(
                trial.arm.name, group, trial.seed, bits, *costs, seconds=result.seconds
            )
            rows[row.arm, row.seed] = row
        write_raw(stage, list(rows.values()))
        if stage in FILES:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
            content["base"] = "../../../models/configs/gpt_pystdlib.yaml"
            text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=400)
            (RAW / f"{stage}.yaml").write_text(text, encoding="utf-8")


def table(heads: str, lines: list[str]) -> str:
    """Write a Markdown table."""
    return "\n".join([f"| {heads} |", "|---" * (heads.count("|") + 1) + "|", *lines])


def between(rows: list[TrialResult], arm: str, first: str) -> Summary | None:
    """Compare two arms over the seeds that both have."""
    own = [row for row in rows if row.arm in (arm, first)]
    return next((s for s in summaries(own, first) if s.arm == arm and s.pairs > 1), None)


def signed(one: Summary | None) -> str:
    """A paired difference with its standard error."""
    if one is None or one.difference is None:
        return "not yet run"
    return f"{one.difference:+.4f} ± {one.error:.4f}"


def verdict(one: Summary | None) -> str:
    """agree where the difference is below 0 at 5 %, of this pair alone."""
    if one is None or one.difference is None:
        return "not yet run"
    return "not resolved" if not one.resolved else "agree" if one.difference < 0 else "**disagree**"


def tuned(stages: list[str]) -> dict[str, Tuned]:
    """Find the best pair of every arm."""
    tried: dict[str, list[tuple[float, float, float]]] = {}
    for row in (row for stage in stages for row in read_raw(stage) if row.seed == TUNING):
        arm, rate, scale = row.arm.rsplit("_", 2)
        tried.setdefault(arm, []).append((row.metric, float(rate), float(scale)))
    best = {}
    for arm, runs in tried.items():
        bits, rate, scale = min(runs)
        rates, scales = {r for _, r, _ in runs}, {s for _, r, s in runs if r == rate}
        edges = [
            name
            for name, value, values in (("rate", rate, rates), ("scale", scale, scales))
            if value in (min(values), max(values))
        ]
        best[arm] = Tuned(bits, rate, scale, ", ".join(edges))
    return best


def arm_table(rows: list[TrialResult], best: dict[str, Tuned]) -> str:
    """Every arm: bits over seeds, what it costs, its tuned pair."""
    lines, by_arm = [], {row.arm: row for row in rows}
    whole = {row.arm[0]: row.training for row in rows if row.arm.endswith("-dense")}
    for one in summaries(sorted(rows, key=lambda row: list(arms()).index(row.arm)), ""):
        row, (_, rate, scale, edge) = by_arm[one.arm], best[one.arm]
        first = f"{one.arm[0]}-dense"
        spread = "" if one.deviation is None else f"{one.deviation:.4f}"
        share = f"{row.training / whole[one.arm[0]]:.2f}" if one.arm[0] in whole else ""
        difference = "" if one.arm == first else signed(between(rows, one.arm, first))
        lines.append(
            f"| {one.arm} | {one.runs} | {one.mean:.4f} | {spread} | {difference} | {row.kept:,} | "
            f"{share} | {rate:g} | {scale:g} | {edge} |"
        )
    heads = "arm | seeds | bits per byte | standard deviation | to the dense arm of its size | "
    heads += "weights kept | FLOPs of training / dense | rate | initial scale | at the edge tried"
    return table(heads, lines) if lines else "Not yet run."


def tuning_table(best: dict[str, Tuned]) -> str:
    """Best pairs on the tuning seed."""
    lines = [
        f"| {arm} | {best[arm].bits:.4f} | {best[arm].rate:g} | {best[arm].scale:g} | "
        f"{best[arm].edge} |"
        for arm in arms()
        if arm in best
    ]
    return table("arm | bits per byte | rate | initial scale | at the edge tried", lines)


def ordering_table(
    rows: list[TrialResult], after: list[TrialResult], best: dict[str, Tuned]
) -> str:
    """Published orderings: agree, disagree, not resolved."""
    lines = []
    for claim, better, than in ORDERINGS:
        one = between(rows, better, than)
        apart = better in best and than in best
        alone = f"{best[better].bits - best[than].bits:+.4f}" if apart else ""
        cells = (claim, f"{better} − {than}", signed(one), alone, verdict(one))
        lines.append(f"| {' | '.join(cells)} |")
    for arm in AFTER:
        gaps = [
            gap_rows(part, f"l-{arm}", name) for part, name in ((rows, "before"), (after, "after"))
        ]
        one = between([row for part in gaps for row in part], "after", "before")
        claim = (
            f"SPDF (Thangarasa et al. 2023): fine-tuning narrows the gap of {arm[4:]} % to dense"
        )
        lines.append(f"| {claim} | gap after − gap before | {signed(one)} | | {verdict(one)} |")
        one = between(after, f"l-{arm}", "l-dense")
        loses = (
            "not yet run"
            if one is None
            else "**disagree**"
            if one.resolved and one.difference > 0
            else "agree, none resolved"
        )
        claim = f"SPDF: after fine-tuning {arm[4:]} % loses nothing to dense"
        lines.append(f"| {claim} | l-{arm} − l-dense, tuned on | {signed(one)} | | {loses} |")
    return table("claim | difference of | bits per byte | tuning seed alone | verdict", lines)


def gap_rows(rows: list[TrialResult], arm: str, name: str) -> list[TrialResult]:
    """An arm's gaps to dense, seed by seed, as rows of an arm of their own."""
    by_seed = {(row.arm, row.seed): row for row in rows}
    return [
        row._replace(arm=name, metric=row.metric - by_seed["l-dense", row.seed].metric)
        for row in rows
        if row.arm == arm and ("l-dense", row.seed) in by_seed
    ]


def spdf_table(rows: list[TrialResult], after: list[TrialResult]) -> str:
    """Loss before and after dense fine-tuning, FLOPs of both phases."""
    lines, dense = [], {}
    for arm in ("l-dense", *(f"l-{name}" for name in AFTER)):
        first, second = ([r for r in part if r.arm == arm] for part in (rows, after))
        if not first or not second:
            continue
        flops = [part[0].training for part in (first, second)]
        dense.setdefault("", sum(flops))
        bits = [f"{statistics.fmean(r.metric for r in part):.4f}" for part in (first, second)]
        cells = (*bits, *(f"{n:.3g}" for n in flops), f"{sum(flops) / dense['']:.2f}")
        lines.append(f"| {arm} | {' | '.join(cells)} | {signed(between(after, arm, 'l-dense'))} |")
    heads = "arm | bits before | bits after | FLOPs before | FLOPs of fine-tuning | both / dense | "
    return table(heads + "after: to dense", lines) if lines else "Not yet run."


def law_table(laws: dict[str, Law]) -> str:
    """Constants with intervals, and the range."""
    if not laws:
        return "Not yet run."
    lines = []
    for group, law in laws.items():
        cells = [f"{law.constants[n]:.3g} ({law.low[n]:.2g} to {law.high[n]:.2g})" for n in law.low]
        span = [f"{a:,.0f} to {b:,.0f}" for a, b in (law.parameters, law.tokens)]
        lines.append(f"| {group} | {' | '.join([*cells, *span])} | {law.worst:.2%} |")
    return table("group | E | A | B | a | b | weights | tokens | worst run", lines)


def state_table(stages: list[str]) -> str:
    """What is finished, and what it took."""
    lines = []
    for stage in stages:
        rows = read_raw(stage)
        seconds = sum(row.seconds for row in rows)
        lines.append(f"| {stage} | {len(rows)} | {seconds / 3600:.2f} |")
    return table("stage | runs finished | hours of their processes", lines)


def draw_arms(rows: list[TrialResult]) -> None:
    """Bits against FLOPs of training and against weights kept."""
    from matplotlib import figure

    fig = figure.Figure(figsize=(10, 4.6), layout="constrained")
    for axes, field, label in zip(
        fig.subplots(1, 2, sharey=True),
        ("training", "kept"),
        ("FLOPs of training", "weights kept"),
        strict=True,
    ):
        for one in summaries(rows, ""):
            costs = next(row for row in rows if row.arm == one.arm)
            at, color = getattr(costs, field), "C0" if one.arm[0] == "l" else "C1"
            error = one.deviation / one.runs**0.5 if one.deviation is not None else 0
            axes.errorbar(at, one.mean, 2 * error, fmt="o", ms=3, lw=1, color=color)
            axes.annotate(one.arm, (at, one.mean), (3, 2), textcoords="offset points", size=6)
        axes.set(xscale="log", xlabel=label)
    fig.axes[0].set(ylabel="bits per byte, ± 2 standard errors")
    fig.savefig(PICTURES / "sparsity_study.png", dpi=140)


def filled(page: str, stages: list[str], laws: dict[str, Law]) -> str:
    """Put the tables between the marks of the page."""
    best = tuned([stage for stage in stages if re.match(r"rate|scale|further", stage)])
    rows = read_raw("final")
    after = [row for stage in stages if stage.startswith("tuned") for row in read_raw(stage)]
    parts = {
        "state": state_table(stages),
        "tuning": tuning_table(best),
        "arms": arm_table(rows, best),
        "orderings": ordering_table(rows, after, best),
        "spdf": spdf_table(rows, after),
        "law": law_table(laws),
    }
    for name, part in parts.items():
        marks = rf"(<!-- {name}: study_report.py -->\n).*?(<!-- end -->)"
        put = lambda match, part=part: f"{match[1]}\n{part}\n\n{match[2]}"
        page = re.sub(marks, put, page, flags=re.DOTALL)
    return page


def stages_run() -> list[str]:
    """Stages with raw numbers, in their order."""
    order = lambda stage: (STAGES.index(stage.split("-")[0]), stage)
    return sorted((path.stem for path in RAW.glob("*.csv")), key=order)


def laws_of(points: list[TrialResult]) -> dict[str, Law]:
    """Fits of the last stage, once it is finished."""
    return fit_groups(points) if len(points) >= LAW_RUNS else {}


def main() -> None:
    """Collect, then write tables and pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, help="of the study, to collect from")
    args = parser.parse_args()
    if args.folder:
        collect(args.folder.resolve())
    points = read_raw("law")
    laws, rows = laws_of(points), read_raw("final")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(filled(page, stages_run(), laws), encoding="utf-8")
    if rows:
        draw_arms(rows)
    if laws:
        draw_law(points, laws, "bits per byte", PICTURES / "sparsity_study_law.png")


if __name__ == "__main__":
    main()
