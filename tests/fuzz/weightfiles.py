"""``pytorch_model.bin``, safetensors and the JSON beside them."""

import io
import itertools
import json
import pickle
import zipfile

import numpy as np
from safetensors.numpy import save

from fuzz.mutations import EDGES, damaged
from wafer.models.convert.files import open_tensors, read_config


class _Named:
    """Pickled as the name of something in a module, whether or not it exists."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class _Called:
    def __init__(self, function, *args, state=None):
        self.function, self.args, self.state = function, args, state


_REBUILD = _Named("torch._utils", "_rebuild_tensor_v2")


def dumps(value):
    """The pickle (protocol 2) of dicts, lists, tuples, numbers, text, names, calls, storages."""
    return b"\x80\x02" + _dumped(value) + b"."


def _dumped(value):
    if isinstance(value, _Named):
        return f"c{value.module}\n{value.name}\n".encode()
    if isinstance(value, _Called):
        built = b"" if value.state is None else _dumped(value.state) + b"b"
        return _dumped(value.function) + _dumped(tuple(value.args)) + b"R" + built
    if isinstance(value, frozenset):  # of one: a persistent object
        return _dumped(*value) + b"Q"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_dumped, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(_dumped, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(map(_dumped, itertools.chain(*value.items()))) + b"u"
    return pickle.dumps(value, 2)[2:-1]


def storage(kind, key, size):
    """A storage as torch names it."""
    return frozenset([("storage", _Named("torch", kind), key, "cpu", size)])


def tensor(where, offset, shape, strides):
    """A tensor in a storage."""
    hooks = _Called(_Named("collections", "OrderedDict"))
    return _Called(_REBUILD, where, offset, shape, strides, False, hooks)


def archive(program, storages, compression=zipfile.ZIP_STORED):
    """The bytes of a .bin file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as file:
        file.writestr("model/data.pkl", program)
        file.writestr("model/byteorder", b"little")
        for key, content in storages.items():
            file.writestr(f"model/data/{key}", content)
    return out.getvalue()


def _good(rng):
    values = np.arange(24, dtype=np.float32)
    where = storage("FloatStorage", "0", 24)
    whole = tensor(where, 0, (4, 6), (6, 1))
    part = tensor(where, rng.randrange(4), (2, 3), (1, 6))
    return {"w": whole, "part": part}, {"0": values.tobytes()}


def _number(rng):
    return rng.choice([*range(12), *EDGES, *(-e for e in EDGES), 10**30, 0.5, "3", None, True])


def _hostile(rng):
    """A tensor of numbers that may not fit its storage, and what it should hold if they do."""
    size = rng.choice([0, 1, 6, 24])
    values = np.arange(size, dtype=np.float32)
    axes = rng.randrange(4)
    draw = lambda: rng.randrange(-1, 7) if rng.random() < 0.8 else _number(rng)
    shape, strides = (tuple(draw() for _ in range(axes)) for _ in range(2))
    offset, claimed = draw(), size if rng.random() < 0.8 else draw()
    program = dumps({"w": tensor(storage("FloatStorage", "0", claimed), offset, shape, strides)})

    def check(tensors):
        index = [] if 0 in shape else np.ndindex(*shape)
        want = [
            values[offset + sum(i * s for i, s in zip(at, strides, strict=True))] for at in index
        ]
        same = tensors["w"].shape == shape and tensors["w"].ravel().tolist() == [*map(float, want)]
        return "" if same else f"wrong values for {offset}, {shape}, {strides}"

    return archive(program, {"0": values.tobytes()}), check


