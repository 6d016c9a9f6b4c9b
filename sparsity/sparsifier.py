"""The sparsifier: a frozen bundle of pure functions around any parameter tree and optimizer.

One training step, in this order (each line is the user's or the trainer's):

1. ``ready = sparsifier.prepare(params, sparse)``, then the loss of ``sparsifier.attach(ready,
   sparse)``: pruned weights are 0 in the forward pass
2. ``grads, dense = sparsifier.split(gradients at ready, sparse)``: kept gradients are selected, so
   that NaN or inf at pruned positions has no effect; dense ones are for the topology
3. the optimizer step
4. ``sparse, params, opt_state = sparsifier.update(sparse, params, dense, opt_state)``:
   pruned weights and moments are set to 0, the step counter advances, and at a due step a new
   topology is chosen and weights and moments are pruned to it

``sparsity.wrap`` folds 2-4 into an optax transformation.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping

import jax.numpy as jnp
import optax
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

from wafer.models.alias import all_names
from wafer.models.paths import dense_word, map_named, named_leaves
from wafer.sparsity import kernels, storage, topology as topologies
from wafer.sparsity.adapters.optimizers import check
from wafer.sparsity.algorithms.base import Algorithm, InitContext
from wafer.sparsity.filters import ParamFilter, can_be_marked
from wafer.sparsity.selected import (
    Selected,
    SelectionTable,
    dense_row,
    log_selected,
    log_without_effect,
    sparse_row,
)
from wafer.sparsity.state import (
    SparseState,
    advanced,
    key_arrays,
    map_copies,
    match,
    tell_unchanged,
    typed_key,
)
from wafer.sparsity.views import CompetitionRows, WeightLayout, view_of


@dataclasses.dataclass(frozen=True, eq=False)  # identity hash: a bundle is static under jit
class Sparsifier:
    """Pure functions over a parameter tree; made by ``sparsity.configure``.

    Training needs ``init``, ``prepare``, ``attach``, ``split``, ``update`` and ``prune``; the
    others select, store and report; ``sparsity.resume`` restores a state from a checkpoint.

    Attributes:
        groups: (filter, algorithm) in order; the first that matches a parameter takes it.
        weight_layout: "io" for Flax kernels [in, out], "oi" for [out, in], or, by glob of names, a
            letter for each axis, see ``views.LETTERS``; None is "io", without patterns in three or
            more axes.
        aliases: '/'-path -> dotted name, which filters may match too.
        order: names of all parameters in the order that ``InBandStatic`` seeds by; tree order
            when None.
        requires_dense: globs of parameters that no group may take.
        accepts: '/'-path -> whether the model takes a ``SparseWeight`` there instead of an
            array; where not, ``compute: auto`` stores dense, and ``csr`` is refused. None when
            it is unknown: then only ``csr`` stores kept values.
        dtype: what the model computes in; csr storage pays only where a native kernel takes it.
        code_of: '/'-path -> number that sets its random draws apart. An executor that compiles
            one update for many layers passes a traced number.
        quiet: say nothing of what is selected: the trees are parts of a model.
        partial: trees may be parts of the model: frozen leaves left out, one encoder, a stage.
            Otherwise a mask that finds no weight of its name is an error.
        dense_words: the default filter leaves dense, too, what has a
            ``wafer.models.paths.dense_word``.
    """

    groups: tuple[tuple[ParamFilter, Algorithm], ...]
    weight_layout: WeightLayout | None = None
    aliases: Callable[[str], str] = lambda name: name
    order: tuple[str, ...] | None = None
    requires_dense: tuple[str, ...] = ()
    accepts: Callable[[str], bool] | None = None
    dtype: DTypeLike = jnp.float32
    code_of: Callable[[str], PyTree] = topologies.name_code
    quiet: bool = False
    partial: bool = False
    dense_words: bool = False

    def __bool__(self) -> bool:
        """False when no section was given: nothing is sparse."""
        return bool(self.groups)

    def group_of(self, name: str, ndim: int, *, stored: bool = False) -> int | None:
        """Return the index of the first group that takes a parameter, or None.

        Args:
            name: '/'-path.
            ndim: rank of the dense weight.
            stored: the parameter has a mask: one that no group takes belongs to the group whose
                default took it before there were ``dense_words``.
        """
        if not self.groups:
            return None
        names = all_names(name, self.aliases)
        if ParamFilter("glob", self.requires_dense).matches(names, ndim):
            return None
        left_out = self.dense_words and any(map(dense_word, names))
        takes = [i for i, (rule, _) in enumerate(self.groups) if rule.matches(names, ndim)]
        now = [i for i in takes if not left_out or self.groups[i][0].kind != "default"]
        return next(iter(now or takes if stored else now), None)

    def view(self, group: int, name: str = "", ndim: int = 2) -> CompetitionRows:
        """Return a parameter's competition rows in a group.

        Args:
            group: position of the group.
            name: '/'-path of the parameter.
            ndim: rank of the dense weight.

        Raises:
            SparsityError: a layout of other axes, or a pattern on axes without one.
        """
        names, structure = all_names(name, self.aliases), self.groups[group][1].structure
        return view_of(self.weight_layout, names, ndim, structure)

    def select(self, params: PyTree, stored: Collection[str] = ()) -> dict[str, Selected]:
        """List the parameters that become sparse, in tree order.

        Args:
            params: arrays or shapes (``jax.eval_shape``), dense.
            stored: names of parameters that have a mask already.

        Raises:
            SparsityError: a filter names a parameter without NaN, such as integers.
            ValueError: groups that cannot divide a parameter, or an ``order`` that lacks one.
        """
        leaves = named_leaves(params)
        order = [name for name, _ in leaves] if self.order is None else list(self.order)
        index = {name: i for i, name in enumerate(order)}
        selected: dict[str, Selected] = {}
        for name, leaf in leaves:
            group = self.group_of(name, len(leaf.shape), stored=name in stored)
            if group is None or not can_be_marked(name, leaf.dtype, self.groups[group][0]):
                continue
            if name not in index:
                raise ValueError(f"sparsity: `order` lists no parameter {name!r}; list them all")
            shape = tuple(leaf.shape)
            view = self.view(group, name, len(shape))
            view.check(name, shape)
            selected[name] = Selected(name, index[name], group, shape, self.groups[group][1], view)
        if self.groups and not self.quiet:
            known = {n: (all_names(n, self.aliases), len(leaf.shape)) for n, leaf in leaves}
            log_without_effect(self.groups, self.weight_layout, known, selected)
        return selected

    def summary(self, params: PyTree) -> SelectionTable:
        """Return a row for each parameter: whether it becomes sparse, how, and why.

        Args:
            params: arrays or shapes, dense.
        """
        selected, rows = self.select(params), []
        rules = [rule for rule, _ in self.groups]
        for name, leaf in named_leaves(params):
            chosen = selected.get(name)
            if chosen is not None:
                rows.append(sparse_row(chosen, rules[chosen.group], self.choice(chosen)))
                continue
            names = all_names(name, self.aliases)
            stay = ParamFilter("glob", self.requires_dense)
            rows.append(dense_row(names, leaf, rules, stay))
        return SelectionTable(rows)

    def init(self, params: PyTree, key: Array) -> SparseState:
        """Choose the first masks.

        Args:
            params: dense parameter tree.
            key: consumed; becomes the state's key.

        Returns:
            The state; training starts from ``prune(params, opt_state, state)``.

        Raises:
            ValueError: a weight that is NaN.
        """
        selected, leaves = self.select(params), dict(named_leaves(params))
        storage.require_numbers({name: leaves[name] for name in selected})
        masks = {
            name: self.first_mask(chosen, self.init_context(chosen, leaves[name], key))
            for name, chosen in selected.items()
        }
        return self.store(self.blank(key), masks, selected)

    def store(
        self, sparse: SparseState, masks: Mapping[str, Array], selected: Mapping[str, Selected]
    ) -> SparseState:
        """Put masks into a state, as patterns where weights are stored as csr; log what is sparse.

        This is where ``compute: auto`` is decided.
        """
        masked, patterns, why = dict(masks), {}, {}
        for name, mask in masks.items():
            chosen = selected[name]
            choice = self.choice(chosen)
            if choice.storage == "csr":
                size = storage.capacity(mask, chosen.algorithm, chosen.view)
                patterns[name] = storage.pattern_of(masked.pop(name), size)
            elif choice.why:
                why[name] = choice.why
        self.log_selection(selected)
        if not self.quiet:
            storage.tell_masked(why)
        return sparse._replace(masks=masked, patterns=patterns)

    def choice(self, chosen: Selected) -> storage.Choice:
        """Return a parameter's storage."""
        return storage.choose(
            chosen.name,
            chosen.shape,
            chosen.algorithm,
            chosen.view,
            dtype=self.dtype,
            accepted=self.accepts and self.accepts(chosen.name),
        )

    def blank(self, key: Array) -> SparseState:
        """Return the state of step 0 without masks."""
        return SparseState(
            masks={},
            patterns={},
            step=jnp.int32(0),
            indices=topologies.first_indices(self.groups),
            targets=topologies.first_targets(self.groups),
            key=key_arrays(key),
            generation=jnp.int32(0),
        )

    def first_mask(self, chosen: Selected, context: InitContext) -> Array:
        """Return a parameter's first mask; all true for a group that starts dense."""
        if chosen.algorithm.starts_sparse():
            return chosen.algorithm.init_mask(context)
        return jnp.ones(chosen.shape, bool)

    def init_context(self, chosen: Selected, weight: Array, key: Array) -> InitContext:
        """Gather what an algorithm needs to make one parameter's first mask."""
        key = typed_key(key)
        level = chosen.algorithm.sparsity.first_level()
        return InitContext(
            name=chosen.name,
            position=chosen.position,
            weight=jnp.asarray(weight),
            sparsity=level,
            key=topologies.named_key(key, chosen.name),
            run_key=key,
            view=chosen.view,
        )

    def log_selection(self, selected: Mapping[str, Selected]) -> None:
        """Log what became sparse: a line at INFO, each parameter at DEBUG."""
        if self.groups and not self.quiet:
            log_selected(self.groups, selected)

    def check(self, tx: optax.GradientTransformation, params: PyTree, **extra: PyTree) -> None:
        """Refuse an optimizer that would train weights stored as csr otherwise than under masks.

        Args:
            tx: any optax transformation. It takes a few steps on a tree with the names and ranks
                of ``params``, and with their sizes where its program depends on sizes. Where it
                draws random numbers, a warning says so instead.
            params: arrays or shapes, dense.
            **extra: further arguments of ``tx.update``.

        Raises:
            SparsityError: names what differs; nothing where no weight may be stored as csr.
        """
        may_be_csr = lambda c: storage.may_be_csr(
            c.shape, c.algorithm, c.view, self.accepts and self.accepts(c.name)
        )
        slot_counts = {
            name: storage.slots(chosen.shape, chosen.algorithm, chosen.view)
            for name, chosen in self.select(params).items()
            if may_be_csr(chosen)
        }
        check(tx, params, slot_counts, **extra)

    def prepare(self, params: PyTree, sparse: SparseState, *, dense: bool = False) -> PyTree:
        """Return the tree of arrays to differentiate at.

        Args:
            params: parameters in the state's storage.
            sparse: the topology.
            dense: ask for the dense gradients a topology update reads: such weights get a probe,
                which costs csr a dense product.
        """
        sparse = match(sparse, params, "prepare", partial=self.partial)

        def visit(name: str, leaf: PyTree) -> PyTree:
            if name in sparse.patterns:
                storage.require_values(name, leaf)
            topology = sparse.patterns.get(name, sparse.masks.get(name))
            if topology is None or not dense:
                return leaf
            if not self.groups[self._group_number(name, len(topology.shape))][1].needs_gradient:
                return leaf
            return storage.Probed(leaf, jnp.zeros(topology.shape, leaf.dtype))

        return map_named(visit, params)

    def attach(self, ready: PyTree, sparse: SparseState) -> PyTree:
        """Return the tree the model computes with.

        Masked weights become 0 where pruned, whatever their values there, and their gradients,
        too; csr weights become ``SparseWeight``s.
        """
        sparse = match(sparse, ready, "attach", partial=self.partial, is_leaf=storage.is_probed)

        def visit(name: str, leaf: PyTree) -> PyTree:
            values, probe = leaf if isinstance(leaf, storage.Probed) else (leaf, None)
            if name in sparse.masks:
                mask = sparse.masks[name]
                group = self._group_number(name, values.ndim)
                used = (
                    jnp.where(mask, values, 0)
                    if probe is None
                    else storage.masked(values, mask, probe)
                )
                return self.groups[group][1].forward(used, self.view(group, name, values.ndim))
            if name not in sparse.patterns:
                return leaf
            pattern = sparse.patterns[name]
            return kernels.SparseWeight(values=values, pattern=pattern, probe=probe)

        return map_named(visit, ready, is_leaf=storage.is_probed)

    def apply(self, params: PyTree, sparse: SparseState) -> PyTree:
        """Return the tree the model computes with: 0 where pruned, or sparse weight objects.

        Differentiating through ``apply`` gives gradients at kept positions only.
        """
        return self.attach(self.prepare(params, sparse), sparse)

    def split(self, gradients: PyTree, sparse: SparseState) -> tuple[PyTree, dict[str, Array]]:
        """Separate gradients at ``prepare``d parameters.

        Returns:
            (gradients in the storage of the parameters, selected at kept positions; dense
            gradients by name, for ``update``: those that ``prepare`` was asked for).
        """
        dense: dict[str, Array] = {}
        probed = storage.is_probed
        sparse = match(sparse, gradients, "split", partial=self.partial, is_leaf=probed)

        def visit(name: str, leaf: PyTree) -> PyTree:
            if isinstance(leaf, storage.Probed):
                leaf, dense[name] = leaf
            return jnp.where(sparse.masks[name], leaf, 0) if name in sparse.masks else leaf

        return map_named(visit, gradients, is_leaf=probed), dense

    def mask_gradients(self, grads: PyTree, sparse: SparseState) -> PyTree:
        """Select the gradients of kept weights (not multiply: NaN at pruned ones vanishes)."""
        return self.split(grads, sparse)[0]

    def prune(
        self, params: PyTree, opt_state: PyTree, sparse: SparseState
    ) -> tuple[PyTree, PyTree]:
        """Bring weights and their moments into the state's storage, 0 where pruned.

        Dense ones become [nnz] values where the state holds a pattern.
        """
        sparse = match(sparse, params, "prune", partial=self.partial)
        return storage.pruned(params, opt_state, sparse)

    def expand(
        self, params: PyTree, opt_state: PyTree, sparse: SparseState, fill: float = 0.0
    ) -> tuple[PyTree, PyTree]:
        """Bring csr weights and their moments back to dense, ``fill`` at pruned positions."""
        sparse = match(sparse, params, "expand", partial=self.partial)
        tell_unchanged(sparse, self)
        return storage.expanded(params, opt_state, sparse, fill)

    def masks(self, sparse: SparseState) -> dict[str, Array]:
        """Return every sparse parameter's dense mask, whatever its storage."""
        tell_unchanged(sparse, self)
        dense = {name: kernels.to_mask(pattern) for name, pattern in sparse.patterns.items()}
        return {**sparse.masks, **dense}

    def _group_number(self, name: str, ndim: int) -> int:
        group = self.group_of(name, ndim, stored=True)
        if group is None:
            raise ValueError(f"sparsity: no group takes {name!r}; the state is of another section")
        return group

    def due(self, step: int) -> bool:
        """True when the topology may change after the ``step``-th optimizer step (from 1).

        The step about to run with ``sparse.step == n`` is the (n+1)-th: call ``due(n + 1)``.
        A trainer may compile two steps, ``topology=True`` with dense gradients and
        ``topology=False`` without, and choose by this.
        """
        return any(alg.dynamic and bool(alg.update(step)) for _, alg in self.groups)

    def due_between(self, begin: int, end: int) -> bool:
        """True when ``due`` of a step with begin <= step < end is."""
        return any(alg.dynamic and alg.update.due_between(begin, end) for _, alg in self.groups)

    @property
    def needs_gradient(self) -> bool:
        """True when some group reads dense gradients at due steps."""
        return any(alg.dynamic and alg.needs_gradient for _, alg in self.groups)

    def update(
        self,
        sparse: SparseState,
        params: PyTree,
        dense_grads: PyTree,
        opt_state: PyTree,
        *,
        finite: Array | bool = True,
        topology: bool = True,
    ) -> tuple[SparseState, PyTree, PyTree]:
        """Finish a training step: prune, count, and change the topology when it is due.

        Args:
            sparse: state in force during the step.
            params: parameters after the optimizer step.
            dense_grads: gradients of this step before masking, as a tree like ``params`` or a
                dict by name; read only by groups that need them, at due steps; else None.
            opt_state: optimizer state after the optimizer step. Whatever tree it is, such as
                (optimizer state, average of the weights), every part of it that has a parameter's
                name and shape follows the topology; a ``WeightCopy`` in it gets its generation.
            finite: [] bool, false when the step was skipped for non-finite gradients: nothing
                advances and nothing changes.
            topology: False compiles a step that never changes the topology, for steps where
                ``due`` is false.

        Returns:
            (sparse, params, opt_state), pruned weights and moments exactly 0.
        """
        sparse = match(sparse, params, "update", partial=self.partial)
        opt_state = map_copies(lambda copy: copy._replace(tree=copy.read(sparse)), opt_state)
        sparse = sparse._replace(step=sparse.step + jnp.asarray(finite, jnp.int32))
        params, opt_state = self.prune(params, opt_state, sparse)
        if not topology:
            tell_unchanged(sparse, self)
            return sparse, params, opt_state
        grads = {} if dense_grads is None else dict(named_leaves(dense_grads))
        ranks = {name: mask.ndim for name, mask in sparse.masks.items()}
        ranks |= dict.fromkeys(sparse.patterns, 2)
        present = {name for name, _ in named_leaves(params)}
        ranks = {name: ndim for name, ndim in ranks.items() if name in present}
        changed = jnp.asarray(False)
        for number, (_, algorithm) in enumerate(self.groups):
            names = tuple(n for n, ndim in ranks.items() if self._group_number(n, ndim) == number)
            if not algorithm.dynamic or not names:
                continue
            views = {name: self.view(number, name, ranks[name]) for name in names}
            group = topologies.Group(algorithm, number, names, views, self.code_of, not self.quiet)
            sparse, new = topologies.update_group(
                group, sparse, (params, opt_state), grads, jnp.asarray(finite)
            )
            params, opt_state = topologies.put(new, params, opt_state)
            changed |= jnp.asarray(finite) & algorithm.update(sparse.step)
        sparse = advanced(sparse, changed)
        opt_state = map_copies(lambda copy: copy.moved(sparse), opt_state)
        # Positions that grew were pruned until now, so only the dropped ones change.
        return sparse, *self.prune(params, opt_state, sparse)

    def metrics(self, sparse: SparseState) -> dict[str, Array]:
        """Target and actual sparsity of each parameter, under TensorBoard's tags.

        Returns:
            ``sparsity/NAME/target`` and ``sparsity/NAME/actual`` -> [] float32. Jit it.
        """
        densities = {name: jnp.mean(m, dtype=jnp.float32) for name, m in sparse.masks.items()}
        densities |= {name: storage.density(pattern) for name, pattern in sparse.patterns.items()}
        out: dict[str, Array] = {}
        for name, share in densities.items():
            rank = sparse.masks[name].ndim if name in sparse.masks else 2
            group = self._group_number(name, rank)
            out[f"sparsity/{name}/target"] = sparse.targets[group]
            out[f"sparsity/{name}/actual"] = 1 - share
        return out
