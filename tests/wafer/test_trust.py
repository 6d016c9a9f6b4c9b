"""Code that a checkpoint names is imported only where the user says so."""

import ast
import pathlib
import re
import shutil
import sys
import types

import h5py
import jax
import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.runs import TINY, TINY_ROWS, tiny
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import wafer
from wafer import models, sparsity
from wafer.commands.checkpoints.finalize import fold_lora
from wafer.commands.inputs import look_at
from wafer.models.checkpoint.layout import CONFIG, SPARSITY, STEP
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.checkpoint.writer import write_checkpoint
from wafer.models.names import MODELS
from wafer.models.user import model as own
from wafer.models.user.trust import NamedCode, code_in, trusting

CODE = """
import pathlib

import jax
from wafer import sparsity
from wafer.models.user import model as own

pathlib.Path(__file__).with_name("ran").touch()


class Kept(sparsity.Algorithm):
    def init_mask(self, ctx):
        return ctx.weight == ctx.weight

    update_mask = init_mask


def build(size: int = 5):
    init = lambda key: {"weight": jax.random.normal(key, (size, size))}
    return own.plain(init, lambda params, tokens, key: params["weight"][tokens], vocab_size=size)


def share(shapes):
    return dict.fromkeys(shapes, 1.0)


def read(path: str, size: int = 5):
    pathlib.Path(__file__).with_name("read").write_text(path)
    return build(size)


def other(size: int = 5, path: str = ""):
    return build(size)
"""
TOPKAST = {"algorithm": "topkast", "sparsity": 0.5, "backward_sparsity": 0.25, "stop": 5}
# What of a run's sections names code, and the name.
SECTIONS = {
    "model": ({"model": {"name": "evil:build"}}, "evil:build"),
    "name of ours": ({"model": TINY | {"name": "evil:gpt2"}}, "evil:gpt2"),
    "family": ({"model": TINY | {"name": "evil:gpt2x"}}, "evil:gpt2x"),
    "part of a model": ({"model": {"name": "llava", "text_model": {"name": "evil:x"}}}, "evil:x"),
    "Python's own": ({"model": {"name": "subprocess:getoutput", "cmd": "touch ran"}}, "getoutput"),
    "algorithm": ({"sparsity": {"algorithm": "evil:Kept", "sparsity": 0.5}}, "evil:Kept"),
    "budget": ({"sparsity": TOPKAST | {"budget": "evil:share"}}, "evil:share"),
}
COMMANDS = {
    "generate": "generate --checkpoint_path stored --prompt a",
    "convert": "convert convert --model gpt2 --src-fmt wafer --tgt-fmt hf -o out stored",
    "prune": "prune --checkpoint_path stored -m magnitude -s 0.5 -o out",
    "config new": "config new --checkpoint_path stored --data rows",
    "finalize": "finalize -i stored -o out",
}
CALLS = {
    "load": lambda: wafer.load("stored"),
    "generate": lambda: wafer.generate("stored", "a"),
    "prune": lambda: wafer.prune("out", 0.5, method="magnitude", checkpoint="stored"),
}


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Write a checkpoint whose record has other sections; the module that they name is there."""
    (tmp_path / "evil.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    tiny = models.build(TINY).init(jax.random.key(0))
    kernels = [name for name, leaf in models.named_leaves(tiny) if name.endswith("kernel")]

    def write(sections, params=tiny):
        record = {STEP: 1, CONFIG: {"model": TINY} | sections}
        if "sparsity" in sections:
            record[SPARSITY] = {"parameters": kernels}
        write_checkpoint(tmp_path / "stored", {"params": params}, record)
        Tokenizer(WordLevel({"a": 0}, "a")).save(str(tmp_path / "stored/tokenizer.json"))
        return tmp_path / "stored"

    yield write
    sys.modules.pop("evil", None)


@pytest.mark.parametrize("what", SECTIONS)
def test_a_checkpoints_code_is_not_imported(stored, cli, what):
    sections, name = SECTIONS[what]
    stored(sections)
    for command, words in COMMANDS.items():
        if command == "finalize" and "sparsity" not in sections:
            continue  # it reads no model
        said = cli(words, 1)
        assert all(part in said for part in ("stored", name, "--trust_code")), (command, said)
    for call in CALLS.values():
        with pytest.raises(ValueError, match=rf"stored.*{name}.*trust_code=True"):
            call()
    if "model" in sections:
        with pytest.raises(ValueError, match=rf"stored.*{name}"):
            fold_lora("stored", "out")
    assert not pathlib.Path("ran").exists()
    assert not pathlib.Path("out").exists()


@pytest.fixture
def program(monkeypatch):
    """Register code under names without a colon, as a program does that imports a checkpoint's."""
    monkeypatch.setattr("wafer.models.user.trust._REGISTERED", set())
    models.convert.register("gpt2x", types.SimpleNamespace(model_type="gpt2x"), None, presets={})

    def table(size: int = 5, path: str = ""):
        init = lambda key: {"weight": jax.random.normal(key, (size, size))}
        apply = lambda params, tokens, key: params["weight"][tokens]
        return own.plain(init, apply, vocab_size=size)

    @sparsity.register("kept")
    class Kept(sparsity.Algorithm):
        pass

    wafer.register_model("table", table)
    yield
    del MODELS["gpt2x"], sparsity.ALGORITHMS["kept"]
    models.convert.api._CONFIGS.pop("gpt2x")
    models.convert.api._TABLES.pop("gpt2x")


