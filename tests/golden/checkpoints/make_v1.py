"""How ``v1`` came to be: checkpoints of format version 1, and what is in them.

Version 1 was written at commit 0780128, by the command line of that commit, and is never written
again; the program runs as it is with today's code, for a folder of another version. Each case takes
two steps and saves; then it goes on for two more, whose losses are noted. Paths are relative, so
that the files name no machine.

    python tests/golden/checkpoints/make_v1.py tests/golden/checkpoints/v2 [CASE ...]
"""

import contextlib
import copy
import json
import os
import pathlib
import sys
import tarfile
import tempfile

# As in tests/conftest.py: compiled quickly, and multiplied exactly.
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import jax
import numpy as np
import yaml

sys.path.append(str(pathlib.Path(__file__).parents[2]))
from helpers.runs import losses
from helpers.stored import digest, keys_of, tree_of

from wafer.cli import main
from wafer.config import load
from wafer.experiment import Experiment
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.paths import named_leaves

CONFIGS = pathlib.Path(__file__).parents[3] / "models" / "configs"
SYNTHETIC = {"data_processor": "SyntheticDataProcessor", "vocab_size": 16, "max_sequence_length": 8}
SYNTHETIC |= {"batch_size": 4, "num_examples": 16, "shuffle": True}
IMAGES = {"data_processor": "MNISTDataProcessor", "data_dir": "data", "batch_size": 4}
RUN = {"max_steps": 2, "log_steps": 1, "checkpoint_steps": 2, "seed": 1, "model_dir": "run"}
GPT2 = {"name": "gpt2", "vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_heads": 2}
GPT2 |= {"filter_size": 16, "max_position_embeddings": 8, "dropout_rate": 0.0}
FC_MNIST = {"name": "fc_mnist", "input_size": 16, "hidden_size": 6, "depth": 1}
FC_MNIST |= {"activation_fn": "relu", "dropout": 0.0}
GPT = {
    "train_input": SYNTHETIC,
    "model": GPT2,
    "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.01, "weight_decay": 0.1},
    "runconfig": RUN,
}
MLP = {
    "train_input": IMAGES | {"micro_batch_size": 2, "shuffle": True},
    "model": FC_MNIST,
    "optimizer": {"optimizer_type": "SGD", "momentum": 0.9, "learning_rate": 0.1},
    "runconfig": RUN,
}
STATIC = {"algorithm": "static", "sparsity": 0.5}
RIGL = {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 2}}
SPARSE = {
    "dense": None,
    "static_csr": STATIC | {"compute": "csr"},
    "static_masked": STATIC | {"compute": "masked"},
    "rigl_csr": RIGL | {"compute": "csr"},
    "rigl_masked": RIGL | {"compute": "masked"},
}
ENGINES = {
    "resident": {"execution_strategy": "resident"},
    "weight_streaming": {"execution_strategy": "weight_streaming"},
    "weight_streaming_file": {
        "execution_strategy": "weight_streaming",
        "memoryx": {"store": "file"},
    },
    "pipelined": {"execution_strategy": "pipelined", "pipeline": {"stages": 2, "devices": 2}},
    "fabric": {"execution_strategy": "fabric", "fabric": {"width": 8, "height": 6}},
}
RATES = [
    {"scheduler": "Linear", "initial_learning_rate": 0.01, "end_learning_rate": 0.001,
     "total_iters": 4},
    {"scheduler": "CosineDecay", "initial_learning_rate": 0.02, "end_learning_rate": 0.002,
     "total_iters": 4, "param_group_tags": ["norms"]},
]  # fmt: skip
TAGS = [{"params": "*norm*", "tag": "norms"}]
OPTIMIZERS = {
    "sgd": {"optimizer_type": "SGD", "learning_rate": 0.1},
    "sgd_momentum": {
        "optimizer_type": "SGD", "momentum": 0.9, "nesterov": True, "weight_decay": 0.1,
        "learning_rate": 0.1, "max_gradient_value": 0.01,
    },
    "adam": {"optimizer_type": "Adam", "weight_decay": 0.1},
    "adam_amsgrad": {"optimizer_type": "Adam", "amsgrad": True},
    "adamw_amsgrad": {"optimizer_type": "AdamW", "amsgrad": True, "weight_decay": 0.1},
    "adamw_groups": {
        "optimizer_type": "AdamW", "params": TAGS, "learning_rate": RATES, "weight_decay": RATES,
        "adjust_learning_rate": {"*ffn*": 0.5}, "max_gradient_norm": 1.0,
    },
    "adamax": {"optimizer_type": "Adamax", "weight_decay": 0.1},
    "adagrad": {"optimizer_type": "Adagrad", "lr_decay": 0.1, "eps": 0.01},
    "adadelta": {"optimizer_type": "Adadelta"},
    "rmsprop": {"optimizer_type": "RMSprop"},
    "rmsprop_centered": {"optimizer_type": "RMSprop", "centered": True, "momentum": 0.9},
    "nadam": {"optimizer_type": "NAdam"},
    "radam": {"optimizer_type": "RAdam"},
    "asgd": {"optimizer_type": "ASGD", "t0": 1.0},
    "rprop": {"optimizer_type": "Rprop"},
    "lamb": {"optimizer_type": "Lamb", "weight_decay": 0.1},
    "lamb_adam": {"optimizer_type": "Lamb", "adam": True},
    "lion": {"optimizer_type": "Lion", "learning_rate": 0.001, "weight_decay": 0.1},
    "adafactor": {"optimizer_type": "Adafactor"},
}  # fmt: skip
VARIANTS = {
    "set_csr": {"sparsity": {**RIGL, "algorithm": "set", "compute": "csr"}},
    "gmp": {
        "sparsity": {
            "algorithm": "gmp", "update": {"freq": 1},
            "schedule": {"type": "linear", "init": 0.2, "slope": 0.1},
        }
    },
    "sparse_momentum_csr": {
        "sparsity": SPARSE["rigl_csr"],
        "optimizer": {"optimizer_type": "SGD", "momentum": 0.9, "learning_rate": 0.1},
    },
    "loss_scale": {
        "model": {"mixed_precision": True, "fp16_type": "float16"},
        "optimizer": {"loss_scaling_factor": "dynamic"},
    },
    "grad_accum": {"optimizer": {"grad_accum_steps": 2}},
    "micro_batches": {"train_input": {"micro_batch_size": 2}},
    "mup": {"model": {"mup_base_hidden_size": 4, "mup_base_filter_size": 8}},
    "lora": {"model": {"lora_params": {"r": 2, "alpha": 4, "target_modules": ["attn/query"]}}},
    "moe": {"model": {"moe": {"num_experts": 2, "top_k": 1}}},
    "two_systems_rigl_csr": {"sparsity": SPARSE["rigl_csr"], "runconfig": {"num_csx": 2}},
    "finalized": {
        "sparsity": STATIC,
        "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.1, "weight_decay": 0.0},
    },
}  # fmt: skip


