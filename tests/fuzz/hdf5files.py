"""HDF5: rows to train on, and the vendor's ``.mdl`` checkpoints."""

import io
import json

import h5py
import numpy as np

from fuzz.mutations import damaged
from models.vendor.mdl import MdlFile
from wafer.data.rowfiles.files import Hdf5Source
from wafer.data.rowfiles.verify import verify_folder


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


def mdl_files(rng, folder):
    """Damaged checkpoints."""
    sound = _file(_weights)
    while True:
        yield "a.mdl", damaged(sound, rng), None


def read_mdl(path):
    """Every tensor and a number."""
    with MdlFile(path) as stored:
        stored.scalar("global_step")
        return {name: stored.read(name) for name in stored}
