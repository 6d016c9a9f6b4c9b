"""Links in a folder of weights lead to no file outside it; Hugging Face's cache is read."""

import json
import os
import pathlib
import shutil

import jax
import numpy as np
import pytest
import yaml
from helpers.runs import TINY, tiny
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import wafer
from wafer import models
from wafer.models.checkpoint.verify import verify
from wafer.models.checkpoint.writer import write_params
from wafer.models.convert.files import open_tensors
from wafer.models.convert.tokenizer import find_tokenizer

HF = "convert convert --model gpt2 --src-fmt hf --tgt-fmt wafer -o out stored"
OURS = {
    "generate": "generate --checkpoint_path stored --prompt a",
    "convert": "convert convert --model gpt2 --src-fmt wafer --tgt-fmt hf -o out stored",
    "prune": "prune --checkpoint_path stored -m magnitude -s 0.5 -o out",
    "config new": "config new --checkpoint_path stored --data rows",
    "finalize": "finalize -i stored -o out",
    "verify": "checkpoint verify stored",
    "copy": "checkpoint copy stored out",
    "diff": "convert diff stored stored",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def params():
    return models.build(TINY).init(jax.random.key(0))


def write(kind, folder="stored"):
    """Write the weights in a form, with a tokenizer."""
    leaves = [(name, np.asarray(leaf)) for name, leaf in models.named_leaves(params())]
    if kind == "wafer":
        write_params(folder, TINY, [name for name, _ in leaves], leaves)
    else:
        models.to_hf(models.build(TINY), params(), folder, max_shard_bytes=3000)
    Tokenizer(WordLevel({"a": 0}, "a")).save(f"{folder}/tokenizer.json")
    pathlib.Path(folder, "merges.txt").write_text("a b\n")


def link_out(path):
    """Move a file or folder elsewhere and leave a link."""
    path, secret = pathlib.Path("stored", path), pathlib.Path("secret")
    if path.exists():
        path.rename(secret)
    else:
        secret.write_text("mine")
    path.symlink_to(os.path.relpath(secret, path.parent))


def assert_equal(found):
    for (name, one), (_, two) in zip(
        models.named_leaves(found), models.named_leaves(params()), strict=True
    ):
        np.testing.assert_array_equal(one, two, err_msg=name)


TEXT = ("tokenizer.json", "merges.txt", "tokenizer.model", "generation_config.json")
WEIGHTS = ("config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors")


@pytest.mark.parametrize("name", TEXT + WEIGHTS)
def test_a_hugging_face_folder_has_no_links_out_of_it(name, cli, folder):
    write("hf")
    assert len(list(pathlib.Path("stored").glob("*.safetensors"))) == 2
    link_out(name)
    said = cli(HF, 1)
    assert f"stored/{name}: a link to {folder}/secret, outside " in said
    assert "expected a file of the folder itself" in said
    assert not pathlib.Path("out").exists()


@pytest.mark.parametrize("command", OURS)
@pytest.mark.parametrize("name", ["meta/metadata", "state", "state/_METADATA", "state/d", "notes"])
def test_a_checkpoint_has_no_links_out_of_it(command, name, cli):
    write("wafer")
    link_out(name)
    assert f"stored/{name}: a link to" in cli(OURS[command], 1)
    assert not pathlib.Path("out").exists()


def test_a_tokenizer_above_a_checkpoint_is_no_link_either(cli):
    pathlib.Path("stored").mkdir()
    write("wafer", "stored/checkpoints/1")
    for name in ("tokenizer.json", "merges.txt"):
        pathlib.Path("stored/checkpoints/1", name).unlink()
    pathlib.Path("stored/generation_config.json").write_text("{}")
    link_out("vocab.txt")
    for command in ("convert", "finalize", "prune"):
        said = cli(OURS[command].replace(" stored", " stored/checkpoints/1"), 1)
        assert "stored/vocab.txt: a link to" in said
        assert not pathlib.Path("out").exists()


def cached(kind):
    """Lay a folder out as Hugging Face's cache does: files are links to ``blobs``."""
    write(kind, "plain")
    snapshot, blobs = pathlib.Path("hub/models--a--b/snapshots/4f2e"), "hub/models--a--b/blobs"
    pathlib.Path(blobs).mkdir(parents=True)
    for number, path in enumerate(sorted(pathlib.Path("plain").rglob("*"))):
        place = snapshot / path.relative_to("plain")
        if path.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, f"{blobs}/{number:064x}")
            place.symlink_to(os.path.relpath(f"{blobs}/{number:064x}", place.parent))
    return snapshot


@pytest.mark.parametrize("kind", ["hf", "wafer"])
def test_the_cache_of_hugging_face_is_read(kind, cli):
    snapshot = cached(kind)
    _, found, record = wafer.load(snapshot)
    assert_equal(found)
    assert record["tokenizer"].get_vocab_size() == 1
    target = "wafer" if kind == "hf" else "hf"
    cli(f"convert convert --model gpt2 --src-fmt {kind} --tgt-fmt {target} -o out {snapshot}")
    assert_equal(wafer.load("out")[1])
    for name in ("tokenizer.json", "merges.txt"):
        copied = pathlib.Path("out", name)
        assert not copied.is_symlink()
        assert copied.read_bytes() == pathlib.Path("plain", name).read_bytes()
    if kind == "wafer":
        assert verify(snapshot).checked
    else:
        index = snapshot / "model.safetensors.index.json"
        assert set(open_tensors(index))
        assert find_tokenizer(index) == snapshot.resolve() / "tokenizer.json"


