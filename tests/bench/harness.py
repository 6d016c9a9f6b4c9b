"""Shared by the benchmarks: interleaved timing, the machine's line, the last line, kept rows.

Ratios between two programs are honest only when both ran in one process, alternating, with
compilation apart: other work on the machine then slows both alike. ``interleave`` does that and
keeps the median (what is reported) and the minimum (what a quiet machine would show).

A benchmark ends with ``report``. With ``--save`` it also keeps its rows in
``docs/results/data/TABLE.json``, from which ``pages.py`` draws the tables of docs/results.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

__all__ = [
    "ANY",
    "DATA",
    "Ratio",
    "Timing",
    "agree",
    "arguments",
    "environment",
    "interleave",
    "ratio",
    "report",
]

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "docs" / "results" / "data"
ANY = "any"  # the processor of exact counts, which depend on none
UNITS = {"_s": "s", "_seconds": "s", "_ms": "ms", "_gib": "GiB", "_mib": "MiB", "_mb": "MB"}


class Timing(NamedTuple):
    """Seconds of repeated runs of one program.

    median: middle of the runs
    least: fastest run
    cpu: middle of the processor time of all threads; other programs on the cores hardly touch it
    """

    median: float
    least: float
    cpu: float


class Ratio(NamedTuple):
    """How many times faster a variant is: by medians, by fastest runs, by processor time."""

    median: float
    least: float
    cpu: float


def interleave(
    programs: Mapping[str, Callable[[], Any]],
    repeats: int = 9,
    seconds: float | None = None,
    warm: int = 1,
) -> dict[str, Timing]:
    """Time programs in turn: A B C, A B C, ...

    Args:
        programs: name -> function of no arguments; its result is waited for.
        repeats: rounds that are timed.
        seconds: stop early, after at least three rounds, once this much time has gone.
        warm: rounds before those, which pay for compilation and page faults.

    Returns:
        name -> seconds.
    """
    for run in [*programs.values()] * warm:
        jax.block_until_ready(run())
    wall: dict[str, list[float]] = {name: [] for name in programs}
    cpu: dict[str, list[float]] = {name: [] for name in programs}
    begin = time.perf_counter()
    for repeat in range(repeats):
        if seconds is not None and repeat >= 3 and time.perf_counter() - begin > seconds:
            break
        for name, run in programs.items():
            start, start_cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(run())
            wall[name].append(time.perf_counter() - start)
            cpu[name].append(time.process_time() - start_cpu)
    middle = lambda times: sorted(times)[len(times) // 2]
    return {
        name: Timing(middle(wall[name]), min(wall[name]), middle(cpu[name])) for name in programs
    }


def ratio(times: Mapping[str, Timing], base: str, variant: str) -> Ratio:
    """How many times faster ``variant`` is than ``base``."""
    return Ratio(*(a / max(b, 1e-9) for a, b in zip(times[base], times[variant], strict=True)))


def agree(outputs: Mapping[str, Any], tolerance: float) -> None:
    """Compare the arms' outputs before they are timed: arms that differ are no comparison.

    Args:
        outputs: arm -> tree of arrays; all are compared with the first one's, leaf by leaf.
        tolerance: of the largest difference in a leaf over the largest number there.

    Raises:
        SystemExit: an arm computes something else.
    """
    (base, want), *others = ((arm, jax.tree.leaves(tree)) for arm, tree in outputs.items())
    worst = 0.0
    for arm, got in others:
        for a, b in zip(want, got, strict=True):
            expected = np.asarray(a, np.float64)
            off = np.abs(expected - np.asarray(b, np.float64)).max()
            off /= max(np.abs(expected).max(), 1e-30)
            if not off <= tolerance:
                sys.exit(f"{arm} differs from {base} by {off:.1e} (expected {tolerance:.0e})")
            worst = max(worst, off)
    print(f"outputs of {', '.join(outputs)} agree within {worst:.1e}", flush=True)


def git(*words: str) -> str:
    """What a git command says of the checkout; empty where there is none."""
    run = ["git", "-C", str(ROOT), *words]
    return subprocess.run(run, capture_output=True, text=True, check=False).stdout.strip()


def processor() -> str:
    """The GPU's name, or the processor's with its cores."""
    if jax.default_backend() != "cpu":
        return jax.devices()[0].device_kind
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    name = names[0] if names else platform.processor() or platform.machine()
    short = name.replace("(R)", "").replace(" Processor", "").replace("(TM)", "")
    return f"{short}, {os.cpu_count()} cores"


def environment() -> str:
    """One line: commit, processor, load, JAX."""
    commit = git("describe", "--always", "--dirty") or "unknown"
    return (
        f"commit {commit}, {processor()}, load {os.getloadavg()[0]:.1f}, "
        f"jax {jax.__version__} on {jax.default_backend()}"
    )


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Start a parser with the options that every benchmark takes; add to it and parse.

    Raises:
        SystemExit: ``--save`` in a checkout with changes, or of ``--quick`` sizes.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    parser.add_argument("--save", action="store_true", help="keep the rows in docs/results/data")
    if "--save" in sys.argv:
        if "--quick" in sys.argv:
            parser.error("--save: rows of --quick are of other sizes, and are not kept")
        if git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"):
            parser.error("--save: a row names its commit, and this checkout has changes: commit")
    return parser


def unit_of(name: str) -> str:
    """The unit that a row's name ends with; a ratio without one."""
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "×")


def save(table: str, rows: Mapping[str, float], units: Callable[[str], str], where: str) -> None:
    """Keep rows in ``DATA/TABLE.json``, in place of those of the same name and processor."""
    path = DATA / f"{table}.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    words = ["FOLDER" if os.path.isabs(w) else w for w in sys.argv[1:] if w != "--save"]
    common = {
        "command": " ".join(["python", os.path.relpath(sys.argv[0], ROOT), *words]),
        "commit": git("rev-parse", "--short=8", "HEAD"),
        "date": datetime.date.today().isoformat(),
        "processor": where,
        "load": round(os.getloadavg()[2], 1) if where != ANY else None,
    }
    at = {(row["name"], row["processor"]): row for row in kept}
    for name, value in rows.items():
        now = {"name": name, "value": round(float(value), 6), "unit": units(name), **common}
        old = at.get((name, where), {})
        at[name, where] = {k: v for k, v in {**old, **now}.items() if v is not None}
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) for row in at.values()]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def report(
    rows: Mapping[str, float],
    table: str | None = None,
    units: Callable[[str], str] = unit_of,
    where: str | None = None,
) -> None:
    """Print the last line: one JSON object of row name -> number; with ``--save`` keep them.

    Args:
        rows: name -> number; of ``ROW / COLUMN`` the table has a column.
        table: the file's name; the script's where it is not given.
        units: name -> its unit.
        where: ``ANY`` for exact counts.
    """
    if "--save" in sys.argv:
        save(table or pathlib.Path(sys.argv[0]).stem, rows, units, where or processor())
    print(json.dumps({name: round(float(value), 4) for name, value in rows.items()}))
