"""The metrics of a loop: values computed by hand, in traced steps and outside."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import wafer.loop as cstorch
from wafer.loop import metrics

LABELS = np.array([0, 1, 2, 2])
PREDICTED = np.array([0, 2, 2, 1])
# Confusion [label, prediction]: (0,0) 1, (1,2) 1, (2,2) 1, (2,1) 1.


@pytest.fixture(autouse=True)
def _fresh():
    cstorch.backend()


@pytest.mark.parametrize(
    ("metric", "args", "value"),
    [
        (metrics.AccuracyMetric(), {"labels": LABELS, "predictions": PREDICTED}, 2 / 4),
        (
            metrics.AccuracyMetric(),
            {"labels": LABELS, "predictions": PREDICTED, "weights": np.array([0, 1, 1, 1])},
            1 / 3,
        ),
        (  # hits are weighted, tokens are counted
            metrics.AccuracyMetric(),
            {"labels": LABELS, "predictions": PREDICTED, "weights": np.array([0.5, 1, 1, 0])},
            1.5 / 3,
        ),
        (metrics.PerplexityMetric(), {"labels": LABELS, "loss": 6.0}, math.exp(6 / 4)),
        (
            metrics.PerplexityMetric(),
            {"labels": LABELS, "loss": 6.0, "weights": np.array([1, 1, 1, 0])},
            math.exp(2.0),
        ),
        (metrics.PerplexityMetric(), {"labels": LABELS, "loss": 1e6}, math.inf),
        (metrics.MeanMetric(), {"value": np.array([1.0, 2.0, 6.0])}, 3.0),
        (metrics.MeanMetric(), {"value": np.array([1.0, 3.0]), "weights": np.array([3, 1])}, 1.5),
        (metrics.FBetaScoreMetric(3), {"labels": LABELS, "predictions": PREDICTED}, 0.5),
        (  # F1 of the classes: 1, 0, 1/2
            metrics.FBetaScoreMetric(3, average_type="macro"),
            {"labels": LABELS, "predictions": PREDICTED},
            0.5,
        ),
        (  # without class 0: hits 1, predictions 3, labels 3
            metrics.FBetaScoreMetric(3, ignore_labels=[0]),
            {"labels": LABELS, "predictions": PREDICTED},
            1 / 3,
        ),
        (  # precision 1/1, recall 1/2: 5 * 1/2 / (4 + 1/2)
            metrics.FBetaScoreMetric(2, beta=2.0, ignore_labels=[0]),
            {"labels": np.array([0, 1, 1]), "predictions": np.array([0, 0, 1])},
            5 / 9,
        ),
        (
            metrics.MeanIOUMetric(3),
            {"labels": LABELS, "predictions": PREDICTED},
            (1 + 0 + 1 / 3) / 3,
        ),
        (
            metrics.DiceCoefficientMetric(4),  # class 3 does not occur
            {"labels": LABELS, "predictions": PREDICTED},
            (1 + 0 + 2 / 4) / 3,
        ),
        (
            metrics.PrecisionAtKMetric(2),
            {"labels": np.array([[0], [1]]), "predictions": np.array([[3, 2, 1.0], [3, 1, 2]])},
            1 / 4,
        ),
        (
            metrics.RecallAtKMetric(2),
            {
                "labels": np.array([[0, 2], [1, 2]]),
                "predictions": np.array([[3, 2, 1.0], [3, 1, 2]]),
                "weights": np.array([1.0, 3.0]),
            },
            (1 + 3) / (2 + 6),
        ),
        (  # pairs in order: (.9, .1), (.9, .6), (.4, .1); not (.4, .6)
            metrics.AUCMetric(thresholds=[0.3, 0.5, 0.7]),
            {"labels": np.array([1, 0, 1, 0]), "predictions": np.array([0.9, 0.6, 0.4, 0.1])},
            3 / 4,
        ),
        (  # steps (recall, precision): (1/2, 1), (1, 2/3)
            metrics.AUCMetric(thresholds=[0.3, 0.5, 0.7], curve="PR", summation_method="minoring"),
            {"labels": np.array([1, 0, 1, 0]), "predictions": np.array([0.9, 0.6, 0.4, 0.1])},
            0.5 * 0 + 0.5 * 0.5,
        ),
        (  # 1/2, and from (hits 1, chosen 2) to (2, 3): slope 1, offset -1
            metrics.AUCMetric(thresholds=[0.3, 0.5, 0.7], curve="PR"),
            {"labels": np.array([1, 0, 1, 0]), "predictions": np.array([0.9, 0.6, 0.4, 0.1])},
            (1 + (1 - math.log(3 / 2))) / 2,
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, metrics.LoopMetric) else "",
)
def test_values_by_hand(metric, args, value):
    metric(**args)
    assert float(metric) == pytest.approx(value)
    assert metric.num_updates == 1
    metric.reset()
    assert metric.num_updates == 0
    # In two halves, in a traced step, the sums are the same.
    if "labels" in args and "loss" not in args:
        step = cstorch.trace(lambda batch: metric(**batch))
        for half in (slice(0, 1), slice(1, None)):
            step({name: jnp.asarray(array[half]) for name, array in args.items()})
        assert float(metric) == pytest.approx(value)


def test_a_metric_of_the_users():
    class Largest(metrics.Metric):
        def init_state(self):
            self.register_state("largest", -math.inf)

        def update(self, value):
            self.largest = max(self.largest, float(value))

        def compute(self):
            return self.largest

    metric, other = Largest(name="eval/largest"), Largest(name="eval/largest")
    seen = []
    step = cstorch.trace(lambda x: metric(x.max()))
    for batch in cstorch.DataExecutor(cstorch.DataLoader(lambda: [np.ones(2), np.full(2, 3.0)])):
        step(batch)
        seen.append(metric.num_updates)  # those of earlier steps
    assert (float(metric), seen) == (3.0, [0, 1])
    assert (metric.name, other.name) == ("eval/largest", "eval/largest_1")
    assert metrics.get_all_metrics()["eval/largest_1"] is other


def test_errors_name_the_metric_and_the_shape():
    with pytest.raises(ValueError, match=r"AccuracyMetric: predictions of shape \(3,\); expected"):
        metrics.AccuracyMetric()(labels=LABELS, predictions=np.zeros(3))
    with pytest.raises(
        ValueError, match=r"MeanIOUMetric: a prediction is no class; expected 0 to 1"
    ):
        metrics.MeanIOUMetric(2)(labels=np.array([0, 1]), predictions=np.array([0, 2]))
    with pytest.raises(ValueError, match="average_type 'mean', expected 'micro' or 'macro'"):
        metrics.FBetaScoreMetric(2, average_type="mean")
    with pytest.raises(ValueError, match="curve 'roc', expected 'ROC' or 'PR'"):
        metrics.AUCMetric(curve="roc")
    with pytest.raises(ValueError, match=r"predictions in \[0, 1\]"):
        metrics.AUCMetric()(labels=np.array([1]), predictions=np.array([1.5]))
