"""From functions to kernels: counts by hand, counts against JAX's own gradients, error messages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import models
from wafer.compiler.compile import trace
from wafer.data.batching.batches import to_batch
from wafer.errors import CompileError
from wafer.vsl.attend import attention_as


def shapes(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def mlp(params, x, label):
    hidden = jax.nn.relu(x @ params["a"]["kernel"] + params["a"]["bias"])
    scores = hidden @ params["b"]["kernel"] + params["b"]["bias"]
    return -jax.nn.log_softmax(scores)[0, label[0]]


MLP = {
    "a": {"kernel": jnp.zeros((6, 5)), "bias": jnp.zeros(5)},
    "b": {"kernel": jnp.zeros((5, 3)), "bias": jnp.zeros(3)},
}


def test_kernels_of_a_tiny_mlp_by_hand():
    graph = trace(mlp, shapes(MLP), jnp.zeros((1, 6)), jnp.zeros((1,), jnp.int32))
    a, b, loss = graph.kernels
    kinds = {"a": "matmul", "b": "matmul", "loss": "loss"}
    assert [(k.name, k.kind, k.layer) for k in graph.kernels] == [(n, kinds[n], n) for n in kinds]
    assert (a.macs, a.weights, a.inputs, a.outputs) == (30, 35, 6, 5)
    assert (b.macs, b.weights, b.inputs, b.outputs) == (15, 18, 5, 3)
    # y = xW + b and relu: 2 * 30 + 5 + 5; no gradient to the input; dW: 2 * 30
    assert a.flops == (70, 20, 60)
    # 2 * 15 + 3; dx: 2 * 15 and twice the 3 additions; dW: 2 * 15
    assert b.flops == (33, 36, 30)
    assert loss.weights == loss.macs == 0
    assert graph.edges == ((0, 1, 5), (1, 2, 3))
    assert graph.sample_bytes == 4 * 6 + 4
    # kept for the backward part: x and what relu compares; b keeps its input
    assert (a.stashed, b.stashed, loss.stashed) == (4 * (6 + 5), 4 * 5, 0)


def test_forward_alone_when_nothing_trains():
    everything = frozenset({"a/kernel", "a/bias", "b/kernel", "b/bias"})
    args = shapes(MLP), jnp.zeros((1, 6)), jnp.zeros((1,), jnp.int32)
    graph = trace(mlp, *args, frozen=everything)
    assert [k.flops[1:] for k in graph.kernels] == [(0, 0)] * 3
    last = trace(mlp, *args, frozen=frozenset({"a/kernel", "a/bias"}))
    assert [(k.needs_dx, k.needs_dw) for k in last.kernels][:2] == [(False, False), (False, True)]


def dot_flops(jaxpr):
    """Operations of all products of a jaxpr, counted one by one."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (left, _), _ = eqn.params["dimension_numbers"]
            inner = np.prod([eqn.invars[0].aval.shape[i] for i in left])
            total += 2 * int(inner) * eqn.outvars[0].aval.size
        elif eqn.primitive.name == "conv_general_dilated":
            window = eqn.invars[1].aval.size // eqn.invars[1].aval.shape[0]
            total += 2 * window * eqn.outvars[0].aval.size
        for value in eqn.params.values():
            for part in value if isinstance(value, tuple | list) else [value]:
                inner = getattr(part, "jaxpr", part)
                total += dot_flops(inner) if hasattr(inner, "eqns") else 0
    return total


def product_flops(graph):
    total = 0
    for kernel in graph.kernels:
        lanes = kernel.lanes + kernel.half_lanes
        forward, backward, update = kernel.flops
        trained = kernel.needs_dx or kernel.needs_dw
        total += forward - lanes + backward - 2 * lanes * trained + update
    return total


def attend(params, x):
    """Two heads of attention, without a scope or a layer name."""
    q, k, v = (jnp.einsum("td,dnh->tnh", x, params[name]) for name in "qkv")
    weights = jax.nn.softmax(jnp.einsum("tnh,snh->nts", q, k), axis=-1)
    mixed = jnp.einsum("nts,snh->tnh", weights, v)
    return jnp.square(jnp.einsum("tnh,nhd->td", mixed, params["o"])).sum()


def test_products_of_every_phase_equal_those_of_jax_grad():
    weights = {name: jnp.zeros((8, 2, 4)) for name in "qkv"} | {"o": jnp.zeros((2, 4, 8))}
    x = jnp.zeros((5, 8))
    for fn, params, args in (
        (attend, weights, (x,)),
        (mlp, MLP, (jnp.zeros((1, 6)), jnp.zeros((1,), jnp.int32))),
    ):
        graph = trace(fn, shapes(params), *args)
        assert product_flops(graph) == dot_flops(jax.make_jaxpr(jax.grad(fn))(params, *args).jaxpr)
    kinds = [k.kind for k in trace(attend, shapes(weights), x).kernels]
    assert kinds == ["matmul", "matmul", "matmul", "attention", "matmul", "loss"]