_NAMES = [
    ("os", "system"),
    ("builtins", "eval"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("collections", "OrderedDict"),
    ("torch", "FloatStorage"),
    ("wafer.models.convert.pickles", "read_pickle"),
]


def _program(rng, depth=0):
    """A value of any kind, names and calls among them."""
    inner = lambda: _program(rng, depth + 1)
    count = rng.randrange(4) if depth < 4 else 0
    kind = rng.randrange(8)
    if kind == 0:
        return _Named(*rng.choice(_NAMES))
    if kind == 1:
        called = _Named(*rng.choice(_NAMES)) if rng.random() < 0.7 else inner()
        return _Called(called, *(inner() for _ in range(count)), state=inner() if count else None)
    if kind == 2:
        return tuple(inner() for _ in range(count))
    if kind == 3:
        return [inner() for _ in range(count)]
    if kind == 4:
        return {f"k{i}": inner() for i in range(count)}
    if kind == 5 and count:
        return storage("FloatStorage", "0", _number(rng))
    return _number(rng)


def torch_files(rng, folder):
    """Damaged archives; sound archives of damaged or hostile pickles and of hostile tensors."""
    while True:
        content, storages = _good(rng)
        program = dumps(content)
        kind = rng.randrange(6)
        if kind == 0:
            yield "a.bin", damaged(archive(program, storages), rng), None
        elif kind == 1:
            yield "a.bin", archive(damaged(program, rng), storages), None
        elif kind == 2:
            yield "a.bin", archive(dumps({"w": _program(rng)}), storages), None
        elif kind == 3:
            deflated = archive(program, {"0": bytes(1 << 20)}, zipfile.ZIP_DEFLATED)
            yield "a.bin", damaged(deflated, rng), None
        else:
            yield "a.bin", *_hostile(rng)


def safetensors_files(rng, folder):
    """Damage anywhere; a sound length before a damaged header."""
    whole = save({"a": np.ones((3, 4), np.float32), "b": np.arange(5), "c": np.ones((), bool)})
    size = int.from_bytes(whole[:8], "little")
    header, rest = whole[8 : 8 + size], whole[8 + size :]
    kinds = ["F32", "I64", "BOOL", "F8_E4M3", "F4", "U64", "C64", "BF16", "F16", "XX"]
    while True:
        kind = rng.randrange(3)
        if kind == 0:
            yield "a.safetensors", damaged(whole, rng), None
            continue
        if kind == 1:
            text = damaged(header, rng)
        else:
            place = {
                "dtype": rng.choice(kinds),
                "shape": [rng.choice([0, 1, 2, 3, *EDGES]) for _ in range(rng.randrange(4))],
                "data_offsets": [0, rng.choice([0, 8, 48, len(rest), *EDGES])],
            }
            text = json.dumps({"a": place}).encode()
        yield "a.safetensors", len(text).to_bytes(8, "little") + text + rest, None


def read_all(path):
    """Every tensor of a file."""
    tensors = open_tensors(path)
    arrays = {name: np.array(tensors[name]) for name in tensors}
    assert all(value.shape == tensors.shape(name) for name, value in arrays.items())
    return arrays


def json_files(rng, folder):
    """Indexes and configurations: damaged, nested deeply, of other types."""
    index = {"metadata": {"total_size": 5}, "weight_map": {"a": "x.safetensors", "b": "y.bin"}}
    names = ["a.safetensors.index.json", "config.json"]
    of_a = [1, None, ["b"], "\0", "../b", "", "..", "."]
    odd = [[], 1, None, "x", *({"a": name} for name in of_a)]
    while True:
        kind = rng.randrange(3)
        if kind == 0:
            content = damaged(json.dumps(index).encode(), rng)
        elif kind == 1:
            content = json.dumps({"weight_map": rng.choice([*odd, {"a": "x" * 5000}])}).encode()
        else:
            content = rng.choice([b"[", b'{"weight_map":', b'{"a":']) * rng.choice([3, 10**5])
        yield rng.choice(names), content, None


def read_json_file(path):
    """Through the reader that the name decides."""
    if path.name == "config.json":
        return read_config(path)
    try:
        return open_tensors(path)
    except FileNotFoundError as error:  # names the missing weights instead
        raise FileNotFoundError(f"{path}: {error}") from None
