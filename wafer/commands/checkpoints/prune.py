"""Choose a model's masks from data, without training: ``wafer prune``."""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from models.user.flags import own_flags
from models.user.trust import add_option, trusting, untrusted

if TYPE_CHECKING:
    import numpy as np

    import models
    from sparsity.oneshot import Pruned
    from sparsity.selected import Selected
    from wafer.commands.inputs import Source
    from wafer.experiment import Experiment, Part

__all__ = ["add_arguments", "prune"]

_AGREE = 1e-3  # of levels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("--checkpoint_path", help="trained model; none: the weights of step 0")
    parser.add_argument("-p", "--params", help="run file; where the checkpoint does not hold its")
    parser.add_argument("-m", "--method", required=True, help="magnitude, wanda, sparsegpt, ...")
    parser.add_argument("-s", "--sparsity", type=float, help="share of weights to prune")
    parser.add_argument("--pattern", help="such as 2:4: of every 4 inputs 2 are kept")
    parser.add_argument("--budget", default="uniform", help="how layers share the level: erk, ...")
    parser.add_argument("--param_filter", action="append", help="glob of weights to prune")
    parser.add_argument(
        "--calibration", help="folder of HDF5 rows; default: the run's own data_dir"
    )
    parser.add_argument("--samples", type=int, default=128, help="rows of it to read")
    parser.add_argument("--rounds", type=int, help="times to score and prune; synflow: 100")
    parser.add_argument("-o", "--output", required=True, help="checkpoint to write, NaN at pruned")
    add_option(parser)
    parser.set_defaults(run=_main)


def _main(args: argparse.Namespace) -> int:
    from wafer.session.logs import setup_logging

    setup_logging("INFO")
    say = lambda line: sys.stdout.write(line + "\n")
    section = {"sparsity": args.sparsity, "budget": args.budget, "param_filter": args.param_filter}
    if args.pattern:
        section["pattern"] = _pattern(args.pattern)
    prune(
        args.output,
        {key: value for key, value in section.items() if value is not None},
        method=args.method,
        checkpoint=args.checkpoint_path,
        source=args.params,
        calibration=args.calibration,
        samples=args.samples,
        rounds=args.rounds,
        report=say,
    )
    return 0


def _pattern(text: str) -> dict[str, Any]:
    from wafer.errors import WaferError

    n, colon, m = text.partition(":")
    if not (colon and n.isdigit() and m.isdigit()):
        raise WaferError(f"--pattern: expected N:M such as 2:4, found {text!r}")
    return {"type": "n:m", "n": int(n), "m": int(m)}


