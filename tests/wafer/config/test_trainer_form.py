"""The ``trainer:`` form, by the vendor's table of what each key was before."""

import logging
import re

import pytest
import yaml

from wafer.cli import main
from wafer.config import load
from wafer.config.loader import load_all
from wafer.config.runconfig import RunSection
from wafer.errors import ConfigError
from wafer.experiment import batch_shape
from wafer.models import registry
from wafer.models.errors import SectionError
from wafer.models.sections import parse
from wafer.sweeps.files import read_sweep
from wafer.vendor.trainer import as_trainer, upgrade

TRAINER = """
trainer:
  init:
    device: CSX
    model_dir: ./out
    seed: 3
    backend: {compile_dir: c, cluster_config: {num_csx: 2, max_wgt_servers: 4}}
    model: &model
      {name: gpt2, vocab_size: 64, hidden_size: 8, num_hidden_layers: 1, num_heads: 2,
       filter_size: 16, max_position_embeddings: 8}
    optimizer: {AdamW: {betas: [0.9, 0.95], weight_decay: 0.1}}
    schedulers:
    - SequentialLR:
        schedulers:
        - LinearLR: {initial_learning_rate: 0.0, end_learning_rate: 0.1, total_iters: 2}
        - CosineDecayLR: {initial_learning_rate: 0.1, end_learning_rate: 0.0, total_iters: 8}
    precision: {enabled: true, max_gradient_norm: 1.0, log_loss_scale: true}
    sparsity: {sparsity: 0.5}
    loop: {max_steps: 10, eval_frequency: 0.5, grad_accum_steps: 2}
    checkpoint: {steps: 5, autoload_last_checkpoint: false, checkpoint_name: "x_{step}",
                 checkpoint_root: "s3://b/run"}
    logging: {log_steps: 2, log_level: DEBUG}
    callbacks:
    - CheckLoss: null
    - KeepNCheckpoints: {n: 3}
    - ScopedTrainFlags: {csx.performance.micro_batch_size: 2}
    - GlobalFlags: {csx.debug.retrace_every_iteration: true}
    - RateProfiler: {}
    loggers: [{TensorBoardLogger: {summary_dir: tb}}, {WandbLogger: {project: p}}]
  fit:
    train_dataloader: &data
      {data_processor: SyntheticDataProcessor, vocab_size: 64, max_sequence_length: 8,
       batch_size: 4}
    val_dataloader: [*data, *data]
    ckpt_path: start
"""
BEFORE = """
runconfig:
  {target_device: CSX, model_dir: ./out, seed: 3, compile_dir: c, num_csx: 2, num_wgt_servers: 4,
   max_steps: 10, eval_frequency: 5, checkpoint_steps: 5, autoload_last_checkpoint: false,
   checkpoint_root: "s3://b/run",
   log_steps: 2, logging: DEBUG, check_loss_values: false, max_checkpoints: 3, summary_dir: tb,
   wandb: {project: p},
   checkpoint_path: start, mode: train_and_eval}
model:
  {name: gpt2, vocab_size: 64, hidden_size: 8, num_hidden_layers: 1, num_heads: 2,
   filter_size: 16, max_position_embeddings: 8, mixed_precision: true, fp16_type: bfloat16,
   attention_dropout_rate: 0.1}
optimizer:
  optimizer_type: AdamW
  betas: [0.9, 0.95]
  weight_decay: 0.1
  max_gradient_norm: 1.0
  log_summaries: true
  grad_accum_steps: 2
  learning_rate:
  - {scheduler: LinearLR, initial_learning_rate: 0.0, end_learning_rate: 0.1, total_iters: 2}
  - {scheduler: CosineDecayLR, initial_learning_rate: 0.1, end_learning_rate: 0.0, total_iters: 8}
sparsity: {sparsity: 0.5}
train_input:
  {data_processor: SyntheticDataProcessor, vocab_size: 64, max_sequence_length: 8, batch_size: 4,
   micro_batch_size: {explore: {max: 2}}}
eval_input:
  {data_processor: SyntheticDataProcessor, vocab_size: 64, max_sequence_length: 8, batch_size: 4}
"""
LEFT = [
    "trainer.init.checkpoint.checkpoint_name",
    "trainer.init.callbacks.3.GlobalFlags",
    "trainer.fit.val_dataloader.1",
]


def test_every_key_means_what_it_meant_before(tmp_path, caplog):
    (tmp_path / "new.yaml").write_text(TRAINER)
    (tmp_path / "old.yaml").write_text(BEFORE)
    with caplog.at_level(logging.WARNING):
        new = load(tmp_path / "new.yaml")
    assert new.to_dict() == load(tmp_path / "old.yaml").to_dict()
    assert all(path in caplog.text for path in LEFT)
    assert "RateProfiler" not in caplog.text