def test_links_of_the_cache_lead_to_its_own_blobs_alone():
    snapshot = cached("hf")
    blobs = pathlib.Path("hub/models--a--b/blobs")
    blobs.rename("elsewhere")
    blobs.symlink_to(pathlib.Path("elsewhere").resolve())
    with pytest.raises(ValueError, match="a link to"):
        wafer.load(snapshot)
    blobs.unlink()
    pathlib.Path("hub/models--c--d").mkdir()
    pathlib.Path("elsewhere").rename("hub/models--c--d/blobs")
    for path in snapshot.iterdir():
        target = os.readlink(path).replace("../../", "../../../models--c--d/")
        path.unlink()
        path.symlink_to(target)
    with pytest.raises(ValueError, match="a link to"):
        wafer.load(snapshot)


def test_a_users_path_may_be_a_link(cli):
    write("wafer", "elsewhere")
    pathlib.Path("elsewhere/same").symlink_to("tokenizer.json")  # within the folder
    pathlib.Path("stored").symlink_to("elsewhere")
    assert_equal(wafer.load("stored")[1])
    write("hf", "theirs")
    pathlib.Path("index.json").symlink_to("theirs/config.json")
    cli(HF.replace("stored", "theirs --config index.json"))


def test_a_manifest_is_not_written_through_a_link(cli):
    write("hf")
    link_out("manifest.json")
    before = pathlib.Path("secret").read_text()
    for verb in ("manifest", "verify"):
        assert "stored/manifest.json: a link to" in cli(f"checkpoint {verb} stored", 1)
    assert pathlib.Path("secret").read_text() == before


def test_towers_are_folders_of_their_folder():
    pathlib.Path("stored").mkdir()
    write("hf", "secret")
    pathlib.Path("stored/question_encoder").symlink_to("../secret")
    with pytest.raises(ValueError, match="stored/question_encoder: a link to"):
        models.from_hf("stored")


def test_an_index_names_files_of_its_folder():
    write("hf")
    path = pathlib.Path("stored/model.safetensors.index.json")
    index = json.loads(path.read_text())
    index["weight_map"] |= {"transformer.wte.weight": "../other.safetensors"}
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match="no file of its own folder"):
        wafer.load("stored")


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors.index.json", "pytorch_model.bin"]
)
def test_a_pipe_in_a_folder_of_weights_is_refused_and_not_waited_for(name):
    write("hf")
    if name.endswith(".bin"):
        for path in pathlib.Path("stored").glob("*.safetensors*"):
            path.unlink()
    pathlib.Path("stored", name).unlink(missing_ok=True)
    os.mkfifo(f"stored/{name}")
    with pytest.raises(ValueError, match=rf"stored/{name}: this is no regular file; expected"):
        models.from_hf("stored")


def write_run(**keys):
    run = {"checkpoint_steps": 1, "model_dir": "stored", "eval_steps": 1}
    pathlib.Path("p.yaml").write_text(yaml.safe_dump(tiny(runconfig=run | keys)))


@pytest.mark.parametrize(
    "name", [".lock", "tokenizer.json", "train/metrics.jsonl", "train/performance.json", "missing"]
)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_run_writes_through_no_link_of_its_folder(name, mode, cli):
    write_run(mode=mode)
    pathlib.Path("stored/train").mkdir(parents=True)
    pathlib.Path("disk").mkdir()
    pathlib.Path("stored/checkpoints").symlink_to("../disk")  # a folder may be elsewhere
    link_out(name)
    if name == "missing":
        pathlib.Path("secret").unlink()
    assert f"stored/{name}: a link to" in cli("run -p p.yaml", 1)
    assert name == "missing" or pathlib.Path("secret").read_text() == "mine"
    pathlib.Path("stored", name).unlink()
    if (name, mode) == (".lock", "train"):
        cli("run -p p.yaml")
        assert pathlib.Path("disk/1").is_dir()


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("name", ["meta/metadata", "meta", "state", "state/_METADATA"])
def test_a_run_does_not_go_on_without_a_checkpoint_that_has_links(name, gone, cli):
    write_run(max_steps=2)
    cli("run -p p.yaml -m train")
    link_out(f"checkpoints/2/{name}")
    if gone:
        pathlib.Path("secret").rename("moved")
    for line in (
        "run -p p.yaml -m train --max_steps 3",
        "run -p p.yaml -m eval --max_steps 3",
        "generate --checkpoint_path stored --prompt a",
    ):
        assert f"stored/checkpoints/2/{name}: a link to" in cli(line, 1)
    assert sorted(p.name for p in pathlib.Path("stored/checkpoints").iterdir()) == ["1", "2"]
