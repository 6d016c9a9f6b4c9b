"""SwarmX: N systems in one process or in many, and how arrays get to them.

Processes find each other through ``jax.distributed``: one of them, process 0, is the coordinator.
Who it is comes from flags, from the environment (``WAFER_COORDINATOR``, ``WAFER_NUM_PROCESSES``,
``WAFER_PROCESS_ID``) or from SLURM. Each process has its share of the systems and reads its share
of the data; gradients are reduced over all of them.
"""

import contextlib
import dataclasses
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from wafer.errors import ConfigError, Problem, TrainingError

__all__ = [
    "Member",
    "broadcast",
    "join",
    "largest",
    "lost_workers",
    "membership",
    "prepare",
    "share",
    "swarmx_mesh",
    "total",
]

_LOG = logging.getLogger(__name__)
_VARIABLES = {
    "coordinator": "WAFER_COORDINATOR",
    "num_processes": "WAFER_NUM_PROCESSES",
    "process_id": "WAFER_PROCESS_ID",
}
# What XLA, gloo and the coordination service say when a peer has gone.
_LOST = (
    "gloo",
    "connection reset",
    "connection closed",
    "coordination",
    "heartbeat",
    "unavailable",
)


@dataclasses.dataclass(frozen=True)
class Member:
    """A process's place in the cluster.

    Attributes:
        coordinator: host:port of process 0; None lets JAX ask SLURM.
        count: processes.
        index: of this one.
    """

    coordinator: str | None
    count: int
    index: int


def membership(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Member | None:
    """Find out whether this process is one of several: flags, then environment, then SLURM.

    Returns:
        Its place, or None for a run in one process.

    Raises:
        ConfigError: only some of the three are known, or they contradict each other.
    """
    given: dict[str, Any] = {
        "coordinator": coordinator,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    for key, variable in _VARIABLES.items():
        if given[key] is None and environ.get(variable):
            given[key] = environ[variable]
    missing = [key for key, value in given.items() if value is None]
    if len(missing) == len(given):
        return _slurm(environ)
    if missing:
        names = ", ".join(f"--{key} (or {_VARIABLES[key]})" for key in missing)
        message = f"a run in several processes needs all three; {names} is missing"
        raise ConfigError([Problem((), message)])
    try:
        count, index = int(given["num_processes"]), int(given["process_id"])
    except ValueError:
        message = (
            f"--num_processes {given['num_processes']!r}, --process_id {given['process_id']!r}"
        )
        raise ConfigError([Problem((), f"{message}: expected whole numbers")]) from None
    if not 0 <= index < count:
        message = f"--process_id {index}: expected 0 to {count - 1} (--num_processes {count})"
        raise ConfigError([Problem((), message)])
    return None if count == 1 else Member(str(given["coordinator"]), count, index)


def _slurm(environ: Mapping[str, str]) -> Member | None:
    """A job step of several tasks; an allocation alone (``sbatch`` without ``srun``) is none."""
    count = int(environ.get("SLURM_STEP_NUM_TASKS", "1"))
    if count == 1 or "SLURM_PROCID" not in environ:
        return None
    return Member(None, count, int(environ["SLURM_PROCID"]))


def prepare(num_csx: int, count: int, each: int = 1) -> None:
    """Make this process's CPU devices, before the first use of any.

    Args:
        num_csx: systems of the whole run.
        count: processes that share them.
        each: devices of a system, which the stages of a pipeline are spread over.

    Raises:
        ConfigError: they cannot be shared evenly.
    """
    if num_csx % count:
        message = (
            f"{num_csx} system(s) cannot be shared by {count} processes evenly; "
            f"use a multiple of {count}"
        )
        raise ConfigError([Problem(("runconfig", "num_csx"), message)])
    if num_csx * each > 1:
        jax.config.update("jax_num_cpu_devices", num_csx // count * each)


def join(member: Member, heartbeat: int) -> None:
    """Meet the other processes.

    Args:
        member: from ``membership``.
        heartbeat: seconds of silence after which a process counts as lost.

    Raises:
        TrainingError: the others did not come.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            member.coordinator,
            member.count,
            member.index,
            cluster_detection_method=None if member.coordinator is None else "deactivate",
            heartbeat_timeout_seconds=heartbeat,
            shutdown_timeout_seconds=heartbeat,
        )
    except (RuntimeError, ValueError) as error:
        raise TrainingError(
            f"process {member.index} of {member.count}: the others were not met at "
            f"{member.coordinator or 'the address SLURM gives'}: {error}"
        ) from error
    _LOG.info("Process %d of %d, coordinator %s", member.index, member.count, member.coordinator)


@contextlib.contextmanager
def lost_workers() -> Iterator[None]:
    """Turn the failure of a collective into one line, and end the process without waiting.

    The clean way out is a barrier, which a dead process never reaches.
    """
    try:
        yield
    except (ValueError, RuntimeError) as error:
        text = str(error).lower()
        if jax.process_count() == 1 or not any(word in text for word in _LOST):
            raise
        reason = str(error).strip().partition("\n")[0][:300]
        sys.stderr.write(
            f"wafer: error: process {jax.process_index()} of {jax.process_count()} lost contact "
            f"with another process ({reason}). Start all processes again, as many as you like: "
            "the run continues from the last checkpoint.\n"
        )
        sys.stderr.flush()
        os._exit(1)


def largest(value: int) -> int:
    """Return the largest of the processes' values; everybody has to ask."""
    if jax.process_count() == 1:
        return value
    return int(np.max(multihost_utils.process_allgather(np.int64(value))))


def total(value: float) -> float:
    """Return the sum of the processes' values; everybody has to ask."""
    if jax.process_count() == 1:
        return value
    return float(np.sum(multihost_utils.process_allgather(np.float32(value))))


def swarmx_mesh(num_csx: int) -> Mesh:
    """Mesh with one axis, 'csx', over the first ``num_csx`` devices.

    Raises:
        ValueError: fewer devices than systems.
    """
    devices = jax.devices()
    if len(devices) < num_csx:
        raise ValueError(
            f"runconfig.num_csx: {num_csx} systems, but JAX sees {len(devices)} "
            f"{devices[0].platform} device(s). On a CPU the command line makes as many as "
            "needed; in Python call jax.config.update('jax_num_cpu_devices', N) before first use."
        )
    return jax.make_mesh((num_csx,), ("csx",), devices=devices[:num_csx])


def broadcast(leaf: Any, everywhere: NamedSharding) -> jax.Array:
    """Put the same array on every system.

    Args:
        leaf: host array, equal in all processes (nothing checks that), or a device array.
        everywhere: replicated sharding of the mesh.
    """
    if isinstance(leaf, jax.Array):
        if leaf.sharding == everywhere:
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(broadcast(jax.random.key_data(leaf), everywhere))
    devices = sorted(everywhere.addressable_devices, key=lambda device: device.id)
    copies = [jax.device_put(leaf, device) for device in devices]
    return jax.make_array_from_single_device_arrays(np.shape(leaf), everywhere, copies)


def share(features: Mapping[str, Any], mesh: Mesh) -> dict[str, Any]:
    """Send host features to the systems: the leading axis is that of this process's systems."""
    sharding = NamedSharding(mesh, P("csx"))
    place = lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x))
    return jax.tree.map(place, dict(features))
