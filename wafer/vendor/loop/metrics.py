"""Metrics of a loop, with the vendor's names and arithmetic.

A metric is called in a traced step or outside one; its sums grow when the step has ended.
``float(metric)`` is its value over all calls since ``reset``.

    accuracy = metrics.AccuracyMetric(name="eval/accuracy")
    accuracy(labels=labels, predictions=logits.argmax(-1), weights=weights)
"""

import abc
import functools
import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from wafer.loop.elsewhere import explain
from wafer.loop.tracing.step import step_closure

Weights = ArrayLike | None
_METRICS: "weakref.WeakValueDictionary[str, LoopMetric]" = weakref.WeakValueDictionary()


class LoopMetric(abc.ABC):
    """A value over many steps.

    A subclass gives its sums in ``init_state``, adds to them in ``update``, whose arguments are
    arrays with values, and returns the result of ``compute``.

    Args:
        name: how ``get_all_metrics`` lists it; the class's by default. A name that is taken gets
            a number.
    """

    def __init__(self, name: str | None = None) -> None:
        wanted = name or type(self).__name__
        taken = (wanted if i == 0 else f"{wanted}_{i}" for i in range(len(_METRICS) + 1))
        self.name = next(free for free in taken if free not in _METRICS)
        _METRICS[self.name] = self
        self.num_updates = 0
        self.init_state()

    @abc.abstractmethod
    def init_state(self) -> None:
        """Begin the sums."""

    @abc.abstractmethod
    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a step's values to the sums."""

    @abc.abstractmethod
    def compute(self) -> float:
        """Return the value over all steps."""

    def register_state(self, name: str, value: ArrayLike) -> None:
        """Set one of the sums, as ``self.NAME = value`` does.

        Args:
            name: the attribute.
            value: array [...] or number.
        """
        setattr(self, name, value)

    def reset(self) -> None:
        """Begin anew."""
        self.num_updates = 0
        self.init_state()

    def forward(self, *args: object, **kwargs: object) -> None:
        """Add the values of this step at its end."""

        def add(args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
            self.update(*args, **kwargs)
            self.num_updates += 1

        step_closure(add)(args, kwargs)

    __call__ = forward

    def __float__(self) -> float:
        return float(self.compute())


Metric = LoopMetric
"""The vendor's name."""


def get_all_metrics() -> dict[str, LoopMetric]:
    """Return the metrics that exist, by name."""
    return dict(_METRICS)


def _divide(a: ArrayLike, b: ArrayLike) -> np.ndarray:
    """Divide arrays [...]; 0 where the divisor is 0."""
    top, below = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.divide(top, below, out=np.zeros(np.broadcast(top, below).shape), where=below != 0)


def _flat(values: ArrayLike | None, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Return values [...] as float64 [N], ones for None.

    Raises:
        ValueError: another shape than the labels'.
    """
    if values is None:
        return np.ones(math.prod(shape))
    if np.shape(values) != shape:
        raise ValueError(f"{name} of shape {np.shape(values)}; expected the labels' shape {shape}")
    return np.asarray(values).astype(np.float64).reshape(-1)


class _QuotientMetric(LoopMetric):
    """A sum over steps, divided by another."""

    def init_state(self) -> None:
        """Begin the sums."""
        self.total = self.count = 0.0

    def compute(self) -> float:
        """Return the quotient; 0 before the first step."""
        return float(_divide(self.total, self.count))


class AccuracyMetric(_QuotientMetric):
    """Share of predictions that are the label: sum of weights of hits / number of weights > 0."""

    def update(
        self,
        labels: ArrayLike,
        predictions: ArrayLike,
        weights: Weights = None,
        dtype: object = None,
    ) -> None:
        """Add a step's predictions.

        Args:
            labels: [...] int.
            predictions: of the same shape, int.
            weights: of the same shape; 0 leaves a position out.
            dtype: accepted; sums are float64.
        """
        del dtype
        shape = np.shape(labels)
        flat_weights = _flat(weights, shape, "AccuracyMetric: weights")
        hits = _flat(predictions, shape, "AccuracyMetric: predictions") == _flat(labels, shape, "")
        self.total += float((hits * flat_weights).sum())
        self.count += float((flat_weights > 0).sum())


class PerplexityMetric(_QuotientMetric):
    """Perplexity: exp(sum of the losses / number of tokens), infinite where that overflows."""

    def update(
        self, labels: ArrayLike, loss: ArrayLike, weights: Weights = None, dtype: object = None
    ) -> None:
        """Add a step's loss.

        Args:
            labels: [...] int, one per token.
            loss: [] sum over the step's tokens, nats.
            weights: of the labels' shape; tokens of weight 0 are not counted.
            dtype: accepted; sums are float64.
        """
        del dtype
        self.total += np.asarray(loss).item()
        kept = _flat(weights, np.shape(labels), "PerplexityMetric: weights")
        self.count += float((kept > 0).sum())

    def compute(self) -> float:
        """Return the perplexity; 1 before the first step."""
        mean = super().compute()
        return math.exp(mean) if mean < 709 else math.inf


class MeanMetric(_QuotientMetric):
    """Mean of values."""

    def update(self, value: ArrayLike, weights: Weights = None) -> None:
        """Add a step's values.

        Args:
            value: [...] numbers.
            weights: of the same shape.
        """
        scales = _flat(weights, np.shape(value), "MeanMetric: weights")
        self.total += float((_flat(value, np.shape(value), "") * scales).sum())
        self.count += float(scales.sum())


class _ConfusionMetric(LoopMetric):
    """A function of the confusion matrix [label, prediction] of all steps."""

    def __init__(self, num_classes: int, name: str | None = None) -> None:
        if num_classes < 2:
            raise ValueError(f"{type(self).__name__}: num_classes {num_classes}, expected > 1")
        self.num_classes = num_classes
        super().__init__(name)

    def init_state(self) -> None:
        """Begin the matrix."""
        self.confusion_matrix = np.zeros((self.num_classes, self.num_classes))

    def update(
        self,
        labels: ArrayLike,
        predictions: ArrayLike,
        weights: Weights = None,
        dtype: object = None,
    ) -> None:
        """Add a step's predictions; labels that are no class are left out.

        Args:
            labels: [...] int.
            predictions: of the same shape, int.
            weights: of the same shape.
            dtype: accepted; sums are float64.

        Raises:
            ValueError: a prediction that is no class, or another shape.
        """
        del dtype
        shape, of, name = np.shape(labels), self.num_classes, type(self).__name__
        scales = _flat(weights, shape, f"{name}: weights")
        columns = _flat(predictions, shape, f"{name}: predictions").astype(int)
        rows = np.asarray(labels).reshape(-1).astype(int)
        counted = (rows >= 0) & (rows < of)
        if ((columns < 0) | (columns >= of))[counted].any():
            raise ValueError(f"{name}: a prediction is no class; expected 0 to {of - 1}")
        np.add.at(self.confusion_matrix, (rows[counted], columns[counted]), scales[counted])

    def _counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return hits, predictions and labels of each class, [num_classes]."""
        matrix = self.confusion_matrix
        return np.diagonal(matrix), matrix.sum(axis=0), matrix.sum(axis=1)


class FBetaScoreMetric(_ConfusionMetric):
    """F-score: (1 + beta^2) precision recall / (beta^2 precision + recall).

    Args:
        num_classes: labels are below.
        beta: weight of recall.
        average_type: 'micro' over all predictions, 'macro' the mean of the classes' scores.
        ignore_labels: classes that do not count.
        name: as ``LoopMetric``'s.

    Raises:
        ValueError: a number or an average that makes no sense.
    """

    def __init__(
        self,
        num_classes: int,
        beta: float = 1.0,
        average_type: Literal["micro", "macro"] = "micro",
        ignore_labels: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        if beta <= 0:
            raise ValueError(f"FBetaScoreMetric: beta {beta}, expected more than 0")
        if average_type not in ("micro", "macro"):
            raise ValueError(
                f"FBetaScoreMetric: average_type {average_type!r}, expected 'micro' or 'macro'"
            )
        self.beta, self.average_type = beta, average_type
        self.counted = ~np.isin(np.arange(num_classes), ignore_labels or [])
        super().__init__(num_classes, name)

    def compute(self) -> float:
        """Return the score."""
        hits, predicted, actual = (count[self.counted] for count in self._counts())
        if self.average_type == "micro":
            hits, predicted, actual = hits.sum(), predicted.sum(), actual.sum()
        precision, recall, square = _divide(hits, predicted), _divide(hits, actual), self.beta**2
        scores = _divide((1 + square) * precision * recall, square * precision + recall)
        return float(scores.mean()) if scores.size else 0.0


class MeanIOUMetric(_ConfusionMetric):
    """Mean over the classes that occur of hits / (labels + predictions - hits)."""

    def compute(self) -> float:
        """Return the mean; 0 before the first step."""
        hits, predicted, actual = self._counts()
        return _mean_share(hits, predicted + actual - hits)


class DiceCoefficientMetric(_ConfusionMetric):
    """Mean over the classes that occur of 2 hits / (labels + predictions)."""

    def compute(self) -> float:
        """Return the mean; 0 before the first step."""
        hits, predicted, actual = self._counts()
        return _mean_share(2 * hits, predicted + actual)


def _mean_share(hits: np.ndarray, of: np.ndarray) -> float:
    """Mean of the quotients of counts [num_classes], where the divisor is not 0."""
    return float(_divide(_divide(hits, of).sum(), (of > 0).sum()))


class PrecisionAtKMetric(_QuotientMetric):
    """Share of the k highest scores of each row that are among its labels."""

    def __init__(self, k: int, name: str | None = None) -> None:
        self.k = k
        super().__init__(name)

    def update(self, labels: ArrayLike, predictions: ArrayLike, weights: Weights = None) -> None:
        """Add a step's rows.

        Args:
            labels: [B, L] int, the classes of each row.
            predictions: [B, C] scores of the classes.
            weights: [] or [B].
        """
        truth, scores = np.asarray(labels), np.asarray(predictions)
        best = np.argsort(-scores, axis=-1, kind="stable")[:, : self.k]
        found = (truth[:, :, None] == best[:, None, :]).sum(axis=(1, 2))
        scales = np.broadcast_to(1.0 if weights is None else np.asarray(weights), found.shape)
        self.total += float((found * scales).sum())
        self.count += float(self._most(truth) * scales.sum())

    def _most(self, labels: np.ndarray) -> int:
        """Hits that a row may have, of ``labels`` [B, L]."""
        del labels
        return self.k


class RecallAtKMetric(PrecisionAtKMetric):
    """Share of each row's labels that are among its k highest scores."""

    def _most(self, labels: np.ndarray) -> int:
        return labels.shape[1]


class AUCMetric(LoopMetric):
    """Area under a curve of a binary classifier, from counts at fixed thresholds.

    Args:
        num_thresholds: evenly over [0, 1].
        curve: 'ROC' or 'PR'.
        name: as ``LoopMetric``'s.
        summation_method: 'interpolation', or a bound: 'minoring', 'majoring'.
        thresholds: instead of evenly spaced ones.

    Raises:
        ValueError: an unknown curve or method, or fewer than two thresholds.
    """

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: Literal["ROC", "PR"] = "ROC",
        name: str | None = None,
        summation_method: Literal["interpolation", "minoring", "majoring"] = "interpolation",
        thresholds: Sequence[float] | None = None,
    ) -> None:
        if curve not in ("ROC", "PR"):
            raise ValueError(f"AUCMetric: curve {curve!r}, expected 'ROC' or 'PR'")
        if summation_method not in ("interpolation", "minoring", "majoring"):
            raise ValueError(
                f"AUCMetric: summation_method {summation_method!r}, expected 'interpolation', "
                "'minoring' or 'majoring'"
            )
        if thresholds is None and num_thresholds < 2:
            raise ValueError(f"AUCMetric: num_thresholds {num_thresholds}, expected at least 2")
        inner = np.linspace(0, 1, num_thresholds)[1:-1] if thresholds is None else thresholds
        self.thresholds = np.asarray([-1e-7, *sorted(inner), 1 + 1e-7])
        self.curve, self.summation_method = curve, summation_method
        super().__init__(name)

    def init_state(self) -> None:
        """Begin the counts: [thresholds] of positives and negatives above each, and of all."""
        self.positives = np.zeros(len(self.thresholds))
        self.negatives = np.zeros(len(self.thresholds))
        self.all_positives = self.all_negatives = 0.0

    def update(self, labels: ArrayLike, predictions: ArrayLike, weights: Weights = None) -> None:
        """Add a step's predictions.

        Args:
            labels: [...] 0 or 1.
            predictions: of the same shape, in [0, 1].
            weights: of the same shape.

        Raises:
            ValueError: values outside their range, or another shape.
        """
        shape = np.shape(labels)
        scales = _flat(weights, shape, "AUCMetric: weights")
        scores = _flat(predictions, shape, "AUCMetric: predictions")
        truth = _flat(labels, shape, "")
        if (truth < 0).any() or (scores < 0).any() or (scores > 1).any():
            raise ValueError("AUCMetric: expected labels of 0 and 1, and predictions in [0, 1]")
        above = scores[None, :] > self.thresholds[:, None]
        positive, negative = scales * (truth > 0), scales * (truth <= 0)
        self.positives += above @ positive
        self.negatives += above @ negative
        self.all_positives += float(positive.sum())
        self.all_negatives += float(negative.sum())

    def compute(self) -> float:
        """Return the area."""
        hits, false = self.positives, self.negatives
        recall = _divide(hits, self.all_positives)
        if self.curve == "PR" and self.summation_method == "interpolation":
            return self._interpolated()
        x, y = _divide(false, self.all_negatives), recall
        if self.curve == "PR":
            x, y = recall, _divide(hits, hits + false)
        heights = {
            "interpolation": (y[:-1] + y[1:]) / 2,
            "minoring": np.minimum(y[:-1], y[1:]),
            "majoring": np.maximum(y[:-1], y[1:]),
        }[self.summation_method]
        return float(((x[:-1] - x[1:]) * heights).sum())

    def _interpolated(self) -> float:
        """Return the area under precision over recall, hits linear between thresholds.

        Davis & Goadrich 2006, section 4.
        """
        hits, chosen = self.positives, self.positives + self.negatives
        gained = hits[:-1] - hits[1:]
        slope = _divide(gained, chosen[:-1] - chosen[1:])
        offset = hits[1:] - slope * chosen[1:]
        both = (chosen[:-1] > 0) & (chosen[1:] > 0)
        ratio = np.where(both, _divide(chosen[:-1], chosen[1:]), 1.0)
        areas = slope * (gained + offset * np.log(ratio))
        return float(_divide(areas, self.all_positives).sum())


__getattr__ = functools.partial(explain, __name__)
