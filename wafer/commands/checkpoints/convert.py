"""``wafer convert``, ``wafer.convert``: convert, convert-config, list, diff.

As in ``convert --model gptj --src-fmt hf --tgt-fmt wafer --config config.json --output-dir D
WEIGHTS``. Formats: ``hf``, ``wafer``, ``cs-X.Y`` of the Model Zoo.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from wafer.config import parse_config, unseen_lines
from wafer.config.loader import model_section_of
from wafer.errors import ConfigError, Problem
from wafer.experiment import Experiment
from wafer.models.base import Model
from wafer.models.checkpoint.layout import (
    CHECKPOINTS,
    STEP,
    complete_checkpoints,
    model_section,
    record_entry,
    step_folders,
)
from wafer.models.checkpoint.reader import build_stored, load_checkpoint, open_params
from wafer.models.checkpoint.writer import write_params
from wafer.models.convert.api import configs_to_hf, open_hf, section_from_hf, to_hf, without_head
from wafer.models.convert.compare import diff_weights
from wafer.models.convert.manifest import write_manifest
from wafer.models.convert.tokenizer import carry_tokenizer, find_tokenizer, text_folder
from wafer.models.counts import abstract_params
from wafer.models.errors import SectionError, did_you_mean_model
from wafer.models.files import require_outside, write_text
from wafer.models.names import FAMILIES_ALONE, MODELS, lookup, preset_of
from wafer.models.paths import named_leaves
from wafer.models.registry import build, is_function
from wafer.models.shown.html import table
from wafer.models.user import yamlfile
from wafer.models.user.flags import own_flags
from wafer.models.user.trust import NamedCode, add_option, looking, trusting
from wafer.sparsity.stored.inference import forward_of
from wafer.vendor.mdl.file import MdlFile
from wafer.vendor.mdl.sections import carried_sections, training_sections
from wafer.vendor.mdl.weights import FORMATS, open_weights, writable, write_weights
from wafer.vendor.mdl.writer import Tree
from wafer.vendor.releases import convert_file
from wafer.vendor.runfile import read
from wafer.vendor.tensors import FAMILIES
from wafer.yamlfile import read_yaml

_HEADLESS = "-headless"
_FORMATS = ("hf", "wafer", *FORMATS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs; each sets ``run``: Namespace -> exit code."""
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    convert = verbs.add_parser("convert", help="weights and config, between formats")
    convert.add_argument("weights", help="folder, weight file, .index.json, checkpoint or .mdl")
    convert.add_argument("--config", help="config.json elsewhere; of a .mdl: its YAML")
    convert.add_argument("--hf-shard-size", default="10GB", help="largest file written, e.g. 500MB")
    convert.add_argument("--drop-unmatched-keys", action="store_true")
    _common(convert, _convert)
    config = verbs.add_parser("convert-config", help="the config alone")
    config.add_argument("config", help="config.json, or a params YAML")
    _common(config, _convert_config)
    listing = verbs.add_parser("list", help="models that convert")
    listing.add_argument("model", nargs="?")
    listing.set_defaults(run=_list)
    diff = verbs.add_parser("diff", help="compare two weight files or checkpoints of one format")
    diff.add_argument("left", help="Hugging Face folder or file, or a checkpoint folder")
    diff.add_argument("right")
    diff.add_argument("--tensor_comparison_op", choices=("equal", "allclose"), default="equal")
    diff.set_defaults(run=_diff)


