"""What a run's file says otherwise than the checkpoint it continues from."""

from collections.abc import Iterator, Mapping

_SECTIONS = ("model", "sparsity", "optimizer", "train_input")
_MOST = 8


def changes(then: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """List the keys that decide what is trained and how, and differ.

    Args:
        then: configuration stored with the checkpoint.
        now: this run's.

    Returns:
        One line each, at most eight and how many more.

    >>> changes({"sparsity": {"sparsity": 0.8}}, {"sparsity": {"sparsity": 0.9}})
    ['sparsity.sparsity: 0.8 then, 0.9 now']
    """
    lines = [line for name in _SECTIONS for line in _differ(name, then.get(name), now.get(name))]
    more = len(lines) - _MOST
    return [*lines[:_MOST], *([f"... and {more} more"] if more > 0 else [])]


def _differ(key: str, then: object, now: object) -> Iterator[str]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for name in [*then, *(name for name in now if name not in then)]:
            yield from _differ(f"{key}.{name}", then.get(name), now.get(name))
    elif then != (list(now) if isinstance(now, tuple) else now):  # JSON has no tuples
        yield f"{key}: {_shown(then)} then, {_shown(now)} now"


def _shown(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
