"""Choose a model's masks from data, without training: ``wafer prune``."""

import argparse
import dataclasses
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wafer.models.shown.html import table
from wafer.models.user.flags import own_flags
from wafer.models.user.trust import add_option, trusting

if TYPE_CHECKING:
    import numpy as np

    from wafer import models
    from wafer.commands.inputs import Source
    from wafer.data.batching.dataset import Dataset
    from wafer.data.sections.base import InputSection
    from wafer.sparsity.oneshot import Pruned


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("--checkpoint_path", help="trained model; none: the weights of step 0")
    parser.add_argument("-p", "--params", help="run file, whose train_input is calibrated on")
    parser.add_argument("-m", "--method", required=True, help="magnitude, wanda, sparsegpt, ...")
    parser.add_argument("-s", "--sparsity", type=float, help="share of weights to prune")
    parser.add_argument("--pattern", help="such as 2:4: of every 4 inputs 2 are kept")
    parser.add_argument("--budget", default="uniform", help="how layers share the level: erk, ...")
    parser.add_argument("--param_filter", action="append", help="glob of weights to prune")
    parser.add_argument("--calibration", help="folder of rows; without --params of HDF5 rows")
    parser.add_argument("--samples", type=int, default=128, help="rows of it to read")
    parser.add_argument("--rounds", type=int, help="times to score and prune; synflow: 100")
    parser.add_argument("-o", "--output", required=True, help="checkpoint to write, NaN at pruned")
    add_option(parser)
    parser.set_defaults(run=_main)


def _main(args: argparse.Namespace) -> int:
    from wafer.session.logs import setup_logging

    setup_logging("INFO")
    say = lambda line: sys.stdout.write(line + "\n")
    keys = ("sparsity", "budget", "param_filter", "pattern")
    section = {key: getattr(args, key) for key in keys}
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


class PruneSummary(NamedTuple):
    """A pruned checkpoint, whose path it is wherever a path is taken."""

    path: pathlib.Path  #: of the checkpoint
    reached: str  #: how much is pruned, and why where it is not what was asked for
    layers: tuple[tuple[str, int, int], ...]  #: (name, weights, those that are kept) of each

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"{self.reached}: {self.path}"

    def _repr_html_(self) -> str:
        rows = [(name, size, kept, f"{1 - kept / size:.2%}") for name, size, kept in self.layers]
        heads = ("parameter", "weights", "kept", "pruned")
        return table(self.reached, heads, rows) + table("", (), [("checkpoint", self.path)])


