"""A training run as pure functions: its first state, and a step from the gradients on."""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from wafer.models.base import Aux, Model
from wafer.optim.precision import LossScaler, keep_if_finite
from wafer.optim.rules import without_frozen
from wafer.sparsity import Sparsifier

Metrics = dict[str, Array]


class TrainState(NamedTuple):
    """Everything a checkpoint must hold besides the data position.

    Attributes:
        step: [] int32 finished optimizer steps, skipped ones included
        params: tree of parameters as they are trained (dense, or kept values only)
        opt_state: optax state
        sparse: SparseState of the sparsifier
        scale: state of the loss-scale automaton
        key: [2] uint32 data of the run's base key; step t draws from fold_in(key, t)
    """

    step: Array
    params: PyTree
    opt_state: PyTree
    sparse: Any
    scale: Any
    key: Array


class TrainingParts(Protocol):
    """What is trained, and how."""

    @property
    def model(self) -> Model:
        """The model bundle."""
        ...

    @property
    def tx(self) -> optax.GradientTransformation:
        """Optimizer with clipping."""
        ...

    @property
    def sparsifier(self) -> Sparsifier:
        """From ``sparsity.configure``; an empty one leaves everything dense."""
        ...

    @property
    def scaler(self) -> LossScaler:
        """Loss-scale automaton."""
        ...

    @property
    def summaries(self) -> bool:
        """Whether steps report the norms of every layer."""
        ...


def first_state(parts: TrainingParts, key: Array) -> TrainState:
    """Draw the weights and the first masks.

    Args:
        parts: what is trained.
        key: [] random key; consumed.
    """
    weights, sparse_key, run_key = jax.random.split(key, 3)
    params = parts.model.init(weights)
    sparse = parts.sparsifier.init(params, sparse_key)
    opt_state = jax.jit(parts.tx.init)(params)
    params, opt_state = parts.sparsifier.prune(params, opt_state, sparse)
    return TrainState(
        step=jnp.int32(0),
        params=params,
        opt_state=opt_state,
        sparse=sparse,
        scale=parts.scaler.init(),
        key=jax.random.key_data(run_key),
    )


def step_key(state: TrainState) -> Array:
    """Return the random key [] of the step that follows a state."""
    return jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)


def finish_step(
    parts: TrainingParts, state: TrainState, gradients: PyTree, aux: Aux, *, topology: bool
) -> tuple[TrainState, Metrics]:
    """Update weights, masks and loss scale.

    Args:
        parts: what is trained.
        state: before the step.
        gradients: of the scaled sum of losses, at what ``prepare`` returned.
        aux: what the loss reported, summed over the batch.
        topology: False promises that no sparsity update is due at this step.

    Returns:
        (the state after the step, metrics by name, [] float32).
    """
    scale = state.scale.loss_scale
    with jax.named_scope("optimizer"):
        weight = jnp.maximum(aux.weight, 1e-9)
        ready = jax.tree.map(lambda g: g / (weight * scale), gradients)
        kept, dense = parts.sparsifier.split(ready, state.sparse)
        grads = without_frozen(parts.tx, kept)
        finite = parts.scaler.finite(grads)  # of kept weights: NaN at pruned ones skips no step
        updates, opt_state = parts.tx.update(grads, state.opt_state, state.params)
        params: PyTree = optax.apply_updates(state.params, updates)
    with jax.named_scope("sparsity"):
        sparse, params, opt_state = parts.sparsifier.update(
            state.sparse, params, dense, opt_state, finite=finite, topology=topology
        )
    with jax.named_scope("optimizer"):
        if parts.scaler.dynamic:  # a step that overflowed leaves no trace but the smaller scale
            old = (state.params, state.opt_state)
            params, opt_state = keep_if_finite(finite, (params, opt_state), old)
        metrics = {
            "loss": aux.loss_sum / weight,
            "tokens": aux.weight,
            "grad_norm": optax.tree.norm(grads),
            "loss_scale": scale,
        }
        if parts.summaries:
            metrics |= norms("per_layer_grad_norm", grads)
            metrics |= norms("per_layer_params_norm", params)
        scaled = parts.scaler.update(state.scale, finite)
    return TrainState(state.step + 1, params, opt_state, sparse, scaled, state.key), metrics


def norms(tag: str, tree: PyTree) -> Metrics:
    """L2 norm of each top-level branch of a parameter-shaped tree, by tag."""
    return {f"{tag}/{layer}": optax.tree.norm(branch) for layer, branch in tree.items()}
