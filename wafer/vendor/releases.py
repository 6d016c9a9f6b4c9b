"""Params files of the vendor from release to release, forwards and backwards.

Between two releases stand hops, as the vendor's converters have them (``base_converter.py`` and
its families, 1.8 to 2.10). Most are names of keys, which are data; the rest are small functions.
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from wafer.config.runconfig import RunSection
from wafer.errors import ConfigError, Problem
from wafer.models.names import MODELS
from wafer.models.sections import Section
from wafer.optim.schedule_sections import schedule_class
from wafer.optim.sections import PAIRS, Optimizer, join_pairs, optimizer_class
from wafer.sparsity.sections.legacy import RELEASE_18_KEYS, is_release_20, translate_release_20
from wafer.vendor.defaults import changed_input_defaults, code_of
from wafer.vendor.parts import keep_defaults
from wafer.vendor.trainer_form import upgrade
from wafer.vendor.trainer_writer import as_trainer

Release = tuple[int, int]
File = dict[str, Any]


class _Rename(NamedTuple):
    """A key that a release calls otherwise."""

    since: Release  #: the first release with the new name
    old: str  #: 'section.key' before
    new: str  #: 'section.key' since
    flag: tuple[Any, ...] = ()  #: the new key's values for false and true of the old; () keeps it


def _renames(name: str) -> list[_Rename]:
    """List the renamed keys of a model's files; most stand at the classes of their sections."""
    from wafer.models.registry import config_class  # imports jax

    code = code_of(name)
    rows = [_Rename((2, 1), "model.precision_opt_level", "runconfig.precision_opt_level")]
    if code == "t5":
        norm = "model.use_pre_encoder_decoder_layer_norm"  # negated
        rows.append(_Rename((1, 8), norm, norm, (True, False)))
    sections: dict[str, type[Section]] = {"runconfig": RunSection, "optimizer": Optimizer}
    if name in MODELS:
        sections["model"] = config_class(name)
    for section, cls in sections.items():
        for old, (key, since, flag, only) in cls.legacy.items():
            if since is not None and only in ("", code):
                rows.append(_Rename(since, f"{section}.{old}", f"{section}.{key}", flag))
    return rows


_DROPPED: Mapping[Release, tuple[str, ...]] = {
    (2, 1): (
        "runconfig.experimental_api",
        "runconfig.multireplica",
        "runconfig.num_replicas",
        "runconfig.save_losses",
        "runconfig.service_dir",
        "runconfig.use_appliance_data",
        "runconfig.num_act_servers",
        "runconfig.num_wgt_servers",
        "csconfig",
    ),
    (2, 2): ("runconfig.autogen_policy",),
    (2, 3): (
        "model.use_position_embedding",
        "model.alibi_implementation",
        "model.weight_initialization_seed",
    ),
}
_BASES = {"hidden_size": "mup_base_hidden_size", "filter_size": "mup_base_filter_size"}
_DECODERS = ("gpt2", "gptj")


def _section(file: File, path: str) -> tuple[Any, str]:
    """Split 'section.key'; the section is {} when the file has none."""
    name, _, key = path.partition(".")
    own = file.get(name)
    return (own if isinstance(own, dict) else {}), key


def _rename(file: File, row: _Rename, *, back: bool) -> None:
    source, target = (row.new, row.old) if back else (row.old, row.new)
    own, key = _section(file, source)
    if key not in own:
        return
    value = own[key]
    if row.flag:
        words = row.flag if back else (False, True)
        if value not in words:
            return  # values without a counterpart are kept
        value = words.index(value) == 1 if back else row.flag[value]
    there, _, new_key = target.partition(".")
    new_section = file.setdefault(there, {})
    del own[key]
    new_section.setdefault(new_key, value)


def _drop(file: File, release: Release, dropped: list[str]) -> None:
    for path in _DROPPED.get(release, ()):
        own, key = _section(file, path) if "." in path else (file, path)
        if key in own:
            dropped.append(path)
            del own[key]


# --- what is more than a name --------------------------------------------------------------------


def _to_18(file: File, family: str) -> None:
    model = file.get("model", {})
    if family == "encoder":
        model.setdefault("pooler_nonlinearity", model.get("encoder_nonlinearity", "gelu"))
        model.setdefault("mlm_nonlinearity", "gelu")
    if family == "t5":  # negated below, with its other default
        model.setdefault("use_pre_encoder_decoder_layer_norm", False)
    if family in _DECODERS:
        model.setdefault("loss_scaling", "batch_size")  # until 1.7 the only one


