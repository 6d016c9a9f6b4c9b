"""Three rulers and the published orderings of the study.

A ruler gives each run a value: at equal steps its bits per byte; at equal FLOPs or equal seconds
its bits less those of dense training of the same cost and seed, which are interpolated between
dense runs of several lengths in the logarithm of the cost. Beyond the shortest and the longest
dense run their values stand, which favors dense below and the other arm above.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from wafer.sweeps.table import PairedArms, TrialResult, holm, paired

DENSE = ("dense-165", "dense-180", "dense", "dense-600", "dense-1200")
RULERS = ("steps", "FLOPs", "seconds")
Values = dict[str, dict[int, float]]  # arm -> seed -> value, less is better


class Claim(NamedTuple):
    """An ordering: the sum over ``better`` is less than the sum over ``than``."""

    text: str
    better: tuple[str, ...]
    than: tuple[str, ...]

    @property
    def difference(self) -> str:
        """What is tested, for a table."""
        return f"{' + '.join(self.better)} − {' − '.join(self.than)}"


def _at(text: str, method: str, other: str, levels: Sequence[int]) -> list[Claim]:
    return [Claim(f"{text}, {n} %", (f"{method}{n}",), (f"{other}{n}",)) for n in levels]


CLAIMS = (
    *_at("RigL beats static (Evci et al. 2020)", "rigl", "static", (80, 90)),
    Claim("the same at 1,200 steps, 80 %", ("rigl80-1200",), ("static80-1200",)),
    *_at("SET beats static (Mocanu et al. 2018)", "set", "static", (80, 90)),
    *_at("RigL beats SET (Evci et al. 2020)", "rigl", "set", (80, 90)),
    *_at("ERK beats uniform (Evci et al. 2020)", "erk", "static", (80, 90)),
    *_at("GMP beats static (Zhu and Gupta 2017)", "gmp", "static", (80, 90)),
    Claim("the same at 1,200 steps, 80 %", ("gmp80-1200",), ("static80-1200",)),
    *_at("AC/DC beats static (Peste et al. 2021)", "acdc", "static", (80, 90)),
    *_at("MEST beats SET (Yuan et al. 2021)", "mest", "set", (80, 90)),
    Claim("Sparse-IFT, 75 %, beats dense (Saxena et al. 2023)", ("wide75",), ("dense",)),
    Claim("Sparse-IFT, 92 %, beats dense", ("wide92",), ("dense",)),
    *(
        Claim(
            f"SPDF: fine-tuning narrows the gap of {n} % to dense (Thangarasa et al. 2023)",
            (f"spdf{n}-then-dense", "dense"),
            ("dense-then-dense", f"spdf{n}"),
        )
        for n in (50, 75)
    ),
    Claim("static 80 % beats dense", ("static80",), ("dense",)),
    Claim("the same at 1,200 steps", ("static80-1200",), ("dense-1200",)),
    Claim("static 80 % beats dense of half the width", ("static80",), ("dense-w64",)),
)


def costs_by(ruler: str, rows: Sequence[TrialResult], seconds: Mapping[str, float]) -> dict:
    """Return arm -> what its training costs by a ruler; arms without a measured cost are left out.

    Args:
        ruler: of ``RULERS``.
        rows: of final runs.
        seconds: arm -> of its training, measured in one sitting.
    """
    if ruler == "seconds":
        return dict(seconds)
    field = "training" if ruler == "FLOPs" else "tokens"
    return {row.arm: getattr(row, field) for row in rows}


def values_by(ruler: str, rows: Sequence[TrialResult], seconds: Mapping[str, float]) -> Values:
    """Give each run its value by a ruler.

    Args:
        ruler: of ``RULERS``.
        rows: of final runs.
        seconds: arm -> of its training, measured in one sitting.
    """
    bits: Values = {}
    for row in rows:
        bits.setdefault(row.arm, {})[row.seed] = row.metric
    if ruler == "steps":
        return bits
    costs = costs_by(ruler, rows, seconds)
    values: Values = {}
    for arm, by_seed in bits.items():
        for seed, own in by_seed.items():
            known = [name for name in DENSE if name in costs and seed in bits.get(name, {})]
            if arm in costs and len(known) > 1:
                line = sorted((costs[name], bits[name][seed]) for name in known)
                logs = np.log([cost for cost, _ in line])
                dense = np.interp(np.log(costs[arm]), logs, [value for _, value in line])
                values.setdefault(arm, {})[seed] = own - float(dense)
    return values


def total(values: Values, arms: Sequence[str]) -> dict[int, float]:
    """Sum values seed by seed, over the seeds that all arms have."""
    seeds = set.intersection(*(set(values.get(arm, {})) for arm in arms))
    return {seed: sum(values[arm][seed] for arm in arms) for seed in sorted(seeds)}


def verdicts(
    rows: Sequence[TrialResult], seconds: Mapping[str, float]
) -> dict[str, list[PairedArms]]:
    """Test every claim by every ruler; all p share one level by Holm's method.

    Args:
        rows: of final runs.
        seconds: arm -> of its training, measured in one sitting.

    Returns:
        Ruler -> comparisons, in the order of ``CLAIMS``, with adjusted p.
    """
    family = []
    for ruler in RULERS:
        values = values_by(ruler, rows, seconds)
        for claim in CLAIMS:
            sums = total(values, claim.better), total(values, claim.than)
            family.append(paired(claim.text, claim.difference, *sums))
    adjusted = iter(holm(family))
    return {ruler: [next(adjusted) for _ in CLAIMS] for ruler in RULERS}


def verdict(one: PairedArms) -> str:
    """agree, disagree or not resolved, at 5 %."""
    if one.p is None:
        return "not yet run"
    return "not resolved" if not one.resolved else "agree" if one.difference < 0 else "**disagree**"