@own_flags()
def prune(
    output: str | os.PathLike[str],
    section: object,
    *,
    method: str,
    checkpoint: str | os.PathLike[str] | None = None,
    source: "Source | None" = None,
    calibration: str | os.PathLike[str] | None = None,
    samples: int = 128,
    rounds: int | None = None,
    report: Callable[[str], object] = lambda line: None,
    trust_code: bool = False,
) -> PruneSummary:
    """Prune a model once and write it as a checkpoint to train on from.

    Args:
        output: folder to write; holds no checkpoint yet.
        section: a ``sparsity`` section: the level, a pattern, a budget, a filter.
        method: one of ``wafer.sparsity.oneshot.METHODS``.
        checkpoint: trained model: a checkpoint, a model_dir, a Hugging Face folder; None prunes
            the weights with which ``source`` would start.
        source: a run file; None takes the checkpoint's model alone, and no data of its run.
        calibration: folder of rows as ``train_input`` of ``source`` reads them, of HDF5 rows
            without one; None is the data of ``source``.
        samples: rows to read of it.
        rounds: how often to score and prune; None is the method's own: 100 for synflow, else 1.
        report: called with lines that say how far it is.
        trust_code: import code that the checkpoint names; it may do anything.

    Returns:
        The checkpoint's path, and what is pruned of each parameter. It holds NaN at pruned weights,
        so that ``wafer run --checkpoint_path`` keeps them.

    Raises:
        SparsityError: an unknown method or a section that does not go with it.
        ConfigError: rows are needed, but there is neither ``calibration`` nor ``source``, or
            fewer than one is asked for.
        CheckpointError: no readable checkpoint there.
        DataError: rows that are not what the configuration says.

    Examples:
        >>> wafer.prune(  # doctest: +SKIP
        ...     "runs/half", 0.5, method="wanda", checkpoint="runs/demo", calibration="rows"
        ... )
    """
    from wafer import sparsity
    from wafer.commands.inputs import stored_form, weights_folder
    from wafer.errors import ConfigError, Problem
    from wafer.models.convert.tokenizer import carry_tokenizer, text_folder
    from wafer.models.counts import forward_flops
    from wafer.models.files import require_outside, require_path
    from wafer.session.hints import next_lines
    from wafer.sparsity.oneshot import METHODS, prune
    from wafer.sparsity.sections.config import parse
    from wafer.vendor.sparsity import core_section

    section = core_section(section)
    parse(section)  # refuses what is wrong, as the next lines links, before long work
    if samples < 1:
        raise ConfigError([Problem(("samples",), f"{samples}: expected at least 1 row")])
    if calibration is not None:
        require_path(pathlib.Path(calibration))
    if checkpoint is not None:
        text_folder(checkpoint)
        require_outside(output, weights_folder(checkpoint))
    with trusting(trust_code=trust_code):
        model, params = _start(checkpoint, source)
    batches = ()
    if METHODS.get(method, False):
        batches = _batches(*_rows(model, source, calibration), samples)
    flops = lambda: forward_flops(model)
    sparsifier = sparsity.configure(
        section,
        weight_layout=model.weight_layout,
        aliases=model.alias,
        params=params,
        flops=flops,
        dense_words=False,
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
    summary = _summary(path, pruned)
    for line in (repr(summary), *next_lines(_advice(path, model, pruned, calibration))):
        report(line)
    return summary


def _summary(path: pathlib.Path, pruned: "Pruned") -> PruneSummary:
    from wafer.models.paths import named_leaves

    selected = pruned.selected
    masks = {name: pruned.masks[name] for name in selected}
    layers = tuple((name, mask.size, int(mask.sum())) for name, mask in masks.items())
    total = sum(size for _, size, _ in layers)
    level = 1 - sum(kept for _, _, kept in layers) / total
    asked = sum(masks[n].size * float(c.algorithm.sparsity(0)) for n, c in selected.items()) / total
    what = "matrices" if all(mask.ndim > 1 for mask in masks.values()) else "parameters"
    line = f"{level:.2%} of {total:,} weights in {len(masks)} {what} pruned"
    wrong = abs(level - asked) * total  # weights
    if wrong > 1 and f"{level:.2%}" != f"{asked:.2%}":
        why = (
            "what is pruned already stays pruned"
            if pruned.stayed > wrong / 2
            else "weights that compete, of a matrix or a row, keep a whole number of them"
        )
        line += f", not {asked:.2%}, since {why}"
    leaves = dict(named_leaves(pruned.params))
    zeros = sum(int((mask & (leaves[name] == 0)).sum()) for name, mask in masks.items())
    line += f"; {zeros:,} of those kept are 0" if zeros else ""
    return PruneSummary(path, line, layers)


def _advice(
    path: pathlib.Path,
    model: "models.Model",
    pruned: "Pruned",
    calibration: str | os.PathLike[str] | None,
) -> list[str]:
    """Commands that go on from a pruned checkpoint."""
    import yaml

    from wafer.config.loader import model_section_of
    from wafer.session.hints import typed, with_trust
    from wafer.session.masks import section_that_keeps

    masked = {
        name: (mask.size - int(mask.sum()), mask.size)
        for name, mask in pruned.masks.items()
        if not mask.all()
    }
    rows = "ROWS" if calibration is None else typed(calibration)
    begin = f"wafer config new --checkpoint_path {typed(path)} --data {rows} -o finetune.yaml"
    lines = [
        with_trust(begin, model=model_section_of(model.config)),
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
) -> "tuple[models.Model, Any]":
    """The model and its weights."""
    import jax

    from wafer.commands.inputs import code_of, experiment_of, load
    from wafer.errors import ConfigError, Problem

    if checkpoint is not None:
        with trusting(() if source is None else code_of(source)):
            return load(checkpoint)[:2]
    if source is None:
        message = "missing; give --params, --checkpoint_path or both"
        raise ConfigError([Problem(("checkpoint_path",), message)])
    experiment = experiment_of(source)
    return experiment.model, experiment.model.init(jax.random.key(experiment.seed))


def _write(
    output: str | os.PathLike[str],
    model: "models.Model",
    pruned: "Pruned",
    dtypes: "Mapping[str, np.dtype]",
) -> pathlib.Path:
    """Write the checkpoint, NaN at pruned weights, in the dtypes of the one that was read."""
    import numpy as np

    from wafer.config.loader import model_section_of
    from wafer.models.checkpoint.pruned import mark
    from wafer.models.checkpoint.writer import write_params
    from wafer.models.paths import named_leaves

    marked, _ = mark(pruned.params, (), pruned.masks)
    stored = lambda name, leaf: np.asarray(leaf).astype(dtypes.get(name, leaf.dtype))
    leaves = [(name, stored(name, leaf)) for name, leaf in named_leaves(marked)]
    names = [name for name, _ in leaves]
    return write_params(output, model_section_of(model.config), names, leaves, set(pruned.masks))


def _mean_loss(model: "models.Model", batches: "Sequence[models.Batch]") -> Callable[[Any], float]:
    """The loss over all batches as a function of the parameters, compiled once; 0 without any."""
    import jax
    import numpy as np

    loss = jax.jit(lambda params, batch: model.loss(params, batch)[0])
    return lambda params: float(np.mean([loss(params, one) for one in batches] or [0.0]))


def _rows(
    model: "models.Model", source: "Source | None", calibration: str | os.PathLike[str] | None
) -> "tuple[InputSection, Dataset]":
    """The rows to calibrate on: of the user's run file or folder, never of a checkpoint's run."""
    from wafer.commands.inputs import experiment_of
    from wafer.config.loader import model_section_of
    from wafer.config.newfile import rows_section
    from wafer.data.batching.dataset import Context, build_dataset
    from wafer.data.registry import parse_input
    from wafer.errors import ConfigError, Problem

    if source is not None:
        experiment = experiment_of(source)
        section = experiment.section("train")
        if calibration is not None:
            section = section.model_copy(update={"data_dir": (str(calibration),)})
            cfg = experiment.cfg.model_copy(update={"train_input": section})
            experiment = dataclasses.replace(experiment, cfg=cfg)
        run = pathlib.Path(experiment.cfg.runconfig.model_dir)
        with tempfile.TemporaryDirectory() as folder:  # nothing is written where the source runs
            known = (run / "tokenizer.json").exists()
            return section, experiment.dataset("train", str(run) if known else folder)
    if calibration is None:
        message = (
            "missing: a checkpoint does not decide which files are read; give --calibration, a "
            "folder of HDF5 rows, or a run file with --params"
        )
        raise ConfigError([Problem(("calibration",), message)])
    section = parse_input(rows_section(model_section_of(model.config), pathlib.Path(calibration)))
    with tempfile.TemporaryDirectory() as folder:  # a reader keeps the rows' tokenizer there
        return section, build_dataset(section, folder, Context.of(model.config, training=False))


def _batches(section: "InputSection", data: "Dataset", samples: int) -> "Sequence[models.Batch]":
    """Read the calibration rows as a run would."""
    import itertools

    import jax

    from wafer.data.batching.batches import host_batch, to_batch
    from wafer.errors import DataError

    size = min(section.batch_size, samples)
    rows = itertools.islice(data.loader(size, 1), max(samples // size, 1))
    batch = jax.jit(to_batch)
    batches = [batch({name: x[0, 0] for name, x in host_batch(one).items()}) for one in rows]
    if not batches:
        raise DataError(
            f"{getattr(section, 'data_dir', section)}: fewer than {size} rows for calibration; set "
            "batch_size of the section or --samples lower"
        )
    return batches
