"""Fits loss against parameters and tokens: L = E + A / N^a + B / D^b (Hoffmann et al. 2022).

Over several levels of sparsity, N is that of a dense model of the same loss: weights times the
c-th power of the share that is kept. c = 1 counts the weights that are kept, c = 0 all of them.

The Huber loss of the difference of logarithms is least, as in the paper's third approach
(arXiv:2203.15556, appendix D); intervals are those of fits to runs drawn again.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize

from wafer.errors import ConfigError, Problem
from wafer.sweeps.table import TrialResult

_DELTA = 1e-3  # of the Huber loss, as in the paper
_LEAST = 3  # numbers of parameters, and of tokens: an exponent and its factor need as many
_CONSTANTS: tuple[str, ...] = ("E", "A", "B", "a", "b")
_LEVEL = "c"  # exponent of the share of weights that is kept
_DRAWS = 200
_STEEPEST = 3.0  # exponent


class Law(NamedTuple):
    """A fit."""

    constants: dict[str, float]  #: E, A, B, a, b; c over several levels
    #: low, high: their 2.5 and 97.5 percentiles over fits to runs drawn again
    low: dict[str, float]
    high: dict[str, float]
    runs: int  #: that were fitted
    worst: float  #: largest |ln(loss / fit)| among them
    #: parameters, tokens: least and greatest: beyond them the fit is a guess
    parameters: tuple[float, float]
    tokens: tuple[float, float]

    def __call__(self, parameters: float, tokens: float, share: float = 1.0) -> float:
        """Return the loss at a size and a number of tokens.

        Args:
            parameters: N; of a fit over levels, pruned ones included.
            tokens: D.
            share: of the parameters that is kept, for a fit over levels.
        """
        c = self.constants
        size = parameters * share ** c.get(_LEVEL, 0.0)
        return c["E"] + c["A"] / size ** c["a"] + c["B"] / tokens ** c["b"]

    @property
    def growth(self) -> float:
        """Exponent x: the loss for C FLOPs is least with weights as C^x, where C is as N * D."""
        total = self.constants["a"] + self.constants["b"]
        return self.constants["b"] / total if total else 0.5


def refusal(points: Sequence[tuple[float, float]]) -> str:
    """Say why there are too few (parameters, tokens) for a fit; '' when there are enough."""
    sizes, lengths = len({n for n, _ in points}), len({d for _, d in points})
    pairs = len(set(points))
    if sizes >= _LEAST and lengths >= _LEAST and pairs > len(_CONSTANTS):
        return ""
    return (
        f"a fit of {len(_CONSTANTS)} constants needs at least {_LEAST} numbers of weights, "
        f"{_LEAST} of tokens (max_steps) and {len(_CONSTANTS) + 1} pairs of them; these arms have "
        f"{sizes}, {lengths} and {pairs}"
    )


def fit_groups(rows: Sequence[TrialResult]) -> dict[str, Law]:
    """Fit every group of runs against the weights that are kept.

    Raises:
        ConfigError: a group has too few points.
    """
    groups: dict[str, list[TrialResult]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    laws, problems = {}, []
    for group, runs in groups.items():
        why = refusal([(row.kept, row.tokens) for row in runs])
        if why:
            problems.append(Problem(("fit", group), why))
            continue
        laws[group] = fit_law(
            [row.kept for row in runs], [row.tokens for row in runs], [row.metric for row in runs]
        )
    if problems:
        raise ConfigError(problems)
    return laws


def fit_levels(rows: Sequence[TrialResult], draws: int = _DRAWS) -> Law:
    """Fit runs of several levels together, by all their weights and the share that is kept.

    Args:
        rows: of finished runs.
        draws: fits to runs drawn again, for the intervals.

    Raises:
        ConfigError: too few points.
    """
    return fit_law(
        [row.parameters for row in rows],
        [row.tokens for row in rows],
        [row.metric for row in rows],
        draws,
        [row.kept / row.parameters for row in rows],
    )


def fit_law(
    parameters: Sequence[float],
    tokens: Sequence[float],
    losses: Sequence[float],
    draws: int = _DRAWS,
    shares: Sequence[float] | None = None,
) -> Law:
    """Fit the five constants, six over several levels.

    Args:
        parameters: [P] N of each run.
        tokens: [P] D of each run.
        losses: [P] above 0.
        draws: fits to runs drawn again, for the intervals.
        shares: [P] of N that is kept, above 0; None: N is of weights that are kept.

    Raises:
        ConfigError: a loss that is not above 0, or too few points.
    """
    points = np.asarray([parameters, tokens, losses, *([] if shares is None else [shares])], float)
    why = refusal(list(zip(*points[:2], strict=True)))
    if not why and not (np.isfinite(points).all() and (points > 0).all()):
        why = "expected losses above 0, whose logarithms are fitted; choose another metric"
    if why:
        raise ConfigError([Problem(("fit",), why)])
    middle = np.log(points[:2]).mean(axis=1)  # powers of ratios: the factors stay near the losses
    level = [] if shares is None else [1.0]
    fits = [_fit(points, middle, np.append(start, level)) for start in _starts(points[2])]
    best = min(fits, key=lambda fit: fit.cost)
    again = _drawn_again(points, middle, best.x, draws)
    percent = functools.partial(np.percentile, again, axis=0)
    names = (*_CONSTANTS, *(_LEVEL for _ in level))
    named = lambda values: dict(zip(names, map(float, values), strict=True))
    span = lambda row: (float(row.min()), float(row.max()))
    return Law(
        named(_constants(best.x, middle)),
        named(percent(2.5)),
        named(percent(97.5)),
        points.shape[1],
        float(np.abs(_residuals(best.x, points, middle)).max()),
        span(points[0]),
        span(points[1]),
    )


def _starts(losses: np.ndarray) -> list[np.ndarray]:
    """Several shares of the floor in the loss, and several exponents."""
    least, mean = losses.min(), losses.mean()
    starts = []
    for share, a, b in itertools.product((0.3, 0.7, 0.95), (0.2, 0.5, 1.0), (0.2, 0.5, 1.0)):
        half = np.log(max((mean - share * least) / 2, 1e-9 * mean))
        starts.append(np.array([np.log(share * least), half, half, a, b]))
    return starts


def _terms(x: np.ndarray, points: np.ndarray, middle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ([3, P] the three terms, [2, P] logarithms of size and length about their middle)."""
    logs = np.log(points[:2]) - middle[:, None]
    if len(points) > 3:
        logs[0] += x[5] * np.log(points[3])
    powers = x[1:3, None] - x[3:5, None] * logs
    floor = np.broadcast_to(x[0], logs.shape[1:])
    return np.exp(np.clip(np.vstack([floor, powers]), -100, 100)), logs


