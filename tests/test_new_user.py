"""What a new user does in the first hour, each step the command line in a process of its own."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from helpers.runs import TINY

from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.convert.tokenizer import carry_tokenizer, find_tokenizer
from wafer.models.paths import named_leaves

FUNCTION = 'def f{0}(x):\n    """Return x plus {0}."""\n    return x + {0}\n'


@pytest.fixture
def desk(tmp_path):
    """A folder with a small run file in it, and a job store of its own."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "m.py").write_text("".join(FUNCTION.format(i) for i in range(60)))
    cfg = yaml.safe_load(pathlib.Path("models/configs/gpt_pystdlib.yaml").read_text())
    for part in ("train_input", "eval_input"):
        cfg[part] |= {"vocab_size": 300, "source_dir": str(source), "max_sequence_length": 64}
    cfg["model"] = TINY | {"vocab_size": 300, "max_position_embeddings": 64}
    cfg["sparsity"] |= {"update": {"freq": 2}}
    cfg["runconfig"] |= {"max_steps": 10**6, "checkpoint_steps": 10**5, "log_steps": 1}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(cfg))
    return tmp_path


def command(*arguments):
    # -P: the installed package with its native library, not the checkout of that name.
    return [sys.executable, "-P", "-m", "wafer", *map(str, arguments)]


def wafer(desk, *arguments, code=0):
    """Run a command to its end; everything it said."""
    env = os.environ | {"WAFER_JOBS_DB": str(desk / "jobs.db")}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.run(
        command(*arguments), cwd=desk, env=env, text=True, check=False, timeout=240, **streams
    )
    assert process.returncode == code, process.stdout
    return process.stdout


def sparsity_of(checkpoint):
    weights = dict(named_leaves(load_checkpoint(checkpoint)[0]["params"]))
    return float(np.isnan(np.asarray(weights["layers_0/ffn/up/kernel"])).mean())


@pytest.mark.slow
def test_train_watch_cancel_resume_change_finalize_convert_generate(desk):
    env = os.environ | {"WAFER_JOBS_DB": str(desk / "jobs.db")}
    run = ["run", "--params", "params.yaml", "--mode", "train", "--model_dir", "run"]
    with (desk / "out.txt").open("w") as out:
        process = subprocess.Popen(
            command(*run), cwd=desk, env=env, stdout=out, stderr=subprocess.STDOUT
        )
        metrics = desk / "run" / "train" / "metrics.jsonl"
        deadline = time.monotonic() + 240
        while not (metrics.exists() and metrics.read_text()) and time.monotonic() < deadline:
            time.sleep(0.2)
        watched = wafer(desk, "jobs", "get")
        assert "RUNNING" in watched, (desk / "out.txt").read_text()
        (name,) = re.findall(r"wsjob-\w+", watched)
        assert wafer(desk, "jobs", "cancel", name) == "Job canceled successfully\n"
        assert process.wait(300) == 128 + signal.SIGTERM
    assert "Stopped early; the same command continues" in (desk / "out.txt").read_text()
    assert re.search(rf"{name}.*CANCELLED", wafer(desk, "jobs", "get", "-a"))
    assert list((desk / "run" / "train").glob("events.*"))  # TensorBoard's
    (first,) = (desk / "run" / "checkpoints").iterdir()

    cfg = yaml.safe_load((desk / "params.yaml").read_text())
    cfg["sparsity"]["sparsity"] = 0.9
    last = int(first.name) + 12
    cfg["runconfig"] |= {"max_steps": last}
    (desk / "params.yaml").write_text(yaml.safe_dump(cfg))
    said = " ".join(wafer(desk, *run).split())
    assert f"at step {first.name}" in said
    assert "sparsity.sparsity: 0.8 then, 0.9 now" in said
    newest = desk / "run" / "checkpoints" / str(last)
    assert sparsity_of(first) == pytest.approx(0.8, abs=0.01)
    assert sparsity_of(newest) == pytest.approx(0.9, abs=0.01)

    assert "NaN became 0" in wafer(desk, "finalize", "-i", newest, "-o", "final")
    to_hf = ["--model", "gpt2", "--src-fmt", "wafer", "--tgt-fmt", "hf", "--output-dir", "hf"]
    wafer(desk, "convert", "convert", *to_hf, "final")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        p.name for p in (desk / "hf").iterdir()
    }
    words = ["--prompt", "def f", "--max_new_tokens", "8", "--temperature", "0"]
    sparse, dense = (
        wafer(desk, "generate", "--checkpoint_path", path, *words).rpartition("8 tokens in ")
        for path in ("run", "final")
    )
    assert sparse[0] == dense[0]
    assert sparse[0].startswith("def f")


@pytest.mark.slow
def test_what_goes_wrong_is_one_line_that_says_what_to_do(desk):
    for arguments, message in {
        ("run", "--params", "no.yaml", "--mode", "train"): "no.yaml",
        ("generate", "--checkpoint_path", "no", "--prompt", "x"): "neither a checkpoint",
        ("jobs", "get", "no"): "not found; `wafer jobs get -a`",
    }.items():
        said = wafer(desk, *arguments, code=1)
        assert message in said
        assert said.startswith("wafer: error: ")
        assert "Traceback" not in said
    convert = ["convert", "convert", "--model", "gpt2", "--src-fmt", "hf", "--tgt-fmt", "wafer"]
    assert "no such file or folder" in wafer(desk, *convert, "no", code=1)


def test_the_tokenizer_goes_along_with_the_weights(tmp_path):
    checkpoint, out = tmp_path / "a" / "checkpoints" / "300", tmp_path / "b" / "final"
    for folder in (checkpoint, out, tmp_path / "a" / "inside"):
        folder.mkdir(parents=True)
    assert find_tokenizer(checkpoint) is None
    carry_tokenizer(checkpoint, out)  # nothing to carry
    assert list(out.iterdir()) == []
    own = tmp_path / "a" / "tokenizer.json"
    own.write_text("{}")
    assert find_tokenizer(checkpoint) == own.resolve()
    carry_tokenizer(checkpoint, out)
    assert find_tokenizer(out) == (out / "tokenizer.json").resolve()
    carry_tokenizer(checkpoint, tmp_path / "a" / "inside")  # finds the run's own: no copy
    assert list((tmp_path / "a" / "inside").iterdir()) == []
    (out / "tokenizer.json").write_text("[]")
    carry_tokenizer(checkpoint, out)
    assert (out / "tokenizer.json").read_text() == "[]"  # never replaced