@own_flags()
def prune(
    output: str | os.PathLike[str],
    section: Any,
    *,
    method: str,
    checkpoint: str | os.PathLike[str] | None = None,
    source: "Source | None" = None,
    calibration: str | os.PathLike[str] | None = None,
    samples: int = 128,
    rounds: int | None = None,
    report: Callable[[str], object] = lambda line: None,
    trust_code: bool = False,
) -> pathlib.Path:
    """Prune a model once and write it as a checkpoint to train on from.

    Args:
        output: folder to write; holds no checkpoint yet.
        section: a ``sparsity`` section: the level, a pattern, a budget, a filter.
        method: one of ``sparsity.oneshot.METHODS``.
        checkpoint: trained model: a checkpoint, a model_dir, a Hugging Face folder; None prunes
            the weights with which ``source`` would start.
        source: a run file; None takes the one that the checkpoint remembers.
        calibration: folder of rows as the run's ``train_input`` reads them, HDF5 rows where the
            checkpoint remembers no run; None is the run's own.
        samples: rows to read of it.
        rounds: how often to score and prune; None is the method's own: 100 for synflow, else 1.
        report: called with lines that say how far it is.
        trust_code: import code that the checkpoint names; it may do anything.

    Returns:
        The checkpoint: NaN at pruned weights, so that ``wafer run --checkpoint_path`` keeps them.

    Raises:
        SparsityError: an unknown method or a section that does not go with it.
        ConfigError: rows are needed, but there is neither ``calibration`` nor a run's data.
        CheckpointError: no readable checkpoint there.
        DataError: rows that are not what the configuration says.

    Examples:
        >>> wafer.prune("runs/half", 0.5, method="wanda", checkpoint="runs/demo")  # doctest: +SKIP
    """
    import sparsity
    from models.convert.tokenizer import carry_tokenizer
    from models.counts import forward_flops
    from sparsity.oneshot import METHODS, prune
    from wafer.commands.inputs import stored_form
    from wafer.session.hints import next_lines

    with trusting(trust_code=trust_code):
        model, params, config = _start(checkpoint, source)
        reads_rows = METHODS.get(method, False)
        stored = untrusted(checkpoint) if source is None else contextlib.nullcontext()
        with stored:
            reader = _reader(config, calibration) if reads_rows else None
    batches = () if reader is None else _batches(*reader, samples)
    flops = lambda: forward_flops(model)
    sparsifier = sparsity.configure(
        section,
        weight_layout=model.weight_layout,
        aliases=model.alias,
        params=params,
        flops=flops,
        vendor_default=True,
    )
    loss = _mean_loss(model, batches)
    before = loss(params)
    dtypes, masks = ({}, {}) if checkpoint is None else stored_form(checkpoint)
    options = {"batches": batches, "rounds": rounds, "masks": masks, "report": report}
    pruned = prune(model, params, sparsifier, method, **options)
    path = _write(output, model, pruned, dtypes)
    if checkpoint is not None:
        carry_tokenizer(checkpoint, path)
    if batches:
        after = loss(pruned.params)
        report(f"loss on {len(batches)} calibration batches: {before:.4f} before, {after:.4f} now")
    report(f"{_reached(pruned, sparsifier.select(params), masks)}: {path}")
    for line in next_lines(_advice(path, model, pruned, calibration)):
        report(line)
    return path


def _reached(pruned: "Pruned", selected: "Mapping[str, Selected]", stored: Mapping) -> str:
    """Say how much is pruned, and why where it is not what was asked for."""
    from models.paths import named_leaves

    masks = {name: pruned.masks[name] for name in selected}
    total = sum(mask.size for mask in masks.values())
    level = 1 - sum(int(mask.sum()) for mask in masks.values()) / total
    asked = sum(masks[n].size * float(c.algorithm.sparsity(0)) for n, c in selected.items()) / total
    line = f"{level:.2%} of {total:,} weights in {len(masks)} matrices pruned"
    if abs(level - asked) > _AGREE:
        already = level > asked and any(name in stored for name in masks)
        why = (
            "what is pruned already stays pruned"
            if already
            else "rows of weights that compete keep whole numbers of them"
        )
        line += f", not {asked:.2%}, since {why}"
    leaves = dict(named_leaves(pruned.params))
    zeros = sum(int((mask & (leaves[name] == 0)).sum()) for name, mask in masks.items())
    return f"{line}; {zeros:,} of those kept are 0" if zeros else line


def _advice(
    path: pathlib.Path,
    model: "models.Model",
    pruned: "Pruned",
    calibration: str | os.PathLike[str] | None,
) -> list[str]:
    """Commands that go on from a pruned checkpoint."""
    import yaml

    from wafer.session.hints import typed
    from wafer.session.masks import section_that_keeps

    masked = {
        name: (mask.size - int(mask.sum()), mask.size)
        for name, mask in pruned.masks.items()
        if not mask.all()
    }
    rows = "ROWS" if calibration is None else typed(calibration)
    lines = [
        f"wafer config new --checkpoint_path {typed(path)} --data {rows} -o finetune.yaml",
        "wafer run --params finetune.yaml --mode train --model_dir runs/finetune",
        f"wafer finalize -i {typed(path)} -o {typed(f'{path}-finalized')}",
    ]
    if not masked:
        return lines
    section = section_that_keeps(masked, model)
    text = yaml.safe_dump(section, default_flow_style=True, sort_keys=False, width=1000).strip()
    return [*lines, f"in another run file these masks are kept by: sparsity: {text}"]