REGISTERED = {
    "table": {"model": {"name": "table", "size": 5, "path": "mine"}},
    "gpt2x": {"model": TINY | {"name": "gpt2x"}},
    "Kept": {"sparsity": {"algorithm": "Kept", "sparsity": 0.5}},
}


@pytest.mark.parametrize("name", REGISTERED)
def test_names_that_a_program_registers_are_code(stored, program, name):
    sections = REGISTERED[name]
    params = [{"weight": np.eye(5, dtype=np.float32)}] if name == "table" else []
    path = stored(sections, *params)
    untrusted = rf"stored names code, '{name}', which is not imported.*trust_code=True"
    for call in CALLS.values():
        with pytest.raises(ValueError, match=untrusted):
            call()
    if name == "Kept":
        with pytest.raises(ValueError, match=untrusted):
            wafer.finalize(path, "dense")
    assert wafer.load(path, trust_code=True)[2][STEP] == 1
    with trusting(code_in(sections)):  # a run file of the same command
        wafer.load(path)
    if name == "table":
        with (
            trusting(code_in({"model": {"name": "table", "path": "yours"}})),
            pytest.raises(ValueError, match=r'without these arguments .*: path = "mine"'),
        ):
            wafer.load(path)


def test_a_file_that_is_looked_at_may_name_what_its_program_registered(program):
    kept = REGISTERED["Kept"]["sparsity"] | {"param_filter": "weight"}
    file = tiny(sparsity=kept, train_input={"vocab_size": 5}) | {"model": {"name": "table"}}
    del file["eval_input"]
    assert look_at(file).model.config.vocab_size == 5


def hdf5_rows(folder, texts):
    """Write rows of token ids, and the tokenizer that they are of."""
    folder.mkdir()
    rows = np.ones((4, 3, 8), np.int32)
    with h5py.File(folder / "data-0.h5", "w") as file:
        file["data"] = rows
        file.attrs["n_examples"] = len(rows)
    Tokenizer(WordLevel(dict(zip(texts, range(16), strict=False)), texts[0])).save(
        str(folder / "tokenizer.json")
    )


