"""docs/concepts/trust.md: what a file holds is not run by reading it; each row has its test."""

import contextlib
import hashlib
import importlib
import json
import os
import pathlib
import pickle
import re
import shlex
import sys
import zipfile

import h5py
import jax
import numpy as np
import pytest
import safetensors.numpy
import yaml
from helpers.paths import ROOT
from helpers.runs import TINY, tiny
from helpers.vendor_data import hook
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import wafer
from wafer import models
from wafer.cli import main
from wafer.csl.host.artifacts import load as load_program
from wafer.data.preprocess.rows.chat import render_chat
from wafer.data.readers.llava import LlavaSource, load_image
from wafer.data.readers.row_pairs import REFERENCE, _reference
from wafer.data.rowfiles.files import Hdf5Source
from wafer.data.text.textfiles import read_rows
from wafer.errors import CheckpointError, ConfigError, DataError
from wafer.models.checkpoint.writer import write_params
from wafer.models.convert.files import open_tensors
from wafer.vendor.mdl.file import MdlFile
from wafer.yamlfile import read_yaml

RUNS = f"touch {shlex.quote('ran')}"
CODE = "import pathlib\n\npathlib.Path('ran').touch()\n"


class Pickled:
    """Runs a command where it is unpickled."""

    def __reduce__(self):
        return os.system, (RUNS,)


