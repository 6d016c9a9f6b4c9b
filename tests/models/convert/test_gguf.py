"""Exported folders of LLaMA, Qwen and GPT-2 through llama.cpp's converter.

``WAFER_LLAMA_CPP`` names its ``convert_hf_to_gguf.py``, ``WAFER_TRANSFORMERS`` a Python with torch,
transformers and gguf; without them the test is skipped. Scripts of 2025 need transformers 4.
"""

import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
from helpers import hf_calls, hf_parity
from helpers.hf_sections import section
from safetensors.numpy import load_file

from wafer import models
from wafer.data.text.tokenizer import train_bpe

SCRIPT = os.environ.get("WAFER_LLAMA_CPP")
HELPER = pathlib.Path(hf_calls.__file__).with_name("gguf_calls.py")
NAMES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gpt2")
GQA = {"attention_module": "multiquery_attention", "extra_attention_params": {"num_kv_groups": 1}}


def export(name, folder):
    keys = {} if name == "gpt2" else GQA
    model = models.build(section(name) | keys)
    (folder / "text").mkdir(parents=True)
    train_bpe(["def f(x): return x"], 300).save(str(folder / "text" / "tokenizer.json"))
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    (folder / "text" / "special_ids.json").write_text(json.dumps(ids))
    models.to_hf(model, hf_parity.shaken(model), folder / "hf", text_from=folder / "text")
    return folder / "hf"


@pytest.mark.slow  # a Python with torch
@pytest.mark.skipif(not SCRIPT, reason="WAFER_LLAMA_CPP names no convert_hf_to_gguf.py")
def test_llama_cpp_converts_what_is_exported(tmp_path):
    python = hf_calls.pythons()[0]
    folders = {name: export(name, tmp_path / name) for name in NAMES}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [python, str(HELPER), SCRIPT, *map(str, folders.values())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    for name, folder in folders.items():
        rows = np.load(folder / "gguf.npz")
        config = json.loads((folder / "config.json").read_text())
        theirs = [rows[key].ravel() for key in rows if key.startswith("tensor/")]
        ours = [value.ravel() for value in load_file(folder / "model.safetensors").values()]
        # some are turned, in another order, or several in one
        one, other = (np.sort(np.concatenate(values)) for values in (theirs, ours))
        np.testing.assert_array_equal(one, other, err_msg=name)
        kind = str(rows["field/general.architecture"])
        field = lambda key, kind=kind, rows=rows: rows[f"field/{kind}.{key}"].item()
        assert (field("block_count"), field("embedding_length")) == (2, 16), name
        assert (field("context_length"), field("attention.head_count")) == (16, 2), name
        if name != "gpt2":
            assert field("attention.head_count_kv") == 1, name
            assert field("rope.freq_base") == config["rope_theta"], name
            epsilon = field("attention.layer_norm_rms_epsilon")
            assert epsilon == pytest.approx(config["rms_norm_eps"], rel=1e-6), name
