"""The run file: what is read, how it is merged, and every way of refusing it."""

import os
import subprocess
import sys
import textwrap

import pytest
import yaml

from wafer.cli import main
from wafer.config import CLUSTER_DEFAULTS_VARIABLE, RunSection, load, parse_config, total_steps
from wafer.errors import ConfigError, Problem, SectionError
from wafer.models.files import require_path

RAW = {
    "train_input": {
        "data_processor": "GptHDF5MapDataProcessor",
        "data_dir": "./data",
        "batch_size": 8,
        "persistent_workers": True,
    },
    "eval_input": {
        "data_processor": "GptHDF5DataProcessor",
        "data_dir": ["a", "b"],
        "batch_size": 4,
    },
    "model": {"name": "gpt2", "hidden_size": 48},
    "optimizer": {"optimizer_type": "AdamW", "learning_rate": "1e-5", "max_gradient_norm": 1.0},
    "runconfig": {"max_steps": 10, "mgmt_address": "host:80"},
}


def changed(**sections):
    """RAW with keys replaced, 'runconfig={...}' merged into the section; None drops the section."""
    raw = {name: dict(section) for name, section in RAW.items()}
    for name, keys in sections.items():
        if keys is None:
            raw.pop(name)
        else:
            raw[name] = {**raw.get(name, {}), **keys}
            raw[name] = {k: v for k, v in raw[name].items() if v is not ...}
    return raw


def problems(raw, overrides=None):
    with pytest.raises(ConfigError) as caught:
        parse_config(raw, overrides)
    return str(caught.value)


@pytest.mark.parametrize(("mode", "unread"), [("train", "eval_input"), ("eval", "train_input")])
def test_systems_share_only_batches_that_the_mode_reads(mode, unread):
    raw = changed(runconfig={"num_csx": 2}, **{unread: {"batch_size": 3}})
    assert parse_config(raw, {"mode": mode}).runconfig.num_csx == 2
    expected = f"{unread}.batch_size: 3 cannot be shared by num_csx = 2 systems"
    assert expected in problems(raw, {"mode": "train_and_eval"})


def write(tmp_path, text):
    path = tmp_path / "params.yaml"
    path.write_text(textwrap.dedent(text))
    return path


# ---------------------------------------------------------------- reading


def test_reads_a_vendor_file(tmp_path):
    cfg = load(write(tmp_path, yaml.safe_dump(RAW)))
    assert cfg.train_input.data_dir == ("./data",)
    assert cfg.eval_input.data_dir == ("a", "b")
    assert cfg.optimizer.learning_rate[0].learning_rate == 1e-5
    assert cfg.optimizer.betas == (0.9, 0.999)
    assert cfg.runconfig.max_steps == 10
    assert cfg.model == {"name": "gpt2", "hidden_size": 48}
    assert cfg.sparsity is None
    assert cfg.no_effect == ("train_input.persistent_workers", "runconfig.mgmt_address")


def test_unquoted_scientific_notation_is_a_number_everywhere(tmp_path):
    text = yaml.safe_dump(changed(optimizer={"learning_rate": ...}))
    text = text.replace("hidden_size: 48", "initializer_range: 1e-2")
    text = text.replace("optimizer_type", "learning_rate: 1e-5\n  optimizer_type")
    cfg = load(write(tmp_path, text))
    assert cfg.model["initializer_range"] == 0.01
    assert cfg.optimizer.learning_rate[0].learning_rate == 1e-5


def test_anchors_and_merges_work(tmp_path):
    text = """
        train_input: &i {data_processor: SyntheticDataProcessor, vocab_size: 9, batch_size: 8}
        eval_input: {<<: *i, batch_size: 4}
        model: {name: gpt2}
        optimizer: {optimizer_type: sgd, learning_rate: 0.1}
        runconfig: {num_steps: 1}
    """
    cfg = load(write(tmp_path, text))
    assert (cfg.train_input.batch_size, cfg.eval_input.batch_size) == (8, 4)


