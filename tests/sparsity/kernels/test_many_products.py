"""Independent native products in one program end, however often it is called.

XLA's own batched LAPACK calls may not: they wait for parts that are queued on the pool they hold.
"""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import jax, jax.numpy as jnp
from wafer import sparsity
count, calls = map(int, sys.argv[1:])
key = jax.random.key(1)
weights = {f"w{i}": {"kernel": jax.random.normal(key, (128, 128))} for i in range(count)}
sparsifier = sparsity.configure({"sparsity": 0.9, "compute": "csr"})
sparse = sparsifier.init(weights, jax.random.key(0))
params, _ = sparsifier.prune(weights, (), sparse)

@jax.jit
def gradients(params, x):
    products = lambda p: [x @ w["kernel"] for w in sparsifier.attach(p, sparse).values()]
    return jax.grad(lambda p: sum(jnp.square(y).sum() for y in products(p)))(params)

x = jnp.ones((64, 128))
first = jax.block_until_ready(gradients(params, x))
for _ in range(calls):
    last = jax.block_until_ready(gradients(params, x))
assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), first, last))
"""
HANG = 1200  # seconds; they take some ten


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.parametrize(("count", "calls"), [(2, 20_000), (6, 6_000), (16, 2_000)])
def test_many_products_end(count, calls):
    command = [sys.executable, "-c", PROGRAM, str(count), str(calls)]
    subprocess.run(command, check=True, timeout=HANG)
