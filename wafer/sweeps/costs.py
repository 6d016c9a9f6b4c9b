"""What a run costs by count: weights, tokens, FLOPs of training and of a token later."""

from collections.abc import Mapping
from typing import NamedTuple

from wafer.experiment import Experiment
from wafer.models.counts import forward_flops
from wafer.models.paths import named_leaves
from wafer.sparsity.costs import Shares, shares_over


class Costs(NamedTuple):
    """Counts of one run."""

    parameters: int  #: of the model, tied ones once
    kept: int  #: of them after the last step
    tokens: int  #: positions trained on; padding counts
    training: float  #: FLOPs of all steps' products, as the method needs them whatever the storage
    inference: float  #: FLOPs of a token's forward pass with the weights that are left


def costs_of(
    experiment: Experiment, steps: int, measured: Mapping[str, float] | None = None
) -> Costs:
    """Count a run that starts at step 0.

    Args:
        experiment: the run.
        steps: it takes.
        measured: parameter -> sparsity, where a run has said so. It is read for masks that never
            change, which may come from a checkpoint; others follow their schedule, and the last
            log line may be older than their last change.
    """
    section = experiment.section("train")
    length = section.max_sequence_length
    tokens = steps * experiment.batch("train").samples * (length or 1)
    sizes = {name: leaf.size for name, leaf in named_leaves(experiment.shapes)}
    by_group: dict[int, Shares] = {}
    shares: dict[str, Shares] = {}
    for name, chosen in experiment.sparsifier.select(experiment.shapes).items():
        if chosen.group not in by_group:
            by_group[chosen.group] = shares_over(chosen.algorithm, steps)
        share = by_group[chosen.group]
        if measured and name in measured and not chosen.algorithm.dynamic:
            share = Shares(1 - measured[name], 1 - measured[name])
        shares[name] = share
    dense = Shares(1.0, 1.0)
    forward = forward_flops(experiment.model, length)
    training = sum(v * shares.get(name, dense).training for name, v in forward.items())
    inference = sum(v * shares.get(name, dense).left for name, v in forward.items())
    kept = sum(size * shares.get(name, dense).left for name, size in sizes.items())
    return Costs(sum(sizes.values()), round(kept), tokens, 3.0 * training * tokens, inference)
