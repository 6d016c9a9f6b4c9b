"""The machine a loop runs on: devices, and every array the loop owns, by name.

Models, optimizers and scalers are handles: their arrays live here, in slots. Inside a traced step
the slots hold tracers, so that statements such as ``optimizer.step()`` become part of one pure
function from slots to slots; between steps they hold the arrays themselves.
"""

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import Array

from wafer.engines.cluster import swarmx_mesh

__all__ = ["Backend", "Component", "Recorder", "backend", "current_backend"]

_LOG = logging.getLogger(__name__)
_RNG = "rng"


class Component(Protocol):
    """Something with slots: a model, an optimizer, a scaler, a sparsity algorithm."""

    def prepare(self) -> None:
        """Fill the part's slots if they are empty and can be filled already."""
        ...


Recorder = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], None]
"""What takes the closure calls (function, arguments, keywords) of a step that is traced."""


class Backend:
    """Devices and slots; made by ``backend``.

    Attributes:
        name: 'CSX', 'CPU' or 'GPU' as given; the devices are JAX's own in every case.
        seed: of everything random.
        mesh: the systems, one axis 'csx'.
        parts: everything with slots, in order of making.
        recorder: set while a step is traced.
        executor: the loop that is running, or None.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.seed = name, seed
        self.mesh = _mesh(1)
        self.parts: list[Component] = []
        self.recorder: Recorder | None = None
        self.executor: Any = None
        self.tracing = False
        self.touched: dict[str, bool] = {}  # gradients this body has added (True) or cleared first
        self.state: dict[str, Any] = {}
        self._count = itertools.count()
        self.state[_RNG] = jnp.uint32(0)

    @property
    def device(self) -> contextlib.AbstractContextManager[None]:
        """For ``with backend.device:``; models are made where they run anyway."""
        return contextlib.nullcontext()

    def register(self, part: Component, kind: str) -> str:
        """Take a part on; returns the prefix of its slots."""
        self.parts.append(part)
        return f"{kind}_{next(self._count)}"

    def prepare(self) -> None:
        """Fill every slot that can be filled."""
        for part in self.parts:
            part.prepare()

    def use(self, num_csx: int) -> None:
        """Run on so many systems from now on; slots are copied to all of them.

        Raises:
            ValueError: fewer devices than systems.
        """
        if self.mesh.devices.size != num_csx:
            self.mesh = _mesh(num_csx)

    @property
    def everywhere(self) -> NamedSharding:
        """Sharding of what every system holds."""
        return NamedSharding(self.mesh, P())

    @property
    def shared_out(self) -> NamedSharding:
        """Sharding of a batch: each system its share of the first axis."""
        return NamedSharding(self.mesh, P("csx"))

    def key(self) -> Array:
        """Draw the next random key."""
        count = self.state[_RNG]
        self.state[_RNG] = count + jnp.uint32(1)
        return jax.random.fold_in(jax.random.key(self.seed), count)

    @contextlib.contextmanager
    def traced(self, state: dict[str, Any], recorder: Recorder) -> Iterator[None]:
        """Work on these slots, tracers, until the end of the block; then the old ones are back."""
        kept = self.state
        self.state, self.recorder, self.tracing = dict(state), recorder, True
        self.touched = {}
        try:
            yield
        finally:
            self.state, self.recorder, self.tracing = kept, None, False


def _mesh(num_csx: int) -> Mesh:
    """Mesh whose programs are written for one system and cut up by the compiler."""
    devices = swarmx_mesh(num_csx).devices
    return Mesh(devices, ("csx",), axis_types=(AxisType.Auto,))


_CURRENT: list[Backend] = []


def backend(
    backend_type: str = "CSX",
    *,
    artifact_dir: str | None = None,
    compile_dir: str | None = None,
    seed: int = 0,
) -> Backend:
    """Make a backend and make it the current one.

    The vendor's is a singleton; here a second one starts afresh, and what was compiled for the
    first keeps it.

    Args:
        backend_type: 'CSX', 'CPU' or 'GPU'; all run on the devices JAX has.
        artifact_dir: accepted for the vendor's signature; nothing is written there.
        compile_dir: where compiled programs are kept between runs.
        seed: of everything random.

    Raises:
        ValueError: another type.
    """
    del artifact_dir
    if backend_type.upper() not in ("CSX", "CPU", "GPU"):
        raise ValueError(f"backend_type {backend_type!r}: expected 'CSX', 'CPU' or 'GPU'")
    if compile_dir is not None:
        jax.config.update("jax_compilation_cache_dir", compile_dir)
    _CURRENT[:] = [Backend(backend_type.upper(), seed)]
    return _CURRENT[0]


def current_backend() -> Backend:
    """Return the current backend, making one if there is none."""
    return _CURRENT[0] if _CURRENT else backend()
