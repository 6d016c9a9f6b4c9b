"""No key of ``runconfig`` without effect: files, records or lines of a small run tell of each."""

import logging
import os
import pathlib
import re
import shutil
import sys
import typing

import jax
import pytest
from helpers.effects import legal_values
from helpers.runs import TINY, TINY_ROWS

from wafer.cache import keep_programs
from wafer.commands.run import run
from wafer.config import parse_config
from wafer.config.engines import FabricSection, MemoryX, Pipeline
from wafer.config.runconfig import (
    ClusterKeys,
    EleutherEvalHarness,
    MLflow,
    OpProfiler,
    RunSection,
    Wandb,
)
from wafer.jobs.track import new_job
from wafer.models.sections import Section
from wafer.session.logs import setup_logging
from wafer.session.metrics import read_metrics

ROWS = TINY_ROWS | {"num_examples": 12, "shuffle": True}
SECTIONS = {
    "train_input": ROWS,
    "eval_input": ROWS,
    "model": TINY | {"dropout_rate": 0.0},
    "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.01},
}
BASE = {"max_steps": 4, "checkpoint_steps": 2, "log_steps": 1, "seed": 1}
BOTH = {"mode": "train_and_eval"}
STREAMED = {"execution_strategy": "weight_streaming"}
STORED = STREAMED | {"memoryx": {"store": "file"}}
PIPED = {"execution_strategy": "pipelined"}
OTHER_HEAD = {"model": SECTIONS["model"] | {"use_bias_in_output": True}}
DIVERGES = {"optimizer": {"optimizer_type": "SGD", "learning_rate": 1e29}}
OWN_ROWS = {"train_input": ROWS | {"data_processor": "rows_of_the_user:Rows"}}
# key -> (runconfig beside it, its value[, other sections]); dotted where a section is nested
KEYS = {
    "mode": ({}, "train_and_eval"),
    "model_dir": ({}, "elsewhere"),
    "max_steps": ({}, 3),
    "num_steps": ({}, 1),
    "num_epochs": ({"max_steps": 9}, 1),
    "steps_per_epoch": ({"num_epochs": 1}, 2),
    "eval_steps": (BOTH, 1),
    "eval_frequency": (BOTH, 1),
    "checkpoint_steps": ({}, 1),
    "save_initial_checkpoint": ({}, True),
    "max_checkpoints": ({}, 1),
    "autoload_last_checkpoint": ({"model_dir": "trained"}, False),
    "checkpoint_path": ({}, "trained/checkpoints/2"),
    "load_checkpoint_states": ({"checkpoint_path": "trained/checkpoints/2"}, "model"),
    "disable_strict_checkpoint_loading": (
        {"checkpoint_path": "trained/checkpoints/2", "load_checkpoint_states": "model"},
        True,
        OTHER_HEAD,
    ),
    "is_pretrained_checkpoint": ({"checkpoint_path": "trained/checkpoints/2"}, True),
    "export": ({}, "hf"),
    "log_steps": ({}, 2),
    "summary_dir": ({}, "summaries"),
    "check_loss_values": ({}, False, DIVERGES),
    "python_paths": ({}, "modules", OWN_ROWS),
    "skip_samples": ({}, 2),
    "seed": ({}, 2),
    "num_csx": ({}, 2),
    "shard_state": ({"num_csx": 2}, True),
    "num_replicas": (PIPED, 2),
    "multireplica": (PIPED, True),
    "compile_only": ({}, True),
    "validate_only": ({}, True),
    "execution_strategy": ({}, "weight_streaming"),
    "memoryx.store": (STREAMED, "file"),
    "memoryx.path": (STORED, "store"),
    "memoryx.durable": (STORED, False),
    "pipeline.stages": (PIPED, 2),
    "pipeline.devices": (PIPED, 2),
    "op_profiler_config.start_step": ({"op_profiler_config": {"start_step": 2, "end_step": 3}}, 1),
    "op_profiler_config.end_step": ({"op_profiler_config": {"start_step": 2, "end_step": 3}}, 2),
}
# Keys that the command reads before it runs a file; ``test_keys_of_the_command_line``.
OF_THE_COMMAND = {"logging", "job_labels", "job_priority", "compile_dir"}
PRIORITY = {"job_priority": "p1"}
# Keys of memory, speed and floor plans; tests of engines and of the compiler show these.
OF_SPEED = {"memoryx.residual_mib", "pipeline.recompute", "fabric.width", "fabric.height"}
NESTED = {
    "memoryx": MemoryX,
    "pipeline": Pipeline,
    "fabric": FabricSection,
    "op_profiler_config": OpProfiler,
    "wandb": Wandb,
    "mlflow": MLflow,
    "eleuther_eval_harness": EleutherEvalHarness,
}
OF_LOGGERS = {f"wandb.{key}" for key in Wandb.model_fields}  # test_loggers.py
OF_LOGGERS |= {f"mlflow.{key}" for key in MLflow.model_fields}
OF_STORES = {"checkpoint_root"}  # test_stores.py
OF_HARNESS = {f"eleuther_eval_harness.{key}" for key in EleutherEvalHarness.model_fields}
FAST = {"log_steps", "validate_only"}
NUMBER = re.compile(r"\d+\.\d+(e[-+]\d+)?|\d+ (?:sec|ms|bytes)|\d\d:\d\d:\d\d|wsjob-\w+|0x\w+")
STAMP = re.compile(r"[0-9a-f]{32}|\d{8}_\d{6}|\d{10}\.\S+|\.\d+\.[\w-]+\.\d+\.\d+$")
MODULE = """
from wafer.data.sections.rows import SyntheticDataProcessor

class Rows(SyntheticDataProcessor):
    pass
"""