def _common(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    parser.add_argument(
        "--model", help="a name of `convert list`, or NAME-headless (default: the source's)"
    )
    for which in ("--src-fmt", "--tgt-fmt"):
        parser.add_argument(
            which, required=True, choices=_FORMATS, metavar="FMT", help="hf, wafer or cs-X.Y"
        )
    parser.add_argument("-o", "--output-dir", help="default: beside the input")
    add_option(parser)
    parser.set_defaults(run=lambda args: _look(args, run))


def _look(args: argparse.Namespace, run: Callable[[argparse.Namespace], int]) -> int:
    with _looking(args):
        return run(args)


@contextlib.contextmanager
def _looking(args: argparse.Namespace) -> Iterator[None]:
    """Import no code but that of the model which the command names."""
    named = [NamedCode("model", args.model.removesuffix(_HEADLESS))] if args.model else []
    with trusting(named), looking(FAMILIES_ALONE):
        yield


def _convertible() -> list[str]:
    return [name for name, entry in MODELS.items() if entry.hf]


def _unknown(name: str, known: Collection[str]) -> ValueError:
    return ValueError(
        f"model {name!r} does not convert; expected a name of `wafer convert list`, or module:name "
        f"of a family of your own (docs/howto/model-family.md){did_you_mean_model(name, known)}"
    )


def read_section(path: str | os.PathLike[str]) -> yamlfile.YamlMapping:
    """Read the ``model`` section of a params YAML, of the ``trainer:`` form as well.

    Raises:
        ValueError: there is none.
    """
    try:
        file, _ = yamlfile.read_yaml(path)
    except SectionError as error:
        raise ValueError(f"{path}: {error}") from None
    trainer = file.get("trainer") if isinstance(file, dict) else None
    if isinstance(trainer, dict):
        file = trainer.get("init", {})
    if not isinstance(file, dict) or not isinstance(file.get("model"), dict):
        raise ValueError(f"{path}: expected a params YAML with a model section")
    return file["model"]


def read_model(path: str | os.PathLike[str], name: str | None = None) -> Model:
    """Build the model of a params YAML.

    Args:
        path: the file.
        name: of the model where the file names none.

    Raises:
        ValueError: there is none, or one of a function of the user's, which has no other form.
    """
    section = ({"name": name} if name else {}) | read_section(path)
    settings = read({"model": section}).sections["model"]
    try:
        lookup(str(settings.get("name")))
        return build(settings)
    except SectionError as error:
        raise ValueError(f"{path}: {error}") from error


def _params_file(args: argparse.Namespace) -> str:
    if args.config is None:
        raise ValueError("--config: a .mdl does not tell its model; name the run's params YAML")
    return str(args.config)


def _source_name(args: argparse.Namespace) -> str:
    """Return the name of the model that the source says."""
    weights = getattr(args, "weights", None)
    where = Path(weights or args.config)
    if args.src_fmt == "hf":
        beside = where if where.is_dir() or not weights else where.parent
        section = section_from_hf(args.config or beside)
    elif args.src_fmt == "wafer" and weights:
        section = model_section(open_params(where)[0], where)
    else:
        where = _params_file(args)
        section = read_section(where)
    name = section.get("name")
    if not isinstance(name, str):
        raise ValueError(f"{where}: names no model; give --model, a name of `wafer convert list`")
    return name


def _name(args: argparse.Namespace, *, rewrites: bool = False) -> str:
    """Check the model's name and the formats; ``rewrites``: a params file, of any model."""
    args.model = args.model or _source_name(args)
    name = args.model.removesuffix(_HEADLESS)
    if not (rewrites and is_function(name)):
        if ":" in name:  # a family of the user's
            lookup(name)
        known = MODELS if rewrites else _convertible()
        if name.rpartition(":")[2] not in known:
            raise _unknown(name, known)
    if args.model.endswith(_HEADLESS) and lookup(name).family != "decoder":
        raise ValueError(f"--model {args.model!r}: only decoders have a -headless form")
    if args.src_fmt == args.tgt_fmt:
        raise ValueError(f"--src-fmt and --tgt-fmt are both {args.src_fmt!r}: nothing to convert")
    return name


def _require_model(asked: str, found: object, where: object) -> None:
    """Refuse a source of a model of another family than ``--model`` names.

    Names of one Hugging Face model_type are one family; names that are unknown are not compared.
    """
    if found == asked or not isinstance(found, str):
        return
    ours, theirs = preset_of(asked), preset_of(found)
    same = ours and theirs and (ours.hf, ours.family) == (theirs.hf, theirs.family)
    if (theirs is None and ":" not in found) or (same and theirs is not None and theirs.hf):
        return
    raise ValueError(
        f"{where}: its model is {found!r} (--model {asked}); expected a source of {asked!r}. "
        f"Give --model {found}"
    )


def _read_model(config: str, name: str) -> Model:
    model = read_model(config, name)
    _require_model(name, model.config.name, config)
    return model


def _bytes(size: str) -> int:
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "B": 1}
    for unit, factor in units.items():
        number = size.upper().removesuffix(unit)
        if size.upper().endswith(unit) and number.replace(".", "", 1).isdigit():
            return int(float(number) * factor)
    raise ValueError(f"--hf-shard-size {size!r}: expected a number with KB, MB or GB")