@pytest.fixture(autouse=True)
def nothing_runs(tmp_path, monkeypatch):
    """Work in a folder of its own, in which nothing may have run at the end."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    yield
    assert not pathlib.Path("ran").exists()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("-1_0e2", -1000.0),
        ("1.e2", 100.0),
        ("+1_.5_0e+1", 15.0),
        (".5e1", 5.0),
        ("1_e2", 100.0),
        ("._5e1", "._5e1"),
        ("1.2.3e4", "1.2.3e4"),
        ("1" * 200_000 + "x", "1" * 200_000 + "x"),  # quadratic time would not end
        ("1_" * 100_000 + "x", "1_" * 100_000 + "x"),
        ("0x" + "f" * 998, 16**998 - 1),
        ("=", "="),
    ],
)
def test_scalars(text, value):
    pathlib.Path("p.yaml").write_text(f"a: {text}\n<<: {{a: 1, b: 2}}\nc: {{1: a, '1': b}}\n")
    assert read_yaml("p.yaml")[0] == {"a": value, "b": 2, "c": {1: "a", "1": "b"}}


def test_yaml_tags_make_no_objects():
    for tag in ("object/apply:os.system ['touch ran']", "name:os.system", "module:os"):
        pathlib.Path("p.yaml").write_text(f"model: !!python/{tag}\n")
        with pytest.raises(
            ConfigError,
            match=r"p\.yaml: line 1.*no.* constructor for the tag|p\.yaml: line 1.*python/",
        ):
            read_yaml("p.yaml")


def test_a_section_names_no_reader_of_its_own():
    for key in ("reader", "ahead"):
        with pytest.raises(ConfigError, match=f"train_input.{key}: unknown key"):
            wafer.Experiment.from_config(tiny(train_input={key: "os:system"}))


def test_a_read_hook_is_a_function_of_the_users():
    pathlib.Path("hooks_of_mine.py").write_text(
        "from os import system\n\ndef hook(example, key):\n    return [example[key]]\n"
    )
    assert hook("hooks_of_mine:hook", {"key": "a"})({"a": 3}) == [3]
    before = [*sys.path]
    for name in ("os:system", "os.system", "hooks_of_mine:system", "shutil:rmtree"):
        with pytest.raises(DataError, match=f"read_hook: {name} cannot be imported"):
            hook(name, {})
    assert sys.path == before
    sys.modules.pop("hooks_of_mine")


def test_the_working_directory_is_searched_for_the_users_hook_alone(monkeypatch, tmp_path):
    pathlib.Path("code").mkdir()
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    monkeypatch.chdir("code")
    before = [*sys.path]
    for name in ("os:system", "nowhere:hook", "cerebras.x.hooks:text_read_hook"):
        with contextlib.suppress(DataError, ConfigError):
            hook(name, {})
        assert sys.path == before
    keys = {"text_key": "a"}
    assert hook("hooks:text_read_hook", keys)({"a": "b"}) == [{"content": [{"text": "b"}]}]
    pathlib.Path("hooks.py").write_text("def text_read_hook(example, text_key):\n    return [3]\n")
    importlib.invalidate_caches()
    assert hook("hooks:text_read_hook", keys)({"a": "b"}) == [3]  # the user's own
    assert hook("text_read_hook", keys)({"a": "b"}) == [{"content": [{"text": "b"}]}]
    assert sys.path == [*before, str(tmp_path / "code")]
    sys.modules.pop("hooks")


def test_a_teacher_names_no_code():
    pathlib.Path("evil_teacher.py").write_text(CODE)
    write_params("teacher", {"name": "evil_teacher:build"}, ["w"], [("w", np.zeros(2, np.float32))])
    raw = tiny(distillation={"checkpoint_path": "teacher"}, runconfig={"model_dir": "r"})
    with pytest.raises(ValueError, match=r"teacher names code, 'evil_teacher:build'.*--trust_code"):
        wafer.train(raw)


def test_a_hugging_face_folder_runs_no_code():
    model = models.build(TINY)
    models.to_hf(model, model.init(jax.random.key(0)), "hf")
    pathlib.Path("hf/modeling_evil.py").write_text(CODE)
    own = {"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}}
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        path = pathlib.Path("hf", name)
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(before | own))
    Tokenizer(WordLevel({"a": 0}, "a")).save("hf/tokenizer.json")
    tensors = safetensors.numpy.load_file("hf/model.safetensors")
    said = {"format": "pt", "__reduce__": "os.system"}
    safetensors.numpy.save_file(tensors, "hf/model.safetensors", said)
    assert wafer.load("hf")[0].config.hidden_size == TINY["hidden_size"]


def test_a_pickle_of_torch_is_read_without_running_it():
    with zipfile.ZipFile("pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"w": Pickled()}))
    with pytest.raises(ValueError, match=r"refused to load posix\.system"):
        open_tensors(pathlib.Path("pytorch_model.bin"))


def test_pickles_of_a_vendors_checkpoint_are_never_opened():
    with h5py.File("c.mdl", "w") as file:
        file.attrs["__version__"] = 0.4
        file.attrs["__spec__"] = pickle.dumps(Pickled(), 0).decode("latin-1")
        file["object"] = np.frombuffer(pickle.dumps(Pickled()), np.uint8)
        file["object"].attrs["__H5_TYPE__"] = "ObjectH5Type"
        file["object"].attrs["object_value"] = pickle.dumps(Pickled()).hex()
    with (
        MdlFile(pathlib.Path("c.mdl")) as stored,
        pytest.raises(CheckpointError, match="object is a pickled object, which is not opened"),
    ):
        stored.scalar("object")


def links(file, name):
    """Give a name in each of the ways in which its values lie elsewhere."""
    layout = h5py.VirtualLayout((2, 4, 4), "int32")
    layout[:] = h5py.VirtualSource("other.h5", "data", (2, 4, 4))
    return {
        "external link": lambda: file.__setitem__(name, h5py.ExternalLink("other.h5", "data")),
        "soft link": lambda: file.__setitem__(name, h5py.SoftLink("/elsewhere")),
        "external storage": lambda: file.create_dataset(
            name, (2, 4, 4), "int32", external=[("other.raw", 0, 128)]
        ),
        "virtual": lambda: file.create_virtual_dataset(name, layout),
    }


@pytest.mark.parametrize("way", ["external link", "soft link", "external storage", "virtual"])
@pytest.mark.parametrize("reader", ["rows", "llava", "mdl"])
def test_hdf5_reads_no_other_file(way, reader):
    pathlib.Path("other.raw").write_bytes(bytes(128))
    with h5py.File("other.h5", "w") as file:
        file["data"] = np.zeros((2, 4, 4), np.int32)
    with h5py.File("rows.h5", "w") as file:
        file["elsewhere"] = np.zeros((2, 4, 4), np.int32)
        links(file, "data")[way]()
        if "link" not in way:
            file.attrs["__version__"] = 0.4
            file["data"].attrs["__H5_TYPE__"] = "TorchTensorH5Type"
        file["img_path"] = np.asarray([[b"None"]] * 2)
    path = pathlib.Path("rows.h5")
    readers = {
        "rows": lambda: Hdf5Source(["."], 8),
        "llava": lambda: LlavaSource([path], pathlib.Path(), (3, 4, 4)),
        "mdl": lambda: [stored[name] for stored in [MdlFile(path)] for name in stored],
    }
    with pytest.raises(ValueError, match=r"link to elsewhere|in other files"):
        readers[reader]()


def test_a_chat_template_stays_in_its_sandbox():
    pytest.importorskip("jinja2")
    reach = "__init__.__globals__['__builtins__']['__import__']('os').system('touch ran')"
    for template in (
        f"{{{{ raise_exception.{reach.removeprefix('__init__.')} }}}}",
        f"{{{{ cycler.{reach} }}}}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ (messages | attr('append'))('x') }}",
    ):
        with pytest.raises(DataError, match="chat_template: "):
            render_chat(template, [{"role": "user", "content": "a"}], {})
    assert render_chat("{{ '{0.__class__}'.format(messages) }}", [], {}) == ""


def test_texts_hold_literals_and_arrays_no_pickles():
    pathlib.Path("a.csv").write_text("words\n\"[__import__('os').system('touch ran')]\"\n")
    (row,) = read_rows(pathlib.Path("a.csv"))
    assert row.words("words")[0].startswith("[__import__")  # words, as written
    np.save(REFERENCE, np.asarray([Pickled()], object), allow_pickle=True)
    with pytest.raises(DataError, match="allow_pickle=False"):
        _reference(".", 1)


def test_arrow_files_make_no_python_objects():
    pa = pytest.importorskip("pyarrow")
    from wafer.data.text.tables import arrow_tables

    said = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Pickled()),
    }
    schema = pa.schema([pa.field("text", pa.string(), metadata=said)])
    with pa.OSFile("a.arrow", "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        writer.write_table(pa.table([["a"]], schema))
    tables = arrow_tables(pathlib.Path("a.arrow"))
    assert [table.column("text").to_pylist() for table, _ in tables] == [["a"]]


def test_images_of_a_data_set_are_no_postscript(monkeypatch):
    run = lambda *given, **more: pathlib.Path("ran").touch()  # Ghostscript, which is a program
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", run)
    text = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n(ran) (w) file\n%%EOF\n"
    pathlib.Path("a.jpg").write_text(text)
    with pytest.raises(DataError, match=r"a\.jpg: not a readable image"):
        load_image(pathlib.Path("a.jpg"), (3, 4, 4))


def test_only_csl_run_and_trace_run_a_host_script():
    assert main(["csl", "example", "hello", "program"]) == 0
    script = pathlib.Path("program/run.py")
    script.write_text(CODE + script.read_text())
    assert main(["csl", "check", "program"]) == 0
    assert main(["csl", "format", "program"]) == 0


def test_a_compiled_program_is_arrays_and_json():
    pathlib.Path("out").mkdir()
    np.savez("out/wafer.npz", memory=np.asarray([Pickled()], object))
    digest = hashlib.sha256(pathlib.Path("out/wafer.npz").read_bytes()).hexdigest()
    pathlib.Path("out/wafer.json").write_text(json.dumps({"version": 6, "sha256": digest}))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load_program("out")


def test_a_look_takes_no_compiled_programs_from_the_files_folder(monkeypatch):
    raw = tiny(runconfig={"model_dir": "r", "compile_dir": "programs"})
    pathlib.Path("p.yaml").write_text(yaml.safe_dump(raw))
    folders = []
    monkeypatch.setattr("wafer.cache.keep_programs", folders.append)
    for flags in ("", "--trust_code", "--compile_dir mine"):
        assert main(shlex.split(f"run -p p.yaml --validate_only {flags}")) == 0
    assert folders == [None, "programs", "mine"]


def test_every_row_of_the_page_has_its_test():
    page = (ROOT / "docs/concepts/trust.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    table = page[page.index("| file | can it run code?") :].splitlines()
    rows = [line for line in table if line.startswith("|")][2:]
    assert len(rows) == 23
    assert all("::test_" in row for row in rows)
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), (file, test)
