"""Copies of a pipeline that share the batch: one copy's results, bit for bit, and its timetable."""

import logging
from fractions import Fraction

import pytest
from helpers.runs import config
from helpers.streamed import (
    ADAMW,
    CLIPPED,
    GPT,
    RIGL,
    T5,
    arrays,
    assert_same,
    batch_of,
    pipelined,
    train,
)

from wafer import models
from wafer.commands.planning.copies import with_copies
from wafer.commands.planning.plan import plan
from wafer.commands.run import run as run_mode
from wafer.config import parse_config
from wafer.engines.choose import check, make
from wafer.engines.stagewise.pipeline.regions import Copies, spread
from wafer.engines.stagewise.pipeline.schedule import StageTask, bubble, needs, schedule, table
from wafer.errors import ConfigError
from wafer.experiment import Experiment
from wafer.models.checkpoint.reader import load_checkpoint

PIPED = {"execution_strategy": "pipelined", "pipeline": {"stages": 2}}


def test_two_copies_by_hand():
    """Micro-batches 0 and 2 are the first copy's, 1 and 3 the second's; the first updates."""
    shown = table(schedule(2, 4, copies=2), 2, copies=2)
    assert [" ".join(line.split()) for line in shown.splitlines()] == [
        "step 0 1 2 3 4 5 6",
        "0 F0 F2 . B0 . B2 U",
        "1 . F0 B0 F2 B2 U .",
        "0 F1 F3 . B1 . B3 .",
        "1 . F1 B1 F3 B3 . .",
    ]
    assert bubble(2, 4, copies=2) == Fraction(28 - 18, 28)
    last = [(0, "backward", 2), (0, "backward", 3)]  # of each copy
    assert needs(StageTask(6, 0, "update"), 2, 4, copies=2) == last


def test_sizes_that_do_not_go_together():
    with pytest.raises(ValueError, match=r"3 micro-batch\(es\) cannot be shared by 2 copies"):
        schedule(2, 3, copies=2)
    assert StageTask(0, 0, "update").copy(4) == 0
    assert spread(4, 2, 7) == Copies(4, 2, 2)  # 7 devices hold three groups; 4 copies take two
    places = [Copies(4, 2, 2).places(micro) for micro in range(3)]
    assert places == [range(2), range(2, 4), range(2)]


CASES = {
    "dense": {"model_cfg": GPT | {"dropout_rate": 0.1}, "dropout": True},
    "rigl": {"model_cfg": GPT, "optimizer": CLIPPED, "section": RIGL | {"compute": "csr"}},
    "t5": {"model_cfg": T5},
}
WAYS = {
    "two": Copies(2),
    "four": Copies(4),
    "two devices": Copies(2, 2),
    "copies and stages on devices": Copies(4, 2, 2),
}


@pytest.mark.slow  # twelve engines of three models: a minute
@pytest.mark.parametrize("case", CASES)
def test_results_are_one_copys_bit_for_bit(case):
    options = {"optimizer": ADAMW, **CASES[case]}
    model = models.build(options["model_cfg"])
    # Lengths differ from row to row, so the copies have unequal numbers of tokens.
    batches = [batch_of(model, rows=8, micro=4, seed=seed) for seed in range(3)]
    want, losses = train(pipelined(**options, stages=2), batches)
    for name, copies in WAYS.items():
        devices = copies.groups * copies.devices
        engine = pipelined(**options, stages=2, devices=devices, copies=copies)
        state, seen = train(engine, batches)
        assert seen == losses, name
        assert_same(arrays(state), arrays(want))


def run_config(folder, **runconfig):
    return parse_config(
        config(
            train_input={"batch_size": 4, "micro_batch_size": 1, "use_vsl": True},
            model={"num_hidden_layers": 2},
            sparsity=RIGL,
            runconfig={"model_dir": str(folder), "compile_dir": str(folder / "kept"), **PIPED}
            | runconfig,
        )
    )


@pytest.mark.slow  # five runs: 40 s
def test_checkpoints_go_from_one_copy_to_several_and_back(tmp_path):
    ways = {"one": (1, 1), "two": (2, 2), "there": (1, 4), "back": (4, 1)}
    stored = {}
    for name, (first, then) in ways.items():
        folder = tmp_path / name
        assert run_mode(run_config(folder, num_replicas=first, max_steps=2)) == 0
        assert run_mode(run_config(folder, num_replicas=then, max_steps=4)) == 0
        stored[name] = arrays(load_checkpoint(folder / "checkpoints" / "4")[0])
    for name in ways:
        assert_same(stored[name], stored["one"])


@pytest.mark.slow  # the compiler's floor plan of copies: 20 s
def test_the_compiler_chooses_how_many(tmp_path, caplog):
    cfg = run_config(tmp_path, multireplica=True, max_steps=1)
    with caplog.at_level(logging.INFO, logger="wafer"):
        chosen = with_copies(Experiment.from_config(cfg)).cfg.runconfig
    assert chosen.num_replicas in (1, 2, 4)  # what divides the four micro-batches
    assert not chosen.multireplica
    assert f"Copies: {chosen.num_replicas} of the pipeline share the batch" in caplog.text
    again = with_copies(Experiment.from_config(cfg)).cfg.runconfig
    assert again == chosen
    assert run_mode(cfg) == 0


def test_copies_that_do_not_divide_the_batch_are_one_error(tmp_path):
    experiment = Experiment.from_config(run_config(tmp_path, num_replicas=3, max_steps=1))
    message = (
        r"num_replicas: 3 copies cannot share the 4 micro-batch\(es\) of 1 .*batch_size 4, "
        r"num_csx 1\); use 1, 2, 4, or a batch_size that 3 copies divide"
    )
    with pytest.raises(ConfigError, match=message):
        check(experiment)
    experiment = Experiment.from_config(run_config(tmp_path, num_replicas=-1, max_steps=1))
    with pytest.raises(ConfigError, match="is the compiler's choice"):
        make(experiment)


def test_wafer_plan_counts_the_copies(tmp_path):
    experiment = Experiment.from_config(run_config(tmp_path, num_replicas=2, max_steps=1))
    text = plan(experiment, [1]).table()
    assert "Pipelined: 2 copies of 2 stages" in text
    share = float(bubble(2, 4, copies=2))
    assert f"4 micro-batch(es) a step: {share:.1%} of the timetable idle" in text