def _residuals(x: np.ndarray, points: np.ndarray, middle: np.ndarray) -> np.ndarray:
    terms, _ = _terms(x, points, middle)
    return np.log(terms.sum(axis=0)) - np.log(points[2])


def _jacobian(x: np.ndarray, points: np.ndarray, middle: np.ndarray) -> np.ndarray:
    terms, logs = _terms(x, points, middle)
    shares = terms / terms.sum(axis=0)
    rows = [shares, -shares[1:] * logs]
    if len(points) > 3:
        rows.append(-x[3] * shares[1:2] * np.log(points[3]))
    return np.vstack(rows).T


def _fit(points: np.ndarray, middle: np.ndarray, start: np.ndarray) -> Any:
    jacobian: Any = _jacobian  # scipy's stubs know its names of methods alone
    bounds = ([-50] * 3 + [0] * (len(start) - 3), [50] * 3 + [_STEEPEST] * (len(start) - 3))
    return scipy.optimize.least_squares(
        _residuals,
        start,
        jacobian,
        bounds=bounds,
        loss="huber",
        f_scale=_DELTA,
        x_scale="jac",
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-12,
        max_nfev=1000,
        args=(points, middle),
    )


def _constants(x: np.ndarray, middle: np.ndarray) -> np.ndarray:
    """Undo the shift of the logarithms."""
    return np.array([*np.exp([x[0], *(x[1:3] + x[3:5] * middle)]), *x[3:]])


def _drawn_again(
    points: np.ndarray, middle: np.ndarray, best: np.ndarray, draws: int
) -> np.ndarray:
    """[draws, C] constants of fits to as many runs, drawn with replacement."""
    rng, count = np.random.default_rng(0), points.shape[1]
    out = []
    for _ in range(draws):
        drawn = points[:, rng.integers(0, count, count)]
        if not refusal(list(zip(*drawn[:2], strict=True))):
            out.append(_constants(_fit(drawn, middle, best).x, middle))
    return np.array(out or [_constants(best, middle)])


def fit_lines(laws: Mapping[str, Law]) -> list[list[object]]:
    """Lay the fits out for ``fit.csv``: a line for each constant of each group."""
    return [
        [group, name, *(part[name] for part in (law.constants, law.low, law.high)), law.runs, *span]
        for group, law in laws.items()
        for span in [(*law.parameters, *law.tokens)]
        for name in _CONSTANTS
    ]


FIT_HEADS = (
    "group", "constant", "value", "low", "high", "runs",
    "weights_from", "weights_to", "tokens_from", "tokens_to",
)  # fmt: skip
