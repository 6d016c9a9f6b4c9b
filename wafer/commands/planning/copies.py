"""How many copies of its pipeline a run has: the file says, or the compiler."""

import dataclasses
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wafer.experiment import Experiment

_LOG = logging.getLogger(__name__)


def with_copies(experiment: "Experiment") -> "Experiment":
    """Put a number where the file lets the compiler choose how many copies share a batch.

    Numbers that divide the batch alone come into question. The floor plan is kept as that of
    ``wafer compile`` is, so the next run has the answer at once.

    Args:
        experiment: what is to run; as it is where it names a number, or does not train.

    Raises:
        ConfigError: the engine has no copies, or does not do something else that the file asks
            for; the compiler cannot place the model.
    """
    settings = experiment.cfg.runconfig
    asked = settings.multireplica and settings.execution_strategy is not None  # see `check`
    if not asked and settings.num_replicas > 0:
        return experiment
    from wafer.compiler.experiment import compile_experiment
    from wafer.engines.choose import check
    from wafer.errors import CompileError, ConfigError, Problem

    check(experiment)
    count = 1
    if "train" in settings.mode:
        try:
            result = compile_experiment(experiment)
        except CompileError as error:
            key = "multireplica" if settings.multireplica else "num_replicas"
            message = f"the compiler cannot say how many copies are fastest: {error}. Or set "
            message += "num_replicas to a number, for which it is not asked"
            raise ConfigError([Problem(("runconfig", key), message)]) from error
        compiled = result.compiled
        count = len(compiled.plan.replicas)
        _LOG.info(
            "Copies: %d of the pipeline share the batch, by the floor plan in %s "
            "(predicted to be %.2f times as fast as one on the wafer)",
            count,
            result.folder,
            compiled.speedup,
        )
    numbered = settings.model_copy(update={"num_replicas": count, "multireplica": False})
    cfg = experiment.cfg.model_copy(update={"runconfig": numbered})
    return dataclasses.replace(experiment, cfg=cfg)