@pytest.mark.parametrize(
    ("rows", "batch", "systems", "computed"),
    [(2, 4, 2, 2), (8, 4, 2, 2), (4, 12, 2, 3), (64, 2, 1, 2), (7, 12, 1, 6), (3, 4, 2, 2)],
)
def test_a_flag_of_a_larger_batch_is_a_bound(rows, batch, systems, computed, tmp_path):
    """ScopedTrainFlags beside data with a smaller batch: the largest size up to it that divides."""
    text = TRAINER.replace("batch_size: 4}", f"batch_size: {batch}}}")
    text = text.replace("micro_batch_size: 2", f"micro_batch_size: {rows}")
    text = re.sub("num_csx: [0-9]+", f"num_csx: {systems}", text)
    (tmp_path / "new.yaml").write_text(text)
    section = load(tmp_path / "new.yaml").train_input
    assert batch_shape(section, systems).rows == computed
    (tmp_path / "new.yaml").write_text(re.sub("num_csx: [0-9]+", "num_csx: 1", text))
    section = load(tmp_path / "new.yaml", {"num_csx": systems}).train_input  # by the flag
    assert batch_shape(section, systems).rows == computed


@pytest.mark.parametrize(("batch", "computed"), [(2, 2), (12, 4), (6, 3)])
def test_an_arm_of_a_sweep_may_change_the_batch_of_a_flag(batch, computed, tmp_path):
    text = TRAINER.replace("micro_batch_size: 2", "micro_batch_size: 4")
    text = text.replace('checkpoint_root: "s3://b/run"', "checkpoint_root: null")
    (tmp_path / "base.yaml").write_text(re.sub("num_csx: [0-9]+", "num_csx: 1", text))
    arms = {"base": "base.yaml", "arms": {"a": {"train_input.batch_size": batch}}, "seeds": [1]}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(arms))
    (arm,) = read_sweep(tmp_path / "sweep.yaml").arms
    assert arm.experiment.batch("train").rows == computed


def test_a_mode_takes_the_data_and_the_checkpoint_of_its_own_method(tmp_path):
    other = """
  validate: {val_dataloader: {<<: *data, batch_size: 2}, ckpt_path: other}
  validate_all: {val_dataloaders: {<<: *data, batch_size: 6}}
"""
    (tmp_path / "new.yaml").write_text(TRAINER + other)
    for mode, path, size in (
        ("train_and_eval", "start", 4),
        (None, "start", 4),
        ("eval", "other", 2),
        ("eval_all", None, 6),
    ):
        cfg = load(tmp_path / "new.yaml", {"mode": mode})
        assert (cfg.runconfig.checkpoint_path, cfg.eval_input.batch_size) == (path, size)
        assert cfg.runconfig.mode == (mode or "train_and_eval")


def test_upgrade_writes_the_file(tmp_path, capsys):
    (tmp_path / "new.yaml").write_text(TRAINER)
    out = tmp_path / "out.yaml"
    assert main(["config", "upgrade", str(tmp_path / "new.yaml"), "-o", str(out)]) == 0
    assert [line for line in out.read_text().splitlines() if line.startswith("#")] == [
        f"# not read here: {path}" for path in LEFT
    ]
    (tmp_path / "old.yaml").write_text(BEFORE)
    assert load(out) == load(tmp_path / "old.yaml")
    assert main(["config", "upgrade", str(out)]) == 1
    assert "no `trainer` in it" in capsys.readouterr().err


OPS, SGD = {"start_step": 1, "end_step": 2}, {"optimizer_type": "SGD", "learning_rate": 0.1}


@pytest.mark.parametrize(
    ("init", "sections"),
    [
        (
            {"schedulers": {"ConstantLR": {"learning_rate": 0.1}}},
            {"optimizer": {"learning_rate": [{"scheduler": "ConstantLR", "learning_rate": 0.1}]}},
        ),
        ({"optimizer": {"SGD": {"lr": 0.1}}}, {"optimizer": SGD}),
        (
            {"schedulers": [{"ScalePerParamLR": {"scheduler": {"StepLR": {"gamma": 0.5}}}}]},
            {"optimizer": {"learning_rate": [{"scheduler": "StepLR", "gamma": 0.5}]}},
        ),
        (
            {"schedulers": [{"ConstantWD": {"val": 0.1}}]},
            {"optimizer": {"weight_decay": [{"scheduler": "ConstantWD", "val": 0.1}]}},
        ),
        ({"loop": {"num_epochs": 1, "eval_frequency": 1.0}}, {"runconfig": {"num_epochs": 1}}),
        ({"callbacks": [{"ComputeNorm": {}}]}, {"optimizer": {"log_summaries": True}}),
        ({"callbacks": [{"OpProfiler": OPS}]}, {"runconfig": {"op_profiler_config": OPS}}),
        ({"callbacks": [{"SkipSamples": {"n": 8}}]}, {"runconfig": {"skip_samples": 8}}),
        (  # a precision section without enabled is enabled in bfloat16
            {"model": {}, "precision": {}},
            {"model": {"mixed_precision": True, "fp16_type": "bfloat16"}},
        ),
    ],
)
def test_one_key(init, sections):
    assert upgrade({"init": init})[:2] == (sections, [])


