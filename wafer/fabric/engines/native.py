"""The engine with payloads in C++: the reference engine's state in, its state out.

Bit for bit and cycle for cycle :func:`wafer.fabric.engines.cycle.run`; what it saves is visiting
PEs in which nothing can change, and a compilation per program.
"""

import jax
import numpy as np

from wafer.fabric.engines.state import FabricState
from wafer.fabric.errors import FabricError
from wafer.fabric.native import available, missing
from wafer.fabric.program.arrays import AnyArray as Array
from wafer.fabric.program.codes import FIELDS
from wafer.fabric.program.tables import Meta, Program

__all__ = ["run"]

_TARGET = "wafer_fabric_engine"
_TABLES = ("rx", "tx", "positions", "swap", "ring", "depth", "filters", "code", "entry")
_KINDS = {"local": 0, "teardown": 0, "data": 1, "control": 2}


def _header(meta: Meta, shape: tuple[int, ...], max_cycles: int, *, start: bool) -> np.ndarray:
    tasks = []
    for t in meta.task_order:
        _, kind, key, _ = meta.tasks[t]
        tasks += [t, _KINDS[kind], key, kind == "teardown"]
    return np.array(
        [
            meta.height,
            meta.width,
            len(meta.colors),
            shape[0],
            len(meta.tasks),
            meta.words,
            max(meta.spec.input_queue_depths),
            meta.spec.ramp_latency,
            1 + meta.threads,
            max_cycles,
            meta.switched,
            meta.filters,
            meta.controls,
            meta.spec.per_hop_commands,
            meta.swaps,
            meta.teardown,
            start,
            FIELDS,
            meta.ranked,
            *meta.partners,
            *tasks,
        ],
        np.int32,
    )


@jax.jit
def _call(header: Array, tables: tuple[Array, ...], state: FabricState) -> FabricState:
    leaves, tree = jax.tree.flatten(state)
    results = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    call = jax.ffi.ffi_call(_TARGET, results, vmap_method="sequential")
    return jax.tree.unflatten(tree, call(header, *tables, *leaves))


def run(
    program: Program, state: FabricState, max_cycles: int = 1_000_000, *, start: bool = False
) -> FabricState:
    """Step until nothing changes any more, a fault occurs, or ``max_cycles`` have passed.

    Args:
        program: any program.
        state: where to start from.
        max_cycles: limit.
        start: dispatch the tasks that are active at the start first, as ``cycle.init`` does.

    Raises:
        FabricError: the library is not built.
    """
    if not available():
        raise FabricError(missing("the native engine"))
    header = _header(program.meta, np.shape(program.rx), max_cycles, start=start)
    return _call(header, tuple(getattr(program, name) for name in _TABLES), state)
