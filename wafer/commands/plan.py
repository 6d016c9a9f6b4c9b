"""What weight streaming takes on N systems, and how a pipeline is laid out: ``wafer plan``."""

import argparse
import dataclasses
import io
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wafer.commands.inputs import Source
    from wafer.experiment import Experiment
    from wafer.roofline import Machine, Prediction

__all__ = ["ScalingPlan", "add_arguments", "plan"]

_GIB = 2**30
_COLUMNS = (
    "systems", "tokens/step", "s/step", "tokens/s", "of linear", "compute s", "wait s",
    "latency s", "GiB/system", "GiB streamed",
)  # fmt: skip


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
    parser.set_defaults(run=_main)


def _main(args: argparse.Namespace) -> int:
    systems = [int(n) for n in args.num_csx.split(",")]
    plans = []
    for params in args.params:
        plans.append(plan(params, systems, machine=args.machine, folder=args.folder))
        sys.stdout.write(plans[-1].table(stages=args.stages))
    if args.picture:
        from wafer.commands.scaling import draw_scaling

        draw_scaling(plans, args.picture)
    return 0


@dataclasses.dataclass(frozen=True)
class ScalingPlan:
    """A streamed training step of one model on N systems, predicted.

    The batch is the configuration's for one system and grows with N (weak scaling, as the vendor
    scales): every system keeps its share.

    Attributes:
        name: of the model.
        machine: the roofline used.
        predictions: one per N.
        parameters: how many the model has.
        tokens: of a step of one system.
        store_bytes: weights and optimizer state that MemoryX holds.
        pipeline: names of the stages that a pipeline of it would have.
        micro_batches: of a pipelined step.
        copies: of the pipeline, which share the micro-batches.
    """

    name: str
    machine: "Machine"
    predictions: "tuple[Prediction, ...]"
    parameters: int
    tokens: int
    store_bytes: int
    pipeline: tuple[str, ...]
    micro_batches: int
    copies: int = 1

    def table(self, *, stages: bool = False) -> str:
        """Write the predictions as text.

        Args:
            stages: add the time of every stage for the first N.
        """
        from rich.console import Console
        from rich.table import Table

        from wafer.engines.stagewise.schedule import bubble, in_flight

        first = self.predictions[0]
        table = Table(title=f"{self.name}, {self.parameters:,} parameters, streamed")
        for column in _COLUMNS:
            table.add_column(column, justify="right")
        for p in self.predictions:
            table.add_row(
                str(p.systems),
                f"{self.tokens * p.systems:,}",
                f"{p.seconds:.4g}",
                f"{self.tokens * p.systems / p.seconds:,.0f}",
                f"{first.seconds / p.seconds:.1%}",
                f"{p.compute:.4g}",
                f"{p.waited:.4g}",
                f"{p.latency:.2g}",
                f"{p.memory / _GIB:.2f}",
                f"{p.streamed / _GIB:.2f}",
            )
        text = io.StringIO()
        console = Console(file=text, width=120, highlight=False)
        console.print(table)
        if stages:
            title = f"N = {first.systems}"
            detail = Table("stage", "forward s", "backward and update s", title=title)
            for name, (forward, backward) in first.stages.items():
                detail.add_row(name, f"{forward:.4g}", f"{backward:.4g}")
            console.print(detail)
        count, depth, copies = self.micro_batches, len(self.pipeline), self.copies
        copied = "" if copies == 1 else f"{copies} copies of "
        console.print(
            f"{self.machine.name}: {self.machine.note}.\n"
            f"MemoryX holds {self.store_bytes / _GIB:.2f} GiB of weights and optimizer state.\n"
            f"Pipelined: {copied}{depth} stages ({', '.join(self.pipeline)}), {count} "
            f"micro-batch(es) a step: {float(bubble(depth, count, copies=copies)):.1%} of the "
            f"timetable idle, at most {copies * in_flight(depth, count // copies, 0)} "
            "micro-batch(es) in flight.",
            soft_wrap=True,
        )
        return text.getvalue()


def plan(
    source: "Source",
    num_csx: Sequence[int] = (1, 4, 16, 64),
    *,
    machine: str = "cs2",
    folder: str | None = None,
    **overrides: Any,
) -> ScalingPlan:
    """Predict memory, traffic and time of a streamed training step, without data or devices.

    Args:
        source: an Experiment, the path of a params YAML, or its sections; with ``train_input`` and
            ``optimizer``.
        num_csx: numbers of systems, N.
        machine: 'cs2', 'h200', or 'host', which is measured now.
        folder: of a file store, for 'host'.
        **overrides: keys of ``runconfig`` that win over the source's.

    Returns:
        A prediction for each N, and ``table()``.

    Raises:
        ConfigError: nothing to train on, a number of systems below 1, an unknown machine.

    Examples:
        >>> scaling = wafer.plan("models/configs/gpt_pystdlib.yaml", [1, 16])  # doctest: +SKIP
        >>> print(scaling.table())  # doctest: +SKIP
    """
    import jax

    from wafer.commands.copies import with_copies
    from wafer.commands.inputs import experiment_of
    from wafer.engines.choose import check
    from wafer.engines.stagewise.regions import regions
    from wafer.errors import ConfigError, Problem

    experiment = experiment_of(source, **overrides, num_csx=1)
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


def _machine(name: str, folder: str | None) -> "Machine":
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


def _predict(experiment: "Experiment", machine: "Machine", systems: int) -> "Prediction":
    from wafer.roofline import costs, predict

    length, (weights, moments) = _length(experiment), experiment.state_bytes()
    tokens = experiment.section("train").batch_size * length * systems
    each = 4 if machine.shared else 2  # what travels: float32 on a host, 16 bit there
    stages = costs(experiment.model, experiment.shapes, tokens, length, bytes_each=each)
    ratio = moments / max(weights, 1)
    return predict(stages, machine, systems, state_ratio=ratio, recompute=True)