@pytest.fixture(autouse=True)
def _left_as_it_was(monkeypatch):
    """What a run sets in its process: folders of modules and of compiled programs."""
    kept = jax.config.values["jax_compilation_cache_dir"]
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    jax.config.update("jax_compilation_cache_dir", kept)
    sys.modules.pop("rows_of_the_user", None)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a module of the user, in which runs find it by relative paths."""
    folder, before = tmp_path_factory.mktemp("runs"), pathlib.Path.cwd()
    (folder / "modules").mkdir()
    (folder / "modules" / "rows_of_the_user.py").write_text(MODULE)
    os.chdir(folder)
    yield folder
    os.chdir(before)


class Lines(logging.Handler):
    """What a run logs, without times."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(NUMBER.sub("#", record.getMessage()))


def logged(sections):
    """Run a file; its log, or what is wrong with it."""
    handler, root = Lines(), logging.getLogger("wafer")
    root.addHandler(handler)
    try:
        run(parse_config(sections))
    except Exception as error:
        handler.lines.append(NUMBER.sub("#", str(error)))
    finally:
        root.removeHandler(handler)
    return handler.lines


def outcome(folder, settings, sections):
    """Everything but time that a run leaves and logs."""
    for name in ("model_dir", "elsewhere", "summaries", "store", "trained"):
        shutil.rmtree(folder / name, ignore_errors=True)
    if "trained" in str(settings):
        if not (folder / "kept").exists():
            logged(SECTIONS | {"runconfig": BASE | {"max_steps": 2, "model_dir": "kept"}})
        shutil.copytree(folder / "kept", folder / "trained", symlinks=True)
    facts = {*logged(SECTIONS | sections | {"runconfig": BASE | settings})}
    for file in folder.rglob("*"):
        if file.is_symlink() or not file.is_file() or "kept" in file.parts:
            continue
        name = STAMP.sub("#", str(file.relative_to(folder)))
        facts.add(f"file {name} {file.stat().st_size if 'memoryx' in name else ''}")
        if file.name == "metrics.jsonl":
            records = read_metrics(file.parent)
            facts |= {f"{name} {record['step']} {record['loss']}" for record in records}
    return facts


KNOWN = {}  # outcomes of runs without the key: many keys share one


def known_outcome(folder, settings, sections):
    name = repr((settings, sections))
    if name not in KNOWN:
        KNOWN[name] = outcome(folder, settings, sections)
    return KNOWN[name]


def with_key(run, key, value):
    outer, _, inner = key.partition(".")
    return run | {outer: run.get(outer, {}) | {inner: value} if inner else value}


def test_the_table_has_every_key():
    declared = {key for key in RunSection.model_fields if key not in ClusterKeys.model_fields}
    inner = {f"{key}.{name}" for key, cls in NESTED.items() for name in cls.model_fields}
    shown = KEYS.keys() | OF_SPEED | OF_THE_COMMAND | OF_LOGGERS | OF_STORES
    shown |= OF_HARNESS  # test_harness.py
    assert shown == declared - NESTED.keys() | inner
    sections = [
        key
        for key, field in RunSection.model_fields.items()
        if any(
            isinstance(k, type) and issubclass(k, Section)
            for k in (field.annotation, *typing.get_args(field.annotation))
        )
    ]
    assert set(sections) == NESTED.keys()


@pytest.mark.parametrize(
    "key", [pytest.param(k, marks=[] if k in FAST else pytest.mark.slow) for k in KEYS]
)
def test_every_key_does_something(key, place, caplog):
    settings, value, *rest = KEYS[key]
    sections = rest[0] if rest else {}
    caplog.set_level(logging.INFO, "wafer")
    without = known_outcome(place, settings, sections)
    assert outcome(place, with_key(settings, key, value), sections) != without


@pytest.mark.slow
def test_a_run_shows_the_same_twice(place, caplog):
    """What ``outcome`` compares holds no time."""
    caplog.set_level(logging.INFO, "wafer")
    assert outcome(place, BOTH, {}) == outcome(place, BOTH, {})


def test_keys_of_the_command_line(tmp_path):
    """What the command does with a file before it runs it: its log, its entry among the jobs."""
    setup_logging("ERROR")
    assert not logging.getLogger("wafer").isEnabledFor(logging.INFO)
    keep_programs(str(tmp_path))
    assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path)
    cfg = parse_config(SECTIONS | {"runconfig": BASE | {"job_labels": ["a=b"]} | PRIORITY})
    job = new_job(cfg, ["run"])
    assert (job.priority, job.labels) == ("p1", {"a": "b"})


def test_keys_of_the_vendors_cluster_are_listed_by_a_run(place, caplog):
    keys = {
        key: (legal_values(field.annotation) or ["x"])[0]
        for key, field in ClusterKeys.model_fields.items()
    }
    caplog.set_level(logging.INFO, "wafer")
    lines = logged(SECTIONS | {"runconfig": BASE | keys | {"validate_only": True}})
    (line,) = (line for line in lines if "no effect on this machine" in line)
    listed = line.partition("machine: ")[2].split(", ")
    assert listed == [f"runconfig.{key}" for key in keys]
