"""Which parameters a sparsity section speaks about, by name.

A parameter is known by its '/'-path and by the vendor's dotted name (``Model.alias``); a pattern
may match either, so filters written for Model Zoo names keep working.
"""

import dataclasses
import fnmatch
import re
from collections.abc import Iterable
from typing import Literal

__all__ = ["DEFAULT_EXCLUDED", "ParamFilter"]

DEFAULT_EXCLUDED = ("embedding", "norm", "lm_head", "pe_helper")


@dataclasses.dataclass(frozen=True)
class ParamFilter:
    """A rule that picks parameters."""

    #: "default" takes every parameter of rank > 1 whose lower-cased names hold none of the excluded
    #: words; "glob" (2.2 and later) matches whole names, case-sensitive; "regex" (1.8-2.1) searches
    #: anywhere in the name, case-sensitive. Patterns bypass the default exclusions and the rank
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
        patterns = (*self.patterns, *map(_without_wrapper, self.patterns))
        if self.kind == "glob":
            return any(fnmatch.fnmatchcase(n, p) for n in names for p in patterns)
        return any(re.search(p, n) for n in names for p in patterns)

    def __str__(self) -> str:
        """Return the rule as a user would name it in a log line."""
        return "default parameters" if self.kind == "default" else ", ".join(self.patterns)


def _without_wrapper(pattern: str) -> str:
    """Return the pattern for today's name of a leaf in a wrapper, which ended in '/value'.

    >>> _without_wrapper("*/kernel/value"), _without_wrapper("*/value")
    ('*/kernel', '*/value')
    """
    return re.sub(r"(?<=\w)/value(\$?)$", r"\1", pattern)
