"""Every model family in the trainer: from files in users' formats to metrics and checkpoints."""

import pathlib

import numpy as np
import pytest
import yaml
from helpers.finetune_data import WRITERS, params
from helpers.runs import arrays, metrics

from wafer.cli import main
from wafer.commands.run import run
from wafer.config import parse_config
from wafer.errors import CheckpointError
from wafer.experiment import Experiment
from wafer.models.paths import named_leaves
from wafer.session.build import build
from wafer.session.persist import resume

# Steps, and what the evaluation after them must reach; the tags are all there are.
LEARNS = {
    "sst2": (60, {"eval/accuracy": 0.95, "eval/f1_score": 0.95}),
    "mnli": (
        80,
        {"eval/accuracy": 0.8, "eval/accuracy_matched": 0.6, "eval/accuracy_mismatched": 1.0},
    ),
    "squad": (60, {"eval/exact_match": 95.0, "eval/f1": 95.0}),
    "conll": (40, {"eval/accuracy": 0.95, "eval/f1_score": 0.9, "eval/entity_f1": 0.9}),
    "bertsum": (
        60,
        {"eval/accuracy": 0.85, "eval/rouge1": 0.8, "eval/rouge2": 0.7, "eval/rougeL": 0.6},
    ),
    "masked_lm": (
        60,
        {"eval/accuracy_masked_lm": 0.4, "eval/mlm_perplexity": 1.0, "eval/accuracy_cls": 0.3},
    ),
    "roberta": (60, {"eval/accuracy_masked_lm": 0.4, "eval/mlm_perplexity": 1.0}),
    "prompts": (80, {"eval/accuracy": 0.8, "eval/lm_perplexity": 1.0}),
    "t5": (120, {"eval/accuracy_lm": 0.6, "eval/perplexity_lm": 1.0}),
    "dpr": (200, {"eval/accuracy": 0.9}),
    "mnist": (60, {"eval/accuracy": 1.0}),
    "digits": (80, {"eval/accuracy": 0.85}),
    "llava": (60, {"eval/accuracy": 1.0, "eval/lm_perplexity": 1.0}),
}
QUICK = {"mnist"}  # the others take compilers longer, or differ less


def config(task, folder, steps, **changes):
    if not any(folder.glob("*")):
        WRITERS[task](folder)
    settings = {"max_steps": steps, "eval_frequency": steps, "checkpoint_steps": steps}
    changes["runconfig"] = settings | changes.get("runconfig", {})
    changes["optimizer"] = {"learning_rate": 0.003} | changes.get("optimizer", {})
    return parse_config(params(task, folder, **changes))


@pytest.mark.parametrize(
    "task", [t if t in QUICK else pytest.param(t, marks=pytest.mark.slow) for t in LEARNS]
)
def test_a_family_learns(task, tmp_path):
    steps, floors = LEARNS[task]
    rate = 0.001 if task == "dpr" else 0.003  # two towers trained faster collapse to one point
    assert run(config(task, tmp_path, steps, optimizer={"learning_rate": rate})) == 0
    first, last = metrics(tmp_path / "run", "eval")
    assert set(last) == set(floors) | {"loss", "step", "time"}
    assert last["loss"] < 0.65 * first["loss"]
    for tag, floor in floors.items():
        assert last[tag] >= floor, tag
    assert (tmp_path / "run" / "checkpoints" / str(steps)).is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["squad", "masked_lm", "t5", "bertsum"])
@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"enable_vts": True}},
        {"runconfig": {"num_csx": 2}},
        {"train_input": {"micro_batch_size": 2}, "eval_input": {"micro_batch_size": 2}},
    ],
    ids=["stripped", "two systems", "micro-batches"],
)
def test_ways_of_cutting_the_batch_do_not_change_the_result(task, changes, tmp_path):
    runs = []
    for name, keys in (("whole", {}), ("cut", changes)):
        out = tmp_path / name
        runconfig = keys.get("runconfig", {}) | {"model_dir": str(out)}
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        assert run(config(task, folder, 3, **keys | {"runconfig": runconfig})) == 0
        runs.append((metrics(out, "eval")[-1], arrays(out / "checkpoints" / "3")))
    (whole, a), (cut, b) = runs
    for tag in set(whole) - {"time"}:
        assert whole[tag] == pytest.approx(cut[tag], rel=1e-4), tag
    for name in a:
        if name.startswith("params/"):
            np.testing.assert_allclose(a[name], b[name], atol=3e-5, err_msg=name)


LORA = {"lora_params": {"r": 2, "alpha": 4, "target_modules": ["attn/query", "ffn/up"]}}


