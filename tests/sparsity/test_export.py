"""Exported programs in a second process: native products, sparse states and layouts included."""

import functools
import pickle
import subprocess
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.sparse_loop import start

from wafer import sparsity, vsl

CALL = """
import pathlib, pickle, sys
import jax.export
from wafer import sparsity
folder = pathlib.Path(sys.argv[1])
sparsity.export_checks()
arguments = pickle.loads((folder / "arguments").read_bytes())
exported = jax.export.deserialize((folder / "program").read_bytes())
(folder / "results").write_bytes(pickle.dumps(jax.device_get(exported.call(*arguments))))
"""
WEIGHTS = {"up": {"kernel": jax.random.normal(jax.random.key(0), (256, 192))}}


def elsewhere(folder, function, *arguments):
    """What a second process gets from the exported function."""
    exported = jax.export.export(function, disabled_checks=sparsity.export_checks())(*arguments)
    (folder / "program").write_bytes(exported.serialize())
    (folder / "arguments").write_bytes(pickle.dumps(arguments))
    subprocess.run([sys.executable, "-c", CALL, str(folder)], check=True)
    return pickle.loads((folder / "results").read_bytes())


def same(one, two):
    plain = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(plain(a), plain(b))


@pytest.mark.parametrize("compute", ["masked", pytest.param("csr", marks=pytest.mark.native)])
def test_a_step_with_a_topology_update(tmp_path, compute):
    section = {"algorithm": "rigl", "sparsity": 0.9, "update": {"freq": 1}, "compute": compute}
    sparsifier, sparse, params, _ = start(section, WEIGHTS, seed=1)

    @jax.jit
    def step(params, sparse, x):
        loss = lambda r: jnp.square(x @ sparsifier.attach(r, sparse)["up"]["kernel"] - 1).mean()
        ready = sparsifier.prepare(params, sparse, dense=True)
        grads, dense = sparsifier.split(jax.grad(loss)(ready), sparse)
        params = jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)
        sparse, params, _ = sparsifier.update(sparse, params, dense, (), topology=True)
        return params, sparse

    arguments = params, sparse, jax.random.normal(jax.random.key(2), (16, 256))
    same(elsewhere(tmp_path, step, *arguments), step(*arguments))


@pytest.mark.native
@pytest.mark.parametrize("rows", [None, (2, 8)])
def test_attention_of_a_layout_that_is_an_argument(tmp_path, rows):
    lengths = jnp.int32([5, 7])
    layout = vsl.padded_layout(lengths, 8) if rows else vsl.layout_from_lengths(lengths, 16)
    assert layout.rows == rows
    q = jax.random.normal(jax.random.key(0), (16, 2, 16))
    native = functools.partial(vsl.attention, causal=True, implementation="native")
    attend = jax.jit(jax.grad(lambda q, layout: native(q, q, q, layout).sum()))
    same(elsewhere(tmp_path, attend, q, layout), attend(q, layout))


def test_dense_weights_need_no_check():
    sparsifier, sparse, params, _ = start({"sparsity": 0.9}, WEIGHTS, seed=1)
    dense = sparsity.decode(*sparsity.encode(params, (), sparse)).params
    product = jax.jit(lambda weights, x: x @ weights["up"]["kernel"])
    x = jax.random.normal(jax.random.key(2), (16, 256))
    again = jax.export.deserialize(jax.export.export(product)(dense, x).serialize())
    attached = x @ sparsifier.attach(params, sparse)["up"]["kernel"]
    np.testing.assert_allclose(again.call(dense, x), attached, rtol=1e-4, atol=1e-5)
