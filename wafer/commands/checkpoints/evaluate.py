"""Run tasks of the EleutherAI harness on a checkpoint: ``wafer evaluate``."""

import argparse
import json
import os
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wafer.models.user.flags import own_flags
from wafer.models.user.trust import add_option, trusting

_SHORT = {"tasks": "-t", "num_fewshot": "-f", "limit": "-L"}  # the harness's own


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("--checkpoint_path", help="checkpoint, model_dir or HF folder")
    parser.add_argument(
        "-p",
        "--params",
        help="run file with runconfig.eleuther_eval_harness, whose keys the options here override; "
        "its checkpoint_path or model_dir is evaluated without --checkpoint_path",
    )
    for name, meaning in _options().items():
        short = (_SHORT[name],) if name in _SHORT else ()
        parser.add_argument(f"--{name}", *short, metavar="X", help=meaning)
    parser.add_argument(
        "--kernels",
        choices=["auto", "dense"],
        default="auto",
        help="auto: multiply by kept weights where that is faster",
    )
    parser.add_argument("-o", "--output", "--output_path", help="write the record here, as JSON")
    add_option(parser)
    parser.set_defaults(run=_main)


def _options() -> dict[str, str]:
    """Return the keys of the harness in a run file, but for those of a run, and their meanings."""
    from wafer.config.runconfig import EleutherEvalHarness, HarnessTasks
    from wafer.models.sections import meanings

    keys = meanings(HarnessTasks) | meanings(EleutherEvalHarness)
    return {name: text for name, text in keys.items() if name not in ("eeh_args", "every_n_vals")}


def _main(args: argparse.Namespace) -> int:
    from wafer.cache import keep_programs

    keep_programs()
    given = {name: getattr(args, name) for name in _options()}
    given = {name: value for name, value in given.items() if value is not None}
    checkpoint, known = args.checkpoint_path, {}
    if args.params is not None:
        checkpoint, known = _of_file(args.params, checkpoint)
    if checkpoint is None:
        raise ValueError("--checkpoint_path: missing; give it, or a run file with --params")
    scores = _evaluate(checkpoint, _section(known, given), args.kernels)
    sys.stdout.write(f"{scores}\n")
    if args.output is not None:
        scores.write(args.output)
    return 0


def _of_file(params: str, checkpoint: str | None) -> tuple[str, dict[str, Any]]:
    """Return what a run file evaluates, unless that is given, and its keys of the harness."""
    from wafer.commands.inputs import look_at

    settings = look_at(params).cfg.runconfig
    section = settings.eleuther_eval_harness
    known = {} if section is None else section.model_dump(exclude_unset=True)
    return checkpoint or settings.checkpoint_path or settings.model_dir, known


def _section(known: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """Join the keys of a run file and those that win over them."""
    from wafer.config.runconfig import EleutherEvalHarness, HarnessTasks
    from wafer.models.sections import parse

    tasks = {name: value for name, value in given.items() if name in HarnessTasks.model_fields}
    model = {name: value for name, value in given.items() if name not in tasks}
    args = {**known.get("eeh_args", {}), **tasks}
    return parse(EleutherEvalHarness, {**known, **model, "eeh_args": args})


class TaskScores(NamedTuple):
    """What tasks measured."""

    #: task -> metric -> value; ``acc_stderr`` is the standard error of ``acc``
    results: dict[str, dict[str, float]]
    record: dict[str, Any]  #: of the harness: versions, numbers of questions, settings
    seconds: float  #: of the tasks, with compilation

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the record as JSON, as the harness's own command does."""
        from wafer.models.files import write_text

        text = json.dumps(self.record, indent=2, default=str, ensure_ascii=False)
        write_text(pathlib.Path(path), text + "\n")

    def _rows(self) -> list[tuple[str, str, float, float | str]]:
        return [
            (task, name, value, values.get(_error_of(name), ""))
            for task, values in self.results.items()
            for name, value in values.items()
            if "_stderr" not in name
        ]

    def __repr__(self) -> str:
        lines = [
            f"{task:<24} {name:<20} {value:.5g}" + (f" ± {error:.2g}" if error else "")
            for task, name, value, error in self._rows()
        ]
        return "\n".join([*lines, f"{self.seconds:.1f} s"])

    def _repr_html_(self) -> str:
        from wafer.models.shown.html import table

        return table("Tasks", ("task", "metric", "value", "standard error"), self._rows())


def _error_of(metric: str) -> str:
    """Return the name of a metric's standard error: the filter, if any, stays last."""
    name, comma, rest = metric.partition(",")
    return f"{name}_stderr{comma}{rest}"


@own_flags()
def evaluate_tasks(
    checkpoint: str | os.PathLike[str],
    tasks: Sequence[str],
    *,
    kernels: str = "auto",
    trust_code: bool = False,
    **options: Any,
) -> TaskScores:
    """Run tasks of the EleutherAI harness on a checkpoint; torch is not needed.

    Args:
        checkpoint: a checkpoint folder, a model_dir (its newest checkpoint), or a Hugging Face
            folder, of a decoder with a language-model head.
        tasks: names.
        kernels: "auto" multiplies by kept weights where that is faster, "dense" by all of them.
        trust_code: import code that a checkpoint names; it may do anything.
        **options: ``include_path`` (folder with definitions of tasks), ``num_fewshot``, ``limit``,
            ``max_tokens``, ``temperature``, ``top_k``, ``top_p``, ``batch_size``,
            ``max_sequence_length``, ``tokenizer_file_path``, ``eos_id``, ``seed``: keys of
            ``runconfig.eleuther_eval_harness``.

    Returns:
        Metrics by task, and the harness's record.

    Raises:
        CheckpointError: no readable checkpoint there.
        DataError: no tokenizer, or a task that is not known.
        MissingPackageError: the package ``lm-eval`` is not installed.
        ValueError: an option that is not known or out of its range.

    Examples:
        >>> wafer.evaluate_tasks(
        ...     "runs/demo", ["cloze"], include_path="tasks"
        ... ).results  # doctest: +SKIP
    """
    section = _section({}, {"tasks": list(tasks), **options})
    with trusting(trust_code=trust_code):
        return _evaluate(checkpoint, section, kernels)


def _evaluate(checkpoint: str | os.PathLike[str], section: Any, kernels: str) -> TaskScores:
    from wafer.commands.inputs import load, weights_folder
    from wafer.session.harness.tasks import run_tasks, task_metrics
    from wafer.session.harness.texts import TaskModel

    path = weights_folder(checkpoint)
    model, params, _ = load(path)
    texts = TaskModel(model, params, path, section, kernels)
    began = time.perf_counter()
    record = run_tasks(texts, section.eeh_args)
    return TaskScores(task_metrics(record), record, time.perf_counter() - began)
