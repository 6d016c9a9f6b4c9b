"""SwarmX: N systems in one process or in many, and how arrays get to them.

Processes find each other through ``jax.distributed``: one of them, process 0, is the coordinator.
Its address comes from flags, from the environment (``WAFER_COORDINATOR``, ``WAFER_NUM_PROCESSES``,
``WAFER_PROCESS_ID``) or from SLURM. Processes compare their configurations and watch over each
other (``rendezvous``). Each process has its share of the systems and reads its share of the data;
gradients are reduced over all of them.
"""

import contextlib
import logging
import os
import re
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.distributed import global_state  # its key-value store has no public name
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import PyTree

from wafer.engines.rendezvous import Peer, agree, give_up, join_limit, lost_contact, watch
from wafer.errors import ConfigError, Problem, TrainingError

_LOG = logging.getLogger(__name__)
BIND = "JAX_COORDINATOR_BIND_ADDRESS"  # JAX's own; for hosts whose name leads elsewhere
_NEVER = 24 * 3600  # seconds
_LATER = 30  # seconds by which JAX's own limits, which end a process in C++, come after ours
_SLURM_PORTS = 61440  # the highest 4,096
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


def membership(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Peer | None:
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
        if count < 1:
            message = f"--num_processes {count}: expected at least 1"
        raise ConfigError([Problem((), message)])
    return None if count == 1 else Peer(str(given["coordinator"]), count, index)


def _slurm(environ: Mapping[str, str]) -> Peer | None:
    """A job step of several tasks; an allocation alone (``sbatch`` without ``srun``) is none.

    The first host of the step's list (``rack[0-3]_node[003-007,9],gpu1``: every range's first
    number) is the coordinator's; jobs that share it have different ports.
    """
    count = int(environ.get("SLURM_STEP_NUM_TASKS", "1"))
    if count == 1 or "SLURM_PROCID" not in environ:
        return None
    firsts = re.sub(r"\[([^],-]+)[^]]*\]", r"\1", environ["SLURM_STEP_NODELIST"])
    host = firsts.partition(",")[0] or "localhost"
    port = _SLURM_PORTS + int(environ["SLURM_JOB_ID"]) % (2**16 - _SLURM_PORTS)
    return Peer(f"{host}:{port}", count, int(environ["SLURM_PROCID"]))


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


@contextlib.contextmanager
def _own_address(member: Peer, address: str) -> Iterator[None]:
    """Keep process 0's address from a second one: JAX's service ends by a signal when it is taken.

    Of two services that begin at the same time both get the TCP port, so its UDP port is held until
    the block is over. Then the TCP port is the service's.
    """
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as held:
        try:
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
            family, *_, place = min(found, key=lambda info: info[0] != socket.AF_INET)
            held.enter_context(socket.socket(family, socket.SOCK_DGRAM)).bind(place)
            socket.create_server(place[:2], family=family).close()
        except (OSError, ValueError, OverflowError) as error:
            raise TrainingError(
                f"{member} cannot open {address}: {error}. Another program has this address, "
                "another process has --process_id 0, too, or it is not this machine's"
            ) from None
        yield


@contextlib.contextmanager
def joined(
    member: Peer, facts: Mapping[str, object], heartbeat: float, patience: float
) -> Iterator[None]:
    """Run the block together with the other processes.

    Args:
        member: from ``membership``.
        facts: name -> JSON value, which has to be the same in every process.
        heartbeat: seconds of silence after which a process counts as lost.
        patience: seconds until all must have come.

    Raises:
        TrainingError: the others did not come, or are about to do something else.
    """
    host, _, port = member.coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise TrainingError(
            f"--coordinator {member.coordinator!r}: expected HOST:PORT of process 0"
        )
    bound = os.environ.get(BIND, member.coordinator)
    own = contextlib.nullcontext() if member.index else _own_address(member, bound)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    _LOG.info("%s joins at %s", str(member).capitalize(), member.coordinator)
    with join_limit(member, patience), own:
        try:
            jax.distributed.initialize(
                member.coordinator,
                member.count,
                member.index,
                cluster_detection_method="deactivate",
                coordinator_bind_address=bound,
                initialization_timeout=round(patience) + _LATER,
                heartbeat_timeout_seconds=round(heartbeat) + _LATER,
                shutdown_timeout_seconds=_NEVER,
            )
        except (RuntimeError, ValueError) as error:
            raise TrainingError(
                f"{member}: JAX's service at {member.coordinator}: {error}. --coordinator is an "
                f"address of process 0's machine with a port that no other program uses ({BIND} "
                "where the machine itself has another address)"
            ) from error
        client = global_state.client
        assert client is not None
        try:
            agree(client, member, facts, patience + _LATER)
        except TrainingError:
            jax.distributed.shutdown()
            raise
    _LOG.info("%s met the others", str(member).capitalize())
    with watch(client, member, heartbeat) as leaving, lost_workers():
        yield
        leaving.set()
        jax.distributed.shutdown()  # waits for all


@contextlib.contextmanager
def lost_workers() -> Iterator[None]:
    """Turn the failure of a collective into one line, and end the process without waiting."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        text = str(error).lower()
        if jax.process_count() == 1 or not any(word in text for word in _LOST):
            raise
        reason = str(error).strip().partition("\n")[0][:300]
        give_up(Peer("", jax.process_count(), jax.process_index()), lost_contact(reason))


def all_max(value: int) -> int:
    """Return the largest of the processes' values; every process must call it."""
    if jax.process_count() == 1:
        return value
    return int(np.max(multihost_utils.process_allgather(np.int64(value))))


def all_sum(value: float) -> float:
    """Return the sum of the processes' values; every process must call it."""
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


def broadcast(leaf: PyTree, everywhere: NamedSharding) -> jax.Array:
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


def distribute(leaf: PyTree, sharding: NamedSharding) -> jax.Array:
    """Put an array on the systems, whole or in parts.

    Args:
        leaf: as ``broadcast`` takes it.
        sharding: of the mesh.
    """
    if sharding.is_fully_replicated:
        return broadcast(leaf, sharding)
    if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
        return leaf
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def shard_batch(features: Mapping[str, PyTree], mesh: Mesh) -> dict[str, PyTree]:
    """Send host features to the systems: the leading axis is that of this process's systems."""
    sharding = NamedSharding(mesh, P("csx"))
    if jax.process_count() == 1:
        return jax.device_put(dict(features), sharding)  # at once: half the time
    place = lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x))
    return jax.tree.map(place, dict(features))
