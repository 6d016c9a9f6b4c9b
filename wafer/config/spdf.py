"""Sparse pre-training, dense fine-tuning (SPDF, arXiv:2303.10464), as a sweep with its report.

Thangarasa et al. 2023 train most of a model's steps with most weights left out, then let all of
them train on the task. The sweep has both phases of the dense model and of each level, so that
its table says what the second phase makes up for, and what the first one saves.
"""

from collections.abc import Mapping, Sequence

from wafer.errors import ConfigError, Problem
from wafer.models.user.yamlfile import YamlMapping

_SEEDS = (1, 2, 3)


def sweep_of(
    pretrain: str,
    finetune: str,
    levels: Sequence[float],
    section: object = None,
    seeds: Sequence[int] = _SEEDS,
) -> YamlMapping:
    """Return a sweep file.

    Args:
        pretrain: path of the run file of the first phase, as the sweep file sees it.
        finetune: of the second phase: its data, steps and learning rate; the same model.
        levels: shares of weights that are left out before, each above 0 and below 1.
        section: the ``sparsity`` of the first phase, if any: its method, without the level.
        seeds: of both phases.

    Returns:
        Its keys. Arms: ``dense`` and ``spdf75`` are whole ways, ``dense-before`` and
        ``spdf75-before`` their first phases.

    Raises:
        ConfigError: a level that is none, one that is there twice, or a section with no place
            for a level.
    """
    for level in levels:
        if not 0 < level < 1:
            raise _error(f"{level!r}: expected a number above 0 and below 1")
    names = [f"spdf{100 * level:g}" for level in levels]
    if len(set(names)) < len(names) or not names:
        raise _error(f"{list(levels)}: expected one level or more, each once")
    phases = {"dense": None} | dict(zip(names, levels, strict=True))
    arms: YamlMapping = {
        name: {"file": finetune, "after": f"{name}-before", "sparsity": None} for name in phases
    }
    for name, level in phases.items():
        sparse = None if level is None else _with_level(section, level)
        arms[f"{name}-before"] = {"sparsity": sparse}
    return {"base": pretrain, "seeds": list(seeds), "arms": arms}


def _with_level(section: object, level: float) -> YamlMapping:
    if section is None or isinstance(section, float):
        return {"algorithm": "static", "sparsity": level}
    if not isinstance(section, Mapping):
        raise _error("the run file has a list of groups; expected one, whose level is set")
    kept = {key: value for key, value in section.items() if key not in ("sparsity", "schedule")}
    if "pattern" in kept and "n" in kept["pattern"]:
        raise _error("the run file's pattern has a level of its own; drop one of them")
    return {**kept, "sparsity": level}


def _error(message: str) -> ConfigError:
    return ConfigError([Problem(("sparsity",), message)])
