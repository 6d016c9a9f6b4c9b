"""Every model family in the trainer: from files in users' formats to metrics and checkpoints."""

import json

import pytest
from finetune_data import WRITERS, params

from wafer.config import parse_config
from wafer.train.modes import run

# Tags that the last evaluation must have, beside the loss.
TAGS = {
    "sst2": {"eval/accuracy", "eval/f1_score"},
    "mnli": {"eval/accuracy", "eval/accuracy_matched", "eval/accuracy_mismatched"},
    "squad": {"eval/exact_match", "eval/f1"},
    "conll": {"eval/accuracy", "eval/f1_score", "eval/entity_f1"},
    "bertsum": {"eval/accuracy", "eval/rouge1", "eval/rouge2", "eval/rougeL"},
    "masked_lm": {"eval/accuracy_masked_lm", "eval/mlm_perplexity", "eval/accuracy_cls"},
    "roberta": {"eval/accuracy_masked_lm", "eval/mlm_perplexity"},
    "prompts": {"eval/lm_perplexity", "eval/accuracy"},
    "t5": {"eval/accuracy_lm", "eval/perplexity_lm"},
    "mnist": {"eval/accuracy"},
    "digits": {"eval/accuracy"},
    "llava": {"eval/lm_perplexity", "eval/accuracy"},
}


def scores(folder, which="eval"):
    lines = (folder / which / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def train(task, folder, **changes):
    WRITERS[task](folder)
    assert run(parse_config(params(task, folder, **changes))) == 0
    return scores(folder / "run")


@pytest.mark.parametrize("task", TAGS)
def test_a_family_trains_and_evaluates(task, tmp_path):
    first, last = train(task, tmp_path)
    assert set(last) == TAGS[task] | {"loss", "step", "time"}
    assert last["loss"] < first["loss"]
    assert (tmp_path / "run" / "checkpoints" / "4").is_dir()
