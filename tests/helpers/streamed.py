"""One model in two engines, and what has to agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from wafer import models, sparsity, vsl
from wafer.engines.cluster import swarmx_mesh
from wafer.engines.resident import Resident
from wafer.engines.stagewise.core import make_core
from wafer.engines.stagewise.pipeline.engine import Pipelined
from wafer.engines.stagewise.pipeline.regions import meshes
from wafer.engines.stagewise.streaming.engine import Streaming
from wafer.models.paths import named_leaves
from wafer.optim.chain import make_optimizer
from wafer.optim.precision import LossScaler

SIZES = {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 2}
SIZES |= {"filter_size": 32, "max_position_embeddings": 12, "dropout_rate": 0.0}


GPT = {"name": "gpt2", **SIZES}
GPTJ = {"name": "gptj", **SIZES, "rotary_dim": 8}
BERT = {"name": "bert", **SIZES, "disable_nsp": True, "head": "mlm"}
T5 = {"name": "t5", **SIZES, "attention_inner_dim": 16}
ADAMW = {"optimizer_type": "AdamW", "learning_rate": 0.01, "weight_decay": 0.1}
STATIC = {"algorithm": "static", "sparsity": 0.5}
RIGL = {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 2}}
SCALER = LossScaler(dynamic=True, initial=2.0**15, steps_per_increase=2)
HALF = GPT | {"mixed_precision": True, "fp16_type": "float16"}
CLIPPED = ADAMW | {"max_gradient_norm": 0.1}


def _parts(model_cfg, optimizer, section, scaler):
    """Model, optimizer, sparsifier, scaler; and whether gradients are clipped by their norm."""
    model = models.build(model_cfg)
    sparsifier = sparsity.configure(
        section, aliases=model.alias, accepts=lambda name: name.endswith("/kernel")
    )
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    tx = make_optimizer(optimizer, shapes, model.alias)
    clips = optimizer.get("max_gradient_norm") is not None
    return (model, tx, sparsifier, scaler or LossScaler()), clips


def pipelined(
    model_cfg, optimizer=ADAMW, section=None, *, devices=1, systems=1, scaler=None, **options
):
    parts, clips = _parts(model_cfg, optimizer, section, scaler)
    settings = {key: options.pop(key) for key in ("dropout", "summaries") if key in options}
    core = make_core(*parts, norm=clips, **settings)
    return Pipelined(core, meshes(systems, devices), **options)


def batch_of(model, rows=4, length=8, systems=1, micro=1, seed=0, packed=False):
    """Batches [N systems, A micro-batches, ...] of whatever the model reads."""
    rng = np.random.default_rng(seed)

    def one(share):
        tokens = rng.integers(1, SIZES["vocab_size"], (share, length)).astype(np.int32)
        lengths = jnp.asarray(rng.integers(2, length + 1, share), jnp.int32)
        layout = vsl.padded_layout(lengths, length)
        if packed:
            layout = vsl.layout_from_lengths(lengths, share * length)
        labels = rng.integers(1, SIZES["vocab_size"], (share, length)).astype(np.int32)
        extras = {}
        if model.config.name == "t5":
            source = rng.integers(1, SIZES["vocab_size"], (share, length)).astype(np.int32)
            extras = {"source_tokens": jnp.asarray(source.reshape(-1)), "source_layout": layout}
        if model.config.name == "bert":
            extras = {"segment_ids": jnp.asarray(tokens.reshape(-1) % 2)}
        return models.Batch(
            jnp.asarray(tokens.reshape(-1)),
            jnp.asarray(labels.reshape(-1)),
            layout.valid.astype(jnp.float32),
            layout,
            extras,
        )

    whole = [[one(rows // systems // micro) for _ in range(micro)] for _ in range(systems)]
    stack = lambda *xs: jnp.stack(xs)
    batch = jax.tree.map(stack, *[jax.tree.map(stack, *row) for row in whole])
    return jax.device_put(batch, NamedSharding(swarmx_mesh(systems), PartitionSpec("csx")))


def executors(model_cfg, optimizer=ADAMW, section=None, *, systems=1, scaler=None, **options):
    parts, clips = _parts(model_cfg, optimizer, section, scaler)
    mesh, dropout = swarmx_mesh(systems), options.pop("dropout", False)
    core = make_core(*parts, dropout=dropout, norm=clips)
    return Resident(*parts, mesh, dropout=dropout), Streaming(core, mesh, **options)


def train(executor, batches):
    state, seen = executor.init(jax.random.key(3)), []
    for i, batch in enumerate(batches):
        due = executor.sparsifier.due(i + 1)
        state, metrics = executor.step(state, batch, topology=due)
        seen.append({k: float(v) for k, v in metrics.items()})
    return state, seen


def arrays(tree):
    """Arrays by name; typed keys as their data."""
    raw = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return {name: np.asarray(raw(leaf)) for name, leaf in named_leaves(tree)}


def assert_same(got, want, **tolerances):
    """Arrays by name are equal, or close within tolerances; NaN is NaN."""
    assert got.keys() == want.keys()
    for name, leaf in want.items():
        assert got[name].dtype == leaf.dtype, name
        compare = np.testing.assert_allclose if tolerances else np.testing.assert_array_equal
        compare(got[name], leaf, err_msg=name, **tolerances)


def assert_agree(resident, other, batches, atol, rel):
    """Two executors take the same steps: states and metrics agree; returns the metrics."""
    want, wanted = train(resident, batches)
    got, metrics = train(other, batches)
    for a, b in zip(wanted, metrics, strict=True):
        assert b == pytest.approx(a, rel=rel, abs=1e-6, nan_ok=True)
    assert_same(arrays(got), arrays(want), atol=atol, rtol=1e-5)
    return wanted
