"""Sparsity in a loop, under the names of both generations of the vendor's documents.

Releases 2.2+: ``algorithm = sparse.RigL(sparsity=0.9, update={"freq": 100})``, then
``model.apply(algorithm)`` and ``optimizer.apply(algorithm)``; the rest happens by itself.
Releases 2.0 and 2.1: ``opt = sparse.RigLSparsityOptimizer(model.named_parameters(), sparsity=0.9,
schedule=1000)``, with ``opt.apply_sparsity()`` before the forward pass and ``opt.step()`` after
``optimizer.step()``.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from wafer import sparsity
from wafer.loop.elsewhere import explain
from wafer.loop.machine import current_backend
from wafer.loop.optim import Optimizer
from wafer.loop.tracing.model import CompiledModel, Gradients, Parameters
from wafer.models.checkpoint.tree import to_tree
from wafer.vendor.sparsity import core_section


class SparsityAlgorithm:
    """A ``sparsity`` section on one model.

    Args:
        section: anything ``sparsity.parse`` takes: a number, a mapping or a list.

    Raises:
        SparsityError: a wrong section.
    """

    def __init__(self, section: object) -> None:
        self.groups = sparsity.parse(core_section(section))
        self.model: CompiledModel | None = None
        self._sparsifier: sparsity.Sparsifier | None = None
        self._loaded: Mapping[str, Any] | None = None
        self._slot = ""

    # --- attaching ------------------------------------------------------------------------

    def apply(self, owner: object) -> None:
        """Attach to a compiled model, or its network, then to its optimizer.

        The same as ``owner.apply(algorithm)``.

        Raises:
            RuntimeError: it is sparse already.
            TypeError: another object, such as a network that is not compiled.
        """
        compiled = [part for part in current_backend().parts if isinstance(part, CompiledModel)]
        owner = next((model for model in compiled if model.inner is owner), owner)
        if not isinstance(owner, CompiledModel | Optimizer):
            raise TypeError(
                f"apply: {type(owner).__name__} is neither a compiled model nor an optimizer; "
                "expected what compile(net, backend) gave, or its net: call compile first"
            )
        owner.apply(self)

    def apply_to_model(self, model: CompiledModel) -> None:
        """Mask a model's weights and gradients from now on.

        Raises:
            RuntimeError: it is sparse already.
        """
        if model.sparsity is not None or self.model is not None:
            raise RuntimeError("a model takes one sparsity algorithm, and an algorithm one model")
        self.model, model.sparsity = model, self
        params = model.params if model.ready else None
        self._sparsifier = sparsity.configure(
            self.groups,
            aliases=model.alias,
            params=params,
            accepts=lambda name: False,
            dense_words=False,
        )
        self._slot = model.backend.register(self, "sparsity")

    def apply_to_optimizer(self, optimizer: Optimizer) -> None:
        """Update the masks after each of the optimizer's steps.

        Raises:
            RuntimeError: the model was not given the algorithm first.
        """
        if self.model is not optimizer.model:
            raise RuntimeError(
                "apply the sparsity algorithm to the model first: model.apply(algorithm)"
            )
        optimizer.sparsity = self

    def _attached(self) -> tuple[CompiledModel, sparsity.Sparsifier]:
        if self.model is None or self._sparsifier is None:
            raise RuntimeError("the sparsity algorithm has no model: model.apply(algorithm)")
        return self.model, self._sparsifier

    def prepare(self) -> None:
        """Choose the first masks, when the model has its parameters (and its checkpoint)."""
        model, sparsifier = self._attached()
        if not model.ready:
            return
        if self._slot not in model.backend.state:
            self._state = sparsifier.init(model.params, model.backend.key())
        if self._loaded is not None:
            tree, self._loaded = self._loaded, None
            masks = {name: jnp.asarray(mask) for name, mask in tree["masks"].items()}
            self._state = sparsity.from_meta(tree["meta"], len(sparsifier.groups))._replace(
                masks=masks
            )

    @property
    def _state(self) -> sparsity.SparseState:
        return self._attached()[0].backend.state[self._slot]

    @_state.setter
    def _state(self, value: sparsity.SparseState) -> None:
        self._attached()[0].backend.state[self._slot] = value

    # --- during a step --------------------------------------------------------------------

    @property
    def needs_gradient(self) -> bool:
        """Whether updates read gradients of pruned weights."""
        return self._attached()[1].needs_gradient

    def mask_weights(self) -> None:
        """Set pruned weights to 0."""
        model, sparsifier = self._attached()
        if model.ready:  # else a Linen module that is about to see its first input
            self.prepare()
            model.set_params(sparsifier.prune(model.params, (), self._state)[0])

    def mask_gradients(self, gradients: PyTree) -> PyTree:
        """Select the gradients of kept weights."""
        return self._attached()[1].mask_gradients(gradients, self._state)

    def mask_moments(self, optimizer: Optimizer) -> None:
        """Set weights and moments at pruned positions to 0."""
        model, sparsifier = self._attached()
        self.prepare()
        params, optimizer.arrays = sparsifier.prune(model.params, optimizer.arrays, self._state)
        model.set_params(params)

    def update(self, optimizer: Optimizer, finite: Array | bool = True) -> None:
        """Finish the optimizer's step: prune, count, and change the topology when it is due.

        Args:
            optimizer: after its step.
            finite: [] bool; False skips the step, as a loss scaler does.
        """
        model, sparsifier = self._attached()
        dense = Gradients(model).dense
        self._state, params, optimizer.arrays = sparsifier.update(
            self._state, model.params, dense, optimizer.arrays, finite=finite
        )
        model.set_params(params)

    # --- looking --------------------------------------------------------------------------

    def metrics(self) -> dict[str, Array]:
        """``sparsity/NAME/target`` and ``sparsity/NAME/actual`` of every sparse parameter."""
        return self._attached()[1].metrics(self._state)

    @property
    def sparsity(self) -> Array:
        """[] float32 share of the sparse parameters' weights that is 0."""
        masks = self._state.masks.values()
        kept = sum(jnp.sum(mask) for mask in masks)
        return jnp.float32(1 - kept / sum(mask.size for mask in masks))

    def state_dict(self) -> dict[str, PyTree]:
        """Masks and counters."""
        self.prepare()
        masks = {name: np.asarray(mask) for name, mask in self._state.masks.items()}
        return {"masks": to_tree(masks), "meta": sparsity.to_meta(self._state)}

    def load_state_dict(self, tree: Mapping[str, object]) -> None:
        """Go on with these masks; waits until the model has parameters."""
        flat = jax.tree_util.tree_flatten_with_path(tree["masks"])[0]
        masks = {jax.tree_util.keystr(p, simple=True, separator="/"): m for p, m in flat}
        self._loaded = {**tree, "masks": masks}
        self.prepare()