def test_a_leading_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    raw = changed(
        train_input={"data_dir": "~/rows"},
        eval_input={"data_dir": ["~/a", "b~", "/c/~"]},
        runconfig={"checkpoint_path": "~/runs/1"},
    )
    cfg = parse_config(raw, {"model_dir": "~/runs"})
    assert cfg.runconfig.model_dir == f"{tmp_path}/runs"
    assert cfg.runconfig.checkpoint_path == f"{tmp_path}/runs/1"
    assert cfg.train_input.data_dir == (f"{tmp_path}/rows",)
    assert cfg.eval_input.data_dir == (f"{tmp_path}/a", "b~", "/c/~")


def test_resolved_file_reads_back_to_the_same_configuration(tmp_path):
    linear = {"scheduler": "Linear", "initial_learning_rate": 0, "end_learning_rate": 1e-3}
    tagged = {"scheduler": "Constant", "learning_rate": 1e-3, "param_group_tags": ["t"]}
    raw = changed(
        optimizer={
            "learning_rate": [linear | {"steps": 9}, tagged],
            "params": [{"params": "*bias", "tag": "t"}],
            "adjust_learning_rate": {"decoder_kernel": 0.25, "embedding": 1},
            "loss_scaling_factor": "dynamic",
        },
        train_input={"micro_batch_size": {"explore": {"min": 1, "max": 4}}},
        eval_input={"micro_batch_size": None},
        runconfig={
            "memoryx": {"store": "file", "path": str(tmp_path / "memoryx")},
            "op_profiler_config": {"start_step": 2, "end_step": 3},
            "load_checkpoint_states": "model, optimizer",
        },
        sparsity={"algorithm": "rigl", "sparsity": 0.8},
    )
    flags = {"seed": 3, "mode": "train_and_eval", "eval_frequency": 5}
    first = load(write(tmp_path, yaml.safe_dump(raw)), flags)
    again = load(write(tmp_path, first.to_yaml()))
    assert again == first
    assert again.to_yaml() == first.to_yaml()
    assert again.eval_input.micro_batch_size is None  # not the default 'auto'
    assert again.runconfig.load_checkpoint_states == ("model", "optimizer")


def test_sections_are_frozen_and_hashable():
    cfg = parse_config(RAW)
    with pytest.raises(ValueError, match="frozen"):
        cfg.runconfig.max_steps = 3
    assert hash(cfg.optimizer) == hash(parse_config(RAW).optimizer)
    assert {cfg.runconfig, cfg.train_input}


WITHOUT_JAX = "wafer wafer.cli wafer.config wafer.data.registry wafer.models.sections"
HEAVY = {"jax", "grain", "h5py", "tokenizers"}


@pytest.mark.parametrize("module", WITHOUT_JAX.split())
def test_importing_the_configuration_does_not_import_jax(module):
    code = f"import sys, {module}; sys.exit(bool({HEAVY} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---------------------------------------------------------------- merging


def test_flags_win_over_the_file_and_the_file_over_the_cluster_defaults(tmp_path, monkeypatch):
    defaults = tmp_path / "defaults.yaml"
    given = {"max_steps": 1, "seed": 1, "log_steps": 7, "mount_dirs": ["/c"]}
    defaults.write_text(yaml.safe_dump(given | {"job_labels": {"a": 1, "b": 1}}))
    monkeypatch.setenv(CLUSTER_DEFAULTS_VARIABLE, str(defaults))
    raw = changed(runconfig={"seed": 2, "mount_dirs": "/b", "job_labels": {"b": 2}})
    path = write(tmp_path, yaml.safe_dump(raw))
    run = load(path, {"max_steps": 20, "mount_dirs": ["/a"], "eval_steps": None}).runconfig
    assert (run.max_steps, run.seed, run.log_steps, run.eval_steps) == (20, 2, 7, None)
    assert run.mount_dirs == ["/a", "/b", "/c"]
    assert run.job_labels == {"a": 1, "b": 2}
    given = parse_config(raw, {"max_steps": 20, "seed": None, "mount_dirs": None}).runconfig
    assert (given.max_steps, given.seed, given.mount_dirs) == (20, 2, "/b")


def test_errors_name_the_flag_or_the_line(tmp_path):
    path = write(tmp_path, "runconfig:\n  num_csx: 2\n  max_steps: 0\nmodel: {name: x}\n")
    with pytest.raises(ConfigError) as caught:
        load(path, {"num_csx": -1, "max_steps": None})
    text = str(caught.value)
    assert str(path) in text
    assert "config.runconfig.num_csx: (flag --num_csx) -1: expected greater than 0" in text
    assert "config.runconfig.max_steps: (line 3) 0: expected greater than 0" in text
    assert "config.optimizer: missing section; mode 'train' needs it" in text


