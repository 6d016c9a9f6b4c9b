"""The machine a loop runs on: devices, and every array the loop owns, by name.

Models, optimizers and scalers are handles: their arrays live here, in slots. Inside a traced step
the slots hold tracers, so that statements such as ``optimizer.step()`` become part of one pure
function from slots to slots; between steps they hold the arrays themselves.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import Array, PyTree

from wafer.engines.cluster import swarmx_mesh
from wafer.loop.distributed import CSConfig
from wafer.models.user.flags import update_flags

RNG = "rng"


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
        cluster: how many systems, and the rest of the cluster's settings.
        checkpoint_steps: those of a loop that gives none itself.
        stops_after: 'validate' or 'compile' where a step is only lowered or compiled.
        recorder: set while a step is traced.
        executor: the loop that is running, or None.
    """

    def __init__(self, name: str, seed: int, cluster: CSConfig | None = None) -> None:
        self.name, self.seed = name, seed
        self.cluster = cluster or CSConfig()
        self.checkpoint_steps: int | None = None
        self.stops_after: str | None = None
        self.autocast_depth = 0
        self.mesh = _mesh(1)
        self.parts: list[Component] = []
        self.recorder: Recorder | None = None
        self.executor: Any = None
        self.tracing = False
        self.touched: dict[str, bool] = {}  # gradients this body has added (True) or cleared first
        self.state: dict[str, Any] = {}
        self._count = itertools.count()
        self.state[RNG] = jnp.uint32(0)

    @property
    def is_csx(self) -> bool:
        """Whether the name is 'CSX'."""
        return self.name == "CSX"

    @property
    def is_cpu(self) -> bool:
        """Whether the name is 'CPU'."""
        return self.name == "CPU"

    @property
    def is_gpu(self) -> bool:
        """Whether the name is 'GPU'."""
        return self.name == "GPU"

    @property
    def half_in_force(self) -> type | None:
        """The type that models compute in under ``amp.autocast``, otherwise None."""
        return PRECISION["half"] if self.autocast_depth else None

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
        count = self.state[RNG]
        self.state[RNG] = count + jnp.uint32(1)
        return jax.random.fold_in(jax.random.key(self.seed), count)

    @contextlib.contextmanager
    def traced(self, state: dict[str, PyTree], recorder: Recorder) -> Iterator[None]:
        """Work on these slots, tracers, until the end of the block; then the old ones are back."""
        saved_state = self.state
        self.state, self.recorder, self.tracing = dict(state), recorder, True
        self.touched = {}
        try:
            yield
        finally:
            self.state, self.recorder, self.tracing = saved_state, None, False


def _mesh(num_csx: int) -> Mesh:
    """Mesh whose programs are written for one system and cut up by the compiler."""
    devices = swarmx_mesh(num_csx).devices
    return Mesh(devices, ("csx",), axis_types=(AxisType.Auto,))


_CURRENT: list[Backend] = []
PRECISION: dict[str, Any] = {"half": jnp.float16, "mixed": False}
"""``amp``'s settings: they outlive a backend, as the vendor's do."""


def backend(
    backend_type: str = "CSX",
    *,
    artifact_dir: str | None = None,
    compile_dir: str | None = None,
    compile_only: bool = False,
    validate_only: bool = False,
    cluster_config: CSConfig | None = None,
    seed: int = 0,
) -> Backend:
    """Make a backend and make it the current one.

    The vendor's is a singleton; here a second one starts afresh, and what was compiled for the
    first keeps it.

    Args:
        backend_type: 'CSX', 'CPU' or 'GPU'; all run on the devices JAX has.
        artifact_dir: accepted for the vendor's signature; nothing is written there.
        compile_dir: where compiled programs are kept between runs.
        compile_only: compile the first step of each kind and end the loop; nothing is computed.
        validate_only: the same, and only lower it.
        cluster_config: systems that share each batch of loops that give no ``cs_config``.
        seed: of everything random.

    Raises:
        ValueError: another type.
    """
    del artifact_dir
    if backend_type.upper() not in ("CSX", "CPU", "GPU"):
        raise ValueError(f"backend_type {backend_type!r}: expected 'CSX', 'CPU' or 'GPU'")
    update_flags()  # a program of the loop is eager: no block holds all of it
    if compile_dir is not None:
        jax.config.update("jax_compilation_cache_dir", compile_dir)
    new_backend = Backend(backend_type.upper(), seed, cluster_config)
    new_backend.stops_after = "validate" if validate_only else "compile" if compile_only else None
    _CURRENT[:] = [new_backend]
    return new_backend


def configure(
    *,
    seed: int | None = None,
    compile_dir: str | None = None,
    compile_only: bool = False,
    validate_only: bool = False,
    checkpoint_steps: int | None = None,
    model_dir: str | None = None,
    transfer_processes: int | None = None,
    **cluster: Any,
) -> Backend:
    """Make the CSX backend as release 1.8 did, with the cluster's settings among the rest.

    Args:
        seed: of everything random; 0 when None.
        compile_dir: where compiled programs are kept between runs.
        compile_only: as ``backend``'s.
        validate_only: as ``backend``'s.
        checkpoint_steps: of loops that give none.
        model_dir: accepted for the vendor's signature; nothing is written there.
        transfer_processes: accepted; transfers need no processes here.
        **cluster: keys of ``CSConfig``.

    Raises:
        TypeError: a key that ``CSConfig`` lacks.
    """
    del model_dir, transfer_processes
    new_backend = backend(
        "CSX",
        seed=seed or 0,
        compile_dir=compile_dir,
        compile_only=compile_only,
        validate_only=validate_only,
        cluster_config=CSConfig(**cluster),
    )
    new_backend.checkpoint_steps = checkpoint_steps
    return new_backend


def current_backend() -> Backend:
    """Return the current backend, making one if there is none."""
    return _CURRENT[0] if _CURRENT else backend()


def use_cs() -> bool:
    """Whether the current backend is named 'CSX'."""
    return bool(_CURRENT) and _CURRENT[0].is_csx


def manual_seed(seed: int) -> None:
    """Draw everything random from this seed, from its beginning."""
    where = current_backend()
    where.seed, where.state[RNG] = seed, jnp.uint32(0)
