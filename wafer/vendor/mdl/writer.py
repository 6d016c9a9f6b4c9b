"""Write a ``.mdl`` of layout 0.5, which releases 2.5 and later load; no pickles."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import h5py
import numpy as np

from wafer.data.rowfiles.hdf5 import create_hdf5
from wafer.models.checkpoint.lazy import LazyArray
from wafer.models.files import atomic_write

# What the Model Zoo's runtime calls each dtype, counted from 1.
_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
)
_UNWRITTEN = ("int8", "complex64", "complex128")
_CODES = {name: code for code, name in enumerate(_DTYPES, 1) if name not in _UNWRITTEN}


class Link(NamedTuple):
    """A second name of a tensor; ``first`` is its '.'-joined path in the file."""

    first: str


Leaf = LazyArray | Link | str | int | float | None
Tree = Mapping[Any, "Tree"] | list["Tree"] | tuple["Tree", ...] | Leaf


def write_mdl(path: pathlib.Path, tree: Mapping[str, Tree], *, version: str) -> None:
    """Write a checkpoint; it appears under its name when it is complete.

    Args:
        path: of the file.
        tree: what the Model Zoo's loader is to return; a list stays a list, a tuple a tuple.
        version: of the release, 'X.Y.Z'; its trainer loads its own only.

    Raises:
        ValueError: a dtype that the layout has no code for.
        OSError: the disk takes no more.
    """
    leaves: dict[str, Leaf] = {}
    spec = json.dumps([1, _node(tree, "", leaves)])  # protocol 1
    for name, leaf in leaves.items():
        if isinstance(leaf, LazyArray) and leaf.dtype.name not in _CODES:
            raise ValueError(f"{name}: a .mdl holds no {leaf.dtype}; known: {sorted(_CODES)}")
    with (
        atomic_write(path) as partial,
        # With HDF5's default bounds thousands of attributes take quadratic time.
        create_hdf5(partial, libver=("v108", "latest")) as (file, check),
    ):
        file.attrs["__version__"] = 0.5
        file.attrs["__cstorch_version__"] = version
        file.attrs["__spec__"] = json.dumps([None, spec])
        for name, leaf in leaves.items():
            key, one = f"{name}.__metadata__", {name: "*"}
            own = [one, json.dumps([1, _node(one, "", {})])]
            entry = {"__spec__": own, "__objects__": [name], key: _record(leaf)}
            file.attrs[key] = json.dumps(entry)
        for name, leaf in leaves.items():
            if isinstance(leaf, LazyArray):
                _put(file, name, leaf)
                check()
        file.attrs["__SUCCESS__"] = True


def _put(file: h5py.File, name: str, tensor: LazyArray) -> None:
    value = np.ascontiguousarray(tensor.read()).reshape(tensor.shape)
    if tensor.dtype.name == "bfloat16":
        value = value.view(np.int16)  # the bit pattern
    file.create_dataset(name, data=value).attrs["__NUMPY__"] = True


def _record(leaf: Leaf) -> Mapping[str, object]:
    if isinstance(leaf, LazyArray):
        return {
            "__TORCH__": True,
            "shapes": [list(leaf.shape)],
            "dtypes": [f"torch.{leaf.dtype.name}"],
            "rtfx_dtypes": [_CODES[leaf.dtype.name]],
            "__TYPE__": "TorchTensorSerializer",
            "__NUMPY__": True,
            "compressed": False,
        }
    if isinstance(leaf, Link):
        value = {"key": leaf.first, "__LINKED__": True, "__TYPE__": "LinkedObject"}
    elif isinstance(leaf, str):
        value = {"string_value": leaf, "__TYPE__": "StringSerializer"}
    else:
        value = {"scalar_value": leaf, "__TYPE__": "ScalarSerializer"}
    return value | {"__NONE__": True}


def _node(tree: Tree, name: str, leaves: dict[str, Leaf]) -> dict[str, object]:
    """Describe a tree as ``torch.utils._pytree.treespec_dumps`` does; collect its leaves.

    Args:
        tree: a node.
        name: '.'-joined keys above it.
        leaves: gets what lies below, by name.
    """
    if isinstance(tree, Mapping):
        kind, context, children = "dict", json.dumps(list(tree)), tree.items()
    elif isinstance(tree, list | tuple) and not isinstance(tree, Link):
        kind, context, children = type(tree).__name__, "null", enumerate(tree)
    else:
        leaves[name] = tree
        return {"type": None, "context": None, "children_spec": []}
    specs = [_node(child, f"{name}.{key}".removeprefix("."), leaves) for key, child in children]
    return {"type": f"builtins.{kind}", "context": context, "children_spec": specs}
