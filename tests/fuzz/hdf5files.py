"""HDF5: rows to train on, and ``.mdl`` checkpoints."""

import io
import json
import lzma

import h5py
import numpy as np
from helpers.paths import GOLDEN

from fuzz.mutations import damaged
from wafer import models
from wafer.data.rowfiles.files import Hdf5Source
from wafer.data.rowfiles.verify import verify_folder
from wafer.optim.groups import ParamGroups
from wafer.optim.sections import parse_optimizer
from wafer.vendor.mdl.file import MdlFile
from wafer.vendor.mdl.optimizer import groupings, read_state
from wafer.vendor.mdl.sections import carried_sections


def _file(fill):
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        fill(file)
    return out.getvalue()


def _rows(chunks, compression):
    ids = np.arange(6 * 3 * 8, dtype=np.int32).reshape(6, 3, 8) % 50
    ids[:, 1] = 1

    def fill(file):
        file.attrs["n_examples"] = 6
        file.create_dataset("data", data=ids, chunks=chunks, compression=compression)

    return _file(fill)


def row_files(rng, folder):
    """Damaged row files, in chunks with gzip, and in one piece."""
    sound = [_rows((1, 3, 8), "gzip"), _rows((2, 3, 8), None), _rows(None, None)]
    while True:
        yield "a.h5", damaged(rng.choice(sound), rng), None


def read_rows(path):
    """As training and as ``wafer data verify``; where verify finds nothing, training reads all."""
    report = verify_folder(path.parent, 50)
    source = Hdf5Source([path.parent], 50)
    rows = [source[i] for i in range(min(len(source), 100))]
    if report.problems:
        raise ValueError(report.problems[0])
    return rows


def _weights(file):
    file.attrs["__version__"] = "0.5"
    file.attrs["__SUCCESS__"] = True
    for name in ("weight", "bias"):
        data = file.create_dataset(f"model.{name}", data=np.ones((4, 5), np.float32))
        data.attrs["dtypes"] = "torch.float32"
    half = file.create_dataset("half", data=np.ones(6, np.uint16), chunks=(2,), compression="gzip")
    half.attrs["dtypes"] = "torch.bfloat16"
    full = file.create_dataset("full", shape=(3,), dtype="f4")
    full.attrs.update({"__TYPE__": "DeferredFullTensor", "shape": (3,), "fill_value": 2.0})
    step = {"__TYPE__": "ScalarSerializer", "scalar_value": 5}
    file.attrs["global_step.__metadata__"] = json.dumps({"global_step.__metadata__": step})


_GPT2 = {"name": "gpt2", "vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1}
_GPT2 |= {"num_heads": 2, "filter_size": 16, "max_position_embeddings": 8}
_SPECS = (
    "[",
    '[null, "[1, {}]"]',
    "[null, 3]",
    json.dumps([None, json.dumps([1, {"context": 1}])]),
)


def _changed(file, rng):
    """One thing of a checkpoint with an optimizer is another: record, dataset, number, order."""
    records = sorted(n for n in file.attrs if n.endswith(".__metadata__"))
    moments = sorted(n for n in file if n.startswith("optimizer.state."))
    record, moment = rng.choice(records), rng.choice(moments)
    kind = rng.randrange(6)
    if kind == 0:
        del file.attrs[record]
    elif kind == 1:
        text = file.attrs[record]
        at = rng.randrange(len(text))
        file.attrs[record] = text[:at] + rng.choice('{}[]"0a') + text[at + 1 :]
    elif kind == 2:
        del file[rng.choice(sorted(file))]
    elif kind == 3:
        shape = rng.choice([(), (1,), (8, 8), (3, 0), (16, 8)])
        del file[moment]
        file[moment] = np.zeros(shape, rng.choice(["f4", "i8", "S3"]))
    elif kind == 4:
        file.attrs["__spec__"] = rng.choice(_SPECS)
    else:
        other = moment.replace("state.", f"state.{rng.choice([0, 9, 10**9])}")
        if other not in file:
            file.move(moment, other)


def mdl_files(rng, folder):
    """Damaged checkpoints, and one of the vendor's in which something is changed."""
    sound = _file(_weights)
    theirs = lzma.decompress((GOLDEN / "vendor" / "adamw-2.10.mdl.xz").read_bytes())
    while True:
        yield "a.mdl", damaged(sound, rng), None
        changed = io.BytesIO(theirs)
        with h5py.File(changed, "r+") as file:
            _changed(file, rng)
        yield "a.mdl", changed.getvalue(), None


def read_mdl(path):
    """Every tensor and a number; the optimizer's state, by name and as it is carried over."""
    with MdlFile(path) as stored:
        stored.scalar("global_step")
        tensors = {name: stored[name] for name in stored}
        if stored.entries("optimizer."):
            model = models.build(_GPT2)
            section = parse_optimizer({"optimizer_type": "AdamW", "learning_rate": 0.1})
            read_state(stored, model, groupings(section, ParamGroups(alias=model.alias)))
            carried_sections(stored, model, "cs-2.5")
    return tensors
