"""Knowledge distillation: a frozen model whose outputs a student is drawn to (Hinton et al. 2015).

The teacher is no part of the training state: its weights are an argument of the step, read from
their checkpoint at every start, and in no checkpoint of the student.
"""

import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from wafer.errors import ConfigError, Problem
from wafer.experiment import Experiment
from wafer.models.base import Aux, Batch, Model
from wafer.models.checkpoint.reader import build_stored, load_params
from wafer.models.losses import divergence
from wafer.models.paths import map_named
from wafer.models.user.trust import code_in, is_looking, trusting
from wafer.sparsity.stored.inference import forward_of

KL = "distillation/kl_sum"


class Teacher(NamedTuple):
    """A frozen model and how much it counts."""

    model: Model  #: the teacher's
    params: PyTree  #: its weights, 0 where pruned; the engine places them
    temperature: float  #: T
    weight: float  #: w
    factor: float  #: of a token's loss in the student's objective (``loss_weight``)

    def mix(self, params: PyTree, out: PyTree, batch: Batch, aux: Aux) -> Aux:
        """Draw a student's loss to the teacher.

        Args:
            params: the teacher's, as the step was given them.
            out: the student's last carry.
            batch: of one micro-batch.
            aux: the student's own objective.

        Returns:
            (1 - w) of the objective and w T^2 of the divergence, whose sum is in the metrics.
        """
        own = _logits(out)
        others = jax.lax.stop_gradient(_logits(self.model.apply(params, batch)))
        per_token = divergence(own, others, batch.weights != 0, self.temperature)
        kl = self.factor * jnp.sum(per_token * batch.weights.astype(jnp.float32))
        drawn = self.weight * self.temperature**2 * kl
        mixed = (1 - self.weight) * aux.loss_sum + drawn
        return aux._replace(loss_sum=mixed, metrics={**aux.metrics, KL: kl})


def _logits(out: PyTree) -> Array:
    """Take the logits; a mixture of experts also carries the balance of its routers."""
    return out[0] if isinstance(out, tuple) else out


def make_teacher(experiment: Experiment) -> Teacher | None:
    """Read the teacher of an experiment that trains with one, into host memory; else None.

    Raises:
        CheckpointError: no checkpoint there.
        ConfigError: a teacher that cannot score what the student learns.
    """
    section = experiment.cfg.distillation
    if section is None or not section.weight or "train" not in experiment.cfg.runconfig.mode:
        return None
    path = pathlib.Path(section.checkpoint_path)
    params, record = load_params(path)
    with trusting(() if is_looking() else code_in(experiment.cfg.to_dict())):
        model, computes = build_stored(record, path, params), forward_of(record, path)
    require_fit(experiment, model)
    params = map_named(lambda name, leaf: np.asarray(computes(name, leaf)), params)
    config = experiment.model.config
    scaling = getattr(config, "loss_scaling", "num_tokens")  # a user's model may have none
    factor = 1.0 if scaling == "num_tokens" else config.loss_weight
    return Teacher(model, params, section.temperature, section.weight, factor)


def require_fit(experiment: Experiment, teacher: Model) -> None:
    """Refuse a teacher that cannot score what the student learns.

    Raises:
        ConfigError: says what to change.
    """
    own, other = experiment.model.config, teacher.config
    tokens = getattr(own, "vocab_size", None)
    message = ""
    if "lm" not in other.tasks:
        message = f"the teacher, {other.name!r}, is no language model; take one"
    elif other.vocab_size != tokens:
        message = f"the teacher has {other.vocab_size} tokens, model.vocab_size is {tokens}"
        message += "; both must have one vocabulary"
    else:
        length = experiment.section("train").max_sequence_length or own.max_length
        if other.max_length is not None and length is not None and length > other.max_length:
            message = f"the teacher has {other.max_length} positions, rows have {length}; shorten "
            message += "train_input.max_sequence_length or take another teacher"
    if message:
        raise ConfigError([Problem(("distillation", "checkpoint_path"), message)])
