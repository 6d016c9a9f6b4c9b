"""What the processes of a run agree on; how a run file differs from a checkpoint."""

import hashlib
import pathlib
import platform
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from wafer.config import RunConfig
from wafer.models.checkpoint import layout
from wafer.models.user.yamlfile import YamlMapping
from wafer.version import __version__, code_digest

_OWN = {"logging", "compile_dir", "job_labels", "job_priority"}  # a process's own affair
_NAMED = (
    ("model", "name"),
    ("optimizer", "optimizer_type"),
    ("train_input", "data_processor"),
    ("eval_input", "data_processor"),
)
_SECTIONS = ("model", "sparsity", "optimizer", "train_input")
_MOST = 8  # differences that are listed


def run_fingerprint(cfgs: Sequence[RunConfig]) -> dict[str, object]:
    """Describe what a process is about to do: key -> value, as the run file spells the keys.

    Code and checkpoints are there as the first digits of a SHA-256. Of several trainers each has
    its number before its keys.
    """
    versions = {
        "Python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "wafer": __version__,
    }
    facts: dict[str, object] = {f"version of {name}": version for name, version in versions.items()}
    for number, cfg in enumerate(cfgs, 1):
        facts |= _flat(f"trainer {number}" if len(cfgs) > 1 else "", _of_run(cfg))
    return facts


def _of_run(cfg: RunConfig) -> YamlMapping:
    settings, sections = cfg.runconfig, cfg.to_dict()
    sections["runconfig"] = {k: v for k, v in sections["runconfig"].items() if k not in _OWN}
    names = [str(sections.get(section, {}).get(key)) for section, key in _NAMED]
    steps = [None, *layout.step_folders(pathlib.Path(settings.model_dir) / layout.CHECKPOINTS)]
    begin = settings.checkpoint_path and _checkpoint(pathlib.Path(settings.checkpoint_path))
    return sections | {
        "version of code": code_digest(*names)[:12],
        "checkpoint_path's checkpoint": begin,
        "newest checkpoint": steps[-1] and _checkpoint(steps[-1]),
    }


def _flat(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), inner)
    else:
        yield prefix, value


def _checkpoint(path: pathlib.Path) -> str:
    """Name a checkpoint by its record, in which step and data position stand; others by sizes."""
    content = hashlib.sha256()
    record = sorted((path / layout.META).glob("*"))
    for file in record:
        content.update(file.read_bytes())
    if not record:
        for file in [path] if path.is_file() else sorted(path.glob("*")):
            content.update(f"{file.name} {file.stat().st_size}\n".encode())
    return f"{path.name} ({content.hexdigest()[:12]})"


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
