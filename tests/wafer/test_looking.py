"""Commands that look at a run file import nothing of it; runs import the user's own modules."""

import pathlib
import shlex
import shutil
import sys

import jax
import numpy as np
import optax
import pytest
import yaml
from helpers.runs import TINY, TINY_ROWS, merged, tiny
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import wafer
from wafer import models
from wafer.cli import main
from wafer.config import parse_config
from wafer.errors import ConfigError
from wafer.models.checkpoint.writer import write_checkpoint, write_params
from wafer.models.names import MODELS, lookup
from wafer.models.paths import named_leaves
from wafer.models.registry import settings_of
from wafer.models.user.code import find

CODE = """
import os
import pathlib
from functools import partial
from subprocess import getoutput

import jax
import numpy as np
import optax
from wafer import sparsity
from wafer.models.user import model as own
from wafer.cache import make_ahead
from wafer.engines.resident import make as engine_of_wafer

pathlib.Path(__file__).with_name("ran").touch()
bound = partial(own.plain, vocab_size=16)
scale = optax.scale


def build(size: int = 16):
    init = lambda key: {"weight": jax.random.normal(key, (size, size))}
    return own.plain(init, lambda params, tokens, key: params["weight"][tokens], vocab_size=size)


def rows(batch_size, max_sequence_length):
    ids = np.ones((batch_size, max_sequence_length), np.int32)
    yield {"input_ids": ids, "attention_mask": ids, "labels": ids}


def share(shapes):
    return dict.fromkeys(shapes, 1.0)


gpt2 = build  # as one of ours is called, and as one that another module registers
other_family = build
GptHDF5DataProcessor = TfRecordsDataProcessor = rows


class Kept(sparsity.Algorithm):
    def init_mask(self, ctx):
        return ctx.weight == ctx.weight

    update_mask = init_mask


def several(**keys):
    return keys


class Rows:
    def __init__(self, **keys):
        raise AssertionError("called")


def no_engine(experiment):
    return 3


def engine(experiment):
    return engine_of_wafer(experiment)
"""
STORED_DENSE = {"algorithm": "topkast", "sparsity": 0.5, "backward_sparsity": 0.25, "stop": 5}
ROWS = {"data_processor": "mine:rows", "batch_size": 2, "max_sequence_length": 8}
# A section that names code, the name, and what else of the file it takes.
SECTIONS = {
    "model": ({"model": {"name": "mine:build"}}, "mine:build"),
    "optimizer": ({"optimizer": {"optimizer_type": "mine:scale", "step_size": 1.0}}, "mine:scale"),
    "train_input": ({"train_input": ROWS}, "mine:rows"),
    "sparsity": ({"sparsity": {"algorithm": "mine:Kept", "sparsity": 0.5}}, "mine:Kept"),
    "budget": ({"sparsity": {"sparsity": 0.5, "budget": "mine:share"}}, "mine:share"),
    "runconfig": ({"runconfig": {"execution_strategy": "mine:engine"}}, "mine:engine"),
}


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Write a run file, p.yaml, that finds the module ``mine`` by its ``python_paths``."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    pathlib.Path("code").mkdir()
    pathlib.Path("code/mine.py").write_text(CODE)

    def write(sections):
        paths = [str(tmp_path / "code")]
        raw = tiny(runconfig={"model_dir": "run", "seed": 1, "python_paths": paths})
        del raw["eval_input"]
        for name, section in sections.items():
            kept = name in ("runconfig", "optimizer")
            raw[name] = merged(raw, **{name: section})[name] if kept else section
        pathlib.Path("p.yaml").write_text(yaml.safe_dump(raw))
        return raw

    yield write
    sys.modules.pop("mine", None)


def ran():
    return pathlib.Path("code/ran").exists()


