"""``wafer plan``: what weight streaming of a configuration would take on N systems.

And how a pipeline of it would be laid out.
"""

import io
import math
from collections.abc import Sequence

import jax
from rich.console import Console
from rich.table import Table

from wafer.config import RunConfig
from wafer.engines.stagewise.regions import regions
from wafer.engines.stagewise.schedule import bubble, in_flight
from wafer.errors import ConfigError, Problem
from wafer.experiment import Experiment
from wafer.roofline import MACHINES, Prediction, costs, measure_host, predict

__all__ = ["predictions", "scaling_table"]

_GIB = 2**30


def predictions(
    cfg: RunConfig, systems: Sequence[int], machine: str, folder: str | None = None
) -> tuple[list[Prediction], dict[str, float | str]]:
    """Predict a configuration's streamed step.

    The batch is the configuration's for one system and grows with N (weak scaling, as the vendor
    scales): every system keeps its share.

    Args:
        cfg: with ``train_input`` and ``optimizer``.
        systems: values of N.
        machine: 'cs2', 'h200' or 'host' (measured now).
        folder: of a file store, for 'host'.

    Returns:
        (one prediction per N, what they rest on).

    Raises:
        ConfigError: nothing to train on, or a number of systems below 1.
    """
    section = cfg.train_input
    if section is None or cfg.optimizer is None:
        raise ConfigError([Problem((), "a plan needs train_input and optimizer")])
    if any(n < 1 for n in systems):
        raise ConfigError([Problem(("num_csx",), f"{list(systems)}: expected whole numbers > 0")])
    made = Experiment.from_config(cfg)
    length = section.max_sequence_length or getattr(
        made.model.config, "max_position_embeddings", 1024
    )
    spec = measure_host(folder) if machine == "host" else MACHINES[machine]
    each = 4 if machine == "host" else 2  # what travels: float32 here, 16 bit there
    weights, moments = made.state_bytes()
    tokens = section.batch_size * length
    found = []
    for n in systems:
        stages = costs(made.model, made.shapes, tokens * n, length, bytes_each=each)
        ratio = moments / max(weights, 1)
        found.append(predict(stages, spec, n, state_ratio=ratio, recompute=True))
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(made.shapes))
    basis = {
        "machine": spec.name,
        "note": spec.note,
        "parameters": float(parameters),
        "tokens": float(tokens),
        "store": float(weights + moments),
    }
    return found, basis


def scaling_table(
    cfg: RunConfig,
    systems: Sequence[int],
    machine: str,
    folder: str | None = None,
    *,
    stages: bool = False,
) -> str:
    """Write the predictions as text; see ``predictions``.

    Args:
        cfg: the configuration.
        systems: values of N.
        machine: which roofline.
        folder: of a file store, for 'host'.
        stages: add the time of every stage for the first N.
    """
    found, basis = predictions(cfg, systems, machine, folder)
    tokens = float(basis["tokens"])
    first = found[0]
    rate_of_one = tokens * first.systems / first.seconds / first.systems
    table = Table(title=f"{cfg.model['name']}, {basis['parameters']:,.0f} parameters, streamed")
    for column in (
        "systems", "tokens/step", "s/step", "tokens/s", "of linear", "compute s", "wait s",
        "latency s", "GiB/system", "GiB streamed",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for p in found:
        rate = tokens * p.systems / p.seconds
        table.add_row(
            str(p.systems),
            f"{tokens * p.systems:,.0f}",
            f"{p.seconds:.4g}",
            f"{rate:,.0f}",
            f"{rate / (rate_of_one * p.systems):.1%}",
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
        detail = Table("stage", "forward s", "backward and update s", title=f"N = {first.systems}")
        for name, (forward, backward) in first.stages.items():
            detail.add_row(name, f"{forward:.4g}", f"{backward:.4g}")
        console.print(detail)
    console.print(f"{basis['machine']}: {basis['note']}.", soft_wrap=True)
    console.print(
        f"MemoryX holds {float(basis['store']) / _GIB:.2f} GiB of weights and optimizer state.",
        soft_wrap=True,
    )
    console.print(_pipeline(cfg), soft_wrap=True)
    return text.getvalue()


def _pipeline(cfg: RunConfig) -> str:
    """Say how much of a pipelined step would idle, by its timetable."""
    made, settings = Experiment.from_config(cfg), cfg.runconfig.pipeline
    found = regions(made.model, made.shapes, settings.stages, settings.devices)
    count, stages = made.batch("train").micro_batches, len(found)
    return (
        f"Pipelined: {stages} stages ({', '.join(region.name for region in found)}), {count} "
        f"micro-batch(es) a step: {float(bubble(stages, count)):.1%} of the timetable idle, at "
        f"most {in_flight(stages, count, 0)} micro-batch(es) in flight."
    )
