"""Write a ``.mdl`` of layout 0.5, which the vendor's releases 2.5 and later load; no pickles."""

import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import h5py
import numpy as np

from models.files import appearing_whole

__all__ = ["Stored", "write_mdl"]

# What the vendor's runtime calls each dtype.
_CODES = {
    "bool": 1,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "uint8": 6,
    "uint16": 7,
    "uint32": 8,
    "uint64": 9,
    "float16": 10,
    "float32": 11,
    "float64": 12,
    "bfloat16": 15,
}


class Stored(NamedTuple):
    """One tensor to write.

    shape: of what ``read`` returns
    dtype: likewise
    read: reads it; nothing is kept
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


def write_mdl(
    path: pathlib.Path,
    tensors: Mapping[str, Stored],
    links: Mapping[str, str],
    *,
    step: int,
    version: str,
    model_name: str,
) -> None:
    """Write a checkpoint of weights; it appears under its name when it is complete.

    Args:
        path: of the file.
        tensors: by key of the vendor's state dict, in its order.
        links: second names of tensors: key -> key in ``tensors``.
        step: the global step.
        version: of the vendor's release, 'X.Y.Z'; its trainer loads its own only.
        model_name: the vendor's class or name.

    Raises:
        ValueError: a dtype that the layout has no code for.
    """
    for name, tensor in tensors.items():
        if tensor.dtype.name not in _CODES:
            raise ValueError(f"{name}: a .mdl holds no {tensor.dtype}; known: {sorted(_CODES)}")
    entry = {"version": version, "model_name": model_name, "params": {}}
    keys = dict.fromkeys([*tensors, *links], "*")
    tree = {"model": keys, "global_step": step, "__metadata__": [entry]}
    records = {f"model.{name}": _tensor_record(tensor) for name, tensor in tensors.items()}
    records |= {f"model.{name}": _link_record(f"model.{first}") for name, first in links.items()}
    records["global_step"] = _value_record("ScalarSerializer", "scalar_value", step)
    for key in ("version", "model_name"):
        name = f"__metadata__.0.{key}"
        records[name] = _value_record("StringSerializer", "string_value", entry[key])
    with (
        appearing_whole(path) as partial,
        # With HDF5's default bounds thousands of attributes take quadratic time.
        h5py.File(partial, "w", libver=("v108", "latest")) as file,
    ):
        file.attrs["__version__"] = 0.5
        file.attrs["__cstorch_version__"] = version
        file.attrs["__spec__"] = json.dumps([None, _dump(tree)])
        for name, record in records.items():
            file.attrs[f"{name}.__metadata__"] = _entry(name, record)
        for name, tensor in tensors.items():
            _put(file, f"model.{name}", tensor)
        file.attrs["__SUCCESS__"] = True


def _put(file: h5py.File, name: str, tensor: Stored) -> None:
    value = np.ascontiguousarray(tensor.read()).reshape(tensor.shape)
    if tensor.dtype.name == "bfloat16":
        value = value.view(np.int16)  # the bit pattern
    file.create_dataset(name, data=value).attrs["__NUMPY__"] = True


def _tensor_record(tensor: Stored) -> dict[str, Any]:
    return {
        "__TORCH__": True,
        "shapes": [list(tensor.shape)],
        "dtypes": [f"torch.{tensor.dtype.name}"],
        "rtfx_dtypes": [_CODES[tensor.dtype.name]],
        "__TYPE__": "TorchTensorSerializer",
        "__NUMPY__": True,
        "compressed": False,
    }


def _link_record(first: str) -> dict[str, Any]:
    return {"key": first, "__LINKED__": True, "__TYPE__": "LinkedObject", "__NONE__": True}


def _value_record(kind: str, key: str, value: Any) -> dict[str, Any]:
    return {key: value, "__TYPE__": kind, "__NONE__": True}


def _entry(name: str, record: Mapping[str, Any]) -> str:
    spec = [{name: "*"}, _dump({name: "*"})]
    return json.dumps({"__spec__": spec, "__objects__": [name], f"{name}.__metadata__": record})


def _dump(tree: Any) -> str:
    """Describe a tree as ``torch.utils._pytree.treespec_dumps`` does, protocol 1."""
    return json.dumps([1, _node(tree)])


def _node(tree: Any) -> dict[str, Any]:
    if isinstance(tree, Mapping):
        return _inner("builtins.dict", json.dumps(list(tree)), tree.values())
    if isinstance(tree, Sequence) and not isinstance(tree, str):
        return _inner("builtins.list", "null", tree)
    return {"type": None, "context": None, "children_spec": []}


def _inner(kind: str, context: str, children: Iterable[Any]) -> dict[str, Any]:
    return {"type": kind, "context": context, "children_spec": [_node(x) for x in children]}
