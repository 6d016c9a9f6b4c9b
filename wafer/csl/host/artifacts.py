"""What a compilation leaves in a folder, and reading it back.

Public programs read ``out.json`` and ``out_rpc.json``, and some look for ``bin/out_X_Y.elf``, which
are placeholders. The program itself is ``wafer.npz`` (arrays) with ``wafer.json`` (the rest).
"""

import hashlib
import io
import json
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wafer.csl.host.words import argument_types
from wafer.errors import CompileError
from wafer.machine.image import Export, Footprint, HostPort, Image, Preset, Program, Symbol
from wafer.models.files import JsonObject, atomic_write, made_folder

if TYPE_CHECKING:  # the machine takes a second to import, which a compilation need not spend
    from wafer.machine.base import WaferMachine

_VERSION = 6
_ARRAYS, _REST, _CORES = "wafer.npz", "wafer.json", "cores.npz"
_PLACEHOLDER = b"The program of this PE and of those like it is in wafer.npz.\n"


def save(
    folder: str | Path,
    image: Image,
    params: Mapping[str, str],
    colors: Mapping[str, str] | None = None,
    *,
    offsets: tuple[int, int] = (4, 1),
) -> None:
    """Write a compiled program; files are replaced whole.

    Args:
        folder: that is made if it is not there.
        image: compiled.
        params: of the command line, as text.
        colors: of the command line, likewise.
        offsets: columns and rows of the fabric before the program's rectangle.
    """
    with made_folder(Path(folder) / "bin"):
        _save(Path(folder), image, {"params": dict(params), "colors": dict(colors or {})}, offsets)


def _save(
    folder: Path, image: Image, given: Mapping[str, dict[str, str]], offsets: tuple[int, int]
) -> None:
    for old in (folder / "bin").glob("out_*_*.elf"):
        old.unlink()
    for k in range(len(image.programs)):
        y, x = np.argwhere(image.tiles == k)[0]
        _replace(folder / "bin" / f"out_{x + offsets[0]}_{y + offsets[1]}.elf", _PLACEHOLDER)
    out = {**given, "arch": image.arch, "fabric_offsets": list(offsets)}
    _replace(folder / "out.json", _text(out))
    _replace(folder / "out_rpc.json", _text({"rpc_symbols": _rpc(image)}))
    arrays, rest = _split(image)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    data = buffer.getvalue()
    _replace(folder / _ARRAYS, data)
    head = {"version": _VERSION, "sha256": hashlib.sha256(data).hexdigest(), "offsets": offsets}
    _replace(folder / _REST, _text(head | rest))  # last: with it, the folder is complete


def load(folder: str | Path) -> Image:
    """Read what ``save`` wrote.

    Raises:
        CompileError: nothing was compiled to this folder, by another version, or only in part.
    """
    folder = Path(folder)
    rest = _rest(folder)
    try:
        data = (folder / _ARRAYS).read_bytes()
    except OSError as error:
        raise CompileError(f"{folder / _ARRAYS}: {error.strerror}; compile again") from None
    if hashlib.sha256(data).hexdigest() != rest["sha256"]:
        raise CompileError(
            f"{folder / _ARRAYS} is not the file that {_REST} was written with (another compilation"
            " was broken off, or the file was changed); compile again"
        )
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return _join(dict(arrays), rest)


def save_cores(folder: str | Path, image: Image, machine: "WaferMachine") -> bytes:
    """Write what the memory of all PEs holds.

    Args:
        folder: of the compiled program.
        image: of it.
        machine: that has run it.

    Returns:
        The content of the file.
    """
    memories = {}
    for k, program in enumerate(image.programs):
        rows = [
            machine.read(x, y, 0, len(program.memory)) for y, x in np.argwhere(image.tiles == k)
        ]
        memories[str(k)] = np.stack(rows)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **memories)
    _replace(Path(folder) / _CORES, buffer.getvalue())
    return buffer.getvalue()


def load_cores(folder: str | Path, image: Image) -> dict[tuple[int, int], np.ndarray]:
    """What ``save_cores`` wrote: (column, row) -> [bytes] uint8.

    Raises:
        CompileError: the program has not run to its end since it was compiled.
    """
    file, compiled = Path(folder) / _CORES, Path(folder) / _REST
    if not file.exists() or file.stat().st_mtime_ns < compiled.stat().st_mtime_ns:
        raise CompileError(f"{folder}: no run of this program was stopped yet; call stop() first")
    out = {}
    with np.load(file, allow_pickle=False) as memories:
        for k in range(len(image.programs)):
            places = np.argwhere(image.tiles == k).tolist()
            out |= {(x, y): row for (y, x), row in zip(places, memories[str(k)], strict=True)}
    return out


