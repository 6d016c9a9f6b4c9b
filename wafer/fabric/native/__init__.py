"""The fabric in C++, called through ``jax.ffi``: the timing plane in words of 512 PEs.

Optional: without the library (no compiler at install) ``available`` is False, and
:func:`wafer.fabric.count_cycles` runs its JAX planes, which are the reference.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from vsl.native.library import Library, how_to_build
from wafer.fabric.engines.planar import PlaneMasks, PlaneShape, transpose
from wafer.fabric.errors import FabricError
from wafer.machine.arch import PORTS

__all__ = ["available", "is_asked", "missing", "prepare_words", "run", "run_words"]

_LIBRARY = Library(
    what="fabric",
    package="wafer.fabric.native",
    handlers=("wafer_timing_plane",),
    instead="the JAX planes",
)
available = _LIBRARY.usable
_BLOCK = 512
_MOST_CYCLES = 10_000_000


def is_asked(implementation: str) -> bool:
    """Resolve "auto": C++ where the library is built and programs run on the CPU."""
    if implementation not in {"auto", "jax", "native"}:
        raise FabricError(f"implementation {implementation!r}; there are auto, jax and native")
    return implementation == "native" or (implementation == "auto" and available())


def missing(what: str) -> str:
    """Say how to get the library."""
    return (
        f"{what} is not built (_native.so is missing or does not load);"
        f" ask for implementation='jax', or build it: {how_to_build()}"
    )


def _words(planes: np.ndarray) -> np.ndarray:
    """[n, H, W] bool to [H, blocks, n, 16] uint32: 512 PEs along x per vector."""
    count, height, width = planes.shape
    blocks = -(-width // _BLOCK)
    padded = np.zeros((count, height, blocks * _BLOCK), bool)
    padded[..., :width] = planes
    packed = np.packbits(padded, axis=-1, bitorder="little").view(np.uint32)
    return packed.reshape(count, height, blocks, 16).transpose(1, 2, 0, 3)


def prepare_words(shape: PlaneShape, masks: PlaneMasks) -> tuple[np.ndarray, np.ndarray]:
    """Lay a timing program out as the C++ side reads it, turned if that fills the words better.

    Returns:
        [n] int32 header and [H * blocks * masks * 16] uint32 words.
    """
    blocks = lambda height, width: height * -(-width // _BLOCK)
    if 2 * blocks(shape.width, shape.height) <= blocks(shape.height, shape.width):
        shape, masks = transpose(shape, masks)
    bits = (masks.counts[:, None] >> np.arange(shape.bits)[:, None, None]) & 1
    planes = [
        *(masks.ports[c, p] for c, p in shape.ports),
        *masks.inject,
        *(masks.reads[s, c] for s, c in shape.reads),
        *(masks.writes[s, c] for s, c in shape.writes),
        *masks.exists,
        *bits.reshape(-1, shape.height, shape.width).astype(bool),
    ]
    pairs = [v for group in (shape.ports, shape.reads, shape.writes) for p in group for v in p]
    header = [
        shape.height,
        -(-shape.width // _BLOCK),
        len(shape.depths),
        shape.spec.ramp_latency,
        shape.bits,
        shape.slots,
        int(any(PORTS[p] in {"N", "S"} for _, p in shape.ports)),
        _MOST_CYCLES,
        len(shape.ports),
        len(shape.reads),
        len(shape.writes),
        *shape.depths,
        *(int(c in shape.merges) for c in range(len(shape.depths))),
        *pairs,
    ]
    return np.array(header, np.int32), _words(np.stack(planes)).reshape(-1)


@jax.jit
def _call(header: Array, words: Array) -> Array:
    result = jax.ShapeDtypeStruct((3,), jnp.int32)
    return _LIBRARY.call("wafer_timing_plane", result, header, words)


def run_words(header: Array, words: Array) -> Array:
    """[3] int32: cycles, faulted, stuck; see :func:`prepare_words`.

    Raises:
        FabricError: the library is not built.
    """
    if not available():
        raise FabricError(missing("the native timing plane"))
    return _call(header, words)


def run(shape: PlaneShape, masks: PlaneMasks) -> np.ndarray:
    """Run a timing program.

    Returns:
        [3] int32 cycles, faulted, stuck.

    Raises:
        FabricError: the library is not built.
    """
    header, words = prepare_words(shape, masks)
    return np.asarray(run_words(jnp.asarray(header), jnp.asarray(words)))
