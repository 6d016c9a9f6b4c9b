"""No key of a ``trainer:`` file without effect, but for those that a run lists."""

import pytest

from wafer.config import parse_config
from wafer.config.runconfig import ClusterKeys
from wafer.vendor.trainer import as_trainer, table, upgrade

MODEL = {"name": "gpt2", "vocab_size": 16, "hidden_size": 8, "num_heads": 2}
ROWS = {"data_processor": "SyntheticDataProcessor", "vocab_size": 16}
ROWS |= {"max_sequence_length": 8, "batch_size": 4}
INIT = {"model": MODEL, "optimizer": {"SGD": {}}, "loop": {"max_steps": 4}}
INIT |= {"schedulers": [{"ConstantLR": {"learning_rate": 0.1}}]}
INIT |= {"precision": {"loss_scaling_factor": "dynamic", "fp16_type": "float16"}}
FIT = {"train_dataloader": ROWS, "val_dataloader": ROWS}
OTHER = {
    "precision.fp16_type": "bfloat16",
    "precision.loss_scaling_factor": 2.0,
    "precision.enabled": False,
    "loop.eval_frequency": 2,
    "logging.log_level": "ERROR",
    "device": "CPU",
    "backend.backend_type": "CPU",
    "backend.cluster_config.job_labels": ["a=b"],
    "checkpoint.checkpoint_root": "s3://bucket/run",
    "backend.cluster_config.job_priority": "p1",
    "callbacks.LoadCheckpointStates.load_checkpoint_states": "model",
    "callbacks.Lora.lora_params": {"r": 2},
    "callbacks.OpProfiler.*": {"start_step": 1, "end_step": 2},
    "callbacks.WandbLogger.*": {"project": "p"},
    "callbacks.EleutherEvalHarness.*": {"eeh_args": {"tasks": "a,b", "limit": 4}},
    "callbacks.SelectiveGrad.selective_grads": {"param_filter": "*fc*"},
    "callbacks.CheckLoss": {},
    "callbacks.ComputeNorm": {},
}
FLAG = ("enabled", "compile_only", "validate_only", "disable", "save_initial", "autoload")


def with_key(place, value):
    """A trainer's ``init`` with a key at its place."""
    first, _, rest = place.partition(".")
    if first == "callbacks":
        name, _, key = rest.partition(".")
        return {"callbacks": [{name: value if key == "*" else {key: value} if key else {}}]}
    if rest.startswith("cluster_config."):
        own = {"backend_type": "CSX", "cluster_config": {rest.partition(".")[2]: value}}
        return {"backend": own}
    return {first: INIT.get(first, {}) | {rest: value} if rest else value}


@pytest.mark.parametrize("place", table().places)
def test_every_key_of_a_trainer_reaches_its_section_or_is_listed(place):
    """What the sections do with it, the tests of their keys show."""
    section, name = table().places[place]
    value = OTHER.get(place, value_of(place.rpartition(".")[2]))
    own = with_key(place, value)
    up = upgrade({"init": INIT | own, "fit": FIT})
    assert up.left == []
    assert name in up.sections[section]
    cfg = parse_config({"trainer": {"init": INIT | own, "fit": FIT}})
    listed = f"{section}.{name}" in cfg.no_effect
    assert listed == (name in ClusterKeys.model_fields and section == "runconfig")
    again, left = as_trainer(up.sections)
    assert left == []
    assert upgrade(again).sections == up.sections


def value_of(key):
    """A legal value of a key, from its name."""
    if key == "" or any(key.startswith(word) for word in (*FLAG, "sync", "log_loss", "enable")):
        return True
    words = ("dir", "address", "namespace", "path", "backend", "method", "wsc")
    return "x" if any(word in key for word in words) else 1


def test_what_a_trainer_says_beyond_the_tables_is_listed(caplog):
    callbacks = [{"SomeCallback": {"a": 1}}, {"KeepNCheckpoints": {"n": 2, "m": 3}}]
    init = INIT | {"callbacks": callbacks, "backend": {"backend_type": "CPU", "other": 1}}
    parse_config({"trainer": {"init": init, "fit": FIT}})
    for path in ("callbacks.0.SomeCallback", "callbacks.1.KeepNCheckpoints.m", "backend.other"):
        assert f"trainer.init.{path}" in caplog.text
