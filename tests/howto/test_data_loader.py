"""docs/howto/data-loader.md, carried out: loaders of users, their place, their mistakes.

And data-processor.md: a data processor with its metric.
"""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.runs import metrics

import wafer
from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.registry import parse_input
from wafer.errors import ConfigError, DataError
from wafer.models.user import model as own

LENGTH = 4


def rows(start, count, length=LENGTH):
    ids = np.arange(start, start + count)[:, None] + np.zeros((1, length), np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": ids}


def numbered(batch_size, epoch, task_id, num_tasks, count: int = 7):
    """Rows 0, 1, 2, … of a pass, each pass 100 higher; the last batch may be short."""
    for start in range(0, count, batch_size * num_tasks):
        batch = rows(100 * epoch + start, min(batch_size * num_tasks, count - start))
        yield {k: v[task_id::num_tasks] for k, v in batch.items()}


def listed(params):
    return [rows(i, params["batch_size"]) for i in range(params["passes"])]


class Processor:
    def __init__(self, params):
        self.params = params

    def create_dataloader(self):
        return listed(self.params)


def opened(section, context=None, folder="."):
    return build_dataset(parse_input({"batch_size": 2} | section), folder, context or Context())


def firsts(loader, count):
    return [next(loader)["input_ids"][:, 0].tolist() for _ in range(count)]


NUMBERED = {"data_processor": f"{__name__}:numbered"}


def test_the_page(carried_out):
    first, *_, last = metrics(carried_out("data-loader", "my_data"), "eval")
    assert last["step"] == 30
    assert last["loss"] < 0.5 * first["loss"]


def test_the_page_of_data_processors(carried_out):
    *_, record = metrics(carried_out("data-processor", "parity"), "eval")
    assert record["step"] == 2
    assert {"loss", "eval/accuracy", "eval/recall"} <= record.keys()
    assert 0 <= record["eval/recall"] <= 1


def test_passes_follow_each_other_and_short_batches_are_dropped_or_filled():
    data = opened(NUMBERED)
    assert firsts(data.loader(2, None), 4) == [[0, 1], [2, 3], [4, 5], [100, 101]]
    whole = list(data.loader(2, 1, drop_last=False))
    assert [b["input_ids"][:, 0].tolist() for b in whole] == [[0, 1], [2, 3], [4, 5], [6, 0]]
    assert whole[-1]["attention_mask"][1].tolist() == [0] * LENGTH
    assert whole[0]["input_ids"].dtype == np.int32


def test_accumulation_joins_batches():
    loader = opened(NUMBERED).loader(4, None)
    assert firsts(loader, 2) == [[0, 1, 2, 3], [4, 5, 100, 101]]


def test_processes_share_batches_and_the_place_is_everybodys():
    section = NUMBERED | {"count": 8, "batch_size": 4}
    alone = opened(section).loader(4, None)
    assert firsts(alone, 1) == [[0, 1, 2, 3]]
    for index in range(2):
        loader = opened(section).loader(4, None, task=(index, 2))
        loader.restore(alone.state())
        assert firsts(loader, 2) == [[4 + index, 6 + index], [100 + index, 102 + index]]


def test_a_place_in_other_data_is_no_place():
    loader = opened(NUMBERED).loader(2, None)
    with pytest.raises(DataError, match="not one of this loader"):
        loader.restore({"next_index": 3})
    with pytest.raises(DataError, match=r"ends after 3 batches.*written after 9"):
        opened(NUMBERED | {"count": 6}).loader(2, None).restore({"epoch": 0, "batches": 9})


@pytest.mark.parametrize("name", ["listed", "Processor"])
def test_the_vendors_forms(name):
    data = opened({"data_processor": f"{__name__}:{name}", "passes": 3})
    assert data.batches(2) == 3
    assert firsts(data.loader(2, None), 4) == [[0, 1], [1, 2], [2, 3], [0, 1]]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"coutn": 3}, r"coutn: .*numbered \(.*test_data_loader.py, line \d+\).*'count'"),
        ({"task": "lmm"}, "unknown task 'lmm'; did you mean 'lm'"),
        ({"data_processor": f"{__name__}:numberd"}, "did you mean 'numbered'"),
        ({"data_processor": "nowhere.at_all:loader"}, "is its folder on PYTHONPATH"),
        ({"batch_size": 0, "coutn": 3}, "(?s)coutn.*batch_size"),
    ],
)
def test_wrong_sections(section, message):
    with pytest.raises(ConfigError, match=message):
        parse_input({"batch_size": 2} | NUMBERED | section)


def test_a_section_is_written_and_read_again():
    section = parse_input(NUMBERED | {"batch_size": 2, "count": 5})
    assert parse_input(section.to_dict()) == section


def early(batch_size):
    yield from ()


def raising(batch_size):
    yield rows(0, batch_size)
    raise KeyError("shard 7")


