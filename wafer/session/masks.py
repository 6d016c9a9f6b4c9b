"""Log lines about the masks of a restored checkpoint: kept, new, or absent."""

from collections.abc import Iterator, Mapping, Sequence

from sparsity.resume import Origin, unmet_level

__all__ = ["mask_lines"]


def mask_lines(
    origins: Mapping[str, Origin], where: str, *, trains: bool, dynamic: bool
) -> Iterator[str]:
    """Describe where the masks of a run came from, a line for each kind.

    Args:
        origins: parameter name -> origin of its mask.
        where: the checkpoint.
        trains: the run trains, so parameters without a stored mask got a new one.
        dynamic: the algorithm changes masks during training.
    """
    kept = [origin for origin in origins.values() if origin.stored]
    if kept:
        fixed = "" if dynamic or not trains else "; they do not change"
        change = trains and unmet_level(kept)
        note = f"; {change}" if change else f" ({_level(kept)} pruned){fixed}"
        yield f"{len(kept)} weights keep their masks from {where}{note}"
    others = [origin for origin in origins.values() if not origin.stored]
    if others and not trains:
        yield f"{where} has no masks for {len(others)} weights; they are evaluated as stored"
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
            f"{where} has no masks for {len(new)} weights; new masks prune {_level(new)} of them "
            f"{effect}"
        )


def _level(origins: Sequence[Origin]) -> str:
    pruned, size = sum(o.pruned for o in origins), sum(o.size for o in origins)
    return f"{pruned / size:.1%}"