def _target(args: argparse.Namespace, source: str) -> Path:
    path = Path(source)
    stem = path.name.split(".")[0] or "model"
    return Path(args.output_dir) if args.output_dir else path.parent / f"{stem}_to_{args.tgt_fmt}"


class ConversionSummary(NamedTuple):
    """What a conversion has written."""

    path: Path  #: folder, or the ``.mdl``
    model: str  #: its name
    tensors: int  #: how many
    parameters: int  #: in all of them
    tokenizer: bool  #: whether one lies beside the weights

    def _repr_html_(self) -> str:
        return table("Converted", (), [*self._asdict().items()])


@own_flags()
def convert(
    weights: str | os.PathLike[str],
    output_dir: str | os.PathLike[str] | None = None,
    *,
    src_fmt: str,
    tgt_fmt: str,
    model: str | None = None,
    config: str | os.PathLike[str] | None = None,
    hf_shard_size: str = "10GB",
    drop_unmatched_keys: bool = False,
    trust_code: bool = False,
) -> ConversionSummary:
    """Convert weights and their configuration between formats.

    Args:
        weights: folder, weight file, ``.index.json``, checkpoint, model_dir or ``.mdl``.
        output_dir: where to write; None is a folder beside the input.
        src_fmt: format of the input: ``hf``, ``wafer``, or the Model Zoo's of a release.
        tgt_fmt: format to write.
        model: a name of ``wafer convert list``, or NAME-headless; None is the source's.
        config: ``config.json`` elsewhere; of a ``.mdl``: its YAML.
        hf_shard_size: largest file written, such as 500MB.
        drop_unmatched_keys: leave out tensors that the model has not.
        trust_code: import code that the source names; it may do anything.

    Returns:
        Where it lies, and what it holds.

    Raises:
        ValueError: a source that is not what the call says, or a model that does not convert.
        CheckpointError: a checkpoint that cannot be read.

    Examples:
        >>> wafer.convert("gpt2", "gpt2-wafer", src_fmt="hf", tgt_fmt="wafer")  # doctest: +SKIP
    """
    for name, fmt in (("src_fmt", src_fmt), ("tgt_fmt", tgt_fmt)):
        if fmt not in _FORMATS:
            raise ValueError(f"{name}: {fmt!r}; expected {', '.join(_FORMATS)}")
    args = argparse.Namespace(
        weights=os.fspath(weights),
        output_dir=output_dir and os.fspath(output_dir),
        src_fmt=src_fmt,
        tgt_fmt=tgt_fmt,
        model=model,
        config=config and os.fspath(config),
        hf_shard_size=hf_shard_size,
        drop_unmatched_keys=drop_unmatched_keys,
    )
    with trusting(trust_code=trust_code), _looking(args):
        return _converted(args)


def _convert(args: argparse.Namespace) -> int:
    summary = _converted(args)
    tokenizer = ", with its tokenizer" if summary.tokenizer else ", no tokenizer found"
    sys.stdout.write(
        f"{summary.path}: {summary.model}, {args.src_fmt} to {args.tgt_fmt}, {summary.tensors} "
        f"tensors, {summary.parameters:,} parameters{tokenizer}\n"
    )
    return 0


