"""What each entry of a ``.mdl`` holds, told from attributes alone, for all its layouts.

Layout 0.5 has a JSON record per entry on the root, and no dataset for constants, links and
scalars. Layouts 0.1 to 0.4 have one dataset per entry under a URL-quoted name; 0.3 and 0.4 say in
``__H5_TYPE__`` what it is, 0.1 and 0.2 by flags.
"""

import json
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Attributes = Mapping[str, Any]
_RECORD = ".__metadata__"
# Kind of an entry -> what the layouts call it: serializers of 0.5, types of 0.3 and 0.4, flags.
_KINDS = {
    "tensor": "TorchTensorSerializer NumpyArraySerializer TorchTensorH5Type NumpyArrayH5Type",
    "number": "ScalarSerializer ScalarH5Type is_scalar",
    "text": "StringSerializer StringH5Type is_string",
    "none": "NoneSerializer NoneH5Type is_none",
    "filled": "DeferredFullTensor FullTensorH5Type is_constructible",
    "link": "LinkedObject StoredTensorH5Type DeferredH5Tensor",
    "elsewhere": "DeferredFileTensor DeferredSafeTensor DeferredGraphTensor "
    "StoredApplianceTensorH5Type filepath",
    "object": "ObjectSerializer ObjectH5Type",
}
_KIND_OF = {word: kind for kind, words in _KINDS.items() for word in words.split()}
_FLAGS = ("is_none", "is_string", "is_scalar", "is_constructible", "filepath")


class Entry(NamedTuple):
    """One entry of the checkpoint."""

    #: "tensor" and "stored" (a number) lie in a dataset; "filled" is a shape and one value; "value"
    #: is a number, text or None; "link" is another entry; "elsewhere" lies in another file;
    #: "object" is a pickle, never opened
    kind: str
    where: str = ""  #: the dataset, the entry linked to, or the other file
    value: Any = None  #: of "value" and "filled"
    shape: tuple[int, ...] = ()  #: of "filled"
    dtype: str = ""  #: numpy's name, of "filled"; "" is that of the dataset
    bfloat16: bool = False  #: the 16-bit integers stored are bit patterns


def read_entries(root: Attributes, datasets: Mapping[str, Attributes]) -> dict[str, Entry]:
    """Tell what every entry holds.

    Args:
        root: attributes of the file.
        datasets: those of each dataset; lists may be JSON text.

    Returns:
        By '.'-joined name, in name order.

    Raises:
        ValueError: names the entry whose record is damaged.
    """
    named = urllib.parse.unquote if float(root.get("__version__", 0.1)) < 0.5 else str
    records = {named(name): (name, own) for name, own in datasets.items()}
    if len(records) < len(datasets):
        raise ValueError("two datasets have one name once unquoted")
    entries: dict[str, Entry] = {}
    keys = [key for key in root if key.endswith(_RECORD) and key != _RECORD]
    for name in sorted(records.keys() | {key.removesuffix(_RECORD) for key in keys}):
        dataset, record = records.get(name, (name, {}))
        try:
            if named is str and name + _RECORD in root:
                record = json.loads(root[name + _RECORD])[name + _RECORD] | dict(record)
            entries[name] = _entry(dataset, record)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"entry {name} is damaged: {error!r}") from None
    return entries


def _entry(dataset: str, record: Attributes) -> Entry:
    word = record.get("__TYPE__") or record.get("__H5_TYPE__")
    word = word or next((flag for flag in _FLAGS if record.get(flag)), "TorchTensorSerializer")
    kind = _KIND_OF.get(str(word))
    if kind is None:
        raise ValueError(f"unknown kind of entry {word!r}")
    if kind == "link" and ("filepath" not in record or record.get("link_to_self")):
        return Entry(kind, urllib.parse.unquote(str(record["key"])))
    if kind in ("link", "elsewhere"):
        return Entry("elsewhere", str(record.get("filepath", record.get("path", "a graph"))))
    if kind in ("tensor", "filled"):
        dtype = str(record.get("dtype", "")).removeprefix("torch.")
        marks = (dtype, str(record.get("dtypes", "")))
        half = bool(record.get("is_bfloat16")) or any("bfloat16" in mark for mark in marks)
        if kind == "tensor":
            return Entry(kind, dataset, bfloat16=half)
        return Entry(kind, dataset, record["fill_value"], _shape(record["shape"]), dtype, half)
    if kind == "number" and "scalar_value" not in record:
        return Entry("stored", dataset)
    values = ("scalar_value", "string_value", "string_val")
    value = next((record[key] for key in values if key in record), None)
    return Entry("object" if kind == "object" else "value", value=value)


def _shape(value: str | Sequence[int]) -> tuple[int, ...]:
    sizes: Sequence[int] = json.loads(value) if isinstance(value, str) else value
    shape = tuple(int(size) for size in sizes)
    if any(size < 0 for size in shape):
        raise ValueError(f"shape {shape}")
    return shape


def follow(entries: Mapping[str, Entry], name: str) -> Entry:
    """Return what an entry holds, past all links.

    Raises:
        ValueError: the links lead nowhere or in a circle.
    """
    links: list[str] = []
    while name in entries and entries[name].kind == "link" and name not in links:
        links.append(name)
        name = entries[name].where
    if name in links or name not in entries:
        raise ValueError(f"entry {(links or [name])[0]} is a link to {name}, which holds nothing")
    return entries[name]


def listed_keys(spec: Any) -> list[str]:
    """List the keys of ``model`` from the record of a file's structure (layout 0.5).

    Args:
        spec: the attribute ``__spec__``, JSON; before 0.5 it is a pickle, which is not opened.

    Returns:
        In the file's order, which is that of registration; [] when there is no such record.
    """
    try:
        node = json.loads(json.loads(spec)[1])[1]
        section = node["children_spec"][json.loads(node["context"]).index("model")]
        return [str(key) for key in json.loads(section["context"])]
    except (TypeError, ValueError, LookupError, RecursionError):
        return []
