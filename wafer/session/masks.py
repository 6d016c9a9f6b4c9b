"""The masks of a checkpoint: log lines about them, and the section that keeps them."""

import re
from collections.abc import Iterator, Mapping, Sequence

from wafer import sparsity
from wafer.models.base import Model
from wafer.models.counts import abstract_params
from wafer.models.user.yamlfile import YamlMapping
from wafer.sparsity.stored.resume import Origin, unmet_level


def mask_lines(
    origins: Mapping[str, Origin], source: str, *, trains: bool, dynamic: bool
) -> Iterator[str]:
    """Describe where the masks of a run came from, a line for each kind.

    Args:
        origins: parameter name -> origin of its mask.
        source: the checkpoint.
        trains: the run trains, so parameters without a stored mask got a new one.
        dynamic: the algorithm changes masks during training.
    """
    stored = [origin for origin in origins.values() if origin.stored]
    if stored:
        fixed = "" if dynamic or not trains else "; they do not change"
        change = trains and unmet_level(stored)
        note = f"; {change}" if change else f" ({_level(stored)} pruned){fixed}"
        yield f"{len(stored)} weights keep their masks from {source}{note}"
    others = [origin for origin in origins.values() if not origin.stored]
    if others and not trains:
        yield f"{source} has no masks for {len(others)} weights; they are evaluated as stored"
    new = [origin for origin in others if origin.pruned]
    if new:
        lost = sum(origin.lost for origin in new)
        effect = (
            f"and set {lost:,} nonzero values to 0 (init_method: from_zeros keeps the zeros of a "
            "finalized checkpoint instead)"
            if lost
            else "where the values were 0 already"
        )
        yield (
            f"{source} has no masks for {len(new)} weights; new masks prune {_level(new)} of them "
            f"{effect}"
        )


def _level(origins: Sequence[Origin]) -> str:
    pruned, size = sum(o.pruned for o in origins), sum(o.size for o in origins)
    return f"{pruned / size:.1%}"


def section_that_keeps(masked: Mapping[str, tuple[int, int]], model: Model) -> YamlMapping:
    """Return a ``sparsity`` section with which training keeps the masks of a checkpoint.

    It has a filter where the default one would leave out some of the parameters.

    Args:
        masked: name -> (pruned weights, weights) of each parameter that has a mask.
        model: of the checkpoint.
    """
    pruned, size = (sum(counts) for counts in zip(*masked.values(), strict=True))
    level = min(round(pruned / size, 4), 0.9999)
    section = {"algorithm": "static", "sparsity": level, "init_method": "from_zeros"}
    selected = sparsity.configure(section, aliases=model.alias, dense_words=False).select(
        abstract_params(model)
    )
    if masked.keys() <= selected.keys():
        return section
    globs = dict.fromkeys(re.sub(r"\d+", "*", name) for name in masked)
    return section | {"param_filter": list(globs)}
