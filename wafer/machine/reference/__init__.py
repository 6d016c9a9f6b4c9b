"""The machine in JAX, for small programs: the same cycles and bits as the C++ one, under vmap.

Registers have 64 bits, so everything runs inside ``jax.enable_x64(True)``. One step of the whole
wafer is one pure function of a :class:`State`; the C++ machine says what it has to do.
"""

from wafer.machine.reference.engine import launch, load, run, start, store
from wafer.machine.reference.state import State
from wafer.machine.reference.tables import Tables, tables_of

__all__ = ["State", "Tables", "launch", "load", "run", "start", "store", "tables_of"]