def test_wrong_cluster_defaults_name_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv(CLUSTER_DEFAULTS_VARIABLE, str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match=f"no such file.*{CLUSTER_DEFAULTS_VARIABLE}"):
        load(write(tmp_path, yaml.safe_dump(RAW)))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SectionError([Problem(("model", "hidden_size"), "odd")]), "model.hidden_size: odd"),
        (SectionError([Problem(("hidden_size",), "odd")]), "model.hidden_size: odd"),
        (ValueError("hidden_size: must be even"), "model: hidden_size: must be even"),
        (ValueError(), "model: ValueError"),
    ],
)
def test_errors_of_other_packages_join_ours(monkeypatch, error, said):
    def check(section):
        assert section["name"] == "gpt2"
        raise error

    monkeypatch.setattr("wafer.models.registry.parse_config", check)
    text = problems(changed(runconfig={"max_step": 1}))
    assert f"config.{said}" in text
    assert "config.runconfig.max_step: unknown key; did you mean 'max_steps'?" in text


# ---------------------------------------------------------------- refusing: the file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("model: [1", "column 1: not valid YAML"),
        ("a: 1\nb:\n\t- 2", "line 3, column 1: not valid YAML"),
        ("model: {}\nmodel: {}", "config.model: duplicate key (lines 1 and 2); keep one"),
        ("runconfig:\n  seed: 1\n  seed: 2", "runconfig.seed: duplicate key (lines 2 and 3)"),
        ("a: 1\n1: a\n0x1: b", "config.0x1: duplicate key (lines 2 and 3)"),
        ("true: a\nyes: b", "config.yes: duplicate key (lines 1 and 2)"),
        ("~: a\nnull: b", "config.null: duplicate key (lines 1 and 2)"),
        ("a: !!omap\n- x: 1\n- x: 2", "config.a.x: duplicate key (lines 2 and 3)"),
        ("seed: 0x" + "f" * 5_000, "has 5,002 digits; expected 1,000 at most"),
        ("model: !!python/object/apply:os.system [ls]", "line 1, column 8: not valid YAML: could"),
        ("a: &a [*a]", "an alias that contains itself"),
        ("a: !!bool maybe", "line 1, column 4: not valid YAML: 'maybe' is no bool"),
        ("a: !!timestamp nope", "line 1, column 4: not valid YAML: 'nope' is no timestamp"),
        ("a: !!int x", "line 1, column 4: not valid YAML: 'x' is no int"),
        ("a: " + "x" * 1_000_001, "1,000,004 bytes; a YAML file has 1,000,000 at most"),
        ("a: {" + ",".join(f"k{i:x}" for i in range(120_000)) + "}", "more than 100,000 values"),
        ("- 1", "expected sections (model, runconfig, ...), got [1]"),
    ],
)
def test_unreadable_files(tmp_path, text, message):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert message in str(caught.value)


def test_aliases_cannot_fill_the_memory(tmp_path):
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(9)
    )
    with pytest.raises(ConfigError, match="more than 100,000 values"):
        load(write(tmp_path, bomb))
    long = f"a: &a {'x' * 900_000}\nb: *a\n"  # 1.8 MB once it is written again
    with pytest.raises(ConfigError, match=r"line 1, column 4: .* 1,000,000 letters once aliases"):
        load(write(tmp_path, long))


