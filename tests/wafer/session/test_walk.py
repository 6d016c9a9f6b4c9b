"""A mask and a learning rate are parsed once on the way from YAML to their use."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from helpers.paths import ROOT

# Counts a file when one of its functions is handed what is followed: as an argument, or directly
# inside one. A mask: the section, a group, a mask or a pattern, until the sparse product is first
# asked for. A learning rate: its mapping, a schedule, or an optimizer's section.
SCRIPT = """
import json, os, sys, threading

ROOT, params, folder = sys.argv[1:]
OURS = os.path.join(ROOT, "wafer", "")
walks, over = {"mask": [], "rate": []}, []

def is_sparsity(value):
    return type(value).__module__.startswith("wafer.sparsity") or (
        isinstance(value, dict) and {"algorithm", "sparsity"} <= value.keys()
    )

def is_rate(value):
    return type(value).__module__ in ("wafer.optim.schedule_sections", "wafer.optim.sections") or (
        isinstance(value, dict) and ("learning_rate" in value or "end_learning_rate" in value)
    )

def directly(value, kind):
    inside = value.values() if type(value) is dict else value
    several = isinstance(inside, (list, tuple, type({}.values())))
    return kind(value) or (several and any(map(kind, inside)))

def seen(frame, event, argument):
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(OURS):
        return
    sys.setprofile(None)
    path = os.path.relpath(code.co_filename, ROOT)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = [] if code.co_name == "<module>" else [frame.f_locals.get(n) for n in names]
    for walk, kind in (("rate", is_rate), *([] if over else [("mask", is_sparsity)])):
        if any(directly(value, kind) for value in values):
            walks[walk].append(f"{path}:{code.co_name}")
    if (path, code.co_name) == ("wafer/sparsity/kernels/product.py", "sparse_dot"):
        over.append(True)
    sys.setprofile(seen)

from wafer.cli import main

threading.setprofile(seen)
sys.setprofile(seen)
main(["run", "--params", params, "--mode", "train", "--model_dir", folder])
sys.setprofile(None)
print(json.dumps(walks))
"""


RATE = {"scheduler": "Linear", "initial_learning_rate": 0.01, "total_iters": 9}
RATE |= {"end_learning_rate": 0.0}


@pytest.mark.slow
def test_a_mask_and_a_learning_rate_are_parsed_once(tmp_path):
    data = {"data_processor": "SyntheticDataProcessor", "vocab_size": 32, "batch_size": 4}
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_heads": 2, "filter_size": 64}
    settings = {
        "model": {"name": "gpt2", "vocab_size": 32, "max_position_embeddings": 16, **sizes},
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": RATE},
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
    walks = json.loads(process.stdout.splitlines()[-1])
    files = {kind: {call.partition(":")[0] for call in calls} for kind, calls in walks.items()}
    mask, rate = sorted(files["mask"]), sorted(files["rate"])
    assert {"wafer/config/loader.py", "wafer/sparsity/sparsifier.py"} <= set(mask)
    assert "wafer/sparsity/kernels/product.py" in mask
    assert walks["mask"].count("wafer/config/loader.py:_sparsity") == 1  # parsed once
    assert {"wafer/config/loader.py", "wafer/optim/chain.py", "wafer/optim/schedules.py"} <= {*rate}
    for parser in ("sections.py:parse_optimizer", "schedule_sections.py:parse_schedules"):
        assert walks["rate"].count(f"wafer/optim/{parser}") == 1  # no second parse on the way
