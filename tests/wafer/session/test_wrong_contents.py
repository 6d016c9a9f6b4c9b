"""Checkpoints that are whole and hold what no run wrote: refused by every command that reads."""

import json
import shutil
from zlib import crc32

import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from helpers.runs import config

from models.checkpoint.layout import ContentError, is_of_run
from models.checkpoint.pruned import check_weight, prunable
from models.checkpoint.reader import load_checkpoint
from models.checkpoint.writer import write_checkpoint, write_params
from wafer.cli import main
from wafer.commands.inputs import load_decoding
from wafer.errors import CheckpointError

NORM, KERNEL = "final_norm/scale", "layers_0/ffn/up/kernel"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A dense run of two steps, its run file."""
    folder = tmp_path_factory.mktemp("contents")
    cfg = config(runconfig={"max_steps": 2, "checkpoint_steps": 2})
    (folder / "p.yaml").write_text(yaml.safe_dump(cfg))
    assert main(["run", "-p", f"{folder}/p.yaml", "-m", "train", "-o", f"{folder}/run"]) == 0
    return folder


def with_number(trained, target, number):
    """A copy of the run one of whose weights is another number."""
    tree, record = load_checkpoint(trained / "run" / "checkpoints" / "2")
    weights = tree["params"]["layers_0"]["attn"]["query"]["kernel"]
    changed = np.array(weights)
    changed[1, 2] = number
    tree["params"]["layers_0"]["attn"]["query"]["kernel"] = changed
    path = target / "run" / "checkpoints" / "2"
    path.parent.mkdir(parents=True)
    write_checkpoint(path, tree, record)
    return path


COMMANDS = {
    "finalize": "finalize -i {run}/checkpoints/2 -o {out}",
    "prune": "prune --checkpoint_path {run} --method magnitude --sparsity 0.5 -o {out}",
    "convert": "convert convert --model gpt2 --src-fmt wafer --tgt-fmt hf -o {out} "
    "{run}/checkpoints/2",
    "verify": "checkpoint verify {run}",
    "run": "run -p {params} -m train -o {run} --max_steps 3",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_weight_that_is_no_number_is_refused(trained, tmp_path, capsys, command, number):
    with_number(trained, tmp_path, float(number))
    places = {"run": tmp_path / "run", "out": tmp_path / "out", "params": trained / "p.yaml"}
    assert main(COMMANDS[command].format(**places).split()) == 1
    said = capsys.readouterr().err
    assert "layers_0/attn/query/kernel" in said
    assert f"{number} at [1, 2]" in said
    assert not [*(tmp_path / "out").rglob("*.safetensors")]


@pytest.mark.parametrize("kernels", ["auto", "dense"])
def test_weights_to_generate_with_are_numbers(trained, tmp_path, kernels):
    for number in (np.nan, -np.inf):
        path = with_number(trained, tmp_path / str(number), number)
        with pytest.raises(ContentError, match=r"layers_0/attn/query/kernel .* at \[1, 2\]"):
            load_decoding(path, kernels)


def test_what_a_run_pruned_may_be_nan():
    run = {"config": {"runconfig": {}}}
    assert prunable({}) is None
    assert prunable({"config": {"model": {}}}) is None
    assert prunable(run) == set()
    assert prunable(run | {"sparsity": {"parameters": [KERNEL]}}) == {KERNEL}
    assert not is_of_run({"config": None})
    for kind in (np.float32, np.float16, jnp.bfloat16):
        nan, inf = np.array([[1, np.nan]], kind), np.array([[1, -np.inf]], kind)
        for pruned in (None, {KERNEL}):
            assert check_weight("f", KERNEL, nan, pruned) is nan
        for value, pruned in ((nan, ()), (nan, {NORM}), (inf, None), (inf, {KERNEL})):
            with pytest.raises(ContentError, match=rf"f: weights {KERNEL} .* at \[0, 1\]"):
                check_weight("f", KERNEL, value, pruned)
    counts = np.array([2**31 - 1])
    assert check_weight("f", KERNEL, counts, ()) is counts


def test_no_checkpoint_of_weights_with_an_infinity_is_written(tmp_path):
    with pytest.raises(CheckpointError, match="weights a are no numbers"):
        write_params(tmp_path / "c", {"name": "x"}, ["a"], [("a", np.array([np.inf]))])
    assert not (tmp_path / "c" / "meta").exists()


def edited(trained, target, **changes):
    """A copy of the run whose record has other entries and a checksum that fits them."""
    shutil.copytree(trained / "run", target)
    path = target / "checkpoints" / "2" / "meta" / "metadata"
    record = json.loads(path.read_text()) | changes
    del record["record_checksum"]
    sealed = f"{crc32(json.dumps(record, sort_keys=True).encode()):08x}"
    path.write_text(json.dumps(record | {"record_checksum": sealed}))


def test_without_a_place_in_the_data_a_run_does_not_begin_them_anew(trained, tmp_path, capsys):
    edited(trained, tmp_path / "run", data=None)
    command = ["run", "-p", f"{trained}/p.yaml", "-o", f"{tmp_path}/run", "-m"]
    assert main([*command, "train", "--max_steps", "3"]) == 1
    said = capsys.readouterr().err
    assert "checkpoints/2: its record has no data, the position in the training data" in said
    states = said.split("--load_checkpoint_states ")[1].split()[0]
    assert main([*command, "train", "--max_steps", "3", "--load_checkpoint_states", states]) == 0


def test_the_step_of_record_folder_and_arrays_is_one(trained, tmp_path, capsys):
    command = ["run", "-p", f"{trained}/p.yaml", "-m", "train", "--max_steps", "9", "-o"]
    edited(trained, tmp_path / "a", step=7)
    assert main([*command, f"{tmp_path}/a"]) == 1
    assert "step of its record is 7, the folder's name says 2" in capsys.readouterr().err
    edited(trained, tmp_path / "b", step=7)
    (tmp_path / "b/checkpoints/2").rename(tmp_path / "b/checkpoints/7")
    assert main([*command, f"{tmp_path}/b"]) == 1
    assert "step of its record is 7, its array step says 2" in capsys.readouterr().err
    shutil.copytree(trained / "run/checkpoints/2", tmp_path / "elsewhere/start")
    start = ["--checkpoint_path", f"{tmp_path}/elsewhere/start", "--max_steps", "3"]
    assert main([*command[:5], "-o", f"{tmp_path}/c", *start]) == 0