def _start(
    checkpoint: str | os.PathLike[str] | None, source: "Source | None"
) -> "tuple[models.Model, Any, Source]":
    """The model, its weights, and the run that they belong to."""
    import jax

    from wafer.commands.inputs import code_of, experiment_of, load
    from wafer.errors import ConfigError, Problem

    if checkpoint is not None:
        with trusting(() if source is None else code_of(source)):
            model, params, record = load(checkpoint)
        return model, params, record["config"] if source is None else source
    if source is None:
        message = "missing; give --params, --checkpoint_path or both"
        raise ConfigError([Problem(("checkpoint_path",), message)])
    experiment = experiment_of(source)
    return experiment.model, experiment.model.init(jax.random.key(experiment.seed)), source


def _write(
    output: str | os.PathLike[str],
    model: "models.Model",
    pruned: "Pruned",
    dtypes: "Mapping[str, np.dtype]",
) -> pathlib.Path:
    """Write the checkpoint, NaN at pruned weights, in the dtypes of the one that was read."""
    import numpy as np

    from models.checkpoint.pruned import mark
    from models.checkpoint.writer import write_params
    from models.paths import named_leaves
    from wafer.config.vendor.keys import section_of

    marked, _ = mark(pruned.params, (), pruned.masks)
    stored = lambda name, leaf: np.asarray(leaf).astype(dtypes.get(name, leaf.dtype))
    leaves = [(name, stored(name, leaf)) for name, leaf in named_leaves(marked)]
    return write_params(output, section_of(model.config), [name for name, _ in leaves], leaves)


def _mean_loss(model: "models.Model", batches: "Sequence[models.Batch]") -> Callable[[Any], float]:
    """The loss over all batches as a function of the parameters, compiled once; 0 without any."""
    import jax
    import numpy as np

    loss = jax.jit(lambda params, batch: model.loss(params, batch)[0])
    return lambda params: float(np.mean([loss(params, one) for one in batches] or [0.0]))


def _reader(
    source: "Source", calibration: str | os.PathLike[str] | None
) -> "tuple[Experiment, Part]":
    """The experiment that reads the calibration rows, and which of its inputs they are."""
    from wafer.commands.inputs import experiment_of
    from wafer.config.newfile import rows_section
    from wafer.errors import ConfigError, Problem

    if not isinstance(source, Mapping) or source.get("train_input") is not None:
        experiment = experiment_of(source)
        if calibration is None:
            return experiment, "train"
        section = experiment.section("train").model_copy(update={"data_dir": (str(calibration),)})
        cfg = experiment.cfg.model_copy(update={"train_input": section})
        return dataclasses.replace(experiment, cfg=cfg), "train"
    if calibration is None:
        message = (
            "missing: the checkpoint remembers no run that has data; give --calibration, a folder "
            "of HDF5 rows, or a run file with --params"
        )
        raise ConfigError([Problem(("calibration",), message)])
    settings = source["model"]
    sections = {
        "runconfig": {"mode": "eval"},
        "model": settings,
        "eval_input": rows_section(settings, pathlib.Path(calibration)),
    }
    return experiment_of(sections), "eval"


def _batches(experiment: "Experiment", part: "Part", samples: int) -> "Sequence[models.Batch]":
    """Read the calibration rows as the run would."""
    import itertools

    import jax

    from wafer.data.batching.batches import host_batch, to_batch
    from wafer.errors import DataError

    section = experiment.section(part)
    size = min(section.batch_size, samples)
    dataset = experiment.dataset(part, experiment.cfg.runconfig.model_dir)
    rows = itertools.islice(dataset.loader(size, 1), max(samples // size, 1))
    batch = jax.jit(to_batch)
    batches = [batch({name: x[0, 0] for name, x in host_batch(one).items()}) for one in rows]
    if not batches:
        raise DataError(
            f"{getattr(section, 'data_dir', section)}: fewer than {size} rows for calibration; set "
            f"{part}_input.batch_size or --samples lower"
        )
    return batches