def offsets_of(folder: str | Path) -> tuple[int, int]:
    """Columns and rows of the fabric before the program's rectangle.

    Raises:
        CompileError: as ``load``.
    """
    left, top = _rest(Path(folder))["offsets"]
    return left, top


def _rest(folder: Path) -> JsonObject:
    file = folder / _REST
    try:
        rest = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CompileError(
            f"{folder}: nothing was compiled to this folder; `wafer csl compile LAYOUT.csl"
            f" -o {folder}` does that (also as `cslc`)"
        ) from None
    except json.JSONDecodeError as error:
        raise CompileError(f"{file}: {error}; compile again") from None
    if rest.get("version") != _VERSION:
        raise CompileError(
            f"{file} is of version {rest.get('version')}, this is version {_VERSION}; compile again"
        )
    return rest


def _split(image: Image) -> tuple[dict[str, np.ndarray], JsonObject]:
    """An image as arrays by name, and what JSON can hold."""
    arrays = {name: value for name, value in image._asdict().items() if _is_array(value)}
    programs = []
    for k, program in enumerate(image.programs):
        fields = program._asdict()
        tables = fields.pop("tables")
        arrays |= {f"{k}/{name}": v for name, v in fields.items() if _is_array(v)}
        arrays |= {f"{k}/tables/{name}": table for name, table in tables.items()}
        programs.append({name: v for name, v in fields.items() if not _is_array(v)})
    rest = {
        "arch": image.arch,
        "programs": programs,
        "exports": image.exports,
        "streams": list(image.streams.items()),
        "params": {name: str(value) for name, value in image.params.items()},
        "edges": image.edges,
        "timing": image.timing,
        "half": image.half,
        "route_places": image.route_places,
        "ports": image.ports,
        "presets": [(preset.name, preset.x, preset.y) for preset in image.presets],
    }
    arrays |= {f"presets/{k}": preset.values for k, preset in enumerate(image.presets)}
    return arrays, rest


def _join(arrays: dict[str, np.ndarray], rest: JsonObject) -> Image:
    programs = []
    for k, fields in enumerate(rest["programs"]):
        own: dict[str, Any] = {
            n.removeprefix(f"{k}/"): v for n, v in arrays.items() if n.startswith(f"{k}/")
        }
        tables = {n.removeprefix("tables/"): own.pop(n) for n in list(own) if "/" in n}
        for name in ("files", "messages"):
            fields[name] = tuple(fields[name])
        for table in ("symbols", "exports"):
            fields[table] = {name: Symbol(*s) for name, s in fields[table].items()}
        fields["footprint"] = fields["footprint"] and Footprint(*fields["footprint"])
        programs.append(Program(**fields, **own, tables=tables))
    return Image(
        arch=rest["arch"],
        programs=tuple(programs),
        exports=tuple(Export(*export) for export in rest["exports"]),
        streams={int(color): name for color, name in rest["streams"]},
        params=rest["params"],
        edges=rest["edges"],
        timing=rest["timing"],
        half=rest["half"],
        route_places=tuple(rest["route_places"]),
        ports={name: HostPort(*port) for name, port in rest["ports"].items()},
        presets=tuple(
            Preset(name, x, y, arrays[f"presets/{k}"])
            for k, (name, x, y) in enumerate(rest["presets"])
        ),
        **{name: value for name, value in arrays.items() if "/" not in name},
    )


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


def _rpc(image: Image) -> list[dict[str, object]]:
    symbols = []
    for k, export in enumerate(image.exports):
        inputs = argument_types(export.type)
        symbols.append(
            {
                "id": k,
                "name": export.name,
                "type": export.type,
                "kind": "Var" if inputs is None else "Func",
                "immutable": not export.mutable,
                "inputs": list(inputs or ()),
            }
        )
    for color, name in image.streams.items():
        row = {"id": color, "name": name, "type": "u32", "kind": "Stream"}
        symbols.append(row | {"immutable": False, "inputs": []})
    return symbols


def _text(value: object) -> bytes:
    return (json.dumps(value, indent=1, default=operator.index) + "\n").encode()


def _replace(file: Path, data: bytes) -> None:
    """Write a file so that others see all of it or the one before."""
    with atomic_write(file) as partial:
        partial.write_bytes(data)
