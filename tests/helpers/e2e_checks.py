"""What ``tests/e2e.sh`` compares: ``python e2e_checks.py finalized|texts|exported PATH PATH``."""

import importlib.util
import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file

from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.paths import named_leaves


def finalized(sparse, dense):
    """Every array of the dense checkpoint is the sparse one's, 0 where that holds NaN."""
    before, after = (dict(named_leaves(load_checkpoint(path)[0])) for path in (sparse, dense))
    assert before.keys() == after.keys(), before.keys() ^ after.keys()
    pruned = 0
    for name, value in before.items():
        holes = np.isnan(value) if np.issubdtype(value.dtype, np.floating) else np.zeros(1, bool)
        pruned += int(holes.sum())
        np.testing.assert_array_equal(after[name], np.where(holes, 0, value), err_msg=name)
    assert pruned, "the run pruned nothing"


def texts(one, other):
    """Two runs of ``wafer generate`` wrote the same text, which begins with the prompt."""
    written = [pathlib.Path(path).read_text() for path in (one, other)]
    assert written[0] == written[1], written
    assert "def read_" in written[0], written[0]


def exported(dense, folder):
    """A Hugging Face folder holds the weights, the tokenizer, and loads in transformers."""
    folder = pathlib.Path(folder)
    assert (folder / "tokenizer.json").is_file(), sorted(path.name for path in folder.iterdir())
    weights = load_file(folder / "model.safetensors")
    params = dict(named_leaves(load_checkpoint(dense)[0]["params"]))
    table = weights["transformer.wte.weight"]
    np.testing.assert_array_equal(table, params["embed/token/embedding"])
    config = json.loads((folder / "config.json").read_text())
    assert all(value is not None for key, value in config.items() if key.endswith("pdrop")), config
    if importlib.util.find_spec("transformers") and importlib.util.find_spec("torch"):
        from transformers import AutoModelForCausalLM

        AutoModelForCausalLM.from_pretrained(folder)


if __name__ == "__main__":
    {"finalized": finalized, "texts": texts, "exported": exported}[sys.argv[1]](*sys.argv[2:])
