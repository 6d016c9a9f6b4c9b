"""Choose a model's masks from data, without training: ``wafer prune``."""

import argparse
import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import models
    from sparsity.oneshot import Pruned
    from wafer.commands.inputs import Source
    from wafer.experiment import Experiment

__all__ = ["add_arguments", "prune"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("--checkpoint_path", help="trained model; none: the weights of step 0")
    parser.add_argument("-p", "--params", help="run file; where the checkpoint does not hold its")
    parser.add_argument("-m", "--method", required=True, help="magnitude, wanda, sparsegpt, ...")
    parser.add_argument("-s", "--sparsity", type=float, help="share of weights to prune")
    parser.add_argument("--pattern", help="such as 2:4: of every 4 inputs 2 are kept")
    parser.add_argument("--budget", default="uniform", help="how layers share the level: erk, ...")
    parser.add_argument("--param_filter", action="append", help="glob of weights to prune")
    parser.add_argument("--calibration", help="folder of rows; default: the run's own data_dir")
    parser.add_argument("--samples", type=int, default=128, help="rows of it to read")
    parser.add_argument("--rounds", type=int, help="times to score and prune; synflow: 100")
    parser.add_argument("-o", "--output", required=True, help="checkpoint to write, NaN at pruned")
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
) -> pathlib.Path:
    """Prune a model once and write it as a checkpoint to train on from.

    Args:
        output: folder to write; holds no checkpoint yet.
        section: a ``sparsity`` section: the level, a pattern, a budget, a filter.
        method: one of ``sparsity.oneshot.METHODS``.
        checkpoint: trained model: a checkpoint, a model_dir, a Hugging Face folder; None prunes
            the weights with which ``source`` would start.
        source: a run file; None takes the one that the checkpoint remembers.
        calibration: folder of rows as the run's ``train_input`` reads them; None is its own.
        samples: rows to read of it.
        rounds: how often to score and prune; None is the method's own: 100 for synflow, else 1.
        report: called with lines that say how far it is.

    Returns:
        The checkpoint: NaN at pruned weights, so that ``wafer run --checkpoint_path`` keeps them.

    Raises:
        SparsityError: an unknown method or a section that does not go with it.
        ConfigError: no run file, or one without ``train_input``, where rows are needed.
        CheckpointError: no readable checkpoint there.
        DataError: rows that are not what the configuration says.

    Examples:
        >>> wafer.prune("runs/half", 0.5, method="wanda", checkpoint="runs/demo")  # doctest: +SKIP
    """
    import sparsity
    from models.convert.tokenizer import carry_tokenizer
    from models.counts import forward_flops
    from sparsity.oneshot import METHODS, prune
    from wafer.commands.inputs import experiment_of

    model, params, config = _start(checkpoint, source)
    reads_rows = METHODS.get(method, False)
    batches = _batches(experiment_of(config), calibration, samples) if reads_rows else ()
    flops = lambda: forward_flops(model)
    sparsifier = sparsity.configure(section, aliases=model.alias, params=params, flops=flops)
    loss = _mean_loss(model, batches)
    before = loss(params)
    pruned = prune(model, params, sparsifier, method, batches=batches, rounds=rounds, report=report)
    path = _write(output, model, pruned)
    if checkpoint is not None:
        carry_tokenizer(checkpoint, path)
    if batches:
        after = loss(pruned.params)
        report(f"loss on {len(batches)} calibration batches: {before:.4f} before, {after:.4f} now")
    total = sum(mask.size for mask in pruned.masks.values())
    level = 1 - sum(int(mask.sum()) for mask in pruned.masks.values()) / total
    report(f"{level:.2%} of {total:,} weights in {len(pruned.masks)} matrices pruned: {path}")
    report(f"  wafer run ... --checkpoint_path {path}, with sparsity: {{sparsity: {level:.2g}}}")
    return path


def _start(
    checkpoint: str | os.PathLike[str] | None, source: "Source | None"
) -> "tuple[models.Model, Any, Source]":
    """The model, its weights, and the run that they belong to."""
    import jax

    from wafer.commands.inputs import experiment_of, load
    from wafer.errors import ConfigError, Problem

    if checkpoint is not None:
        model, params, record = load(checkpoint)
        return model, params, record["config"] if source is None else source
    if source is None:
        message = "missing; give --params, --checkpoint_path or both"
        raise ConfigError([Problem(("checkpoint_path",), message)])
    experiment = experiment_of(source)
    return experiment.model, experiment.model.init(jax.random.key(experiment.seed)), source


def _write(output: str | os.PathLike[str], model: "models.Model", pruned: "Pruned") -> pathlib.Path:
    """Write the checkpoint, NaN at pruned weights."""
    import numpy as np

    from models.checkpoint.pruned import mark
    from models.checkpoint.writer import write_params
    from models.paths import named_leaves
    from models.registry import settings_of

    marked, _ = mark(pruned.params, (), pruned.masks)
    leaves = [(name, np.asarray(leaf)) for name, leaf in named_leaves(marked)]
    return write_params(output, settings_of(model.config), [name for name, _ in leaves], leaves)


def _mean_loss(model: "models.Model", batches: "Sequence[models.Batch]") -> Callable[[Any], float]:
    """The loss over all batches as a function of the parameters, compiled once; 0 without any."""
    import jax
    import numpy as np

    loss = jax.jit(lambda params, batch: model.loss(params, batch)[0])
    return lambda params: float(np.mean([loss(params, one) for one in batches] or [0.0]))


def _batches(
    experiment: "Experiment",
    calibration: str | os.PathLike[str] | None,
    samples: int,
) -> "Sequence[models.Batch]":
    """Read the calibration rows as the run would."""
    import itertools

    import jax

    from wafer.data.batching.batches import host_batch, to_batch
    from wafer.errors import DataError

    section = experiment.section("train")
    if calibration is not None:
        section = section.model_copy(update={"data_dir": (str(calibration),)})
    size = min(section.batch_size, samples)
    cfg = experiment.cfg.model_copy(update={"train_input": section})
    dataset = dataclasses.replace(experiment, cfg=cfg).dataset(
        "train", experiment.cfg.runconfig.model_dir
    )
    rows = itertools.islice(dataset.loader(size, 1), max(samples // size, 1))
    batch = jax.jit(to_batch)
    batches = [batch({name: x[0, 0] for name, x in host_batch(one).items()}) for one in rows]
    if not batches:
        raise DataError(
            f"{calibration or section}: fewer than {size} rows for calibration; set "
            "train_input.batch_size or --samples lower"
        )
    return batches
