"""What each entry of a ``.mdl`` holds, told from attributes alone, for all its layouts.

Layout 0.5 has a JSON record per entry on the root, and no dataset for constants, links and
scalars. Layouts 0.1 to 0.4 have one dataset per entry under a URL-quoted name; 0.3 and 0.4 say in
``__H5_TYPE__`` what it is, 0.1 and 0.2 by flags.
"""

import json
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Attributes = Mapping[str, Any]
_RECORD = ".__metadata__"
# How files of 0.1 to 0.4 mark what 0.5 calls by its serializer.
_OLD_TYPES = {
    "TorchTensorH5Type": "TorchTensorSerializer",
    "NumpyArrayH5Type": "NumpyArraySerializer",
    "ScalarH5Type": "ScalarSerializer",
    "StringH5Type": "StringSerializer",
    "NoneH5Type": "NoneSerializer",
    "ObjectH5Type": "ObjectSerializer",
    "FullTensorH5Type": "DeferredFullTensor",
    "StoredTensorH5Type": "LinkedObject",
    "DeferredH5Tensor": "LinkedObject",
    "StoredApplianceTensorH5Type": "DeferredFileTensor",
}
_OLD_FLAGS = (
    ("is_none", "NoneSerializer"),
    ("is_string", "StringSerializer"),
    ("is_scalar", "ScalarSerializer"),
    ("is_constructible", "DeferredFullTensor"),
    ("filepath", "DeferredFileTensor"),
)


class Leaf(NamedTuple):
    """One entry of the checkpoint."""

    #: "tensor" and "stored" (a number) lie in a dataset; "filled" is a shape and one value; "value"
    #: is a number, text or None; "link" is another entry; "elsewhere" lies in another file;
    #: "object" is a pickle, never opened
    kind: Literal["tensor", "stored", "filled", "value", "link", "elsewhere", "object"]
    where: str = ""  #: the dataset, the entry linked to, or the other file
    value: Any = None  #: of "value" and "filled"
    shape: tuple[int, ...] = ()  #: of "filled"
    dtype: str = ""  #: numpy's name, of "filled"; "" is that of the dataset
    bfloat16: bool = False  #: the 16-bit integers stored are bit patterns


def read_leaves(root: Attributes, datasets: Mapping[str, Attributes]) -> dict[str, Leaf]:
    """Tell what every entry holds.

    Args:
        root: attributes of the file.
        datasets: those of each dataset; lists may be JSON text.

    Returns:
        By '.'-joined name, in name order.

    Raises:
        ValueError: names the entry whose record is damaged.
    """
    leaves: dict[str, Leaf] = {}
    if float(root.get("__version__", 0.1)) < 0.5:
        entries = {urllib.parse.unquote(name): (name, own) for name, own in datasets.items()}
        if len(entries) < len(datasets):
            raise ValueError("two datasets have one name once unquoted")
    else:
        entries = {name: (name, own) for name, own in datasets.items()}
        for key in root:
            if key.endswith(_RECORD) and key != _RECORD:
                name = key.removesuffix(_RECORD)
                entries[name] = (name, _record(root[key], name) | dict(datasets.get(name, {})))
    for name, (dataset, record) in sorted(entries.items()):
        try:
            kind = _type(record)
            if kind not in _KINDS:
                raise ValueError(f"unknown kind of entry {kind!r}")
            leaves[name] = _KINDS[kind](dataset, record)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"entry {name} is damaged: {error!r}") from None
    return leaves


def _record(text: Any, name: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text)[name + _RECORD])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"entry {name} is damaged: {error!r}") from None


def _type(record: Attributes) -> str:
    if "__TYPE__" in record:
        return str(record["__TYPE__"])
    if "__H5_TYPE__" in record:
        marked = str(record["__H5_TYPE__"])
        return _OLD_TYPES.get(marked, marked)
    return next((name for flag, name in _OLD_FLAGS if record.get(flag)), "TorchTensorSerializer")


def _is_bfloat16(record: Attributes) -> bool:
    return bool(record.get("is_bfloat16")) or "bfloat16" in str(record.get("dtypes", ""))


def _filled(dataset: str, record: Attributes) -> Leaf:
    dtype = str(record.get("dtype", "")).removeprefix("torch.")
    bfloat16 = _is_bfloat16(record) or dtype == "bfloat16"
    return Leaf("filled", dataset, record["fill_value"], _shape(record["shape"]), dtype, bfloat16)


_KINDS: dict[str, Callable[[str, Attributes], Leaf]] = {
    **dict.fromkeys(
        ("TorchTensorSerializer", "NumpyArraySerializer"),
        lambda dataset, record: Leaf("tensor", dataset, bfloat16=_is_bfloat16(record)),
    ),
    "ScalarSerializer": lambda dataset, record: (
        Leaf("value", value=record["scalar_value"])
        if "scalar_value" in record
        else Leaf("stored", dataset)
    ),
    "StringSerializer": lambda _, r: Leaf(
        "value", value=r.get("string_value", r.get("string_val"))
    ),
    "NoneSerializer": lambda *_: Leaf("value"),
    "DeferredFullTensor": _filled,
    "LinkedObject": lambda _, r: (
        Leaf("elsewhere", str(r["filepath"]))
        if "filepath" in r and not r.get("link_to_self")
        else Leaf("link", urllib.parse.unquote(str(r["key"])))
    ),
    **dict.fromkeys(
        ("DeferredSafeTensor", "DeferredFileTensor", "DeferredGraphTensor"),
        lambda _, r: Leaf("elsewhere", str(r.get("filepath", r.get("path", "a graph")))),
    ),
    "ObjectSerializer": lambda *_: Leaf("object"),
}


def _shape(value: Any) -> tuple[int, ...]:
    sizes: Sequence[Any] = json.loads(value) if isinstance(value, str) else value
    shape = tuple(int(size) for size in sizes)
    if any(size < 0 for size in shape):
        raise ValueError(f"shape {shape}")
    return shape


def follow(leaves: Mapping[str, Leaf], name: str) -> Leaf:
    """Return what an entry holds, past all links.

    Raises:
        ValueError: the links lead nowhere or in a circle.
    """
    seen: list[str] = []
    while name in leaves and leaves[name].kind == "link" and name not in seen:
        seen.append(name)
        name = leaves[name].where
    if name in seen or name not in leaves:
        raise ValueError(f"entry {(seen or [name])[0]} is a link to {name}, which holds nothing")
    return leaves[name]
