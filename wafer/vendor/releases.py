"""Params files of the vendor from release to release, forwards and backwards.

Between two releases stand hops, as the vendor's converters have them (``base_converter.py`` and
its families, 1.8 to 2.10). Most are names of keys, which are data; the rest are small functions.
"""

import copy
import math
from collections.abc import Callable, Mapping

from wafer.errors import ConfigError, Problem
from wafer.models.names import MODELS
from wafer.models.user.yamlfile import YamlMapping
from wafer.vendor.keys import PARTS, KeyRow, Release, code_of, names_of, release_of, rows_of, table
from wafer.vendor.parts import TOWER_SINCE
from wafer.vendor.runfile import with_defaults, within
from wafer.vendor.sparsity import INBAND, is_release_20, release_20
from wafer.vendor.trainer import as_trainer, upgrade
from wafer.vendor.translation import Translation

_BASES = {"hidden_size": "mup_base_hidden_size", "filter_size": "mup_base_filter_size"}
_DECODERS = ("gpt2", "gptj")
_USUAL = {"image_model": "clip-vit", "text_model": "llama"}  # parts without a name


def _places(file: YamlMapping, name: str) -> list[tuple[str, YamlMapping, tuple[str, ...]]]:
    """List the sections that rows are of: (scope in the table, section, names)."""
    places = ("model", "runconfig", "optimizer", "")
    sections = {scope: file.get(scope) if scope else file for scope in places}
    if name not in MODELS:
        del sections["model"]
    return [
        (scope, inner, names_of(scope, {"name": name} | inner if path == ("model",) else inner))
        for section, whole in sections.items()
        for inner, scope, path in within(whole, section, (section,))
        if len(path) == 1 or scope == "schedule"
    ]


def _rename_all(file: YamlMapping, name: str, release: Release, *, back: bool) -> None:
    """Rename the keys that have another name since a release."""
    for scope, section, names in _places(file, name):
        rows = [row for row in rows_of(scope, "rename", "pair") if row.is_of(names)]
        first = {row.says: row for row in reversed(rows)}
        for row in rows:
            if row.since != release or (back and first[row.says] is not row):
                continue
            if row.action == "pair":
                _pair(section, row, back=back)
            else:
                where, _, new = row.says.rpartition(".")
                there = file.setdefault(where, {}) if where else section
                _rename(section, there, row, new, back=back)


def _rename(own: YamlMapping, there: YamlMapping, row: KeyRow, new: str, *, back: bool) -> None:
    for old in row.keys[:1] if back else row.keys:
        source, target, key, other = (there, own, new, old) if back else (own, there, old, new)
        if key not in source or (source is target and key != other and other in target):
            continue
        value = source[key]
        if row.map:
            words = {v: k for k, v in row.map.items()} if back else row.map
            if not isinstance(value, str | bool) or value not in words:
                continue  # values without a counterpart are kept
            value = words[value]
        del source[key]
        target.setdefault(other, value)


def _pair(section: YamlMapping, row: KeyRow, *, back: bool) -> None:
    value = section.get(row.says)
    if back and isinstance(value, list | tuple) and len(value) == len(row.keys):
        del section[row.says]
        section |= dict(zip(row.keys, value, strict=True))
    elif not back and not section.keys().isdisjoint(row.keys):
        both = zip(row.keys, row.values, strict=True)
        section[row.says] = [section.pop(key, default) for key, default in both]


def _drop(file: YamlMapping, name: str, release: Release, dropped: list[str]) -> None:
    for scope, section, names in _places(file, name):
        for row in rows_of(scope, "gone"):
            if release_of(row.says) == release and row.is_of(names):
                for key in [key for key in row.keys if key in section]:
                    dropped.append(f"{scope}.{key}".lstrip("."))
                    del section[key]


# --- what is more than a name --------------------------------------------------------------------


def _from_18(file: YamlMapping, family: str) -> None:
    model = file.get("model", {})
    if family == "encoder":
        for key, default in (
            ("pooler_nonlinearity", model.get("encoder_nonlinearity", "gelu")),
            ("mlm_nonlinearity", "gelu"),
        ):
            if model.get(key) == default:
                del model[key]


def _to_19(file: YamlMapping, family: str) -> None:
    """In 1.8 a weight of the loss implied the scaling that reads it."""
    model = file.get("model", {})
    if family in _DECODERS and model.get("loss_weight", 1.0) != 1:
        model["loss_scaling"] = "batch_size"


def _to_21(file: YamlMapping, family: str) -> None:
    del family
    run = file.get("runconfig", {})
    if run.pop("is_pretrained_checkpoint", None):
        run.setdefault("load_checkpoint_states", "model,dataloader")


def _from_21(file: YamlMapping, family: str) -> None:
    del family
    run = file.get("runconfig", {})
    if run.get("load_checkpoint_states") in ("model", "model,dataloader"):
        run["is_pretrained_checkpoint"] = bool(run.pop("load_checkpoint_states"))