def test_a_list_of_one_trainer_and_one_method_alone():
    assert upgrade([{"trainer": {"init": {"seed": 1}}}])[:2] == ({"runconfig": {"seed": 1}}, [])
    alone = {"init": {}, "validate": {"val_dataloader": {"batch_size": 1}}}
    sections = {"eval_input": {"batch_size": 1}, "runconfig": {"mode": "eval"}}
    assert upgrade(alone)[:2] == (sections, [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("trainer: [{init: {}}, {init: {}}]", "a list of 2 trainers"),
        ("trainer: {init: {optimizer: {SGD: {}, Adam: {}}}}", "one class name, got SGD, Adam"),
        ("trainer: {init: {loop: 3}}", "3: expected a mapping"),
        ("trainer: {init: {}}\nmodel: {}", "stands beside `trainer`"),
    ],
)
def test_what_is_wrong(tmp_path, text, says):
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        load(tmp_path / "params.yaml")


def line_of(text, part):
    return next(i for i, line in enumerate(text.splitlines(), 1) if part in line)


@pytest.mark.parametrize(
    ("part", "wrong", "path"),
    [
        ("weight_decay: 0.1", "weight_decy: 0.1", "init.optimizer.AdamW.weight_decy"),
        ("filter_size: 16", "filter_siz: 16", "init.model.filter_siz"),
        ("total_iters: 8", "total_iters: 0", "schedulers.1.CosineDecayLR.total_iters"),
        ("log_steps: 2", "log_steps: 0", "init.logging.log_steps"),
        ("max_gradient_norm: 1.0", "max_gradient_norm: -1", "init.precision.max_gradient_norm"),
        ("{n: 3}", "{n: 0}", "init.callbacks.1.KeepNCheckpoints.n"),
        ("batch_size: 4", "batch_siz: 4", "fit.train_dataloader.batch_siz"),
    ],
)
def test_problems_have_the_files_path_and_line(tmp_path, part, wrong, path):
    text = TRAINER.replace(part, wrong)
    file = tmp_path / "params.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    problem = next(p for p in caught.value.problems if ".".join(map(str, p.path)).endswith(path))
    assert problem.path[0] == "trainer"
    assert problem.message.startswith(f"(line {line_of(text, wrong)}) ")


def test_in_a_list_of_trainers_lines_are_the_files(tmp_path):
    file = tmp_path / "params.yaml"
    first, second = EXPERTS, EXPERTS.replace("max_steps: 1", "max_steps: 0")
    items = (one.strip().replace("\n", "\n  ") for one in (first, second))
    text = "trainer:" + "".join(f"\n- {item}" for item in items)
    file.write_text(text)
    with pytest.raises(ConfigError, match="trainer 2 of 2") as caught:
        load_all(file)
    (problem,) = caught.value.problems
    assert problem.path == ("trainer", "init", "loop", "max_steps")
    assert problem.message.startswith(f"(line {line_of(text, 'max_steps: 0')}) ")


def test_selected_gradients_are_the_optimizers_and_go_back():
    entries = [{"param_filter": "*fc*", "init_method": "outlier"}, {}]
    callbacks = [{"SelectiveGrad": {"selective_grads": entries}}]
    up = upgrade({"init": {"optimizer": {"SGD": {}}, "callbacks": callbacks}})
    assert up.sections["optimizer"] == {"optimizer_type": "SGD", "selective_grad": entries}
    assert as_trainer(up.sections)[0]["init"]["callbacks"] == callbacks


EXPERTS = """
trainer:
  init:
    model:
      {name: mixtral, vocab_size: 64, hidden_size: 8, num_hidden_layers: 1, num_heads: 2,
       filter_size: 16, max_position_embeddings: 8, moe: {num_experts: 4}}
    optimizer: {SGD: {}}
    schedulers: [ConstantLR: {learning_rate: 0.1}]
    loop: {max_steps: 1}
  fit:
    train_dataloader:
      {data_processor: SyntheticDataProcessor, vocab_size: 64, max_sequence_length: 8,
       batch_size: 4}
"""


