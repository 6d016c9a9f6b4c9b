"""SwarmX: N systems in one process or in many, and how arrays get to them."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

__all__ = ["broadcast", "share"]


def broadcast(leaf: Any, everywhere: NamedSharding) -> jax.Array:
    """Put the same array on every system.

    Args:
        leaf: host array, equal in all processes (nothing checks that), or a device array.
        everywhere: replicated sharding of the mesh.
    """
    if isinstance(leaf, jax.Array):
        if leaf.sharding == everywhere:
            return leaf
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(broadcast(jax.random.key_data(leaf), everywhere))
    devices = sorted(everywhere.addressable_devices, key=lambda device: device.id)
    copies = [jax.device_put(leaf, device) for device in devices]
    return jax.make_array_from_single_device_arrays(np.shape(leaf), everywhere, copies)


def share(features: Mapping[str, Any], mesh: Mesh) -> dict[str, Any]:
    """Send host features to the systems: the leading axis is that of this process's systems."""
    sharding = NamedSharding(mesh, P("csx"))
    place = lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x))
    return jax.tree.map(place, dict(features))
