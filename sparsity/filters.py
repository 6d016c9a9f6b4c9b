"""Which parameters a sparsity section speaks about, by name.

A parameter is known by its '/'-path and by the vendor's dotted name (``Model.alias``); a pattern
may match either, so filters written for Model Zoo names keep working.
"""

import dataclasses
import fnmatch
import functools
import re
from collections.abc import Iterable
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from wafer.models.paths import DENSE_PARTS
from wafer.sparsity.schema import SparsityError

DEFAULT_EXCLUDED = (*DENSE_PARTS, "lm_head", "pe_helper")


@dataclasses.dataclass(frozen=True)
class ParamFilter:
    """A rule that picks parameters."""

    #: "default" takes every parameter of rank > 1 whose lower-cased names hold none of the excluded
    #: words; "glob" matches whole names, case-sensitive; "regex" searches anywhere in the name,
    #: case-sensitive. Patterns bypass the default exclusions and the rank
    #: rule
    kind: Literal["default", "glob", "regex"] = "default"
    #: for "glob" and "regex", any of which may match; for "default", the excluded words
    patterns: tuple[str, ...] = DEFAULT_EXCLUDED

    def matches(self, names: Iterable[str], ndim: int) -> bool:
        """True when the parameter known by ``names`` and of rank ``ndim`` is picked."""
        names = tuple(names)
        if self.kind == "default":
            lowered = [name.lower() for name in names]
            return ndim > 1 and not any(word in name for name in lowered for word in self.patterns)
        # Of a leaf in a wrapper the name ended in '/value': '*/kernel/value', but not '*/value'.
        bare = (re.sub(r"(?<=\w)/value(\$?)$", r"\1", pattern) for pattern in self.patterns)
        patterns = (*self.patterns, *bare)
        if self.kind == "glob":
            return any(fnmatch.fnmatchcase(n, p) for n in names for p in patterns)
        return any(re.search(p, n) for n in names for p in patterns)

    def __str__(self) -> str:
        """Return the rule as a user would name it in a log line."""
        return "default parameters" if self.kind == "default" else ", ".join(self.patterns)


@functools.cache
def has_nan(dtype: DTypeLike) -> bool:
    """Return whether a dtype has NaN, the mark of pruned weights in checkpoints."""
    return jnp.issubdtype(dtype, jnp.floating) and bool(np.isnan(np.array(np.nan).astype(dtype)))


def can_be_marked(name: str, dtype: DTypeLike, rule: ParamFilter) -> bool:
    """Return whether a parameter that a rule takes has NaN.

    Args:
        name: '/'-path.
        dtype: of the parameter.
        rule: of its group.

    Raises:
        SparsityError: it has none, and a filter of the user's names it.
    """
    if has_nan(dtype):
        return True
    if rule.kind == "default":
        return False
    raise SparsityError(
        f"{name!r} cannot become sparse (its dtype is {dtype}); expected a floating dtype "
        "with NaN, the mark of pruned weights in checkpoints. Leave it out of param_filter",
        ("sparsity", "param_filter"),
    )
