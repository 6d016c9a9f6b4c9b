"""Sparse-IFT: a larger, sparse model of the FLOPs of a dense one (arXiv:2303.11525).

Saxena et al. 2023 put sparse layers in the place of dense ones, so that as many weights are left:

- ``wide``: every hidden width times 1/sqrt(1 - s); a matrix has 1/(1 - s) times the entries
- ``parallel``: 1/(1 - s) branches whose outputs are added; feed-forward blocks side by side are
  one of so many times the filter size, so the rest of the model stays dense

- ``factorized``: every kernel W becomes a product U V of sparse factors, wider than W's rank
- ``doped``: beside every kernel, sparse now, stands a dense product U V of low rank

``wafer.models.factored.factors`` has the last two; they are linear between the factors.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from wafer import models, sparsity
from wafer.config.loader import model_section_of, read_sections
from wafer.errors import ConfigError, Problem
from wafer.models.counts import abstract_params, flops_per_token, forward_flops
from wafer.models.errors import did_you_mean
from wafer.models.factored.factors import FACTORS, is_factor
from wafer.models.paths import named_leaves
from wafer.models.user.yamlfile import YamlMapping


class Transformed(NamedTuple):
    """A run file's sections after the transformation."""

    sections: YamlMapping  #: as the file has them, ``model`` and ``sparsity`` replaced
    dense: float  #: FLOPs per trained token of the model before
    sparse: float  #: FLOPs per trained token now; heads and attention over positions widen, too


def _wide(cfg: Any, level: float) -> YamlMapping:
    """Widen the stream, the filters and the number of heads; a head keeps its size."""
    factor = (1 - level) ** -0.5
    if not hasattr(cfg, "num_heads"):
        return {"hidden_size": round(cfg.hidden_size * factor)}
    heads, shared = cfg.num_heads, cfg.num_kv_heads
    step = 1 if shared == 1 else heads // shared  # query heads that read one key head
    count = max(round(heads * factor / step), 1) * step
    widths: YamlMapping = {
        "num_heads": count,
        "hidden_size": round(cfg.hidden_size / heads * count),
        "filter_size": round(cfg.filter_size * factor),
    }
    if cfg.attention_inner_dim:
        widths["attention_inner_dim"] = cfg.head_dim * count
    if 1 < shared < heads:
        widths["extra_attention_params"] = {"num_kv_groups": count // step}
    return widths


def _parallel(cfg: Any, level: float) -> YamlMapping:
    return {"filter_size": round(cfg.filter_size / (1 - level))}


def _factors(form: str) -> Callable[[object, float], YamlMapping]:
    return lambda cfg, level: {"factors": {"form": form, "sparsity": level}}


def _ends(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[str, ...]:
    """Globs of the kernels that have a product beside them: */query/kernel and its like."""
    doped = {name.replace(f"{FACTORS[0]}/", "") for name in after if is_factor(name)}
    return tuple(sorted({"*/" + "/".join(n.split("/")[-2:]) for n in doped & before.keys()}))


class _Family(NamedTuple):
    """How a model grows."""

    #: (config of the model, level) -> keys of the model section
    widths: Callable[[Any, float], YamlMapping]
    needs: str  #: what the config has to have
    #: ({name: shape} before, after) -> globs of the weights that are sparse; None leaves it to the
    #: section
    only: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[str, ...]] | None = None


FAMILIES: Mapping[str, _Family] = {
    "wide": _Family(_wide, "hidden_size"),
    "parallel": _Family(_parallel, "filter_size", lambda before, after: ("*/ffn/*kernel",)),
    "factorized": _Family(
        _factors("factorized"), "factors", lambda before, after: ("*/factor_*/kernel",)
    ),
    "doped": _Family(_factors("doped"), "factors", _ends),
}


def transform(sections: YamlMapping, level: float, family: str = "wide") -> Transformed:
    """Make a run file's dense model larger and sparse, with as many weights in the sparse layers.

    Args:
        sections: a run file's; its ``sparsity``, if any, names a method but no level.
        level: share of weights to leave out, above 0 and below 1. The level that is written
            differs where widths are rounded, so that the count of weights left is the dense one.
        family: one of ``FAMILIES``.

    Raises:
        ConfigError: a level or family that is none, or a model that cannot be transformed.
        SparsityError: a sparsity section that does not go with it.
    """
    if family not in FAMILIES:
        raise _error(
            "family",
            f"{family!r}: expected one of {', '.join(FAMILIES)}{did_you_mean(family, FAMILIES)}",
        )
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise _error("sparsity", f"{level!r}: expected a number above 0 and below 1")
    rule = FAMILIES[family]
    for key, whose in (
        ("lora_params", "adapters are of a trained model"),
        ("factors", "it has them"),
    ):
        if key in sections["model"]:
            raise _error(f"model.{key}", f"{whose}; drop the key")
    sections = read_sections(sections)
    before = models.build(sections["model"])
    cfg = before.config
    if hasattr(cfg, "parts") or not hasattr(cfg, rule.needs):
        raise _error("model.name", f"{cfg.name!r}: no {family} form; take a model of one part")
    # The configuration's own spelling of every key: a width may have several in a file.
    model = {**model_section_of(cfg), **rule.widths(cfg, level)}
    after = models.build(model)
    shapes, flops = abstract_params(after), lambda: forward_flops(after)
    small = {name: leaf.size for name, leaf in named_leaves(abstract_params(before))}
    large = {name: leaf.size for name, leaf in named_leaves(shapes)}
    only = None if rule.only is None else rule.only(small, large)
    section = _section(sections.get("sparsity"), only, float(level))
    sparsifier = sparsity.configure(
        section, aliases=after.alias, params=shapes, flops=flops, dense_words=False
    )
    chosen = sparsifier.select(shapes)
    total = sum(large[name] for name in chosen)
    if rule.needs == "factors":  # as many weights as the dense model has, less what stays dense
        left = sum(small.values()) - (sum(large.values()) - total)
    else:
        left = sum(small[name] for name in chosen)
    if left >= total:
        raise _error("sparsity", f"{level!r}: the widths round to the dense model's; raise it")
    section["sparsity"] = 1 - left / total
    kept = dict.fromkeys(chosen, left / total)
    sparse = flops_per_token(after, density=kept)
    new = {**sections, "model": model, "sparsity": section}
    return Transformed(new, flops_per_token(before), sparse)


def _section(section: object, only: Sequence[str] | None, level: float) -> YamlMapping:
    if section is not None and not isinstance(section, Mapping):
        raise _error("sparsity", "expected one group of keys; a list or a number has its own level")
    given = dict(section or {"algorithm": "static"})
    own = ("sparsity", "schedule", "pattern", *(("param_filter",) if only else ()))
    for key in own:
        if key in given:
            raise _error(f"sparsity.{key}", "the transformation decides it; drop the key")
    own_filter = {"param_filter": list(only)} if only else {}
    return given | own_filter | {"sparsity": level}


def _error(path: str, message: str) -> ConfigError:
    return ConfigError([Problem(tuple(path.split(".")), message)])