def quits(batch_size):
    raise SystemExit(3)


def several(batch_size, batches: tuple = ()):
    yield from batches


class _Config:
    max_length, has_nsp, num_labels, vocab_size, input_shape = 8, False, None, 50, None


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([1], "batch 1: found int; expected a dict"),
        ([{"input_ids": [[1]]}], "attention_mask, labels missing; a row for 'lm' has input_ids"),
        ([rows(0, 2) | {"lables": 1}], "lables unknown; did you mean 'labels'"),
        ([rows(0, 3)], "expected 2 rows.*found input_ids \\(3, 4\\)"),
        ([rows(0, 1), rows(0, 1)], "the first batch has 1 rows; expected 2"),
        ([rows(0, 2, length=9)], r"rows of shape \(9,\); expected \(8,\) at most"),
        ([rows(0, 2) | {"labels": np.ones((2, 3), int)}], "labels: rows of shape"),
        ([rows(0, 2) | {"labels": np.ones((2, 4))}], "labels: float64 .*expected int32"),
        ([rows(49, 2)], r"row 1: input_ids\[0\] is 50.*vocabulary of 50"),
        ([rows(2**40, 2)], "beyond 32 bits"),
        ([rows(0, 2) | {"labels": [[1], [1, 2]]}], "labels: no array"),
    ],
)
def test_wrong_first_batches_are_refused_before_work(batches, message):
    section = {"data_processor": f"{__name__}:several", "batches": batches}
    with pytest.raises(DataError, match=message) as caught:
        opened(section, Context.of(_Config, training=True))
    assert "test_data_loader.py, line" in str(caught.value)


def test_loaders_that_fail():
    with pytest.raises(DataError, match="early' ends without a batch"):
        opened({"data_processor": f"{__name__}:early"})
    with pytest.raises(DataError, match=r"SystemExit: 3 \(.*test_data_loader.py, line"):
        opened({"data_processor": f"{__name__}:quits"})
    loader = opened({"data_processor": f"{__name__}:raising"}).loader(2, None)
    next(loader)
    with pytest.raises(DataError, match=r"KeyError: 'shard 7' \(.*test_data_loader.py, line"):
        next(loader)
    batches = [rows(0, 2), rows(0, 2, length=3)]
    loader = opened({"data_processor": f"{__name__}:several", "batches": batches}).loader(2, None)
    next(loader)
    with pytest.raises(DataError, match=r"batch 2: input_ids: .*those of the first batch"):
        next(loader)


def spoken(batch_size, epoch, width: int = 3):
    rng = np.random.default_rng(epoch)
    while True:
        mel = rng.normal(size=(batch_size, LENGTH, width)).astype(np.float32)
        ids = np.ones((batch_size, LENGTH), np.int32)
        labels = (mel.sum(-1) > 0).astype(np.int32)
        yield {"input_ids": ids, "attention_mask": ids, "mel": mel, "labels": labels}


def listener(width: int = 3):
    def init(key):
        return {"weight": jnp.zeros((width, 2))}

    def apply(params, tokens, key, mel):
        return mel @ params["weight"]

    return own.plain(init, apply, vocab_size=2, tasks=("speech",), features=("mel",))


def test_registered_names(tmp_path):
    wafer.register_task(
        "speech",
        {"mel": (("S", 3), "float32"), "labels": (("S",), "int32")},
        {"accuracy": "eval/heard"},
    )
    wafer.register_model("listener", listener)
    wafer.register_optimizer("plain_sign", optax.scale_by_sign)
    data = {"data_processor": f"{__name__}:spoken", "task": "speech", "batch_size": 8}
    data |= {"max_sequence_length": LENGTH}
    run = dict.fromkeys(("max_steps", "eval_steps", "eval_frequency"), 4)
    sections = {
        "train_input": data,
        "eval_input": data,
        "model": {"name": "listener"},
        "optimizer": {"optimizer_type": "plain_sign", "learning_rate": 0.05},
        "runconfig": run | {"mode": "train_and_eval", "model_dir": str(tmp_path)},
    }
    trained = wafer.train(sections)
    assert trained.scores[0]["eval/heard"] < trained.scores[4]["eval/heard"]
    assert trained.scores[4]["eval/heard"] > 0.95  # the sum of the channels is the rule


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wafer.register_model("gpt2", listener), "'gpt2' is the name of a model of ours"),
        (lambda: wafer.register_model("a:b", listener), "without a colon"),
        (lambda: wafer.register_optimizer("mine", 3), "expected a function, found 3"),
        (lambda: wafer.register_task("lm", {}), "'lm' is a task of ours"),
        (lambda: wafer.register_task("x", {"y": (("T",), "int32")}), "whole numbers > 0 or 'S'"),
    ],
)
def test_names_that_cannot_be_registered(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