@pytest.mark.parametrize(
    "sections",
    [
        {"optimizer": {"optimizer_type": "evil:build", "learning_rate": 0.1}},
        {"train_input": {"data_processor": "evil:build", "batch_size": 1}},
        {"runconfig": {"max_steps": 1, "python_paths": ["elsewhere"], "model_dir": "elsewhere"}},
        {"runconfig": {"max_steps": 1, "checkpoint_path": "theirs", "model_dir": "elsewhere"}},
    ],
)
def test_prune_takes_nothing_of_the_run_that_a_checkpoint_remembers(
    stored, cli, monkeypatch, sections
):
    theirs = {"data_processor": "GptHDF5DataProcessor", "data_dir": "theirs", "batch_size": 1}
    rest = {"train_input": theirs, "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.1}}
    path = stored(rest | {"runconfig": {"max_steps": 1, "model_dir": "elsewhere"}} | sections)
    (path / "tokenizer.json").unlink()
    hdf5_rows(pathlib.Path("theirs"), "ab")
    hdf5_rows(pathlib.Path("mine"), "cd")
    monkeypatch.setattr("sys.path", [*sys.path])
    before = {*pathlib.Path().iterdir()}
    command = f"{COMMANDS['prune']} -m wanda --samples 2"
    for trust in ("", "--trust_code"):
        said = cli(f"{command} {trust}", 1)
        assert "calibration: missing: a checkpoint does not decide which files are read" in said
    cli(f"{command} --calibration mine")
    assert not any("elsewhere" in folder for folder in sys.path)
    assert {*pathlib.Path().iterdir()} - before == {pathlib.Path("out")}


@pytest.mark.parametrize("command", ["generate", "convert", "config new", "finalize"])
def test_no_command_writes_where_a_checkpoints_run_did(stored, cli, command):
    theirs = {"data_processor": "GptHDF5DataProcessor", "data_dir": "theirs", "batch_size": 1}
    run = {"max_steps": 1, "checkpoint_path": "theirs", "model_dir": "elsewhere"}
    stored({"train_input": theirs, "runconfig": run})
    hdf5_rows(pathlib.Path("theirs"), "ab")
    hdf5_rows(pathlib.Path("rows"), "cd")
    before = {*pathlib.Path().iterdir()}
    cli(COMMANDS[command])
    assert {*pathlib.Path().iterdir()} - before <= {pathlib.Path("out")}


def test_trusted_code_is_called(stored, cli):
    path = stored({"model": {"name": "evil:build"}}, {"weight": np.eye(5, dtype=np.float32)})
    model, params, _ = wafer.load(path, trust_code=True)
    assert pathlib.Path("ran").exists()
    assert model.config.vocab_size == 5
    np.testing.assert_array_equal(params["weight"], np.eye(5))
    with pytest.raises(ValueError, match="trust_code"):  # trusted in that call alone
        wafer.load(path)
    assert "writes no text" in cli(f"{COMMANDS['generate']} --trust_code", 1)


@pytest.mark.parametrize("draft", [False, True])
def test_generate_refuses_a_model_without_text_first(stored, cli, monkeypatch, draft):
    kept = {"algorithm": "evil:Kept", "sparsity": 0.5}
    bert = {"name": "bert", **{k: v for k, v in TINY.items() if k != "name"}}
    words = COMMANDS["generate"]
    if draft:
        stored({"model": TINY}).rename("main")
        words = words.replace("stored", "main --draft stored --temperature 0")
    path = stored({"model": bert, "sparsity": kept})
    (path / "tokenizer.json").unlink()
    # no weights are read
    monkeypatch.setattr("wafer.models.checkpoint.reader.StoredTree.__init__", None)
    said = cli(words, 1)
    assert "stored: this model writes no text (bert); expected a decoder" in said
    assert "--trust_code" not in said
    stored({"model": {"name": "evil:build"}, "sparsity": kept})
    assert "a model made by a function is refused with the option, too\n" in cli(words, 1)
    assert not pathlib.Path("ran").exists()
    said = cli(f"{words} --trust_code", 1)
    assert "stored: this model writes no text (evil:build)" in said


def test_a_trusted_algorithm_is_imported(stored, cli):
    stored({"sparsity": {"algorithm": "evil:Kept", "sparsity": 0.5}})
    cli(f"{COMMANDS['finalize']} --trust_code")
    assert pathlib.Path("ran").exists()


def test_a_run_file_of_the_same_command_names_the_same(stored):
    stored({"model": {"name": "evil:build"}}, {"weight": np.eye(5, dtype=np.float32)})
    model = {"name": "evil:build", "size": TINY["vocab_size"]}
    file = {"model": model, "runconfig": {"mode": "eval"}, "eval_input": TINY_ROWS}
    section = {"sparsity": 0.4, "param_filter": "weight"}
    arguments = {"method": "magnitude", "checkpoint": "stored"}
    wafer.prune("out", section, source=file, **arguments)
    pruned = load_checkpoint("out")[0]["params"]["weight"]
    assert np.isnan(pruned).sum() == 10  # of 25
    file["model"] = model | {"name": "evil:other"}
    with pytest.raises(ValueError, match="'evil:build', which is not imported"):
        wafer.prune("other", section, source=file, **arguments)


# Run files that name `evil:read`, and whether one vouches for a checkpoint's model of that name.
VOUCHING = {
    "the same": ({"model": {"name": "evil:read", "path": "mine", "size": 5}}, True),
    "another number": ({"model": {"name": "evil:read", "path": "mine", "size": 4}}, True),
    "another path": ({"model": {"name": "evil:read", "path": "yours"}}, False),
    "no path": ({"model": {"name": "evil:read"}}, False),
    "a text": ({"model": TINY, "description": "evil:read"}, False),
    "data": ({"model": TINY, "eval_input": {**TINY_ROWS, "data_processor": "evil:read"}}, False),
    "an optimizer": (
        {"model": TINY, "optimizer": {"optimizer_type": "evil:read", "learning_rate": 0.1}},
        False,
    ),
    "another key": ({"model": {"name": "evil:other", "path": "evil:read"}}, False),
}


@pytest.mark.parametrize("what", VOUCHING)
def test_a_run_file_vouches_for_a_section_of_the_same_kind_and_arguments(stored, what):
    sections, vouches = VOUCHING[what]
    weight = {"weight": np.eye(5, dtype=np.float32)}
    path = stored({"model": {"name": "evil:read", "path": "mine", "size": 5}}, weight)
    with trusting(code_in(sections)):
        if vouches:
            assert wafer.load(path)[0].config.vocab_size == 5
            return
        with pytest.raises(ValueError, match=r"stored names code, 'evil:read', which is not") as e:
            wafer.load(path)
    assert ('path = "mine"' in str(e.value)) == (what in ("another path", "no path"))
    assert not pathlib.Path("ran").exists()
    assert not pathlib.Path("read").exists()


def test_what_prune_suggests_is_trusted_where_it_must_be(stored, cli, monkeypatch):
    monkeypatch.setattr("sys.argv", ["program.py"])
    weight = {"weight": np.arange(25, dtype=np.float32).reshape(5, 5)}
    for section, params in (({"name": "evil:build"}, weight), (TINY, None)):
        stored({"model": section}, *([params] if params else []))
        shutil.rmtree("out", ignore_errors=True)
        said = cli(f"{COMMANDS['prune']} --trust_code")
        lines = [line.strip().removeprefix("wafer ") for line in said.splitlines()]
        (new,) = [line for line in lines if line.startswith("config new")]
        assert new.endswith(" --trust_code") == (section is not TINY)
        assert "--trust_code" not in cli(new.replace("ROWS", "rows"), 1)  # there are no rows
        (final,) = [line for line in lines if line.startswith("finalize")]
        cli(final)
        shutil.rmtree("out-finalized")


def test_a_hugging_face_folder_of_a_family_of_the_users(cli, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "own-family"}')
    for trust in ("", "--trust_code"):
        said = cli(f"generate --checkpoint_path {tmp_path} --prompt a {trust}", 1)
        assert f"{tmp_path}: config.json: model_type 'own-family' cannot be converted" in said
        assert "wafer convert convert --model MODULE:NAME --src-fmt hf --tgt-fmt wafer" in said


def test_code_is_found_where_sections_name_it():
    inner = {"name": "a:b", "n": 1, "paths": ["x:y"]}
    groups = [
        {"algorithm": "e:f", "budget": "c:d"},
        {"algorithm": "rigl", "filter": "k:l", "update": {"freq": 100}, "drop_fraction": [0.3]},
    ]
    found = code_in({"model": {"name": "llava", "text_model": inner}, "sparsity": groups})
    arguments = frozenset({("paths", '["x:y"]')})
    none = frozenset()
    assert found == {
        NamedCode("model", "a:b", arguments),
        NamedCode("sparsity", "e:f", none),
        NamedCode("sparsity", "c:d", none),
    }


# Files that import by a computed name, or start a program: `import_code` what files of users name,
# the others what is ours or of a table of ours. Each name that a file gives goes through it.
RUNNERS = {
    "models/user/code.py",
    *(f"{room}/__init__.py" for room in ("vsl", "models", "wafer", "wafer/engines")),
    "models/registry.py",
    "models/errors.py",  # a package of an extra
    "models/guarded.py",
    "vsl/native/backend.py",  # the compiler, at install
    "wafer/cache.py",
    "wafer/cli.py",
    "wafer/csl/host/tools/scripts.py",  # `wafer csl run` and `trace`
    "wafer/csl/host/tools/shifts.py",  # an element of the host script that runs
    "wafer/data/batching/dataset.py",  # a reader, which the class of a section names
    "wafer/engines/choose.py",
    "wafer/malloc.py",  # this command again
    "wafer/commands/sweep.py",  # yaml.safe_load of an option
    "wafer/sweeps/trials.py",  # `wafer run`
    *(f"wafer/vendor/{table}.py" for table in ("keys", "trainer")),  # a table beside each
}
_RUNS = re.compile(
    r"(importlib\.)?(import_module|util\.spec_from_file_location)|__import__|exec|eval|"
    r"(pkgutil\.)?resolve_name|(c?[pP]ickle|torch|dill|joblib|marshal)\.\w*(loads?|Unpickler)|"
    r"runpy\.\w+|subprocess\.\w+|os\.(system|popen|exec\w+|spawn\w+|posix_spawn)|yaml\.\w*load(_all)?"
)


def test_nothing_else_runs_what_a_file_names():
    found = set()
    for room in ("vsl", "models", "sparsity", "wafer"):
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            calls = {
                ast.unparse(node.func)
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Call)
            }
            assert "allow_pickle=True" not in text, path
            if any(map(_RUNS.fullmatch, calls)):
                found.add(str(path.relative_to(ROOT)))
    assert found == RUNNERS, found ^ RUNNERS
