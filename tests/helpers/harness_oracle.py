"""Scores and seconds of lm_eval's Hugging Face model; runs where torch is, without wafer.

    python tests/helpers/harness_oracle.py MODEL TASKS_FOLDER TASK,TASK LIMIT

The last line is JSON: task -> metric and filter -> value, and the seconds of the model's calls in a
second run.
"""

import json
import sys
import time

from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

CALLS = ("loglikelihood", "loglikelihood_rolling", "generate_until")


def timed(model):
    """Sum the seconds of a model's calls in ``model.seconds``."""
    model.seconds = 0.0

    def wrap(call):
        def run(requests, **options):
            began = time.perf_counter()
            result = call(requests, **options)
            model.seconds += time.perf_counter() - began
            return result

        return run

    for name in CALLS:
        setattr(model, name, wrap(getattr(model, name)))
    return model


def main():
    from lm_eval.models.huggingface import HFLM

    folder, tasks, names, limit = sys.argv[1:]
    model = timed(HFLM(pretrained=folder, dtype="float32", device="cpu", batch_size=8))
    for _ in range(2):  # the second one is warm
        model.seconds = 0.0
        record = simple_evaluate(
            model=model,
            tasks=names.split(","),
            task_manager=TaskManager(include_path=tasks, include_defaults=False),
            limit=int(limit) or None,
            log_samples=False,
            bootstrap_iters=0,
        )
    answer = {"results": record["results"], "seconds": model.seconds}
    sys.stdout.write(json.dumps(answer, default=str) + "\n")


if __name__ == "__main__":
    main()
