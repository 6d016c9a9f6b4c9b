"""What streamed and sharded steps take on N systems, and a pipeline's stages: ``wafer plan``."""

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wafer.commands.planning.scaling import ScalingPlan, draw_scaling
from wafer.models.errors import optional
from wafer.models.user.flags import own_flags
from wafer.models.user.trust import add_option

if TYPE_CHECKING:
    from wafer.commands.inputs import Source
    from wafer.experiment import Experiment
    from wafer.roofline import Prediction, SystemRates


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("-p", "--params", required=True, nargs="+", help="params YAML, or several")
    parser.add_argument("--num_csx", default="1,4,16,64", help="systems to predict, e.g. 1,4,16")
    parser.add_argument(
        "--machine", default="cs2", help="cs2 (default), h200, or host: this one, measured now"
    )
    parser.add_argument("--folder", help="with host: where MemoryX would put its file")
    parser.add_argument("--stages", action="store_true", help="also show the time of each stage")
    parser.add_argument("--picture", help="file for the speed-up of every model over N: .png, .svg")
    add_option(parser)
    parser.set_defaults(run=_main)


def _main(args: argparse.Namespace) -> int:
    systems = [int(n) for n in args.num_csx.split(",")]
    plans = []
    if args.picture:
        optional("matplotlib", "--picture")
    for params in args.params:
        plans.append(plan(params, systems, machine=args.machine, folder=args.folder))
        sys.stdout.write(plans[-1].table(stages=args.stages))
    if args.picture:
        draw_scaling(plans, args.picture)
    return 0


@own_flags()
def plan(
    source: "Source",
    num_csx: Sequence[int] = (1, 4, 16, 64),
    *,
    machine: str = "cs2",
    folder: str | None = None,
    trust_code: bool = False,
    **overrides: object,
) -> ScalingPlan:
    """Predict memory, traffic and time of a training step, streamed and with sharded state.

    It needs neither data nor devices.

    Args:
        source: an Experiment, the path of a params YAML, or its sections; with ``train_input`` and
            ``optimizer``.
        num_csx: numbers of systems, N.
        machine: 'cs2', 'h200', or 'host', which is measured now.
        folder: of a file store, for 'host'.
        trust_code: import code that the source names, such as a model of your own, which a plan
            needs.
        **overrides: keys of ``runconfig`` that win over the source's.

    Returns:
        A prediction for each N, and ``table()``.

    Raises:
        ConfigError: nothing to train on, a number of systems below 1, an unknown machine, code
            that is not trusted.

    Examples:
        >>> scaling = wafer.plan("models/configs/gpt_pystdlib.yaml", [1, 16])  # doctest: +SKIP
        >>> print(scaling.table())  # doctest: +SKIP
    """
    import jax

    from wafer.commands.inputs import look_at
    from wafer.commands.planning.copies import with_copies
    from wafer.engines.choose import check
    from wafer.engines.stagewise.pipeline.regions import regions
    from wafer.errors import ConfigError, Problem

    experiment = look_at(source, trust_code=trust_code, **overrides, num_csx=1)
    cfg, model, shapes = experiment.cfg, experiment.model, experiment.shapes
    if cfg.train_input is None or cfg.optimizer is None:
        raise ConfigError([Problem((), "a plan needs train_input and optimizer")])
    if any(n < 1 for n in num_csx):
        raise ConfigError([Problem(("num_csx",), f"{list(num_csx)}: expected whole numbers > 0")])
    experiment = with_copies(experiment)
    if experiment.cfg.runconfig.num_replicas != 1:
        check(experiment)
    pipeline = cfg.runconfig.pipeline
    return ScalingPlan(
        name=cfg.model["name"],
        machine=(spec := _machine(machine, folder)),
        parameters=sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)),
        tokens=cfg.train_input.batch_size * _length(experiment),
        store_bytes=sum(experiment.state_bytes()),
        predictions=tuple(_predict(experiment, spec, n) for n in num_csx),
        pipeline=tuple(r.name for r in regions(model, shapes, pipeline.stages, pipeline.devices)),
        micro_batches=experiment.batch("train").micro_batches,
        copies=max(experiment.cfg.runconfig.num_replicas, 1),
    )


def _machine(name: str, folder: str | None) -> "SystemRates":
    from wafer.errors import ConfigError, Problem
    from wafer.roofline import MACHINES, measure_host

    if name == "host":
        return measure_host(folder)
    if name not in MACHINES:
        message = f"{name!r}; there are {', '.join(MACHINES)} and host"
        raise ConfigError([Problem(("machine",), message)])
    return MACHINES[name]


def _length(experiment: "Experiment") -> int:
    """Tokens of a sequence."""
    known = experiment.section("train").max_sequence_length
    return known or getattr(experiment.model.config, "max_position_embeddings", 1024)


def _predict(experiment: "Experiment", machine: "SystemRates", systems: int) -> "Prediction":
    import numpy as np

    from wafer.engines.shards import copied_bytes, transposed_bytes
    from wafer.roofline import costs, predict, predict_sharded_bytes, predict_sharded_seconds

    model, shapes, step = experiment.model, experiment.shapes, experiment.batch("train")
    length, (weights, moments) = _length(experiment), experiment.state_bytes()
    tokens = experiment.section("train").batch_size * length * systems
    each = 4 if machine.shared else 2  # what travels: float32 on a host, 16 bit there
    stages = costs(model, shapes, tokens, length, bytes_each=each)
    ratio = moments / max(weights, 1)
    streamed = predict(stages, machine, systems, state_ratio=ratio, recompute=True)
    total, copied = copied_bytes(shapes, systems)
    sizes = {"weights": weights, "moments": moments, "copied": copied / max(total, 1)}
    seconds = predict_sharded_seconds(stages, machine, systems, **sizes)
    width = np.dtype(getattr(model.config, "dtype", "float32")).itemsize  # of an activation
    memory = predict_sharded_bytes(
        costs(model, shapes, step.rows * length * systems, length, bytes_each=width),
        systems,
        **sizes,
        transposed=[transposed_bytes([shapes[x] for x in s.params], systems) for s in model.stages],
        accumulates=step.micro_batches > 1,
    )
    return dataclasses.replace(streamed, sharded_seconds=seconds, sharded_memory=memory)
