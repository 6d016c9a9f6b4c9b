"""Training states on disk: NaN at pruned positions, and back, with the rules for resuming."""

import contextlib
import dataclasses
import logging
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from wafer import sparsity
from wafer.errors import CheckpointError, DataError, TrainingError
from wafer.models.checkpoint import layout
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.checkpoint.stores import local_path
from wafer.models.checkpoint.tree import fill_template, is_spread
from wafer.models.checkpoint.writer import Checkpoints
from wafer.models.factored.lora import is_adapter
from wafer.models.paths import named_leaves
from wafer.models.user.code import NOTEBOOK
from wafer.optim.step import TrainState
from wafer.session.build import Run
from wafer.session.facts import changes
from wafer.session.foreign import is_foreign, load_foreign
from wafer.session.masks import mask_lines
from wafer.sparsity.stored import sentinel
from wafer.sparsity.stored.resume import Origin, resume as restore
from wafer.version import __version__

_LOG = logging.getLogger(__name__)
_PARTS = ("model", "optimizer", "sparsity", "dataloader", "grad_scaler", "global_step")


@dataclasses.dataclass(frozen=True)
class Resumed:
    """Where a run begins."""

    state: TrainState  #: the training state
    data: Mapping[str, Any] | None = None  #: the loader's position, or None to begin the data anew
    path: pathlib.Path | None = None  #: the checkpoint it came from, or None for a fresh start


@contextlib.contextmanager
def errors_name(path: object) -> Iterator[None]:
    """Put a checkpoint's path before the errors about what it holds."""
    try:
        yield
    except (CheckpointError, DataError) as error:
        raise type(error)(f"{path}: {error}") from None


def save(
    run: Run, checkpoints: Checkpoints, state: TrainState, position: Mapping[str, object]
) -> pathlib.Path:
    """Write a checkpoint that ``resume`` continues bit for bit.

    Args:
        run: the run; its configuration is stored beside the arrays.
        checkpoints: where to.
        state: what to store.
        position: of the training data, from ``Loader.state``.

    Raises:
        TrainingError: a weight is NaN, which the file could not tell from a pruned one.
        CheckpointError: the disk is full or not writable.
    """
    for name, leaf in named_leaves(state.params):  # a NaN would read as a pruned weight
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not _is_finite(leaf):
            raise TrainingError(
                f"step {int(state.step)}: {name} holds NaN or infinity, so no checkpoint is "
                "written; the earlier ones are good. Lower optimizer.learning_rate or set "
                "optimizer.max_gradient_norm, and run again."
            )
    params, opt_state = run.engine.export(state)
    stored = {
        layout.PARAMS: params,
        layout.OPT_STATE: opt_state,
        layout.SCALE: state.scale,
        layout.STEP: state.step,
        layout.KEY: state.key,
    }
    meta = {
        layout.WRITER: __version__,
        layout.STEP: int(state.step),
        layout.CONFIG: run.cfg.to_dict(),
        layout.DATA: dict(position),
    }
    if run.experiment.sparsifier:
        meta[layout.SPARSITY] = sparsity.to_meta(state.sparse)
    path = checkpoints.save(int(state.step), stored, meta)
    _LOG.info("Saved checkpoint %s", path)
    return path


def _is_finite(leaf: PyTree) -> bool:
    """Whether all numbers of an array are finite; parts of it are looked at where they lie."""
    if is_spread(leaf):
        return bool(jnp.isfinite(leaf).all())
    return bool(np.isfinite(np.asarray(leaf)).all())


def resume(run: Run) -> Resumed:
    """Continue from ``checkpoint_path``, else from the newest checkpoint in model_dir, else begin.

    Raises:
        CheckpointError: the checkpoint is damaged or does not fit the configuration.
    """
    settings = run.cfg.runconfig
    state = run.warmup.first_state()
    lazily = run.engine_info.lazy_restore
    start = settings.checkpoint_path
    named = start is not None and not _has_begun(run, start)
    if start is not None and named:
        path = local_path(start)
        tree, meta = _opened(run, path, lazily=lazily)
        if (
            is_foreign(path, run.readers) and layout.OPT_STATE in tree
        ):  # randomness is each stack's own
            tree = tree | {layout.KEY: state.key}
    elif settings.autoload_last_checkpoint:
        checkpoints = Checkpoints(run.model_dir)
        training = "train" in settings.mode
        newest = checkpoints.restore_latest(lazily=lazily, set_aside=training)
        if newest is None:
            _LOG.info("No checkpoint in %s; starting at step 0", checkpoints.folder)
            return Resumed(state)
        step, tree, meta = newest
        path = checkpoints.path(step)
        named = start is not None and path == pathlib.Path(start)
    else:
        return Resumed(state)
    states = _parts(run, tree) if named or settings.checkpoint_path is None else _PARTS
    state = state_from(run, state, tree, meta, path, states=states)
    _LOG.info("Continuing from %s at step %d", path, int(state.step))
    if set(states) != set(_PARTS):
        _LOG.info("Loaded only: %s", ", ".join(states))
    _tell_changes(path, meta, run.cfg.to_dict(), whole=set(states) == set(_PARTS))
    data = layout.record_entry(meta, path, layout.DATA) if "dataloader" in states else None
    if (
        data is None
        and states == _PARTS
        and "train" in settings.mode
        and not is_foreign(path, run.readers)
    ):
        raise CheckpointError(
            f"{path}: its record has no {layout.DATA}, the position in the training data; put it "
            "back, or begin the data anew: --load_checkpoint_states "
            + ",".join(part for part in _PARTS if part != "dataloader")
        )
    return Resumed(state, data, path)


