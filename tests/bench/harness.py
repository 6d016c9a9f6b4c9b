"""Shared by the benchmarks: interleaved timing, the machine's line, the JSON last line.

Ratios between two programs are honest only when both ran in one process, alternating, with
compilation apart: other work on the machine then slows both alike. ``interleave`` does that and
keeps the median (what is reported) and the minimum (what a quiet machine would show).
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

__all__ = ["Ratio", "Timing", "arguments", "environment", "interleave", "ratio", "report"]


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
    programs: Mapping[str, Callable[[], Any]], repeats: int = 9, seconds: float | None = None
) -> dict[str, Timing]:
    """Time programs in turn: A B C, A B C, ...

    Args:
        programs: name -> function of no arguments; its result is waited for.
        repeats: rounds after one warm-up round, which pays for compilation and page faults.
        seconds: stop early, after at least three rounds, once this much time has gone.

    Returns:
        name -> seconds.
    """
    for run in programs.values():
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


def environment() -> str:
    """One line: commit, CPU, cores, load, JAX."""
    here = pathlib.Path(__file__).parent
    git = ["git", "-C", str(here), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    cpu = platform.processor() or platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1] for line in info.read_text().splitlines() if "model name" in line
        ]
        cpu = names[0].strip() if names else cpu
    load = os.getloadavg()[0]
    return (
        f"commit {commit or 'unknown'}, {cpu}, {os.cpu_count()} cores, load {load:.1f}, "
        f"jax {jax.__version__} on {jax.default_backend()}"
    )


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Start a parser with the options that every benchmark takes; add to it and parse."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    return parser


def report(rows: Mapping[str, float]) -> None:
    """Print the last line: one JSON object of row name -> number."""
    print(json.dumps({name: round(float(value), 4) for name, value in rows.items()}))
