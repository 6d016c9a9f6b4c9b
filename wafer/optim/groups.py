"""Parameter groups by name: who decays, whose learning rate is scaled, who follows which schedule.

A rule sees two names of every parameter, ours ('layers_0/attn/query/kernel') and the alias
('...layers.0.self_attn.proj_q_dense_layer.weight'); a glob matches when it matches either whole.
Rules are looked up from the names when a step is traced, so one optimizer serves any part of the
tree: all of it, or the one layer a weight-streaming run updates.
"""

import dataclasses
import fnmatch
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from wafer.errors import ConfigError, Problem
from wafer.models.alias import all_names, is_decayed
from wafer.models.errors import did_you_mean
from wafer.models.paths import Params, named_leaves
from wafer.optim.schedule_sections import Schedule, by_tags
from wafer.optim.sections import Optimizer
from wafer.sparsity.filters import ParamFilter

_LOG = logging.getLogger(__name__)

# muP groups and their globs over aliases; decoder_kernel is all kernels.
MUP_GROUPS = {
    "embedding": ("*embedding*weight",),
    "decoder_attention": ("*decoder*attn*dense*weight",),
    "decoder_input_ffn": ("*decoder*ffn.ffn.[!1]*weight",),
    "decoder_output_ffn": ("*decoder*ffn.ffn.[1]*weight",),
    "decoder_kernel": ("*decoder*attn*dense*weight", "*decoder*ffn.ffn.*weight"),
}
# Parts of a model whose learning rates muP changes -> globs over our names.
_PARTS = {
    "embedding": ("embed/*/embedding", "decoder_embed/*/embedding", "*_position/*/embedding"),
    "head": ("lm_head/kernel",),
    "qkv": tuple(
        f"*/{of}/{n}/kernel" for of in ("attn", "cross") for n in ("query", "key", "value")
    ),
    "attention_out": ("*/attn/out/kernel", "*/cross/out/kernel"),
    "ffn": ("*/up/kernel", "*/gate/kernel", "*/router/kernel", "pooler/kernel"),
    "ffn_out": ("*/down/kernel",),
}


@dataclasses.dataclass(frozen=True)
class ParamGroups:
    """What a parameter's name decides."""

    #: (globs, learning-rate factor), first match wins
    factors: tuple[tuple[tuple[str, ...], float], ...] = ()
    tags: tuple[tuple[tuple[str, ...], str], ...] = ()  #: (globs, tag) from ``optimizer.params``
    alias: Callable[[str], str] = lambda name: name  #: our name -> its alias
    all_decay: bool = False  #: whether biases and norms decay, too
    #: filters of parameters of which only the outliers train
    selective: tuple[ParamFilter, ...] = ()

    def trains_outliers(self, name: str, ndim: int) -> bool:
        """Whether only the outliers of a parameter of this rank train."""
        names = all_names(name, self.alias) if self.selective else ()
        return any(rule.matches(names, ndim) for rule in self.selective)

    def matches(self, name: str, globs: Iterable[str]) -> bool:
        """Whether any glob matches our name or one of its aliases, whole."""
        names = all_names(name, self.alias)
        return any(fnmatch.fnmatchcase(n, glob) for glob in globs for n in names)

    def decays(self, name: str) -> bool:
        """Biases, parameters of norms and ALiBi slopes are not decayed; embeddings are."""
        return self.all_decay or is_decayed(name, self.alias(name))

    def factor(self, name: str) -> float:
        """Learning-rate factor of a parameter; 1 when no group matches."""
        return next((f for globs, f in self.factors if self.matches(name, globs)), 1.0)

    def tags_of(self, name: str) -> set[str]:
        """Tags of a parameter."""
        return {tag for globs, tag in self.tags if self.matches(name, globs)}

    def schedule_of(self, name: str, tagged: Iterable[tuple[str, ...]]) -> int:
        """Index of the schedule a parameter follows: 0 the untagged, i + 1 the i-th tagged."""
        own = self.tags_of(name)
        return next((i + 1 for i, tags in enumerate(tagged) if own & set(tags)), 0)


