"""Strict settings for every test: CPU with four devices, exact matrix products, fixed keys."""

import os

# Before jax starts: tests say nothing about speed, so a GPU in the machine must not change them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 4)  # meshes of up to 4 systems in one process
jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture
def key() -> jax.Array:
    """One fixed random key; split it, never use it twice."""
    return jax.random.key(0)
