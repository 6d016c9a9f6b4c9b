"""The whole idea in one file: YAML -> 5 steps -> checkpoint -> resume -> finalize -> generate.

The run is the one of ``models/configs/gpt_pystdlib.yaml``, shrunk. Read this file first.
"""

import io
import json
import pathlib
import re
import sys

import jax
import numpy as np
import pytest
import yaml
from helpers.runs import arrays

from wafer.cli import main

SOURCE = '''
def f{0}(x):
    """Return x plus {0}."""
    return x + {0}
'''


@pytest.fixture
def params(tmp_path: pathlib.Path) -> pathlib.Path:
    """A params YAML of a tiny sparse GPT on 60 tiny functions."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "m.py").write_text("".join(SOURCE.format(i) for i in range(60)))
    cfg = yaml.safe_load(pathlib.Path("models/configs/gpt_pystdlib.yaml").read_text())
    shrunk = {"vocab_size": 300, "source_dir": str(source), "max_sequence_length": 64}
    cfg["train_input"] |= shrunk | {"batch_size": 2}
    cfg["eval_input"] |= shrunk | {"batch_size": 2}
    cfg["model"] |= {"vocab_size": 300, "hidden_size": 16, "num_heads": 2, "filter_size": 32}
    cfg["model"] |= {"rotary_dim": 8, "max_position_embeddings": 64}
    cfg["model"]["num_hidden_layers"] = 1
    cfg["sparsity"]["update"] = {"freq": 2}  # the masks move at steps 2 and 4
    cfg["runconfig"] |= {"max_steps": 5, "checkpoint_steps": 3, "log_steps": 1, "eval_frequency": 5}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(cfg))
    return path


def run(params: pathlib.Path, folder: pathlib.Path, *flags: str) -> None:
    assert main(["run", "--params", str(params), "--model_dir", str(folder), *flags]) == 0


@pytest.mark.slow
def test_train_resume_finalize_generate(params, tmp_path, capsys, monkeypatch):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    run(params, whole, "--mode", "train_and_eval")
    run(params, halves, "--mode", "train", "--max_steps", "3")
    run(params, halves, "--mode", "train")  # continues at step 3, in the middle of an epoch

    # Resumed training is the uninterrupted one, bit for bit.
    want, got = (arrays(folder / "checkpoints" / "5") for folder in (whole, halves))
    assert want.keys() == got.keys()
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)

    # NaN marks exactly 80 % of every sparse kernel and of its moments: trunc(0.2 n) are kept.
    kernel = "layers_0/ffn/up/kernel"
    assert np.isfinite(want[f"params/{kernel}"]).sum() == int(np.float32(1 - np.float32(0.8)) * 512)
    pruned = np.isnan(want[f"params/{kernel}"])
    moments = [v for name, v in want.items() if name.startswith("opt_state") and kernel in name]
    assert len(moments) == 2
    assert all((np.isnan(m) == pruned).all() for m in moments)

    # Finalizing puts 0 there and changes nothing else.
    dense = whole / "finalized"  # beside the tokenizer
    checkpoint = whole / "checkpoints" / "5"
    assert main(["finalize", "-i", str(checkpoint), "-o", str(dense)]) == 0
    final = arrays(dense)
    np.testing.assert_array_equal(
        final[f"params/{kernel}"], np.nan_to_num(want[f"params/{kernel}"])
    )

    # The finalized model says what the sparse one says.
    capsys.readouterr()
    said = []
    for path in (checkpoint, dense):
        flags = ["--prompt", "def f", "--max_new_tokens", "8"]
        assert main(["generate", "--checkpoint_path", str(path), *flags]) == 0
        said.append(capsys.readouterr())
    assert said[0].out == said[1].out
    assert said[0].out.startswith("def f")
    assert re.search(r"\d+ tokens in [\d.]+ s, [\d.]+ tokens/s: float32 on CPU", said[0].err)

    # One process for many prompts: from a file, or one after another.
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "def f"}\n{"prompt": "class A"}\n')
    flags = ["generate", "--checkpoint_path", str(dense), "--max_new_tokens", "8"]
    assert main([*flags, "-i", str(prompts)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["prompt"] for line in lines] == ["def f", "class A"]
    assert all(line["texts"][0].startswith(line["prompt"]) for line in lines)
    monkeypatch.setattr(sys, "stdin", io.StringIO("def f\n"))
    assert main([*flags, "--interactive"]) == 0
    assert capsys.readouterr().out == lines[0]["texts"][0] + "\n"
    assert main([*flags, "-i", str(prompts), "--batch_size", "2", "--temperature", "0"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main([*flags, "--prompt", "def f", "--stream", "--stop", "no such text"]) == 0
    assert capsys.readouterr().out == lines[0]["texts"][0] + "\n"
    prompts.write_text('{"prompt": 3}\n')
    assert main([*flags, "-i", str(prompts)]) == 1
    assert "row 1: expected a key `prompt`" in capsys.readouterr().err


def test_a_sparse_checkpoint_needs_its_sparsity_section(params, tmp_path, capsys):
    run(params, tmp_path / "run", "--mode", "train", "--max_steps", "3")
    cfg = yaml.safe_load(params.read_text())
    del cfg["sparsity"]
    params.write_text(yaml.safe_dump(cfg))
    flags = ["--params", str(params), "--model_dir", str(tmp_path / "run"), "--mode", "train"]
    assert main(["run", *flags]) == 1
    message = capsys.readouterr().err
    assert "sparsity" in message
    assert "finalize" in message


@pytest.mark.slow
def test_seed_decides_everything(params, tmp_path):
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        run(params, tmp_path / name, "--mode", "train", "--max_steps", "3", "--seed", seed)
    a, b, c = (arrays(tmp_path / name / "checkpoints" / "3") for name in "abc")
    assert all((np.nan_to_num(a[n]) == np.nan_to_num(b[n])).all() for n in a)
    assert not np.array_equal(a["params/embed/token/embedding"], c["params/embed/token/embedding"])


def test_jax_sees_no_more_devices_than_it_should():
    assert len(jax.devices()) == 4  # tests/conftest.py: num_csx up to 4 runs in this process