def _from_18(file: File, family: str) -> None:
    model = file.get("model", {})
    if family == "encoder":
        for key, default in (
            ("pooler_nonlinearity", model.get("encoder_nonlinearity", "gelu")),
            ("mlm_nonlinearity", "gelu"),
        ):
            if model.get(key) == default:
                del model[key]


def _to_19(file: File, family: str) -> None:
    """In 1.8 a weight of the loss implied the scaling that reads it."""
    model = file.get("model", {})
    if family in _DECODERS and model.get("loss_weight", 1.0) != 1:
        model["loss_scaling"] = "batch_size"


def _to_21(file: File, family: str) -> None:
    del family
    run, optimizer = file.get("runconfig", {}), file.get("optimizer", {})
    pretrained = run.pop("is_pretrained_checkpoint", None)
    if pretrained:
        run.setdefault("load_checkpoint_states", "model,dataloader")
    if (cls := optimizer_class(optimizer.get("optimizer_type"))) is not None:
        file["optimizer"] = optimizer = join_pairs(cls, optimizer)
    for schedule, names in _schedules(optimizer):
        for old, new in names.items():
            if old in schedule and new not in schedule:
                schedule[new] = schedule.pop(old)


def _from_21(file: File, family: str) -> None:
    del family
    run, optimizer = file.get("runconfig", {}), file.get("optimizer", {})
    if run.get("load_checkpoint_states") in ("model", "model,dataloader"):
        run["is_pretrained_checkpoint"] = bool(run.pop("load_checkpoint_states"))
    for new, names in PAIRS.items():
        value = optimizer.get(new)
        if isinstance(value, list | tuple) and len(value) == len(names):
            del optimizer[new]
            optimizer |= dict(zip(names, value, strict=True))
    for schedule, names in _schedules(optimizer):
        older = {new: old for old, new in reversed(names.items())}
        for new in older.keys() & schedule.keys() - {"initial_learning_rate"}:
            schedule[older[new]] = schedule.pop(new)


def _schedules(optimizer: Mapping[str, Any]) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """List the schedulers of a section, each with its names of keys until 2.0 -> since."""
    out = []
    for key in ("learning_rate", "weight_decay"):
        value = optimizer.get(key)
        for entry in value if isinstance(value, list) else [value]:
            cls = schedule_class(entry.get("scheduler")) if isinstance(entry, dict) else None
            if cls is not None:
                own = {old: new.key for old, new in cls.legacy.items() if new.since}
                out.append((entry, {o: new for o, new in own.items() if new in cls.model_fields}))
    return out


def _to_22(file: File, family: str) -> None:
    del family
    run, sparse = file.get("runconfig", {}), file.get("sparsity")
    accumulates = run.pop("use_cs_grad_accum", None)
    for part in ("train_input", "eval_input"):
        own = file.get(part)
        if isinstance(own, dict) and accumulates is False:
            own["micro_batch_size"] = None
        elif isinstance(own, dict) and accumulates:
            own.setdefault("micro_batch_size", "auto")
    if isinstance(sparse, dict) and is_release_20(sparse):
        file["sparsity"] = translate_release_20(sparse, ("sparsity",))
    elif isinstance(sparse, dict) and RELEASE_18_KEYS & set(sparse):
        raise ConfigError(
            [
                Problem(
                    ("sparsity",),
                    "the section of 1.8 and 1.9 prunes while weights are sent, which no later "
                    "release does; write a section of the target release "
                    "(`wafer run` reads this one as it is)",
                )
            ]
        )


def _to_23(file: File, family: str) -> None:
    """MuP by the widths of its base model, where 2.2 scaled every part."""
    del family
    model, optimizer = file.get("model", {}), file.get("optimizer", {})
    rates = optimizer.get("adjust_learning_rate") or {}
    if "decoder_kernel" not in rates or not model.get("hidden_size"):
        return
    wider = 1 / float(rates.pop("decoder_kernel"))
    if not rates:
        del optimizer["adjust_learning_rate"]
    for key, base in _BASES.items():
        if key in model:
            model[base] = round(model[key] / wider)
    if "output_logits_scale" in model:
        model["output_logits_alpha"] = model.pop("output_logits_scale") * wider
    depth = math.sqrt(2 * model.get("num_hidden_layers", 1))
    for key, factor in (("initializer", 1.0), ("output_layer_initializer", depth)):
        drawn = model.get(key)
        for name in {"std", "a", "b"} & set(drawn if isinstance(drawn, dict) else ()):
            drawn[name] *= math.sqrt(wider) * factor