def _converted(args: argparse.Namespace) -> ConversionSummary:
    target, limit = _target(args, args.weights), _bytes(args.hf_shard_size)
    if args.src_fmt == "wafer":  # a model_dir is its newest checkpoint
        steps = complete_checkpoints(step_folders(Path(args.weights) / CHECKPOINTS))
        args.weights = str(steps[-1]) if steps else args.weights
        require_outside(target, args.weights)
    name = _name(args)
    headless = args.model.endswith(_HEADLESS)
    text_folder(args.weights)  # refuses links before anything is written
    if args.tgt_fmt in FORMATS:
        writable(args.tgt_fmt)
    theirs = read_model(_params_file(args), name) if args.src_fmt in FORMATS else None
    with contextlib.nullcontext() if theirs is None else MdlFile(Path(args.weights)) as file:
        model, arrays, step = _open(args, name, theirs, file)
        settings, written = model_section_of(model.config), target
        _require_model(name, settings.get("name"), args.weights)
        if args.tgt_fmt == "wafer":
            names = [path for path, _ in named_leaves(abstract_params(model))]
            write_params(target, settings, names, arrays, () if args.src_fmt == "hf" else None)
        elif args.tgt_fmt == "hf":
            options = {"max_shard_bytes": limit, "headless": headless, "text_from": args.weights}
            leaves = dict(arrays)  # whose NaN their reader has checked
            to_hf(model, leaves, target, **options, pruned=leaves)
        else:
            leaves, written = dict(arrays), target / _mdl_name(args)
            options = {"step": step, "training": _training(args, model, file), "pruned": leaves}
            write_weights(model, leaves, written, args.tgt_fmt, **options)
    if args.tgt_fmt in FORMATS:
        with MdlFile(written) as file:
            write_manifest(written, file)
    if args.tgt_fmt != "hf":
        _write_params(args, settings, target)
        carry_tokenizer(args.weights, target)
    sizes = [leaf.size for _, leaf in named_leaves(abstract_params(model))]
    tokenizer = find_tokenizer(target) is not None
    return ConversionSummary(written, args.model, len(sizes), sum(sizes), tokenizer)


def _open(
    args: argparse.Namespace, name: str, theirs: Model | None, file: MdlFile | None
) -> tuple[Model, Iterable[tuple[str, Any]], int]:
    """Open the source: the model, (parameter path, array), the step."""
    drop = args.drop_unmatched_keys
    if theirs is not None and file is not None:
        step = int(file.scalar("global_step") or 0)
        return theirs, open_weights(file, theirs, drop_unmatched=drop), step
    if args.src_fmt == "hf":
        headless = args.model.endswith(_HEADLESS)
        options = {"config": args.config, "name": name, "drop_unmatched": drop}
        return *open_hf(args.weights, dtype=None, add_head=headless, **options), 0
    record, params = open_params(args.weights)
    model, arrays = build_stored(record, args.weights, params), params.items()
    if args.tgt_fmt == "hf":
        used = forward_of(record, args.weights)
        arrays = [(path, used(path, leaf)) for path, leaf in arrays]
    return model, arrays, record_entry(record, args.weights, STEP) or 0


def _training(args: argparse.Namespace, model: Model, file: MdlFile | None) -> dict[str, Tree]:
    """What the source holds of the training, for a ``.mdl``; {} where it does not fit there."""
    try:
        if file is not None:
            return carried_sections(file, model, args.tgt_fmt)
        if args.src_fmt == "wafer":
            tree, record = load_checkpoint(args.weights, lazily=True)
            return training_sections(model, record, tree, args.tgt_fmt)
    except ValueError as error:
        sys.stderr.write(f"{args.weights}: weights alone are written: {error}\n")
    return {}


def _mdl_name(args: argparse.Namespace) -> str:
    """Name the file as the Model Zoo's converter, which reads pytorch_model.bin of a folder."""
    path = Path(args.weights)
    folder = args.src_fmt == "hf" and path.is_dir()
    stem = "pytorch_model" if folder else path.name.split(".")[0] or "model"
    return f"{stem}_to_{args.tgt_fmt}.mdl"