@pytest.mark.parametrize("what", SECTIONS)
def test_validation_imports_nothing_and_says_what_it_did_not_check(file, cli, what):
    sections, name = SECTIONS[what]
    raw, before = file(sections), [*sys.path]
    said = " ".join(cli("run -p p.yaml --validate_only").split())
    section = next(iter(sections))
    assert f"{section}: not checked: {name!r} is code, which is not imported (--trust_code" in said
    raw["runconfig"]["validate_only"] = True  # as the file says it
    for part, wrong in (("optimizer", {"learning_rate": "x"}), ("runconfig", {"max_stepz": 1})):
        pathlib.Path("p.yaml").write_text(yaml.safe_dump(raw | {part: raw[part] | wrong}))
        cli("run -p p.yaml", 0 if part == what == "optimizer" else 1)  # all else is checked
        assert (sys.path, ran()) == (before, False)
    pathlib.Path("p.yaml").write_text(yaml.safe_dump(raw))
    assert "parameters in" in cli("run -p p.yaml --trust_code")
    assert ran()


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({"model": {"name": "mine:build"}}, "mine:build"),
        ({"model": TINY, "sparsity": {"algorithm": "mine:Kept", "sparsity": 0.5}}, "mine:Kept"),
    ],
)
@pytest.mark.parametrize("own", [False, True])
def test_validation_says_that_it_did_not_look_at_a_teachers_code(file, cli, record, name, own):
    params = {"weight": np.eye(16, dtype=np.float32)}  # of mine:build
    record = {"step": 1, "config": record}
    if "sparsity" in record["config"]:
        params = models.build(TINY).init(jax.random.key(0))
        record["sparsity"] = {"parameters": ["layers_0/ffn/up/kernel"]}
    write_checkpoint(pathlib.Path("teacher"), {"params": params}, record)
    teacher = {"distillation": {"checkpoint_path": "teacher"}, "description": name}
    file(teacher | ({"model": {"name": "mine:build"}} if own else {}))
    sys.path.append(str(pathlib.Path("code").resolve()))
    said = " ".join(cli("run -p p.yaml --validate_only").split())
    line = f"distillation: not checked: teacher names code, {name!r}, which is not imported (--tr"
    assert line in said
    # also where the file has the name as a text
    assert "--trust_code" in cli("run -p p.yaml --compile_only", 1)
    assert not ran()
    said = cli("run -p p.yaml --validate_only --trust_code")
    assert "distillation: teacher, a " in " ".join(said.split())
    assert ran()


def test_validation_checks_a_teacher(file, cli):
    file({"distillation": {"checkpoint_path": "teacher"}})
    assert "teacher is not a checkpoint" in cli("run -p p.yaml --validate_only", 1)
    for words, code, said in (
        (TINY["vocab_size"], 0, "distillation: teacher, a gpt2, fits the model"),
        (9, 1, "the teacher has 9 tokens"),
    ):
        shutil.rmtree("teacher", ignore_errors=True)
        settings = TINY | {"vocab_size": words}
        leaves = named_leaves(models.build(settings).init(jax.random.key(0)))
        write_params("teacher", settings, [name for name, _ in leaves], leaves)
        assert said in cli("run -p p.yaml --validate_only", code)


