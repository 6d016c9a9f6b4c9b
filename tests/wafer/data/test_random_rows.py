"""Random rows for every task: same seed same rows, of the task's form, and models learn on them."""

import jax
import numpy as np
import pytest
from helpers.paths import GOLDEN

import wafer
from wafer import models
from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.registry import parse_input
from wafer.data.tasks import TASKS, row_features
from wafer.errors import ConfigError, DataError
from wafer.loop.utils.data import get_random_dataloader
from wafer.models.errors import SectionError

SIZES = {"hidden_size": 8, "num_heads": 2, "filter_size": 16, "num_hidden_layers": 1}
TOKENS = {"vocab_size": 16, "max_position_embeddings": 16, **SIZES}
T5 = SIZES | {"vocab_size": 16, "attention_inner_dim": 8, "decoder_num_hidden_layers": 1}
MODELS = {
    "lm": {"name": "gpt2", **TOKENS},
    "mlm": {"name": "bert", **TOKENS},
    "epigenetic_mlm": {"name": "ebert", "epigenetic_vocab_size": 4, **TOKENS},
    "classification": {"name": "bert-sequence-classifier", "num_labels": 3, **TOKENS},
    "token_classification": {"name": "bert-token-classifier", "num_labels": 3, **TOKENS},
    "qa": {"name": "bert-q&a", **TOKENS},
    "summarization": {"name": "bert-summarization", **TOKENS},
    "seq2seq": {"name": "t5", **T5},
    "image": {"name": "fc_mnist", "input_size": 16, "hidden_size": 4, "depth": 1, "num_classes": 3},
    "dpr": {
        "name": "dpr",
        "q_encoder": {"name": "dpr-question-encoder", **TOKENS},
        "ctx_encoder": {"name": "dpr-context-encoder", **TOKENS},
    },
    "dpo": {"name": "gpt2", "dpo": {"beta": 0.1}, **TOKENS},
}


def section(task, **keys):
    values = {"data_processor": "RandomDataProcessor", "task": task, "batch_size": 4}
    return values | {"max_sequence_length": 16, "num_examples": 12, "seed": 3} | keys


def opened(task, tmp_path, **keys):
    if task == "image_text":
        config = models.from_hf(GOLDEN / "hf" / "llava")[0].config
    else:
        config = models.build(MODELS[task]).config
    cfg = parse_input(section(task, **keys))
    data = build_dataset(cfg, tmp_path, Context.of(config, training=True))
    return data, row_features(cfg, config)


@pytest.mark.parametrize("task", TASKS)
def test_rows_have_the_tasks_form_and_are_a_function_of_the_seed(task, tmp_path):
    (data, features), (again, _) = opened(task, tmp_path), opened(task, tmp_path)
    other, _ = opened(task, tmp_path, seed=4)
    differs = False
    for index in range(len(data.source)):
        row = data.source[index]
        for name, value in row.items():
            np.testing.assert_array_equal(value, again.source[index][name])
            differs |= not np.array_equal(value, other.source[index][name])
            if task != "lm":  # those are padded, or packed, by the pipeline
                assert (value.shape, str(value.dtype)) == features[name], name
        if "input_ids" in row:
            mask = row["attention_mask"]
            assert 0 <= row["input_ids"].min() <= row["input_ids"].max() < data.source.vocab_size
            assert not row["input_ids"][mask == 0].any()
            assert mask.any()
        if "gather_positions" in row:
            scored = row["gather_weights"] == 1
            places = row["gather_positions"][scored]
            assert len(set(places.tolist())) == scored.sum() > 0
            assert row["attention_mask"][places].all()
        if "start_positions" in row:
            last = int(row["attention_mask"].sum())
            assert 0 <= row["start_positions"] <= row["end_positions"] < last
    assert differs
    counted = {name for name in features if name.endswith("lengths")}
    assert task == "lm" or row.keys() == features.keys() - counted


@pytest.mark.slow
@pytest.mark.parametrize("task", MODELS)
def test_a_run_takes_steps_on_them(task, tmp_path):
    rows = section(task)
    sections = {"model": MODELS[task], "train_input": rows, "eval_input": rows}
    sections["optimizer"] = {"optimizer_type": "SGD", "learning_rate": 0.01}
    run = {"max_steps": 2, "eval_frequency": 2, "checkpoint_steps": 2, "mode": "train_and_eval"}
    wafer.train(sections | {"runconfig": run | {"model_dir": str(tmp_path / "run"), "seed": 1}})
    assert wafer.load(tmp_path / "run")[2]["step"] == 2


@pytest.mark.parametrize("task", TASKS)
def test_the_loops_loader_has_the_same_rows_for_every_task(task):
    params = {"task": task, "batch_size": 4, "num_examples": 10, "max_sequence_length": 16}
    params |= {"image_size": [4, 6], "num_channels": 3, "seed": 5}
    loader = get_random_dataloader(params, shuffle=False, num_classes=3)
    first, again = list(loader), list(loader)
    assert len(first) == 2
    for left, right in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.shape[0] == 4
    if task == "image":
        images, labels = first[0]
        assert images.shape == (4, 4, 6, 3)
        assert set(labels.tolist()) <= {0, 1, 2}
    if task == "lm":
        row = {name: value[0] for name, value in first[0].items()}
        last = int(row["attention_mask"].sum())
        np.testing.assert_array_equal(row["labels"][: last - 1], row["input_ids"][1:last])
    shuffled = get_random_dataloader(params, shuffle=True)
    orders = [jax.tree.leaves(batches)[0] for batches in (list(shuffled), list(shuffled))]
    assert not np.array_equal(*orders)


NLM, NONE = (r"task: unknown task 'nlm'.*did you mean", "num_examples: 0: expected greater than")


@pytest.mark.parametrize(
    ("task", "keys", "says"),
    [
        ("nlm", {}, NLM),
        ("lm", {"num_examples": 0}, NONE),
        ("mlm", {"vocab_size": 99}, "vocab_size: 99, but the model has 16 tokens"),
        ("classification", {"num_classes": 9}, "num_classes: 9, but the model has 3 labels"),
    ],
)
def test_mistakes_are_one_line(tmp_path, task, keys, says):
    context = Context.of(models.build(MODELS.get(task, MODELS["lm"])).config, training=True)
    with pytest.raises((ConfigError, DataError, SectionError), match=says):
        build_dataset(parse_input(section(task, **keys)), tmp_path, context)
    if says in (NLM, NONE):
        with pytest.raises((ConfigError, SectionError), match=says):
            get_random_dataloader({"task": task, "batch_size": 2, **keys})


def test_a_section_is_read_again():
    cfg = parse_input(section("mlm"))
    assert parse_input(cfg.to_dict()) == cfg
