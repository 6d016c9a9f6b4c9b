"""What a section does that its author may not expect; said once, when masks are first chosen."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sparsity.algorithms.base import Algorithm
from sparsity.algorithms.magnitude import ACDC
from sparsity.schedules import Cycling, Every, UpdateSteps
from sparsity.selection import kept_count

if TYPE_CHECKING:
    from sparsity.sparsifier import Selected, Sparsifier

__all__ = ["surprises"]

_SHOWN = 3  # names in a message


def surprises(sparsifier: "Sparsifier", selected: Mapping[str, "Selected"]) -> Iterator[str]:
    """Yield a line for each: layers without a weight, sparse biases, a list that begins again."""
    empty = [name for name, chosen in selected.items() if _empty(sparsifier, chosen)]
    if empty:
        yield f"{_listed(empty)}: pruned to 100 %, so nothing of the layer is left; lower its level"
    small = [name for name, chosen in selected.items() if len(chosen.shape) < 2]
    if small:
        yield (
            f"{_listed(small)}: biases and norms become sparse, too; name kernels alone in "
            "param_filter"
        )
    for rule, algorithm in sparsifier.groups:
        again = _begins_again(algorithm)
        if again is not None:
            yield (
                f"the list of levels on {rule} begins again at step {again}, with "
                f"{float(algorithm.sparsity(0, 0)):g}; end it with update.stop"
            )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _empty(sparsifier: "Sparsifier", chosen: "Selected") -> bool:
    """Whether the highest level of a parameter keeps none of its cells."""
    highest = chosen.algorithm.sparsity.min_max_end()[1]
    cells = sparsifier.view(chosen.group).row_length(chosen.shape)
    return int(kept_count(highest, cells)) == 0


def _begins_again(algorithm: Algorithm) -> int | None:
    """Step at which a list of levels is through and its first one is taken again, or None."""
    levels, update = algorithm.sparsity, algorithm.update
    if not isinstance(levels, Cycling) or levels.length < 2 or isinstance(algorithm, ACDC):
        return None
    if isinstance(update, UpdateSteps):
        steps = sorted(update.steps)
        return steps[levels.length] if len(steps) > levels.length else None
    if isinstance(update, Every):
        step = update.start + levels.length * update.freq
        return step if update.stop is None or step < update.stop else None
    return None
