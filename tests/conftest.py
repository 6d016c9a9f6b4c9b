"""Strict settings for every test: CPU with four devices, exact matrix products, fixed keys."""

import os
import tempfile

# Before jax starts: tests say nothing about speed, so a GPU in the machine must not change them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile far more than they compute: LLVM's expensive passes would take most of the time.
_QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_QUICK}".strip()

# Runs that tests start are jobs too: not among the user's own.
_JOBS = tempfile.TemporaryDirectory(prefix="wafer-tests-jobs-")
os.environ["WAFER_JOBS_DB"] = f"{_JOBS.name}/jobs.db"

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 4)  # meshes of up to 4 systems in one process
jax.config.update("jax_default_matmul_precision", "highest")
# The same small program is compiled by many tests (and by every run a test starts): once is enough.
_PROGRAMS = tempfile.TemporaryDirectory(prefix="wafer-tests-xla-")
jax.config.update("jax_compilation_cache_dir", _PROGRAMS.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@pytest.fixture
def key() -> jax.Array:
    """One fixed random key; split it, never use it twice."""
    return jax.random.key(0)