def _to_22(file: YamlMapping, family: str) -> None:
    del family
    run, sparse = file.get("runconfig", {}), file.get("sparsity")
    accumulates = run.pop("use_cs_grad_accum", None)
    for part in ("train_input", "eval_input"):
        section = file.get(part)
        if isinstance(section, dict) and accumulates is False:
            section["micro_batch_size"] = None
        elif isinstance(section, dict) and accumulates:
            section.setdefault("micro_batch_size", "auto")
    if isinstance(sparse, dict) and is_release_20(sparse):
        changes = Translation({}, None)
        file["sparsity"] = release_20(changes, sparse, ("sparsity",))
        if changes.problems:
            raise ConfigError(changes.problems)
    elif isinstance(sparse, dict) and INBAND & set(sparse):
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


def _to_23(file: YamlMapping, family: str) -> None:
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


def _from_23(file: YamlMapping, family: str) -> None:
    del family
    if has_base := [key for key in _BASES.values() if key in file.get("model", {})]:
        message = "releases before 2.3 have no such key: write the scales of each part by hand"
        raise ConfigError([Problem(("model", has_base[0]), message)])


def _as_it_is(file: YamlMapping, family: str) -> None:
    """Nothing but names changes."""


_Hop = Callable[[YamlMapping, str], None]
_HOPS: Mapping[Release, tuple[_Hop, _Hop]] = {  # (to, from)
    (1, 8): (_as_it_is, _from_18),
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
    raw: YamlMapping, name: str, source: Release, target: Release | None = None
) -> tuple[YamlMapping, list[str]]:
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
        file, unread, _ = upgrade(file["trainer"])
        dropped += unread
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
        trainer, unread = as_trainer(file)
        return {"trainer": trainer}, dropped + unread
    defaults = {} if target else {"release": "{}.{}".format(*max(source, _OURS))}
    return defaults | file, dropped


def _keep_defaults(file: YamlMapping, name: str, source: Release, target: Release) -> None:
    """Write out what keys that the file leaves out mean, where the target has other defaults."""
    model = file.get("model")
    if isinstance(model, dict) and name in MODELS:
        parts = {part: model[part] for part in PARTS if isinstance(model.get(part), dict)}
        model |= _changed({"name": name} | model, ("model",), source, target)
        for submodel, settings in parts.items():
            named = {"name": _USUAL.get(submodel, "bert")} | settings
            named["name"] = table().names.get(named["name"], named["name"])
            model[submodel] = settings | _changed(named, ("model", submodel), source, target)
        if "projector" in model and source < TOWER_SINCE <= target:
            tower = {k: value for k, (value, default) in table().tower.items() if value != default}
            model["image_model"] = tower | model.get("image_model", {})
    for kind in ("train_input", "eval_input"):
        if isinstance(section := file.get(kind), dict):
            # Ours, where a release has no row: false of every key that has one.
            then, now = (with_defaults(section, (kind,), release) for release in (source, target))
            keys = (then.keys() | now.keys()) - section.keys()
            ours = {key: then.get(key, False) for key in keys}
            section |= {key: value for key, value in ours.items() if value != now.get(key, False)}


def _changed(
    section: Mapping[str, object], path: tuple[str, ...], source: Release, target: Release
) -> YamlMapping:
    """Return what keys that a model's section leaves out mean at one release, and not at another.

    Args:
        section: with its name.
        path: ('model',), or that of a part.
        source: release of the file.
        target: the other release.
    """
    then, now = (with_defaults(section, path, release) for release in (source, target))
    values = {key: _effective(then, key) for key in sorted(then.keys() | now.keys())}
    return {key: value for key, value in values.items() if value != _effective(now, key)}


def _effective(section: YamlMapping, key: str) -> object:
    """Return the value of a key, or what a section without it means."""
    from wafer.models.registry import config_class  # imports jax

    name, value = section["name"], section.get(key)
    if key not in section:
        field = config_class(name).model_fields.get(key)
        value = MODELS[name].presets.get(key, None if field is None else field.default)
    if value is None and key.endswith("_dropout_rate"):
        return _effective(section, "dropout_rate")
    if value is None and key == "scale_qk_dot_by_d":
        return section.get("mup_base_hidden_size") is not None
    return value


def _hop(
    file: YamlMapping, name: str, source: Release, target: Release, dropped: list[str]
) -> None:
    """Take every hop between two releases, in place."""
    family = code_of(name)
    for release, (to, _) in _HOPS.items():
        if source < release <= target:
            to(file, family)
            _rename_all(file, name, release, back=False)
            _drop(file, name, release, dropped)
    for release, (_, back) in reversed(tuple(_HOPS.items())):
        if target < release <= source:
            _rename_all(file, name, release, back=True)
            back(file, family)
