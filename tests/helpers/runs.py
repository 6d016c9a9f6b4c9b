"""Small training runs from settings, and what they leave."""

import json
import pathlib
import shutil
from zlib import crc32

import numpy as np
import yaml

from wafer.commands.run import run as run_mode
from wafer.config import parse_config
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.paths import named_leaves

VOCAB = 32


# The smallest GPT-2 that trains, and rows for it.
TINY = {"name": "gpt2", "vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_heads": 2}
TINY |= {"filter_size": 16, "max_position_embeddings": 8}
TINY_ROWS = {"data_processor": "SyntheticDataProcessor", "vocab_size": 16, "batch_size": 2}
TINY_ROWS |= {"max_sequence_length": 8}


def config(**changes) -> dict:
    """A dense 1-layer model on synthetic rows; changes are merged into the sections."""
    data = {"data_processor": "SyntheticDataProcessor", "vocab_size": VOCAB, "batch_size": 4}
    data |= {"max_sequence_length": 16, "num_examples": 24, "shuffle": True}
    model = TINY | {"vocab_size": VOCAB, "hidden_size": 16, "filter_size": 32}
    cfg = {
        "train_input": dict(data),
        "eval_input": dict(data),
        "model": model | {"max_position_embeddings": 16, "dropout_rate": 0.0},
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.01},
        "runconfig": {"max_steps": 4, "checkpoint_steps": 2, "seed": 1, "log_steps": 1},
    }
    return merged(cfg, **changes)


def write_yaml(path: pathlib.Path, content, **options) -> pathlib.Path:
    """Write a run file; returns its path."""
    path.write_text(yaml.safe_dump(content, **options))
    return path


def tiny(**changes) -> dict:
    """One step of the smallest model by SGD; changes are merged into the sections."""
    cfg = {
        "train_input": TINY_ROWS,
        "eval_input": TINY_ROWS,
        "model": TINY,
        "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.1},
        "runconfig": {"max_steps": 1},
    }
    return merged(cfg, **changes)


def merged(cfg: dict, **changes) -> dict:
    """A run file with sections joined by changed keys, or replaced by what is no section."""
    for section, keys in changes.items():
        cfg[section] = cfg.get(section, {}) | keys if isinstance(keys, dict) else keys
    return cfg


def arrays(step: pathlib.Path) -> dict[str, np.ndarray]:
    """Every array of a checkpoint step, by its name."""
    return dict(named_leaves(load_checkpoint(step)[0]))


def metrics(folder: pathlib.Path, which: str = "train") -> list[dict]:
    """The records that a run wrote."""
    lines = (folder / which / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def losses(folder: pathlib.Path, which: str = "train") -> list[float]:
    """The loss of each of them."""
    return [record["loss"] for record in metrics(folder, which)]


def train(folder: pathlib.Path, **changes) -> dict[str, np.ndarray]:
    """Train in this process; returns the arrays of the last checkpoint."""
    changes["runconfig"] = {"model_dir": str(folder)} | changes.get("runconfig", {})
    assert run_mode(parse_config(config(**changes))) == 0
    return arrays(max((folder / "checkpoints").iterdir(), key=lambda path: int(path.name)))


def same_arrays(got, want) -> None:
    """Compare arrays by name, bit by bit; ``got`` may have more."""
    got, want = dict(got), dict(want)
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


def edited_run(run: pathlib.Path, target: pathlib.Path, step: int = 2, **changes) -> None:
    """Copy a run whose record has other entries and a checksum that fits them."""
    shutil.copytree(run, target)
    path = target / "checkpoints" / str(step) / "meta" / "metadata"
    record = json.loads(path.read_text()) | changes
    del record["record_checksum"]
    sealed = f"{crc32(json.dumps(record, sort_keys=True).encode()):08x}"
    path.write_text(json.dumps(record | {"record_checksum": sealed}))


def assert_close(a: dict, b: dict, atol: float) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        if name.startswith("params/"):
            np.testing.assert_allclose(
                np.nan_to_num(value), np.nan_to_num(b[name]), atol=atol, err_msg=name
            )