def _opened(
    run: Run, path: pathlib.Path, *, lazily: bool
) -> tuple[dict[str, PyTree], dict[str, object]]:
    """Return the arrays and the record of a checkpoint, ours or foreign."""
    if is_foreign(path, run.readers):
        settings = run.cfg.runconfig
        wanted = settings.load_checkpoint_states or ("optimizer",)
        with_state = "optimizer" in wanted and not settings.is_pretrained_checkpoint
        return load_foreign(path, run.experiment, run.readers, with_state=with_state)
    return load_checkpoint(path, lazily=lazily)


def _tell_changes(
    path: pathlib.Path, meta: Mapping[str, object], now: Mapping[str, object], *, whole: bool
) -> None:
    """Say what differs from the checkpoint's file; of weights alone, what is sparse."""
    sparse = layout.SPARSITY in meta  # a finalized checkpoint has no pattern
    lines = changes(layout.record_entry(meta, path, layout.CONFIG) or {}, now)
    lines = [line for line in lines if (sparse if line.startswith("sparsity") else whole)]
    if lines:  # a notebook, where code changes unseen, shows warnings alone
        level = logging.WARNING if any(NOTEBOOK in line for line in lines) else logging.INFO
        _LOG.log(level, "Changed since this checkpoint was written:\n  %s", "\n  ".join(lines))
    if any(line.startswith("sparsity") for line in lines):
        _LOG.info(
            "Pruned weights stay so until the algorithm's next updates (static: to the end). For a "
            "new pattern at once: `wafer finalize`, then another --model_dir with "
            "--checkpoint_path FINALIZED --load_checkpoint_states model"
        )


def _has_begun(run: Run, path: str) -> bool:
    """Return whether a run that starts from foreign weights has checkpoints of its own by now.

    Then the same command continues it, as it does any other run.
    """
    settings = run.cfg.runconfig
    states = settings.load_checkpoint_states
    anew = settings.is_pretrained_checkpoint or is_foreign(pathlib.Path(path), run.readers)
    anew |= states is not None and "global_step" not in states
    if not (anew and settings.autoload_last_checkpoint and "train" in settings.mode):
        return False
    checkpoints = Checkpoints(run.model_dir)
    steps = checkpoints.steps()
    if steps:
        _LOG.info("%s has checkpoints: checkpoint_path is not read again", run.model_dir)
    return bool(steps)


def _parts(run: Run, tree: Mapping[str, PyTree]) -> tuple[str, ...]:
    """Which parts of a checkpoint are loaded, from the configuration and what the file holds."""
    settings = run.cfg.runconfig
    if settings.is_pretrained_checkpoint:
        return ("model",)
    if settings.load_checkpoint_states is None and set(tree) == {layout.PARAMS}:
        return ("model",)  # converted weights, folded adapters
    return settings.load_checkpoint_states or _PARTS


def state_from(
    run: Run,
    template: TrainState,
    tree: Mapping[str, PyTree],
    meta: Mapping[str, object],
    path: object,
    *,
    states: tuple[str, ...] | None = None,
) -> TrainState:
    """Turn a stored tree into the state training continues from.

    Args:
        run: decides which parts are taken and what is sparse now.
        template: the fresh state; parts that are not loaded keep its values.
        tree: arrays as stored, NaN at pruned positions.
        meta: the record beside them.
        path: for errors.
        states: which to take; None is what the configuration says.

    Raises:
        CheckpointError: the arrays do not fit the model, or are sparse while nothing is now.
    """
    states, source = states or _parts(run, tree), str(path)
    optional = is_adapter if states == ("model",) else lambda name: False
    strict = not run.cfg.runconfig.disable_strict_checkpoint_loading

    def take(part: str, name: str, new: PyTree) -> PyTree:
        if part not in states:
            return new
        if name not in tree:
            raise CheckpointError(
                f"{source} holds no {name}, only {', '.join(tree)}; load what is there with "
                "--load_checkpoint_states model"
            )
        return fill_template(new, tree[name], source, f"{name}/", strict=strict, optional=optional)

    sparsifier, trains = run.experiment.sparsifier, "train" in run.cfg.runconfig.mode
    record = layout.record_entry(meta, source, layout.SPARSITY) if "sparsity" in states else None
    origins: dict[str, Origin] = {}

    def fill(
        params: PyTree, opt_state: PyTree, sparse: sparsity.SparseState
    ) -> tuple[sparsity.SparseState, PyTree, PyTree]:
        # Files are dense whatever the storage in memory is.
        params, opt_state = run.engine.sparsifier.expand(params, opt_state, sparse)
        params = take("model", layout.PARAMS, params)
        if trains and not sparsifier:
            sentinel.require_dense(params, source)
        if run.cfg.optimizer is not None:
            if trains and "model" in states and "optimizer" not in states:
                opt_state = run.experiment.tx.init(params)  # which elements train: by these weights
            opt_state = take("optimizer", layout.OPT_STATE, opt_state)
        known = dataclasses.replace(run.engine.sparsifier, quiet=True)  # said what is sparse
        key, report = template.sparse.key, origins.update
        with errors_name(source):
            return restore(known, params, opt_state, key, record, trains=trains, report=report)

    state = template._replace(
        step=take("global_step", layout.STEP, template.step),
        scale=take("grad_scaler", layout.SCALE, template.scale),
        key=take("global_step", layout.KEY, template.key),
    )
    state = run.engine.rebuild(state, fill)
    if "model" in states:
        dynamic = any(algorithm.dynamic for _, algorithm in sparsifier.groups)
        for line in mask_lines(origins, source, trains=trains, dynamic=dynamic):
            _LOG.info("sparsity: %s", line)
    return state