COMMANDS = {
    "plan": "plan -p p.yaml --num_csx 1",
    "compile": "compile -p p.yaml -o out",
    "matching": "compile -p p.yaml --validate_only",
    "floor plan": "run -p p.yaml --compile_only --execution pipelined",
    "compile_only": "run -p p.yaml --compile_only",
    "sweep": "sweep s.yaml -o out --validate_only",
    "Sparse-IFT": "config ift p.yaml --sparsity 0.5",
    "conversion": "convert convert-config --model gpt2 --src-fmt wafer --tgt-fmt hf -o out p.yaml",
    "of a .mdl": "convert convert --model gpt2 --src-fmt cs-2.2 --tgt-fmt wafer --config p.yaml x",
    "finalize": "finalize -i x.mdl -o out -p p.yaml",
    "statistics": "data stats -p p.yaml",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_look_ask_for_trust(file, capsys, cli, command):
    model = {"model": {"name": "mine:build"}, "eval_input": TINY_ROWS}
    file({"train_input": ROWS} if command == "statistics" else model)
    pathlib.Path("x.mdl").touch()
    pathlib.Path("s.yaml").write_text("{base: p.yaml, seeds: [1], arms: {a: {}}}")
    sys.path.append(str(pathlib.Path("code").resolve()))
    said = cli(COMMANDS[command], 1)
    assert "is code, which is not imported: this command only looks at the file" in said
    assert "--trust_code" in said
    assert said.startswith("wafer: error: ")
    assert f"{'s' if command == 'sweep' else 'p'}.yaml: " in said.partition(" is code")[0]
    of_families = command in ("finalize", "conversion", "of a .mdl")
    assert ("a model made by a function is refused with the option, too" in said) == of_families
    assert not ran()
    code = main(shlex.split(f"{COMMANDS[command]} --trust_code"))  # there may be no kernel for it
    said = capsys.readouterr().err
    if of_families:
        assert code == 1
        assert "p.yaml: model.name: 'mine:build': mine registers no model family 'build'" in said
    assert ran()


def test_finalize_refuses_paths_before_it_asks_for_trust(file, cli):
    file({"model": {"name": "mine:build"}})
    pathlib.Path("folder").mkdir()
    for paths, message in (
        ("-i missing.mdl -o out", "missing.mdl does not exist"),
        ("-i p.yaml -o folder", "folder exists; finalize never overwrites"),
        ("-i folder -o out", "a model is named to make a checkpoint of a .mdl alone"),
        ("-i p.yaml -o out.mdl", "a model is named to make a checkpoint of a .mdl alone"),
    ):
        said = cli(f"finalize {paths} -p p.yaml", 1)
        assert message in said
        assert "--trust_code" not in said


@pytest.mark.parametrize(
    "command",
    [
        "plan -p p.yaml --num_csx 1",
        "compile -p p.yaml -o out",
        "run -p p.yaml --compile_only",
        "run -p p.yaml",
        "checkpoint init -p p.yaml -o run",
        "prune -p p.yaml -m magnitude -s 0.5 -o out",
        "config ift p.yaml --sparsity 0.5",
        "sweep s.yaml -o out",
    ],
)
def test_an_error_of_a_file_names_it(file, cli, command):
    wrong = {"lora_params": {"r": 2}} if "ift" in command else {}
    task = {"data_processor": "SyntheticDataProcessor", "task": "image", "image_size": [1, 2, 2]}
    file({"train_input": task | {"batch_size": 4}, "model": TINY | wrong})
    pathlib.Path("s.yaml").write_text("{base: p.yaml, seeds: [1], arms: {a: {}}}")
    assert f"{'s' if command.startswith('sweep') else 'p'}.yaml: " in cli(command, 1)


def test_python_asks_for_trust(file):
    raw = file({"model": {"name": "mine:build"}})
    for look, argument in ((wafer.plan, [1]), (wafer.compile, "out")):
        with pytest.raises(ConfigError, match=r"model: 'mine:build'.*trust_code=True"):
            look(raw, argument)
    assert not ran()
    assert wafer.plan(raw, [1], trust_code=True).parameters == 256
    experiment = wafer.Experiment.from_config(raw)  # a run's: nothing is asked
    assert wafer.plan(experiment, [1]).parameters == 256


def test_statistics_of_builtin_rows_need_no_model(file, cli):
    file({"model": {"name": "mine:build"}})
    assert "model: not checked: 'mine:build'" in cli("data stats -p p.yaml")
    assert not ran()


@pytest.mark.parametrize(
    ("sections", "generate", "finalize"),
    [
        ({"sparsity": {"algorithm": "mine:Kept", "sparsity": 0.5}}, True, True),
        ({"sparsity": {"sparsity": 0.5}}, False, False),
        ({"model": {"name": "mine:build"}, "sparsity": {"sparsity": 0.5}}, None, False),
        ({"model": {"name": "mine:build"}, "sparsity": STORED_DENSE}, None, True),
    ],
)
def test_what_a_run_suggests_is_trusted_where_it_must_be(
    file, cli, monkeypatch, sections, generate, finalize
):
    file(sections)
    pathlib.Path("run").mkdir()
    Tokenizer(WordLevel({"a": 0}, "a")).save("run/tokenizer.json")
    monkeypatch.setattr("sys.argv", ["program.py"])
    said = cli("run -p p.yaml -m train")
    lines = [line.strip() for line in said.splitlines()]
    for verb, trusts in (("generate", generate), ("finalize", finalize)):
        said = [line for line in lines if line.startswith(f"wafer {verb}")]
        assert [line.endswith(" --trust_code") for line in said] == [trusts] * (trusts is not None)
    sys.modules.pop("mine", None)
    command = "finalize -i run/checkpoints/1 -o final"
    cli(command, int(finalize))
    cli(f"{command} --trust_code", int(not finalize))


def test_a_run_calls_what_its_file_names(file, cli):
    raw = file({name: SECTIONS[name][0][name] for name in ("model", "optimizer", "train_input")})
    cli("run -p p.yaml -m train")
    assert ran()
    assert sys.path[-1] == raw["runconfig"]["python_paths"][0]  # nothing is found there first


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("subprocess:getoutput", "model", "subprocess is part of Python"),
        ("os:system", "optimizer", "os is part of Python"),
        ("sys:exit", "data", "sys is part of Python"),
        ("builtins:eval", "engine", "builtins is part of Python"),
        ("wafer.cache:make_ahead", "model", "wafer is part of Wafer"),
        ("optax:sgd", "optimizer", r"an installed package without an entry point 'wafer.optimi"),
        ("mine:getoutput", "model", "is subprocess's"),
        ("mine:os.system", "model", "os is the module os"),
        ("mine:np.load", "model", "np is the module numpy"),
        ("mine:np.testing.runstring", "data", "np is the module numpy"),
        ("mine:partial", "model", "is functools's"),
        ("mine:make_ahead", "model", "is wafer's"),
        ("mine:pathlib.Path", "model", "pathlib is the module pathlib"),
        ("mine:build.__globals__.get", "model", "is builtins's"),
    ],
)
def test_a_run_calls_functions_of_the_users_alone(file, name, kind, message):
    sys.path.append(str(pathlib.Path("code").resolve()))
    with pytest.raises(ValueError, match=message):
        find(name, (), kind)
    for made in ("mine:scale", "mine:bound"):  # the module gives a library's function a name
        assert callable(find(made, (), "optimizer"))


