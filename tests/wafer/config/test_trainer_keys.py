"""No key of a ``trainer:`` file without effect, but for those that a run lists."""

import pytest

from wafer.config import parse_config
from wafer.config.runconfig import ClusterKeys
from wafer.vendor.trainer_form import BACKEND, CALLBACKS, CLUSTER, PARTS, upgrade

MODEL = {"name": "gpt2", "vocab_size": 16, "hidden_size": 8, "num_heads": 2}
ROWS = {"data_processor": "SyntheticDataProcessor", "vocab_size": 16}
ROWS |= {"max_sequence_length": 8, "batch_size": 4}
INIT = {"model": MODEL, "optimizer": {"SGD": {"learning_rate": 0.1}}, "loop": {"max_steps": 4}}
INIT |= {"precision": {"loss_scaling_factor": "dynamic", "fp16_type": "float16"}}
FIT = {"train_dataloader": ROWS, "val_dataloader": ROWS}
OTHER = {
    ("precision", "fp16_type"): "bfloat16",
    ("precision", "loss_scaling_factor"): 2.0,
    ("precision", "enabled"): False,
    ("loop", "eval_frequency"): 2,
    ("logging", "log_level"): "ERROR",
    ("backend", "backend_type"): "CPU",
    ("cluster", "job_labels"): ["a=b"],
    ("cluster", "job_priority"): "p1",
    ("LoadCheckpointStates", "load_checkpoint_states"): "model",
    ("Lora", "lora_params"): {"r": 2},
    ("SelectiveGrad", "selective_grads"): {"param_filter": "*fc*"},
}
FLAG = ("enabled", "compile_only", "validate_only", "disable", "save_initial", "autoload")


def with_key(part, key, value):
    """A trainer's ``init`` with a key of a part: a section, the cluster's, or a callback."""
    if part == "cluster":
        return {"backend": {"backend_type": "CSX", "cluster_config": {key: value}}}
    if part in CALLBACKS:
        return {"callbacks": [{part: {key: value} if key else {}}]}
    return {part: INIT.get(part, {}) | {key: value}}


PLACES = {"backend": BACKEND, "cluster": CLUSTER, **PARTS, **CALLBACKS}
EACH = [(part, key) for part, table in PLACES.items() for key in table]


@pytest.mark.parametrize(("part", "key"), EACH, ids=[".".join(each) for each in EACH])
def test_every_key_of_a_trainer_reaches_its_section_or_is_listed(part, key):
    """What the sections do with it, the tests of their keys show."""
    section, name = PLACES[part][key]
    value = OTHER.get((part, key), value_of(key))
    own = with_key(part, key, value)
    if part == "OpProfiler":
        own = {"callbacks": [{part: {"start_step": 1, "end_step": 2}}]}
        section, name = "runconfig", "op_profiler_config"
    up = upgrade({"init": INIT | own, "fit": FIT})
    assert up.left == []
    assert name in up.sections[section]
    cfg = parse_config({"trainer": {"init": INIT | own, "fit": FIT}})
    listed = f"{section}.{name}" in cfg.no_effect
    assert listed == (name in ClusterKeys.model_fields and section == "runconfig")


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
