"""Turn a sparse checkpoint into a plain dense one: ``wafer finalize``."""

import argparse
import dataclasses
import logging
import os
import pathlib
import sys
from typing import TYPE_CHECKING

from wafer.models.files import require_local, require_outside
from wafer.models.user.flags import own_flags
from wafer.models.user.trust import add_option, looking, trusting

if TYPE_CHECKING:
    from wafer.sparsity.finalize import Report

_LOG = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("-i", "--input", required=True, help="sparse checkpoint")
    parser.add_argument("-o", "--output", required=True, help="dense checkpoint to write")
    parser.add_argument(
        "-p", "--params", help="of a .mdl: its params YAML, to write a checkpoint that runs load"
    )
    parser.add_argument(
        "--fold_lora",
        action="store_true",
        help="also bake LoRA adapters, or factors, into their kernels; keeps the model only",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="list every sparse tensor")
    add_option(parser)
    parser.set_defaults(run=_main, addresses=("input", "output"))


def _main(args: argparse.Namespace) -> int:
    from wafer.session.logs import setup_logging

    setup_logging("INFO")
    if args.fold_lora:
        lines = fold_lora(args.input, args.output)
    else:
        report = finalize(args.input, args.output, args.params)
        lines = report.lines() if args.verbose else [report.summary()]
    sys.stdout.writelines(line + "\n" for line in lines)
    return 0


@own_flags()
def finalize(
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    params: str | os.PathLike[str] | None = None,
    *,
    trust_code: bool = False,
) -> "Report":
    """Write a checkpoint with zeros at pruned positions, where training keeps NaN.

    Tensors go through one or two at a time, so memory does not grow with the model.

    Args:
        input: a checkpoint folder, also at ``s3://`` or ``gs://``, or a ``.mdl`` file of the Model
            Zoo.
        output: does not exist yet, also at a store; gets the same layout, and the tokenizer. A
            name that ends in ``.mdl`` gives such a file of the same release; no tokenizer is
            written beside it.
        params: of a ``.mdl``, the params YAML whose ``model`` it holds: ``output`` is then a
            checkpoint that ``wafer.load`` and ``--checkpoint_path`` take.
        trust_code: import code that the checkpoint names, such as a sparsity algorithm; it may do
            anything.

    Returns:
        What was there, per tensor; ``report.lines()`` puts it in words.

    Raises:
        FileExistsError: ``output`` exists.
        FileNotFoundError: ``input`` does not exist.
        CheckpointError: a tensor or file cannot be read, or the arrays are not those of the
            record's model; nothing is written.
        ValueError: a ``.mdl`` is asked for from something else, or does not hold that model.

    Examples:
        >>> wafer.finalize("runs/demo/checkpoints/300", "runs/demo/dense")  # doctest: +SKIP
    """
    from wafer.commands.checkpoints.convert import read_model
    from wafer.models.checkpoint.stores import is_url, local_output, local_path
    from wafer.models.convert.tokenizer import carry_tokenizer, text_folder
    from wafer.models.names import FAMILIES_ALONE
    from wafer.sparsity.finalize import check_paths, finalize as finalize_folder
    from wafer.vendor.mdl.finalize import finalize_mdl

    if is_url(output):
        with local_output(output) as path:
            report = finalize(input, path, params, trust_code=trust_code)
        return dataclasses.replace(report, target=os.fspath(output))
    input = local_path(input)
    source, target = (pathlib.Path(path).resolve() for path in (input, output))
    check_paths(source, target)
    to_mdl, from_mdl = target.suffix == ".mdl", source.is_file()
    if to_mdl and not from_mdl:
        raise ValueError(f"{target.name}: only a .mdl becomes a .mdl; {source} is a folder")
    if params is not None and (to_mdl or not from_mdl):
        raise ValueError(f"{target}: a model is named to make a checkpoint of a .mdl alone")
    require_outside(output, input)
    with trusting(trust_code=trust_code):
        with looking(FAMILIES_ALONE):
            model = None if params is None else read_model(params)
        text = text_folder(input)  # refuses links before anything is written
        report = (
            finalize_mdl(source, target, model) if from_mdl else finalize_folder(source, target)
        )
    if target.is_dir():
        carry_tokenizer(source, target)
    elif text is not None and text_folder(target) != text:
        _LOG.info("%s is one file: the tokenizer stays in %s", target, text)
    return report


