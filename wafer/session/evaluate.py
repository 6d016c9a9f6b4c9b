"""Evaluation: mean loss, the task's metrics, and bits per byte where bytes are known."""

import itertools
import logging
import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wafer.data.batching.dataset import Dataset, Scorer
from wafer.data.batching.pipeline import Rows
from wafer.data.batching.streams import Streamed
from wafer.data.tasks import metric_tags
from wafer.engines.cluster import all_max, all_sum
from wafer.errors import CheckpointError, DataError
from wafer.models.base import Aux
from wafer.models.checkpoint.layout import CHECKPOINTS, complete_checkpoints
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.checkpoint.writer import Checkpoints
from wafer.models.losses import metric_values
from wafer.optim.step import TrainState
from wafer.session.build import Run
from wafer.session.harness.tasks import evaluate_tasks_of
from wafer.session.persist import resume, state_from

_LOG = logging.getLogger(__name__)


def evaluate(run: Run, state: TrainState) -> dict[str, float]:
    """Evaluate a state on ``eval_input``: one epoch in order, or ``eval_steps`` batches.

    Returns:
        tag -> value: ``loss`` (nats per token), the task's metrics by tag
        (``wafer.data.tasks``, and those of the data's scorer), and ``eval/bits_per_byte`` when
        the data has a tokenizer.

    Raises:
        DataError: the evaluation data holds no token.
    """
    section, data = run.cfg.eval_input, run.eval_data
    if section is None or data is None:  # the configuration was checked for this mode
        raise DataError("eval_input: missing; evaluation needs it")
    shape, task = run.experiment.batch("eval"), (jax.process_index(), jax.process_count())
    loader = data.loader(shape.samples, num_epochs=1, drop_last=False, task=task)
    sums: dict[str, float] = {"loss_sum": 0.0, "weight": 0.0, "bytes": 0.0}
    metrics: dict[str, float] = {}
    scorer = _scorer(data)

    def evaluated() -> Iterator[Aux]:
        for rows in itertools.islice(_together(loader, data), run.cfg.runconfig.eval_steps):
            if scorer is None:
                aux = run.engine.evaluate(state, run.place_batch(rows, shape))
            else:
                aux = _scored(run, state, rows, scorer)
            if data.token_bytes is not None:
                counted = data.token_bytes[rows["labels"]] * rows["attention_mask"]
                sums["bytes"] += float(np.sum(counted))
            yield aux

    end: Any = None
    try:  # sums are read when the next batch has begun
        for aux, _ in itertools.pairwise(itertools.chain(evaluated(), [end])):
            sums["loss_sum"] += float(aux.loss_sum)
            sums["weight"] += float(aux.weight)
            for key, value in aux.metrics.items():
                metrics[key] = metrics.get(key, 0.0) + float(value)
    finally:
        loader.close()
    sums["bytes"] = all_sum(sums["bytes"])
    if not sums["weight"]:
        raise DataError("eval_input: no token has a loss weight above 0; expected at least one")
    result = {"loss": sums["loss_sum"] / sums["weight"]}
    values = metric_values({name: jnp.float32(value) for name, value in metrics.items()})
    result |= metric_tags(section.task, values)
    result |= {} if scorer is None else scorer.result()
    if sums["bytes"] and "nll_sum" in metrics:
        result["eval/bits_per_byte"] = metrics["nll_sum"] / math.log(2) / sums["bytes"]
    return result


def _together(loader: Iterable[Rows], data: Dataset) -> Iterator[Rows]:
    """Batches for as long as any process has one: users' loaders need not end together."""
    if jax.process_count() == 1 or not isinstance(data, Streamed):
        yield from loader
        return
    batches, last = iter(loader), None
    while True:
        rows = next(batches, None)
        if not all_max(rows is not None):
            return
        if rows is None and last is None:
            raise DataError("eval_input: no batch for this process; give each process as many rows")
        last = jax.tree.map(np.zeros_like, last) if rows is None else rows
        yield last


def _scorer(data: Dataset) -> Scorer | None:
    if data.scorer is None:
        return None
    if jax.process_count() > 1:
        raise DataError(
            "eval_input: the metrics of this task need all outputs; evaluate in one process"
        )
    return data.scorer()


def _scored(run: Run, state: TrainState, rows: Rows, scorer: Scorer) -> Aux:
    """Evaluate a batch and hand the model's outputs, row by row, to the scorer."""
    features = run.place_batch(rows, run.experiment.batch("eval"), padded=True)
    aux, outputs = run.engine.predict(state, features, scorer.reads)
    real = rows["row"] != 0  # the others fill up the last batch
    # [N, A, B/NA or slots, ...] -> [B, 1 or positions, ...]
    by_row = lambda value: np.asarray(value).reshape(len(real), -1, *value.shape[3:])[real]
    scorer.add(
        {name: value[real] for name, value in rows.items()},
        {name: by_row(value) for name, value in outputs.items()},
    )
    return aux


def evaluate_and_write(run: Run, state: TrainState, number: int = 0) -> dict[str, float]:
    """Evaluate a state; put the metrics into events, ``eval/metrics.jsonl`` and the log.

    Args:
        run: of the state.
        state: to evaluate.
        number: of the evaluation, from 0; tasks of the harness are due by it.
    """
    step = int(state.step)
    results = evaluate(run, state) | evaluate_tasks_of(run, state, number)
    writer = run.writer("eval")
    writer.write(step, results)
    writer.close()
    shown = ", ".join(f"{name.removeprefix('eval/')}={v:.5f}" for name, v in results.items())
    _LOG.info("| Eval Device=%s, Step=%d, %s", run.device, step, shown)
    return results


def evaluate_one(run: Run) -> dict[str, float]:
    """Evaluate ``checkpoint_path``, or the newest checkpoint in model_dir.

    Raises:
        CheckpointError: there is none.
    """
    resumed = resume(run)
    if resumed.path is None:
        raise CheckpointError(
            f"{run.model_dir / CHECKPOINTS} holds no checkpoint to evaluate; train first, or "
            "name one with --checkpoint_path"
        )
    return evaluate_and_write(run, resumed.state)


def evaluate_every(run: Run) -> None:
    """Evaluate every complete checkpoint in model_dir.

    Raises:
        CheckpointError: there is none, or one is damaged.
    """
    checkpoints = Checkpoints(run.model_dir)
    paths = complete_checkpoints(map(checkpoints.path, checkpoints.steps()))
    if not paths:
        raise CheckpointError(
            f"{checkpoints.folder}: holds no checkpoint; mode eval_all needs at least one"
        )
    template = run.warmup.first_state()
    for path in paths:
        tree, meta = load_checkpoint(path)
        evaluate_and_write(run, state_from(run, template, tree, meta, path))