@pytest.mark.parametrize(
    ("change", "weight", "line"),
    [
        (("", ""), 0.0, "of release 2.4; for 2.3's add `release: '2.3'` above it"),
        (("moe:", "pad_rope: false, moe:"), 0.01, "2.3, the last one with model.pad_rope"),
        (("\ntrainer", "release: '2.3'\ntrainer"), 0.01, ""),
        (("\ntrainer", "release: '2.9'\ntrainer"), 0.0, ""),
    ],
)
def test_the_release_of_a_trainer(tmp_path, caplog, change, weight, line):
    (tmp_path / "params.yaml").write_text(EXPERTS.replace(*change))
    with caplog.at_level(logging.INFO):
        cfg = load(tmp_path / "params.yaml")
    assert registry.parse_config(cfg.model).moe.load_balancing_loss_coef == weight
    assert ("has the defaults" in caplog.text) == bool(line)
    assert line in caplog.text
    out = tmp_path / "out.yaml"  # the release goes along
    assert main(["config", "upgrade", str(tmp_path / "params.yaml"), "-o", str(out)]) == 0
    assert load(out) == cfg


KEEP, BACKEND = "KeepNCheckpoints", {"backend_type": "CSX"}
PRECISE = {"model": {"mixed_precision": False}}


@pytest.mark.parametrize(
    ("init", "path", "says"),
    [
        ({"device": "CPU", "backend": BACKEND}, "backend.backend_type", "init.device is 'CPU'"),
        ({"optimizer": {"SGD": {"lr": 1, "learning_rate": 2}}}, "SGD.learning_rate", "keep one"),
        ({"optimizer": {"SGD": {"optimizer_type": "Adam"}}}, "SGD.optimizer_type", "is 'SGD'"),
        (
            PRECISE | {"precision": {"enabled": True}},
            "enabled",
            "init.model.mixed_precision is False",
        ),
        (
            {"callbacks": [{KEEP: {"n": i}} for i in (1, 2)]},
            f"[1].{KEEP}.n",
            rf"\.0\.{KEEP}.n is 1",
        ),
        ({"callbacks": [{"SelectiveGrad": {}}]}, "SelectiveGrad", "argument 'selective_grads'"),
    ],
)
def test_a_value_said_twice_is_the_same(init, path, says):
    with pytest.raises(ConfigError, match=says) as caught:
        upgrade({"init": init})
    assert path in str(caught.value)


def test_arguments_without_a_meaning_are_listed():
    callbacks = [{"CheckLoss": {"every": 2}}, {"RateProfiler": {"window": 3}}]
    loop = {"num_epochs": 2, "eval_frequency": 0.5}
    up = upgrade({"init": {"callbacks": callbacks, "loop": loop}})
    assert up.left == [
        "trainer.init.callbacks.0.CheckLoss.every",
        "trainer.init.callbacks.1.RateProfiler.window",
        "trainer.init.loop.eval_frequency",
    ]


def test_norms_are_logged_where_either_key_asks():
    for flag in (True, False):
        init = {"callbacks": [{"ComputeNorm": {}}], "precision": {"log_loss_scale": flag}}
        for order in (init, dict(reversed(init.items()))):
            assert upgrade({"init": order}).sections["optimizer"] == {"log_summaries": True}


def test_data_of_one_method_have_no_keys_of_another():
    flags = {"ScopedValidateFlags": {"csx.performance.micro_batch_size": 2}}
    trainer = {
        "init": {"callbacks": [flags]},
        "fit": {"train_dataloader": {}, "val_dataloader": {"batch_size": 4, "shuffle": True}},
        "validate": {"val_dataloader": {"batch_size": 8}},
    }
    data = upgrade(trainer, "eval").sections["eval_input"]
    assert data == {"batch_size": 8, "micro_batch_size": {"explore": {"max": 2}}}
    trainer["validate"]["val_dataloader"]["micro_batch_size"] = 4
    with pytest.raises(ConfigError, match=r"validate\.val_dataloader\.micro_batch_size is 4"):
        upgrade(trainer, "eval")


def test_all_states_of_a_checkpoint_are_the_default():
    keys = {"max_steps": 1}
    for value in ("all", ["all"], None):
        assert RunSection(load_checkpoint_states=value, **keys).load_checkpoint_states is None
    for wrong in ("all,model", "everything"):
        with pytest.raises(SectionError, match="unknown state"):
            parse(RunSection, keys | {"load_checkpoint_states": wrong})
    callbacks = [{"LoadCheckpointStates": {"load_checkpoint_states": "all"}}]
    assert not upgrade({"init": {"callbacks": callbacks}}).left