@pytest.mark.parametrize("name", ["gpt2", "other_family"])
def test_a_function_with_the_name_of_another_model_is_the_users(file, name, monkeypatch):
    monkeypatch.setitem(MODELS, "other_family", MODELS["gpt2"]._replace(modules={"another"}))
    raw = file({"model": {"name": f"mine:{name}"}})
    model = wafer.Experiment.from_config(raw).model
    assert [(*leaf.shape,) for _, leaf in named_leaves(model.init(jax.random.key(0)))] == [(16, 16)]
    assert settings_of(model.config) == {"name": f"mine:{name}"}
    for look in (lambda: lookup(f"mine:{name}"), lambda: lookup(f"nowhere:{name}")):
        with pytest.raises(
            ValueError, match=r"registers no model family|No module named 'nowhere'"
        ):
            look()
    with pytest.raises(ConfigError, match="has no attribute 'bert'"):
        wafer.Experiment.from_config(raw | {"model": {"name": "mine:bert"}})
    with pytest.raises(ConfigError, match="No module named 'nowhere'"):
        wafer.Experiment.from_config(raw | {"model": {"name": "nowhere:gpt2"}})


def test_a_family_is_the_modules_that_registers_it(file, monkeypatch):
    monkeypatch.setattr("wafer.models.names.MODELS", MODELS | {})
    text = (
        "from wafer.models.names import MODELS, ModelPreset\nfrom wafer.models.user.code import *\n"
    )
    text += "MODELS['theirs'] = MODELS['gpt2']._replace(modules=running_modules())\n"
    pathlib.Path("code/family.py").write_text(text)
    pathlib.Path("code/plugins.py").write_text("import family\n")
    raw = file({"model": TINY | {"name": "plugins:theirs"}})
    for name in ("plugins:theirs", "family:theirs"):
        raw["model"]["name"] = name
        assert wafer.Experiment.from_config(raw).model.config.hidden_size == TINY["hidden_size"]
    raw["model"]["name"] = "mine:theirs"
    with pytest.raises(ConfigError, match="has no attribute 'theirs'"):
        wafer.Experiment.from_config(raw)
    for module in ("family", "plugins"):
        del sys.modules[module]