def test_missing_file_suggests_a_neighbour(tmp_path):
    write(tmp_path, "a: 1")
    with pytest.raises(ConfigError, match=r"no such file; did you mean 'params.yaml'\?"):
        load(tmp_path / "param.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "latin.yaml")


# ---------------------------------------------------------------- refusing: keys and values

TAGGED = {"scheduler": "Constant", "learning_rate": 1, "param_group_tags": ["x"]}
REFUSED = {  # section -> (keys, words of the error)
    "runconfig": [
        ({"max_step": 3}, "runconfig.max_step: unknown key; did you mean 'max_steps'?"),
        ({"max_steps": True}, "runconfig.max_steps: True: expected a number"),
        ({"max_steps": 1.5}, "runconfig.max_steps: 1.5: expected a whole number"),
        ({"max_steps": "ten"}, "runconfig.max_steps: 'ten': expected a whole number"),
        ({"mode": "trian"}, "mode: 'trian': expected 'train', 'eval', 'eval_all' or"),
        ({"mode": "trian"}, "did you mean 'train'?"),
        ({"save_initial_checkpoint": 1}, "save_initial_checkpoint: 1: expected true or"),
        ({"num_steps": 3, "num_epochs": 1}, "runconfig.num_steps: excludes 'num_epochs'"),
        ({"max_steps": ...}, "runconfig.max_steps: missing; training needs one of"),
        ({"compile_only": True, "validate_only": True}, "compile_only: excludes"),
        ({"mode": "eval_all", "checkpoint_path": "x"}, "checkpoint_path: eval_all eval"),
        ({"load_checkpoint_states": "model,optimiser"}, "unknown state 'optimiser'; allo"),
        ({"execution_strategy": "fast"}, "execution_strategy: 'fast': expected 'resident"),
        ({"memoryx": {"store": "disk"}}, "runconfig.memoryx.store: 'disk': expected 'ram'"),
        ({"memoryx": {"stor": "ram"}}, "memoryx.stor: unknown key; did you mean 'store'?"),
        ({"memoryx": {"path": "x"}}, "memoryx.path: is read only with store: file"),
        ({"op_profiler_config": {"start_step": 3, "end_step": 2}}, "end_step 2 is before"),
        ({"job_priority": "p4"}, "runconfig.job_priority: 'p4': expected 'p1', 'p2' or"),
        ({"num_wgt_servers": 25}, "num_wgt_servers: 25: expected less than or equal to 24"),
        ({"max_checkpoints": 1, "keep_checkpoint_max": 2}, "is another spelling of 'max"),
        ({"num_csx": 3}, "train_input.batch_size: 8 cannot be shared by num_csx = 3 systems"),
    ],
    "train_input": [
        ({"micro_batch_size": 3}, "micro_batch_size: 3 does not divide the 8 sequences"),
        ({"micro_batch_size": "big"}, "micro_batch_size: 'big': expected a whole number"),
        ({"micro_batch_size": True}, "micro_batch_size: True: expected a whole number"),
        ({"micro_batch_size": {"explore": {"min": 4, "max": 2}}}, "min 4 is above max 2"),
        ({"data_processor": "GptHDF5Processor"}, "did you mean 'GptHDF5DataProcessor'?"),
        ({"data_processor": "no_such_module:Rows"}, "No module named 'no_such_module'; is its"),
        ({"data_processor": "json:loads"}, "is part of Python; expected a module of your own"),
        ({"data_processor": ["a"]}, "['a']: unknown data processor; known: Bert"),
        ({"data_processor": ...}, "train_input.data_processor: missing; known:"),
        ({"data_dir": []}, "data_dir: []: expected a folder or a list of folders"),
        ({"batch_size": ...}, "batch_size: missing, and there is no default"),
        (None, "config.train_input: missing section; mode 'train' needs it"),
    ],
    "optimizer": [
        ({"optimizer_type": "Adan"}, "optimizer_type: 'Adan': unknown optimizer; did you"),
        ({"optimizer_type": ...}, "optimizer.optimizer_type: missing; known: SGD, Adam"),
        ({"momentum": 0.9}, "optimizer.momentum: unknown key"),
        ({"betas": [0.9, 1.0]}, "optimizer.betas[1]: 1.0: expected less than 1"),
        ({"beta1": 0.9, "betas": [0.9, 0.9]}, "beta1: is part of 'betas'; keep one"),
        ({"learning_rate": "fast"}, "optimizer.learning_rate: 'fast': expected a number"),
        ({"learning_rate": float("nan")}, "learning_rate: nan: expected"),
        ({"learning_rate": [{"scheduler": "Step", "gamma": 2}]}, "rate[0].step_size: missing"),
        ({"max_gradient_value": 1}, "max_gradient_value: excludes 'max_gradient_norm'"),
        ({"max_gradient_norm": -1}, "max_gradient_norm: -1: expected greater than 0"),
        ({"loss_scaling_factor": "auto"}, "loss_scaling_factor: 'auto': expected a number"),
        ({"min_loss_scale": 1e-9}, "min_loss_scale: 1e-09: expected greater than or"),
        ({"adjust_learning_rate": [1]}, "expected a mapping of parameter group to factor"),
        ({"optimizer_type": "sgd", "nesterov": True}, "nesterov: needs momentum > 0"),
        ({"learning_rate": TAGGED}, "tags: 'x': no entry of optimizer.params has this tag"),
    ],
    "model": [(None, "config.model: missing section")],
    "optimiser": [({"a": 1}, "config.optimiser: unknown section; did you mean 'optimizer'?")],
    "trainer": [({"init": 1}, "stands beside `trainer`, which is the whole file")],
}


@pytest.mark.parametrize(
    ("section", "keys", "message"),
    [(section, *row) for section, rows in REFUSED.items() for row in rows],
)
def test_refuses(section, keys, message):
    assert message in problems(changed(**{section: keys}))


def test_evaluation_needs_its_data():
    raw = changed(runconfig={"mode": "eval"}, eval_input=None)
    assert "eval_input: missing section; mode 'eval'" in problems(raw)


def test_all_problems_come_in_one_error():
    raw = changed(runconfig={"max_step": 1}, optimizer={"eps": "x"}, train_input={"batch_size": 0})
    text = problems(raw)
    assert text.startswith("3 problems\n  config.runconfig.max_step: unknown key")
    assert all(f"  config.{key}: " in text for key in ("optimizer.eps", "train_input.batch_size"))


def test_eval_needs_neither_training_data_nor_an_optimizer():
    cfg = parse_config(changed(train_input=None, optimizer=None, runconfig={"mode": "EVAL"}))
    assert (cfg.runconfig.mode, cfg.optimizer) == ("eval", None)


def test_old_strategy_name_and_numbers_in_quotes():
    raw = changed(runconfig={"execution_strategy": "pipeline", "num_csx": "2"})
    run = parse_config(raw).runconfig
    assert (run.execution_strategy, run.num_csx) == ("pipelined", 2)


# ---------------------------------------------------------------- how long a run is


@pytest.mark.parametrize(
    ("keys", "global_step", "data_steps", "expected"),
    [
        ({"max_steps": 10}, 4, None, 6),
        ({"num_steps": 7}, 4, None, 7),
        ({"num_epochs": 2}, 4, 5, 10),
        ({"num_epochs": 2, "steps_per_epoch": 3}, 0, 5, 6),
        ({"num_epochs": 2, "max_steps": 8}, 0, 5, 8),
        ({"num_steps": 7, "max_steps": 10}, 6, None, 4),
        ({"num_steps": 7, "max_steps": 10}, 10, None, 0),
        ({"max_steps": 10}, 12, None, 0),
    ],
)
def test_total_steps_is_the_least_of_what_is_asked(keys, global_step, data_steps, expected):
    assert total_steps(RunSection(**keys), global_step, data_steps) == expected


def test_total_steps_refuses():
    with pytest.raises(ConfigError, match=r"runconfig.num_epochs: the data's length is unknown"):
        total_steps(RunSection(num_epochs=1), 0, None)


@pytest.mark.parametrize("command", [["run"], ["plan"], ["data", "stats"]])
def test_run_files_that_are_no_files(command, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")  # as of `--params <(…)`
    (tmp_path / "link.yaml").symlink_to("gone.yaml")
    (tmp_path / "folder.yaml").mkdir()
    for name, said in {
        "pipe": "a pipe or device, which can be read once; write its text to a file",
        "link.yaml": "a link to gone.yaml, which does not exist",
        "folder.yaml": "is a folder, not a file",
        "links.yaml": "no such file; did you mean 'link.yaml'?",
    }.items():
        assert main([*command, "-p", str(tmp_path / name)]) == 1
        assert f"{tmp_path / name}: {said}" in capsys.readouterr().err


def test_a_link_that_leads_nowhere_names_its_end(tmp_path):
    (tmp_path / "model").symlink_to(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=r"model is a link to .*gone, which does not exist"):
        require_path(tmp_path / "model")