@pytest.mark.slow
def test_lora_trains_adapters_alone_resumes_and_folds_back(tmp_path, capsys):
    folder = tmp_path / "data"
    folder.mkdir()
    first = {"runconfig": {"mode": "train", "model_dir": str(tmp_path / "base")}}
    assert run(config("prompts", folder, 2, **first)) == 0
    base = arrays(tmp_path / "base" / "checkpoints" / "2")
    start = {
        "checkpoint_path": str(tmp_path / "base" / "checkpoints" / "2"),
        "load_checkpoint_states": "model",
        "model_dir": str(tmp_path / "lora"),
        "checkpoint_steps": 4,
    }
    cfg = config("prompts", folder, 8, model=LORA, runconfig=start)
    assert run(cfg) == 0
    half, whole = (arrays(tmp_path / "lora" / "checkpoints" / s) for s in ("4", "8"))

    adapters = {n for n in whole if n.startswith("params/") and "lora_" in n}
    kernels = ("attn/query", "ffn/up")
    names = [f"params/layers_0/{k}/lora_{part}" for k in kernels for part in ("down", "up")]
    assert adapters == set(names)
    for name in set(whole) - adapters:
        if name.startswith("params/"):
            np.testing.assert_array_equal(whole[name], base[name], err_msg=name)
    assert all(np.abs(whole[n] - half[n]).max() > 0 for n in adapters)
    moments = {n for n in whole if n.startswith("opt_state") and "layers_0" in n}
    assert len(moments) == 2 * len(adapters)  # two per adapter, none for what is frozen

    # The same command with more steps goes on from its own checkpoint, not from the base.
    assert int(resume(build(Experiment.from_config(cfg))).state.step) == 8

    # Folded: an ordinary model, with the adapted model's scores.
    out = str(tmp_path / "folded")
    adapted = str(tmp_path / "lora" / "checkpoints" / "8")
    assert main(["finalize", "--fold_lora", "-i", adapted, "-o", out]) == 0
    assert "2 adapters of rank 2" in capsys.readouterr().out
    folded = arrays(pathlib.Path(out))
    assert set(folded) == {n for n in base if n.startswith("params/")}
    up, down = (whole[f"params/layers_0/ffn/up/lora_{part}"] for part in ("up", "down"))
    kernel = "params/layers_0/ffn/up/kernel"
    np.testing.assert_allclose(folded[kernel], base[kernel] + 2 * down @ up, rtol=1e-5, atol=1e-7)
    plain = {"checkpoint_path": out, "mode": "eval", "model_dir": str(tmp_path / "eval")}
    assert run(config("prompts", folder, 8, runconfig=plain)) == 0
    want, got = metrics(tmp_path / "lora", "eval")[-1], metrics(tmp_path / "eval", "eval")[-1]
    assert got["loss"] == pytest.approx(want["loss"], rel=1e-5)
    assert main(["finalize", "--fold_lora", "-i", start["checkpoint_path"], "-o", "x"]) == 1
    assert "nothing to fold" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sst2", "t5", "llava"])
def test_lora_in_other_families(task, tmp_path):
    lora = {"lora_params": {"r": 2, "dropout": 0.1, "target_modules": ["Linear"]}}
    model = {"text_model": {"name": "llama", "vocab_size": 64, "hidden_size": 32} | lora}
    model["text_model"] |= {"num_hidden_layers": 1, "num_heads": 2, "filter_size": 64}
    assert run(config(task, tmp_path, 4, model=model if task == "llava" else lora)) == 0
    leaves = arrays(tmp_path / "run" / "checkpoints" / "4")
    trained = {n.rpartition("opt_state/")[2] for n in leaves if n.startswith("opt_state/")}
    assert any("lora_up" in n for n in trained)
    assert not any("norm" in n or n.endswith("embedding") for n in trained)
    assert any("classifier" in n for n in trained) == (task == "sst2")  # a new head trains too


@pytest.mark.slow
def test_a_pretrained_encoder_gets_a_new_head(tmp_path, caplog):
    pretraining, tuning = tmp_path / "mlm", tmp_path / "sst2"
    for folder in (pretraining, tuning):
        folder.mkdir()
    settings = {"mode": "train", "checkpoint_steps": 1}
    assert run(config("roberta", pretraining, 1, model={"name": "bert"}, runconfig=settings)) == 0
    stored = arrays(pretraining / "run" / "checkpoints" / "1")
    start = {
        "checkpoint_path": str(pretraining / "run" / "checkpoints" / "1"),
        "load_checkpoint_states": "model",
    }
    with pytest.raises(
        CheckpointError, match=r"classifier/kernel: not in.*[\s\S]*--disable_strict"
    ):
        resume(build(Experiment.from_config(config("sst2", tuning, 2, runconfig=start))))
    start["disable_strict_checkpoint_loading"] = True
    with caplog.at_level("INFO"):
        job = build(Experiment.from_config(config("sst2", tuning, 2, runconfig=start)))
        state = resume(job).state
    assert "kept as initialized: classifier/bias, classifier/kernel" in caplog.text
    assert int(state.step) == 0
    for name, value in named_leaves(state.params):
        if f"params/{name}" in stored:
            np.testing.assert_array_equal(value, stored[f"params/{name}"], err_msg=name)


@pytest.mark.slow
def test_the_digits_run_file_reaches_what_it_says(tmp_path):
    path = pathlib.Path("models/configs/fc_mnist/fc_digits.yaml")
    flags = ["--params", str(path), "--mode", "train_and_eval", "--model_dir", str(tmp_path)]
    assert main(["run", *flags]) == 0
    stated = float(path.read_text().split("reached:")[1].split()[0])
    assert metrics(tmp_path, "eval")[-1]["eval/accuracy"] == pytest.approx(stated, abs=0.02)


@pytest.mark.slow
def test_eval_modes_of_the_command_line(tmp_path, capsys):
    WRITERS["squad"](tmp_path)
    settings = params("squad", tmp_path)
    settings["optimizer"]["learning_rate"] = 0.003
    path = tmp_path / "squad.yaml"
    path.write_text(yaml.safe_dump(settings))
    flags = ["run", "--params", str(path), "--max_steps", "4"]
    assert main([*flags, "--mode", "train"]) == 0
    for mode in ("eval", "eval_all"):
        assert main([*flags, "--mode", mode]) == 0
    lines = metrics(tmp_path / "run", "eval")
    assert [line["step"] for line in lines] == [4, 4]
    assert lines[0]["eval/f1"] == lines[1]["eval/f1"]
    assert "exact_match=" in capsys.readouterr().out