@own_flags()
def fold_lora(
    input: str | os.PathLike[str], output: str | os.PathLike[str], *, trust_code: bool = False
) -> list[str]:
    """Write the model without adapters or factors: same outputs, ordinary parameters.

    Pruned weights are 0.

    Args:
        input: a checkpoint folder.
        output: folder to write; holds no checkpoint yet.
        trust_code: import code that the checkpoint names, such as a model family.

    Returns:
        Lines that say what was written and how to go on.

    Raises:
        CheckpointError: not a checkpoint, one without adapters and factors, or adapters beside
            kernels that are pruned.
        FileExistsError: the folder holds a checkpoint already.
        ValueError: an address of an object store.
    """
    import numpy as np

    from wafer.errors import CheckpointError
    from wafer.models.checkpoint.layout import model_section
    from wafer.models.checkpoint.pruned import masks_of
    from wafer.models.checkpoint.reader import build_stored, load_params, open_params
    from wafer.models.checkpoint.writer import write_params
    from wafer.models.convert.tokenizer import carry_tokenizer, text_folder
    from wafer.models.factored.adapters import fold_adapters
    from wafer.models.factored.factors import factors_of, fold_factors, is_factor
    from wafer.models.factored.lora import is_adapter, lora_of
    from wafer.models.paths import named_leaves
    from wafer.session.hints import next_lines, typed

    for path in (input, output):
        require_local(os.fspath(path))
    text_folder(input)  # refuses links before anything is written
    require_outside(output, input)
    stored, record = load_params(input)
    settings = model_section(record, input)
    with trusting(trust_code=trust_code):
        config = build_stored(record, input, stored).config
    cfg = lora_of(config)
    folded = [name for name, _ in named_leaves(stored) if is_adapter(name) or is_factor(name)]
    if (cfg is None and factors_of(config) is None) or not folded:
        raise CheckpointError(
            f"{input} has no adapters (model.lora_params) and no factors (model.factors); nothing "
            "to fold"
        )
    _, leaves = open_params(input)
    bases = {f"{name.rpartition('/')[0]}/kernel" for name in folded if is_adapter(name)}
    sparse = masks_of({name: np.asarray(leaves[name]) for name in sorted(bases & leaves.keys())})
    if sparse:
        count = sum(int((~mask).sum()) for mask in sparse.values())
        raise CheckpointError(
            f"{input}: adapters would fill {count:,} pruned weights of {len(sparse)} kernels "
            f"({next(iter(sparse))}, ...); expected dense ones. Where a dense model is wanted, "
            "finalize without --fold_lora, then fold the result"
        )
    params = fold_factors(fold_adapters(cfg, stored))
    for section in (settings, settings.get("text_model", {})):
        section.pop("lora_params", None)
        section.pop("factors", None)
    leaves = [(name, np.asarray(leaf)) for name, leaf in named_leaves(params)]
    before = dict(named_leaves(stored))
    filled = sum(int(((x != 0) & (before[n] == 0)).sum()) for n, x in leaves if n in bases)
    what, key = (
        ("factors", "factors") if cfg is None else (f"adapters of rank {cfg.r}", "lora_params")
    )
    path = write_params(output, settings, [name for name, _ in leaves], leaves)
    carry_tokenizer(input, output)
    return [
        f"Folded {len(folded) // 2} {what} into their kernels: {path}",
        *([f"{filled:,} weights that were 0 are not 0 now"] if filled else []),
        *next_lines(
            [
                f"wafer run ... --checkpoint_path {typed(path)}    (drop model.{key} there)",
                f"wafer convert convert --src-fmt wafer --tgt-fmt hf ... {typed(path)}",
            ]
        ),
    ]
