"""What a section does that its author may not expect."""

from collections.abc import Iterator, Mapping, Sequence

from models.factored.lora import is_adapter
from sparsity.algorithms.base import Algorithm
from sparsity.algorithms.magnitude import ACDC
from sparsity.schedules import Cycling, Every, UpdateSteps
from sparsity.schema import listed
from sparsity.selection import kept_number

__all__ = ["surprises"]


def surprises(
    groups: Sequence[tuple[object, Algorithm]],
    ranks: Mapping[str, int],
    cells: Mapping[str, tuple[int, int]],
) -> Iterator[str]:
    """Yield a line for each.

    Args:
        groups: of the section, (filter, algorithm) in order.
        ranks: name -> number of axes, of the sparse parameters.
        cells: name -> (group, cells of a competition row).
    """
    highest = [algorithm.sparsity.min_max_end()[1] for _, algorithm in groups]
    empty_cells = {key for key in set(cells.values()) if kept_number(highest[key[0]], key[1]) == 0}
    empty = [name for name, key in cells.items() if key in empty_cells]
    if empty:
        yield f"{listed(empty)}: pruned to 100 %, so nothing of the layer is left; lower its level"
    small = [name for name, rank in ranks.items() if rank < 2]
    if small:
        yield (
            f"{listed(small)}: biases and norms become sparse, too; name kernels alone in "
            "param_filter"
        )
    adapters = [name for name in ranks if is_adapter(name)]
    if adapters:
        yield f"{listed(adapters)}: LoRA adapters become sparse, too; see param_filter"
    for rule, algorithm in groups:
        again = _begins_again(algorithm)
        if again is not None:
            yield (
                f"the list of levels on {rule} begins again at step {again}, with "
                f"{algorithm.sparsity.at(0):g}; end it with update.stop"
            )


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
