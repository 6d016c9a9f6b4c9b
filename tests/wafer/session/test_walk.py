"""How many files a reader opens to follow a mask from YAML to the kernel that uses it."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from helpers.paths import ROOT

# Counts a file when one of its functions is handed the section, a group, a mask or a pattern: as
# an argument, or directly inside one. Ends when the sparse product is first asked for.
SCRIPT = """
import json, os, sys, threading

ROOT, params, folder = sys.argv[1:]
OURS = tuple(os.path.join(ROOT, name, "") for name in ("models", "sparsity", "vsl", "wafer"))
files, calls, over = {}, [], []

def is_sparsity(value):
    return type(value).__module__.startswith("sparsity") or (
        isinstance(value, dict) and {"algorithm", "sparsity"} <= value.keys()
    )

def directly(value):
    inside = value.values() if type(value) is dict else value
    several = isinstance(inside, (list, tuple, type({}.values())))
    return is_sparsity(value) or (several and any(map(is_sparsity, inside)))

def seen(frame, event, argument):
    code = frame.f_code
    if event != "call" or over or not code.co_filename.startswith(OURS):
        return
    sys.setprofile(None)
    path = os.path.relpath(code.co_filename, ROOT)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if code.co_name != "<module>" and any(directly(frame.f_locals.get(n)) for n in names):
        files.setdefault(path, set()).add(code.co_name)
        calls.append(f"{path}:{code.co_name}")
    if (path, code.co_name) == ("sparsity/kernels/product.py", "sparse_dot"):
        over.append(True)
    sys.setprofile(seen)

from wafer.cli import main

threading.setprofile(seen)
sys.setprofile(seen)
main(["run", "--params", params, "--mode", "train", "--model_dir", folder])
sys.setprofile(None)
print(json.dumps({"files": sorted(files), "calls": calls}))
"""


@pytest.mark.slow
def test_a_mask_is_followed_through_at_most_18_files(tmp_path):
    data = {"data_processor": "SyntheticDataProcessor", "vocab_size": 32, "batch_size": 4}
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_heads": 2, "filter_size": 64}
    settings = {
        "model": {"name": "gpt2", "vocab_size": 32, "max_position_embeddings": 16, **sizes},
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.01},
        "sparsity": {"algorithm": "rigl", "sparsity": 0.9, "compute": "csr"},
        "runconfig": {"max_steps": 1, "seed": 1},
        "train_input": {**data, "max_sequence_length": 16, "num_examples": 24},
    }
    params = tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump(settings))
    environment = os.environ | {"WAFER_JOBS_DB": str(tmp_path / "jobs.db"), "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(ROOT), str(params), str(tmp_path / "run")],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    walk = json.loads(process.stdout.splitlines()[-1])
    assert {"wafer/config/loader.py", "sparsity/sparsifier.py"} <= set(walk["files"])
    assert "sparsity/kernels/product.py" in walk["files"]
    assert len(walk["files"]) <= 18, "\n".join(walk["files"])
    assert walk["calls"].count("wafer/config/loader.py:_sparsity") == 1  # parsed once
