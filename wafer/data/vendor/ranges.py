"""From characters to tokens: where a region's tokens stand, and which of them a row keeps."""

from collections.abc import Sequence

import numpy as np

from wafer.data.vendor.regions import Region
from wafer.errors import DataError

__all__ = ["token_ranges", "truncation", "weights_of"]

Range = tuple[int, int]


def token_ranges(
    offsets: Sequence[Range], regions: Sequence[Region], *, by_gaps: bool
) -> list[Range]:
    """Tokens of each region, the end excluded.

    Args:
        offsets: characters of each token.
        regions: in order.
        by_gaps: a region may also end with the last token before its end (releases from 2.7 on).

    Raises:
        DataError: a region without a token.
    """
    ranges: list[Range] = []
    start = 0
    for region in regions:
        first = next((i for i in range(start, len(offsets)) if offsets[i][1] > region.start), None)
        last = None if first is None else _last(offsets, first, region.end, by_gaps)
        if first is None or last is None:
            raise DataError(
                f"no token covers characters {region.start} to {region.end} of a text: the "
                "tokenizer leaves them out"
            )
        start = last + 1 + region.extra
        ranges.append((first, start))
    return ranges


def _last(offsets: Sequence[Range], first: int, end: int, by_gaps: bool) -> int | None:
    """The token that reaches the character ``end``."""
    for i in range(first, len(offsets)):
        if offsets[i][1] >= end:
            return i
        if by_gaps and (i + 1 == len(offsets) or offsets[i + 1][0] >= end):
            return i
    return None


def weights_of(count: int, regions: Sequence[Region], ranges: Sequence[Range]) -> np.ndarray:
    """[count] float weights of the tokens; 0 outside the regions."""
    weights = np.zeros(count)
    for region, (first, end) in zip(regions, ranges, strict=True):
        weights[first:end] = region.weight
    return weights


def truncation(
    count: int,
    regions: Sequence[Region],
    ranges: Sequence[Range],
    *,
    length: int,
    least: int,
    keep_start: bool,
) -> np.ndarray | None:
    """[count] tokens to keep so that exactly ``length`` remain; None where too few can go.

    The longest prompts lose first, down to ``least`` tokens, then the ends of the longest
    completions.

    Args:
        count: tokens, more than ``length``.
        regions: of the document.
        ranges: their tokens.
        length: S.
        least: tokens that each turn keeps.
        keep_start: prompts lose their ends; otherwise their beginnings.

    Raises:
        DataError: roles without a prompt and a completion.
    """
    roles = {region.role for region in regions}
    sides = next(
        (
            s
            for s in (("prompt", "completion"), ("user", "assistant"))
            if roles > {*s} or roles == {*s}
        ),
        None,
    )
    if sides is None:
        raise DataError(
            f"truncate_to_msl: shortens prompt and completion, or user and assistant; the turns "
            f"have the roles {', '.join(sorted(roles))}"
        )
    kept = np.ones(count, bool)
    excess = count - length
    for side, from_end in ((sides[0], keep_start), (sides[1], True)):
        own = [r for r, region in zip(ranges, regions, strict=True) if region.role == side]
        for first, end in sorted(own, key=lambda r: r[0] - r[1]):
            cut = min(excess, max(end - first - least, 0))
            kept[slice(end - cut, end) if from_end else slice(first, first + cut)] = False
            excess -= cut
    return kept if excess == 0 else None