configure = SparsityAlgorithm
"""The vendor's name for building one."""


def _algorithm(algorithm: str, sparsity: float | None = None, **keys: object) -> SparsityAlgorithm:
    if sparsity is None and algorithm == "static":
        sparsity = 0.0
    level = {} if sparsity is None else {"sparsity": sparsity}
    return configure({"algorithm": algorithm, **level, **keys})


def Group(groups: Mapping[str, SparsityAlgorithm]) -> SparsityAlgorithm:
    """Several algorithms: glob over parameter names -> algorithm; the first match wins."""
    return configure([(glob, rule) for glob, alg in groups.items() for _, rule in alg.groups])


class SparsityOptimizer(SparsityAlgorithm):
    """The interface of releases 2.0 and 2.1: an algorithm whose updates the loop asks for.

    Args:
        named_parameters: ``model.named_parameters()``.
        section: keys of a 2.0 section, ``type`` among them.

    Raises:
        SparsityError: a wrong section.
    """

    def __init__(self, named_parameters: Parameters, section: Mapping[str, object]) -> None:
        super().__init__(dict(section))
        self.apply_to_model(named_parameters.model)

    apply_sparsity = SparsityAlgorithm.mask_weights

    def step(self) -> None:
        """Prune, count, and change the topology when it is due; after ``optimizer.step()``.

        Raises:
            RuntimeError: the model has no optimizer.
        """
        for part in self._attached()[0].backend.parts:
            if isinstance(part, Optimizer) and part.model is self.model:
                return self.update(part)
        raise RuntimeError("the sparsity optimizer needs an optimizer of the same model")


def configure_sparsity_optimizer(
    sparsity_type: str, named_parameters: Parameters, **keys: object
) -> SparsityOptimizer:
    """Make a sparsity optimizer by its type: 'static', 'gmp', 'set' or 'rigl'.

    Raises:
        SparsityError: unknown type or key.
    """
    return SparsityOptimizer(named_parameters, {"type": sparsity_type, **keys})


# Keys of a section, under the names of releases 2.2+ and of 2.0/2.1.
_NAMES = ("static", "gmp", "set", "rigl")
Static, GMP, SET, RigL = (functools.partial(_algorithm, name) for name in _NAMES)
(
    StaticSparsityOptimizer,
    GMPSparsityOptimizer,
    SETSparsityOptimizer,
    RigLSparsityOptimizer,
) = (functools.partial(configure_sparsity_optimizer, name) for name in _NAMES)

__getattr__ = functools.partial(explain, __name__)