def merged(base, **changes):
    """A configuration with some keys of its sections replaced; None drops nothing in."""
    cfg = copy.deepcopy(base)
    for section, keys in changes.items():
        if keys is not None:
            cfg[section] = cfg.get(section, {}) | copy.deepcopy(keys)
    return cfg


def cases():
    """(name, configuration) of every run."""
    for engine, run in ENGINES.items():
        base = MLP if engine == "fabric" else GPT
        for name, sparse in SPARSE.items():
            dynamic = name.startswith("rigl")
            if engine == "fabric" and dynamic:
                continue  # it is written for one pattern
            if engine == "weight_streaming_file" and name not in {"dense", "rigl_csr"}:
                continue
            yield f"{engine}-{name}", merged(base, sparsity=sparse, runconfig=run)
    resident = {"runconfig": ENGINES["resident"]}
    for name, keys in OPTIMIZERS.items():
        cfg = merged(GPT, **resident)
        rate = {} if keys["optimizer_type"] == "Adadelta" else {"learning_rate": 0.01}
        cfg["optimizer"] = copy.deepcopy(rate | keys)
        yield f"optimizer-{name}", cfg
    for name, changes in VARIANTS.items():
        yield f"variant-{name}", merged(merged(GPT, **resident), **changes)


def write_images(folder):
    """Sixteen 4 x 4 images of noise, in MNIST's format."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    head = lambda *sizes: b"\0\0\x08" + bytes([len(sizes)]) + np.array(sizes, ">u4").tobytes()
    pixels = rng.integers(0, 256, (16, 4, 4), np.uint8)
    labels = rng.integers(0, 10, 16, np.uint8)
    (folder / "train-images-idx3-ubyte").write_bytes(head(16, 4, 4) + pixels.tobytes())
    (folder / "train-labels-idx1-ubyte").write_bytes(head(16) + labels.tobytes())


def wafer(*args):
    """Run a command; it must succeed."""
    with contextlib.redirect_stdout(sys.stderr):
        if main([str(arg) for arg in args]):
            raise SystemExit(f"wafer {' '.join(map(str, args))} failed")


def make(name, cfg, archive):
    """Train, save, pack, go on; returns the record of one case."""
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
        pathlib.Path("params.yaml").write_text(yaml.safe_dump(cfg, sort_keys=False))
        if cfg["model"]["name"] == "fc_mnist":
            write_images(pathlib.Path("data"))
        wafer("run", "--params", "params.yaml")
        stored = pathlib.Path("run/checkpoints/2")
        pack(archive, name, ["params.yaml", "data", stored])
        meta = load_checkpoint(stored)[1]
        record = {"meta": keys_of(meta), "tree": tree_of(stored)}
        wafer("run", "--params", "params.yaml", "--max_steps", 4)
        record["losses"] = losses(pathlib.Path("run"))[2:]
        if name in {"variant-finalized", "variant-lora"}:
            fold = ["--fold_lora"] if "lora" in name else []
            wafer("finalize", *fold, "-i", stored, "-o", "run/finalized")
            pack(archive, name, ["run/finalized"])
            record["finalized"] = tree_of("run/finalized")
    return record


def pack(archive, name, paths):
    """Add files to the archive, without times and owners."""
    roots = [pathlib.Path(path) for path in paths]
    files = {file for root in roots for file in (root, *root.rglob("*")) if file.is_file()}
    for path in sorted(files):
        info = tarfile.TarInfo(f"{name}/{path}")
        info.size = path.stat().st_size
        with path.open("rb") as file:
            archive.addfile(info, file)


def names_of_configs():
    """Params file -> hash of its parameters' and its optimizer state's names, shapes and dtypes."""
    out = {}
    for path in sorted(CONFIGS.rglob("*.yaml")):
        planned = Experiment.from_config(load(path))
        trees = {
            "params": planned.shapes,
            "opt_state": jax.eval_shape(planned.tx.init, planned.shapes),
        }
        lines = [f"{name} {x.shape} {x.dtype}" for name, x in named_leaves(trees)]
        out[path.relative_to(CONFIGS).as_posix()] = digest("\n".join(sorted(lines)).encode())
    return out


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1]).resolve()
    target.mkdir(exist_ok=True)
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_default_matmul_precision", "highest")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    with tempfile.TemporaryDirectory() as scratch:
        jax.config.update("jax_compilation_cache_dir", f"{scratch}/programs")
        os.environ["WAFER_JOBS_DB"] = f"{scratch}/jobs.db"
        with tarfile.open(target / "checkpoints.tar.xz", "w:xz", preset=9) as archive:
            chosen = sys.argv[2:]
            records = {n: make(n, c, archive) for n, c in cases() if not chosen or n in chosen}
    expected = {"cases": records, "configs": names_of_configs()}
    (target / "expected.json").write_text(json.dumps(expected, indent=0, sort_keys=True) + "\n")