def gpt(**more):
    section = {"name": "gpt2", "vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2}
    section |= {"num_heads": 2, "filter_size": 16, "max_position_embeddings": 6}
    return models.build(section | more)


def gpt_trace(model, **more):
    rows = dict.fromkeys(("input_ids", "attention_mask", "labels"), (1, 6)) | {"lengths": (1,)}
    features = {k: jax.ShapeDtypeStruct(v, jnp.int32) for k, v in rows.items()}
    params = jax.eval_shape(model.init, jax.random.key(0))
    loss = lambda p, f: model.loss(p, to_batch(f))[0]
    with attention_as("dense"):
        return trace(loss, params, features, **more), loss, params, features


def test_gpt_has_the_kernels_of_its_layers_and_the_products_of_its_gradient():
    graph, loss, params, features = gpt_trace(gpt())
    names = "norm1 attn/query attn/key attn/value attn attn/out norm2 ffn/up ffn/down"
    kinds = dict.fromkeys(names.split(), "matmul") | {"attn": "attention"}
    kinds |= dict.fromkeys(("norm1", "norm2"), "norm")
    of_layer = [(k.name, k.kind) for k in graph.kernels if k.layer == "layers_1"]
    assert of_layer == [(f"layers_1/{name}", kind) for name, kind in kinds.items()]
    ends = [(k.name, k.kind) for k in graph.kernels if not k.layer.startswith("layers")]
    assert ends[0] == ("embed/token", "embedding")
    assert ends[-3:] == [("norm_f", "norm"), ("head", "matmul"), ("loss", "loss")]
    with attention_as("dense"):
        by_jax = dot_flops(jax.make_jaxpr(jax.grad(loss))(params, features).jaxpr)
    assert product_flops(graph) == by_jax
    names = [k.name for k in graph.kernels]
    linked = {(names[a], names[b]) for a, b, _ in graph.edges}
    assert ("layers_0/ffn/down", "layers_1/norm1") in linked
    assert ("layers_1/attn", "layers_1/attn/out") in linked


def test_sparse_parameters_carry_their_density():
    graph, *_ = gpt_trace(gpt(), densities={"layers_0/ffn/up/kernel": 0.25})
    up = next(k for k in graph.kernels if k.name == "layers_0/ffn/up")
    assert up.weights == 8 * 16 + 16
    assert up.density == pytest.approx((0.25 * 128 + 16) / 144)


def test_stacked_layers_under_scan_are_kernels_of_their_own():
    def stack(params, x):
        step = lambda x, w: (jnp.tanh(x @ w), None)
        return jax.lax.scan(jax.checkpoint(step), x, params["blocks"])[0].sum()

    graph = trace(stack, {"blocks": jnp.zeros((3, 4, 4))}, jnp.zeros((2, 4)))
    assert [(k.name, k.weights, k.macs) for k in graph.kernels[:3]] == [
        (f"blocks[{i}]", 16, 32) for i in range(3)
    ]


def test_a_convolution_counts_its_window():
    def net(kernel, image):
        out = jax.lax.conv_general_dilated(image, kernel, (1, 1), "VALID")
        return jnp.square(out).sum()

    kernel, image = jnp.zeros((4, 3, 2, 2)), jnp.zeros((1, 3, 5, 5))
    convolution = trace(net, kernel, image).kernels[0]
    # 4 x 4 places, 3 channels in a 2 x 2 window, 4 channels out
    found = convolution.kind, convolution.macs, convolution.weights
    assert found == ("convolution", 16 * 12 * 4, 48)
    by_jax = dot_flops(jax.make_jaxpr(net)(kernel, image).jaxpr)
    assert convolution.flops[0] - convolution.lanes == by_jax


def test_a_function_without_parameters_has_kernels_too():
    graph = trace(lambda _, x: jax.nn.softmax(x @ x.T) @ x, {}, jnp.zeros((4, 8)))
    assert [(k.kind, k.macs) for k in graph.kernels] == [("attention", 2 * 4 * 8 * 4)]


def test_all_unsupported_operations_are_listed_with_their_lines():
    def solve(w, x):
        root = jnp.linalg.cholesky(x @ w)
        return jnp.sort(root).sum()

    with pytest.raises(CompileError) as caught:
        trace(solve, jnp.zeros((4, 4)), jnp.zeros((4, 4)))
    text = str(caught.value)
    assert text.startswith("2 operations have no kernel:")
    first = solve.__code__.co_firstlineno
    assert f"cholesky at {__file__}:{first + 1}" in text
    assert f"sort at {__file__}:{first + 2}" in text
    assert "`wafer run`" in text


def test_loops_of_unknown_length_are_refused_but_not_on_inputs():
    def halve(w, x):
        return jax.lax.while_loop(lambda y: y.sum() > 1, lambda y: y / 2, x * w).sum()

    with pytest.raises(CompileError, match="while at"):
        trace(halve, jnp.ones(4), jnp.zeros(4))
    prepared = lambda w, x: (jnp.sort(x) @ w).sum()  # the input workers sort
    graph = trace(prepared, jnp.ones((4, 2)), jnp.zeros((1, 4)))
    assert graph.kernels[0].kind == "matmul"


def test_random_numbers_come_with_the_input():
    def noisy(w, x, key):
        keep = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.square(jnp.where(keep, x @ w, 0.0)).sum()

    graph = trace(noisy, jnp.ones((4, 4)), jnp.zeros((2, 4)), jax.random.key(0))
    assert [(k.name, k.kind) for k in graph.kernels] == [("weight", "matmul"), ("loss", "loss")]