def make_groups(
    cfg: Optimizer,
    params: Params | None = None,
    alias: Callable[[str], str] = lambda name: name,
    *,
    all_decay: bool = False,
) -> ParamGroups:
    """Build the rules of an optimizer section.

    Args:
        cfg: the section.
        params: parameters or their shapes, against which every glob is checked; None skips that.
        alias: our name -> its alias.
        all_decay: weight decay acts on biases and norms, too.

    Raises:
        ConfigError: a group or tag matches no parameter; a parameter follows no schedule or two.
    """
    tags = tuple(((tag.params,), tag.tag) for tag in cfg.params)
    by_tag: dict[str, tuple[str, ...]] = {}
    for globs, tag in tags:
        by_tag[tag] = (*by_tag.get(tag, ()), *globs)
    factors = tuple(
        (by_tag.get(name) or MUP_GROUPS.get(name) or (name,), factor)
        for name, factor in cfg.adjust_learning_rate
    )
    entries = (entry.param_filter for entry in cfg.selective_grad or ())
    selective = tuple(ParamFilter("glob", globs) if globs else ParamFilter() for globs in entries)
    groups = ParamGroups(factors, tags, alias, all_decay, selective)
    if params is not None:
        _check(cfg, groups, {name: len(leaf.shape) for name, leaf in named_leaves(params)})
    return groups


def _check(cfg: Optimizer, groups: ParamGroups, ranks: Mapping[str, int]) -> None:
    names = list(ranks)

    def unmatched(globs: Iterable[str]) -> bool:
        return not any(groups.matches(name, globs) for name in names)

    example = f"{names[0]!r} (also {groups.alias(names[0])!r})" if names else "none"
    problems = []
    for (key, _), (globs, _) in zip(cfg.adjust_learning_rate, groups.factors, strict=True):
        if unmatched(globs):
            known = [*MUP_GROUPS, *(tag.tag for tag in cfg.params)]
            message = (
                f"matches no parameter (globs {', '.join(globs)}){did_you_mean(key, known)}; "
                f"use a group ({', '.join(known)}) or a glob over names such as {example}"
            )
            problems.append(Problem(("optimizer", "adjust_learning_rate", key), message))
    for i, tag in enumerate(cfg.params):
        if unmatched((tag.params,)):
            message = f"{tag.params!r} matches no parameter; a name is {example}"
            problems.append(Problem(("optimizer", "params", i, "params"), message))
    for i, rule in enumerate(groups.selective):
        if not any(rule.matches(all_names(n, groups.alias), rank) for n, rank in ranks.items()):
            message = f"{str(rule)!r} matches no parameter; a name is {example}"
            problems.append(Problem(("optimizer", "selective_grad", i, "param_filter"), message))
    for key, entries in (("learning_rate", cfg.learning_rate), ("weight_decay", cfg.weight_decay)):
        problems += _check_followed(key, tuple(by_tags(entries)), groups, names)
    if problems:
        raise ConfigError(problems)


def _check_followed(
    key: str, tagged: tuple[tuple[str, ...], ...], groups: ParamGroups, names: list[str]
) -> list[Problem]:
    """Find a parameter that follows no schedule, or two of those with tags."""
    for name in names if any(tagged) else ():
        own = groups.tags_of(name)
        follows = [tags for tags in tagged if own & set(tags)]
        if len(follows) > 1:
            both = " and ".join(f"[{', '.join(tags)}]" for tags in follows[:2])
            message = f"{name} follows the schedulers of {both}; give it tags of one"
            return [Problem(("optimizer", key), message)]
        if not follows and () not in tagged:
            message = (
                f"every scheduler has param_group_tags, and {name} has none of these tags; "
                "add a scheduler without tags, for all other parameters"
            )
            return [Problem(("optimizer", key), message)]
    return []


def split_by_tags(
    entries: Iterable[Schedule],
) -> tuple[tuple[Schedule, ...], dict[tuple[str, ...], tuple[Schedule, ...]]]:
    """Split schedules into those of all other parameters and those of each tag list.

    Where every schedule has tags, no parameter is without (``make_groups`` checks it), and the
    first list is that of "all others".
    """
    groups = by_tags(entries)
    plain = groups.pop((), None) or groups.pop(next(iter(groups)))
    return plain, groups


def with_mup_rates(section: Optimizer, config: Any, names: Iterable[str]) -> Optimizer:
    """Add the learning-rate factors that follow from ``mup_base_hidden_size``.

    They let a narrow model's rate transfer to a wide one (Yang et al. 2022); the configuration's
    ``mup_rates`` has them by part. ``adjust_learning_rate`` in the file wins.

    Args:
        section: the optimizer.
        config: the model's configuration.
        names: of all parameters.
    """
    if not getattr(config, "is_mup", False):
        return section
    names = list(names)
    derived = tuple(
        (glob, factor)
        for group, factor in config.mup_rates.items()
        for glob in _PARTS[group]
        if any(fnmatch.fnmatchcase(name, glob) for name in names)
    )
    shown = ", ".join(f"{group} x {factor:.4g}" for group, factor in config.mup_rates.items())
    _LOG.info("muP: learning rates of %s", shown)
    adjusted = (*section.adjust_learning_rate, *derived)
    return section.model_copy(update={"adjust_learning_rate": adjusted})