@pytest.mark.parametrize("name", ["GptHDF5DataProcessor", "TfRecordsDataProcessor"])
def test_a_loader_with_the_name_of_another_is_the_users(file, name):
    raw = file({"train_input": ROWS | {"data_processor": f"mine:{name}"}})
    dataset = wafer.Experiment.from_config(raw).dataset("train", "run")
    assert dataset.example(0)["input_ids"].tolist() == [1] * 8


def test_an_optimizer_that_another_module_registers_is_not_meant(file, monkeypatch):
    registered = {("optimizer", "scale"): (lambda: None, frozenset({"another"}))}
    monkeypatch.setattr("wafer.models.user.code._REGISTERED", registered)
    sys.path.append(str(pathlib.Path("code").resolve()))
    assert find("mine:scale", (), "optimizer") is optax.scale
    assert find("scale", (), "optimizer") is registered["optimizer", "scale"][0]


def test_a_refused_file_leaves_the_path_as_it_was(file):
    raw, before = file({"model": {"name": "mine:nothing"}}), [*sys.path]
    with pytest.raises(ConfigError, match="has no attribute 'nothing'"):
        parse_config(raw)
    assert sys.path == before


def test_an_installed_package_declares_its_modules(tmp_path, monkeypatch):
    site = tmp_path / "site-packages"
    (site / "declared-1.0.dist-info").mkdir(parents=True)
    (site / "declared_module.py").write_text("def build(): ...")
    (site / "declared-1.0.dist-info/METADATA").write_text("Name: declared\nVersion: 1.0\n")
    (site / "declared-1.0.dist-info/top_level.txt").write_text("declared_module\n")
    points = site / "declared-1.0.dist-info/entry_points.txt"
    points.write_text(
        "[wafer.data]\nx = declared_module\ny = yaml\nz = numpy:save\n"
        "[wafer.engines]\nx = declared_module:build\n"
    )
    monkeypatch.syspath_prepend(site)
    with pytest.raises(ValueError, match=r"without an entry point 'wafer\.models'"):
        find("declared_module:build", (), "model")
    assert "declared_module" not in sys.modules
    for foreign in ("yaml:unsafe_load", "numpy:save", "yaml.loader:Loader"):  # not of its own
        with pytest.raises(ValueError, match=r"without an entry point 'wafer\.data'"):
            find(foreign, (), "data")
    with pytest.raises(ValueError, match=r"without an entry point 'wafer\.engines'"):
        find("declared_module:other", (), "engine")
    for kind in ("data", "engine"):
        assert find("declared_module:build", (), kind).__name__ == "build"
    sys.modules.pop("declared_module")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("share", r"'share' fails: TypeError: .*unexpected keyword argument 'sparsity'"),
        ("several", r"gave dict; expected a sparsity\.Algorithm"),
        ("Rows", r"expected a subclass of sparsity\.Algorithm"),
    ],
)
def test_what_names_an_algorithm_is_checked(file, name, message):
    raw = file({"sparsity": {"algorithm": f"mine:{name}", "sparsity": 0.5}})
    with pytest.raises(ConfigError, match=rf"sparsity\.algorithm: .*{message}"):
        parse_config(raw)


def test_what_an_engine_gives_is_checked(file):
    raw = file({"runconfig": {"execution_strategy": "mine:no_engine"}})
    with pytest.raises(ConfigError, match="execution_strategy: 'mine:no_engine' gave int"):
        wafer.train(raw)
