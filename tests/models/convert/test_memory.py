"""Conversion streams: its memory follows the largest tensor, not the model."""

import json
import subprocess
import sys

import pytest

LARGEST = 16_384 * 1024 * 4  # the embedding, bytes in float32

# Runs in a process of its own; anonymous memory is sampled, since pages of the mapped source
# are the system's to drop.
SCRIPT = """
import argparse, json, pathlib, sys, threading, time
import numpy as np
from wafer import models
from wafer.models.convert.api import config_to_hf, convert_table
from wafer.commands.checkpoints.convert import add_arguments
from wafer.models.convert.engine import export_tensors
from wafer.models.convert.shards import write_shards
from wafer.models.counts import abstract_params
from wafer.models.paths import named_leaves

work = pathlib.Path(sys.argv[1])


def command(*args):
    parser = argparse.ArgumentParser()
    add_arguments(parser.add_subparsers().add_parser("convert"))
    parsed = parser.parse_args(["convert", "convert", "--model", "llama", *map(str, args)])
    return parsed.run(parsed)


def anonymous():
    status = pathlib.Path("/proc/self/status").read_text()
    return next(int(l.split()[1]) for l in status.splitlines() if l.startswith("RssAnon")) * 1024


class Drawn:
    # reads itself, so that the source is never in memory either
    def __init__(self, leaf):
        self.shape, self.dtype = leaf.shape, np.dtype(np.float32)

    def __array__(self, dtype=None, copy=None):
        return np.random.default_rng(0).random(self.shape, np.float32)


def source(folder, layers, **sizes):
    model = models.build({"name": "llama", "num_hidden_layers": layers, "num_heads": 8, **sizes})
    leaves = {name: Drawn(leaf) for name, leaf in named_leaves(abstract_params(model))}
    tensors = export_tensors(model, convert_table(model.config), leaves)
    write_shards(tensors, folder, 10**12)
    (folder / "config.json").write_text(json.dumps(config_to_hf(model.config)))


def peak(*args):
    before, most, done = anonymous(), [0], threading.Event()

    def watch():
        while not done.is_set():
            most[0] = max(most[0], anonymous())
            time.sleep(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        command(*args)
    finally:  # an error ends the process at once
        done.set()
        thread.join()
    return most[0] - before


def both(name, layers, **sizes):
    source(work / name, layers, **sizes)
    there = ("--src-fmt", "hf", "--tgt-fmt", "wafer")
    back = ("--src-fmt", "wafer", "--tgt-fmt", "hf")
    a = peak(*there, "--output-dir", work / f"{name}_ours", work / name)
    b = peak(*back, "--output-dir", work / f"{name}_back", work / f"{name}_ours")
    return a, b


both("warm", 1, vocab_size=64, hidden_size=64, filter_size=64)  # libraries and their pools
there, back = both("large", 6, vocab_size=16384, hidden_size=1024, filter_size=4096)
size = sum(p.stat().st_size for p in (work / "large").glob("*.safetensors"))
same = (work / "large/model.safetensors").read_bytes() == (
    work / "large_back/model.safetensors"
).read_bytes()
print(json.dumps({"there": there, "back": back, "size": size, "same": same}))
"""


@pytest.mark.slow
def test_memory_follows_the_largest_tensor(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    measured = json.loads(ran.stdout.splitlines()[-1])
    assert measured["size"] > 7 * LARGEST
    assert measured["same"]  # bit for bit through both formats
    assert measured["there"] < 3 * LARGEST, measured
    assert measured["back"] < 3 * LARGEST, measured