def _from_23(file: File, family: str) -> None:
    del family
    if has_base := [key for key in _BASES.values() if key in file.get("model", {})]:
        message = "releases before 2.3 have no such key: write the scales of each part by hand"
        raise ConfigError([Problem(("model", has_base[0]), message)])


def _as_it_is(file: File, family: str) -> None:
    """Nothing but names changes."""


_Hop = Callable[[File, str], None]
_HOPS: Mapping[Release, tuple[_Hop, _Hop]] = {  # (to, from)
    (1, 8): (_to_18, _from_18),
    (1, 9): (_to_19, _as_it_is),
    (2, 0): (_as_it_is, _as_it_is),
    (2, 1): (_to_21, _from_21),
    (2, 2): (_to_22, _as_it_is),
    (2, 3): (_to_23, _from_23),
}
_NAMED: Release = (2, 4)  # ``model.name`` is required since
_TRAINER: Release = (2, 3)  # files are one ``trainer`` since
_OURS: Release = (2, 2)  # whose words our sections have


def convert_file(
    raw: Mapping[str, Any], name: str, source: Release, target: Release | None = None
) -> tuple[File, list[str]]:
    """Rewrite a params file of one release as another reads it.

    Args:
        raw: the file, of either form; a ``model`` section alone is enough.
        name: of the model, which decides what some keys mean.
        source: whose the file is.
        target: whose it becomes; None is a run file of ours, which names its release.

    Returns:
        (the file, dotted paths of the keys that the target has no place for).

    Raises:
        ConfigError: what cannot be said in the target's words.
    """
    file, dropped = copy.deepcopy(dict(raw)), [key for key in ("cerebras",) if key in raw]
    for key in ("cerebras", "release"):
        file.pop(key, None)
    if "trainer" in file:
        file, left, _ = upgrade(file["trainer"])
        dropped += left
    end = target or max(source, _OURS)
    _hop(file, name, source, end, dropped)
    model = file.get("model", {})
    if source < end:
        _keep_defaults(file, name, source, end)
    idle = (target or _OURS) >= (1, 9) and code_of(name) in _DECODERS
    if idle and "loss_scaling" not in model and model.pop("loss_weight", 1.0) != 1:
        dropped.append("model.loss_weight")
    if (target or _NAMED) >= _NAMED and isinstance(file.get("model"), dict):
        file["model"] = {"name": file["model"].pop("model_name", name)} | file["model"]
    file = {section: own for section, own in file.items() if own not in ({}, None)}
    if target and target >= _TRAINER and file.keys() - {"model"}:
        trainer, left = as_trainer(file)
        return {"trainer": trainer}, dropped + left
    defaults = {} if target else {"release": "{}.{}".format(*max(source, _OURS))}
    return defaults | file, dropped


def _keep_defaults(file: File, name: str, source: Release, target: Release) -> None:
    """Write out what keys that the file leaves out mean, where the target has other defaults."""
    if isinstance(file.get("model"), dict) and name in MODELS:
        named = {"name": name} | file["model"]
        keep_defaults(named, source, target)
        file["model"] |= {key: value for key, value in named.items() if key != "name"}
    for part in ("train_input", "eval_input"):
        if isinstance(own := file.get(part), dict):
            own |= changed_input_defaults(own, source, target)


def _hop(file: File, name: str, source: Release, target: Release, dropped: list[str]) -> None:
    """Take every hop between two releases, in place."""
    family, renames = code_of(name), _renames(name)
    for release, (to, _) in _HOPS.items():
        if source < release <= target:
            to(file, family)
            _rename_all(file, renames, release, back=False)
            _drop(file, release, dropped)
    for release, (_, back) in reversed(tuple(_HOPS.items())):
        if target < release <= source:
            _rename_all(file, renames, release, back=True)
            back(file, family)


def _rename_all(file: File, rows: list[_Rename], release: Release, *, back: bool) -> None:
    for row in rows:
        if row.since == release:
            _rename(file, row, back=back)
