"""Tasks of the harness: its model, a run of tasks, their metrics."""

import contextlib
import os
import pathlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wafer.config.runconfig import HarnessTasks
from wafer.errors import DataError
from wafer.models.errors import did_you_mean, optional
from wafer.models.paths import map_named
from wafer.optim.step import TrainState
from wafer.session.build import Run
from wafer.session.harness.texts import WHY, TaskModel
from wafer.sparsity.stored import sentinel
from wafer.sparsity.stored.inference import computed_params

_RESAMPLED = 1000  # times that a metric without a formula is computed for its error


def adapter(texts: TaskModel) -> Any:
    """Make the harness's model; its base class is that of the installed harness."""
    base = optional("lm_eval.api.model", WHY).TemplateLM

    class WaferModel(base):
        """Model of the harness that computes with Wafer."""

        eot_token_id = property(lambda self: texts.ends[0])
        prefix_token_id = property(lambda self: texts.begin)
        max_length = property(lambda self: texts.longest)

        def tok_encode(
            self, string: str, add_special_tokens: bool | None = None, **_: object
        ) -> list[int]:
            """Return the token ids of a text."""
            return texts.encode(string, add_special_tokens)

        def _loglikelihood_tokens(
            self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: object
        ) -> list[tuple[float, bool]]:
            found = texts.likelihoods([(context, own) for _, context, own in requests])
            results = [(result[0], result[1]) for result in found]
            for request, result in zip(requests, results, strict=True):
                if request[0] is not None:
                    self.cache_hook.add_partial("loglikelihood", request[0], result)
            return results

        def loglikelihood_rolling(self, requests: Sequence[Any], **_: object) -> list[float]:
            """Compute the log-likelihood of each whole text."""
            return texts.rolling([request.args[0] for request in requests])

        def generate_until(self, requests: Sequence[Any], **_: object) -> list[str]:
            """Continue each text."""
            return texts.answers([request.args for request in requests])

    return WaferModel()


def _in_repository() -> bool:
    """Whether git finds a repository from the working directory."""
    here = pathlib.Path.cwd()
    return "GIT_DIR" in os.environ or any((x / ".git").exists() for x in (here, *here.parents))


@contextlib.contextmanager
def unchanged(evaluator: Any) -> Iterator[None]:
    """Restore what the harness changes; keep it from forking a process with JAX.

    Outside of a repository it does not call git, whose error would be shown; its record has None
    for the commit then, as it has after that error.

    Args:
        evaluator: the harness's module.
    """
    kept, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002 (the harness's)
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    commit = evaluator.get_git_commit_hash
    if not _in_repository():
        evaluator.get_git_commit_hash = lambda: None
    try:
        yield
    finally:
        evaluator.get_git_commit_hash = commit
        random.setstate(kept)
        np.random.set_state(numbers)  # noqa: NPY002
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]


def run_tasks(texts: TaskModel, tasks: HarnessTasks) -> dict[str, Any]:
    """Run tasks.

    Args:
        texts: the model.
        tasks: which, and how.

    Returns:
        The harness's record: ``results`` (task -> metric and filter -> value), ``n-samples``, ...

    Raises:
        DataError: a task that the harness does not know.
        MissingPackageError: the harness is not installed.
    """
    evaluator = optional("lm_eval.evaluator", WHY)
    manager = optional("lm_eval.tasks", WHY).TaskManager(include_path=tasks.include_path)
    for name in tasks.tasks:
        if name not in manager.all_tasks and not pathlib.Path(name).is_file():
            raise DataError(
                f"tasks: {name!r} is not known{did_you_mean(name, manager.all_tasks)}; expected a "
                "task of the harness, or of the folder include_path"
            )
    sampling = {"temperature": tasks.temperature, "top_k": tasks.top_k, "top_p": tasks.top_p}
    keys = {name: value for name, value in sampling.items() if value is not None}
    if tasks.temperature:
        keys["do_sample"] = True
    if tasks.max_tokens is not None:
        keys["max_gen_toks"] = tasks.max_tokens
    with unchanged(evaluator):
        return evaluator.simple_evaluate(
            model=adapter(texts),
            tasks=list(tasks.tasks),
            num_fewshot=tasks.num_fewshot,
            limit=tasks.limit,
            gen_kwargs=keys or None,
            task_manager=manager,
            log_samples=False,
            bootstrap_iters=_RESAMPLED,
        )


def task_metrics(record: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return task -> metric -> value of a record; ``metric,filter`` where the filter has a name."""
    return {
        task: {
            name.removesuffix(",none"): float(value)
            for name, value in values.items()
            if "," in name and isinstance(value, int | float)
        }
        for task, values in record["results"].items()
    }


def evaluate_tasks_of(run: Run, state: TrainState, number: int = 0) -> dict[str, float]:
    """Run the tasks of ``runconfig.eleuther_eval_harness`` on a state, where they are due.

    Args:
        run: of the state.
        state: to evaluate.
        number: of the evaluation, from 0.

    Returns:
        ``eval/TASK/METRIC`` -> value; {} where none are due.

    Raises:
        DataError: several processes; a task that is not known; no tokenizer.
    """
    options = run.cfg.runconfig.eleuther_eval_harness
    if options is None or number % options.every_n_vals:
        return {}
    if jax.process_count() > 1:
        raise DataError("eleuther_eval_harness: tasks run in one process; evaluate in one")
    exported = sentinel.decode(run.engine.export(state)[0], {}).params
    params = computed_params(run.experiment.sparsifier, exported)
    params = map_named(lambda _, leaf: jnp.asarray(np.asarray(leaf)), params)
    texts = TaskModel(run.experiment.model, params, run.model_dir, options)
    found = task_metrics(run_tasks(texts, options.eeh_args))
    return {
        f"eval/{task}/{metric}": value
        for task, values in found.items()
        for metric, value in values.items()
    }