def _write_params(args: argparse.Namespace, settings: dict[str, object], target: Path) -> Path:
    """Write the ``model`` section; beside a ``.mdl`` without a key of ours."""
    if args.tgt_fmt in FORMATS:
        settings.pop("rotary_interleaved", None)  # it always has pairs
    path = target / "params_model.yaml"
    write_text(path, yaml.safe_dump({"model": settings}))
    return path


def _convert_config(args: argparse.Namespace) -> int:
    rewrites = args.src_fmt in FORMATS and args.tgt_fmt != "hf"
    name = _name(args, rewrites=rewrites)
    target = _target(args, args.config)
    if rewrites:
        _require_model(name, read_section(args.config).get("name"), args.config)
        file, dropped = rewrite(Path(args.config), name, args.src_fmt, args.tgt_fmt)
        path = target / f"{Path(args.config).stem}_to_{args.tgt_fmt}.yaml"
        write_text(path, yaml.safe_dump(file, sort_keys=False, default_flow_style=None))
        if dropped:
            sys.stderr.write(f"no place in {args.tgt_fmt}: {', '.join(dropped)}\n")
    elif args.tgt_fmt == "hf":
        path = _write_config(args, name, target)
    else:
        headless = args.model.endswith(_HEADLESS)
        if args.src_fmt == "hf":
            model = build(section_from_hf(args.config, name, add_head=headless))
        else:
            model = _read_model(args.config, name)
        path = _write_params(args, model_section_of(model.config), target)
    sys.stdout.write(f"{path}: {args.model}, {args.src_fmt} to {args.tgt_fmt}, config alone\n")
    return 0


def rewrite(
    path: Path, name: str, source: str, target: str
) -> tuple[yamlfile.YamlMapping, list[str]]:
    """Rewrite a params file of one release as another, or `wafer run`, reads it.

    Args:
        path: the file.
        name: of its model.
        source: format, such as 'cs-X.Y'.
        target: format; a file for 'wafer' is checked as `wafer run` does.

    Returns:
        (the sections, keys that the target has no place for).

    Raises:
        ConfigError: what cannot be said there, or what `wafer run` refuses.
    """
    raw, _ = read_yaml(path)
    if not isinstance(raw, dict) or not isinstance(raw.get("trainer", raw.get("model")), dict):
        message = "expected a params YAML with a model section, or one trainer"
        raise ConfigError([Problem((), message)], str(path))
    try:
        file, dropped = convert_file(raw, name, FORMATS[source], FORMATS.get(target))
        if target == "wafer" and {"model", "train_input", "optimizer"} <= set(file):
            cfg = parse_config(file)
            for line in unseen_lines(cfg):
                sys.stderr.write(f"{path}: {line}\n")
            if not cfg.unseen:
                Experiment.from_config(cfg)  # what is written, `wafer run` accepts
    except ConfigError as error:
        raise ConfigError(error.problems, str(path)) from error
    return file, dropped


def _write_config(args: argparse.Namespace, name: str, target: Path) -> Path:
    cfg = _read_model(args.config, name).config
    if args.model.endswith(_HEADLESS):
        cfg = without_head(cfg)
    configs = configs_to_hf(cfg)
    for folder, config in configs.items():
        write_text(target / folder / "config.json", json.dumps(config, indent=2, sort_keys=True))
    return target / "config.json" if "" in configs else target


def _list(args: argparse.Namespace) -> int:
    names = [n for n in _convertible() if args.model in {None, n}]
    if not names:
        raise _unknown(args.model, _convertible())
    for name in sorted(names):
        formats = "hf, wafer, cs-X.Y" if MODELS[name].family in FAMILIES else "hf, wafer"
        head = ", -headless" if MODELS[name].family == "decoder" else ""
        sys.stdout.write(f"{name:24} hf:{MODELS[name].hf:20} {formats}{head}\n")
    return 0


def _diff(args: argparse.Namespace) -> int:
    lines = diff_weights(args.left, args.right, args.tensor_comparison_op)
    sys.stdout.write("\n".join([*lines, "differ" if lines else "same"]) + "\n")
    return 1 if lines else 0
