"""The transformer layer all stacks share, and what flows between layers."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from wafer import vsl
from wafer.models.base import Stage
from wafer.models.layers.attention import Attend, Attention, Memory, stream_attend
from wafer.models.layers.basic import Embedding, Norm
from wafer.models.layers.block_config import BlockConfig
from wafer.models.layers.feed_forward import Experts, FeedForward
from wafer.models.layers.initializers import InitFn, make_initializer
from wafer.models.layers.positions import sinusoids
from wafer.models.once import jit_once
from wafer.models.paths import Params

Drop = Callable[[Array, float], Array]


class Stream(NamedTuple):
    """The carry between stages."""

    x: Array  #: [T, D] activations in the compute dtype
    #: [T, 2, E] float32 sums over layers of each expert's choices and router probabilities, for the
    #: load-balancing loss; None without it
    routed: Array | None = None
    #: [] float32 1-based number of the next layer; None unless scores are divided by it
    depth: Array | None = None


def no_dropout(x: Array, rate: float) -> Array:
    """Return x."""
    del rate
    return x


def stream_dropout(layout: vsl.Layout, key: Array | None) -> Drop:
    """Drop units by (sequence, position); every call takes its own key."""
    if key is None:
        return no_dropout
    calls = iter(range(1, 1 << 20))

    def drop(x: Array, rate: float) -> Array:
        return vsl.dropout(jax.random.fold_in(key, next(calls)), x, layout, rate) if rate else x

    return drop


def stream_weights(branch: Params, layout: vsl.Layout, memory: vsl.Layout | None = None) -> Params:
    """Let a layer's attention and feed-forward products stop at the last token of their stream.

    Args:
        branch: the layer's parameters.
        layout: of the layer's own stream.
        memory: of the stream that 'cross' takes keys and values from.
    """
    streamed = {k: vsl.stream_kernels(branch[k], layout) for k in ("attn", "ffn") if k in branch}
    if memory is not None and "cross" in branch:
        stream = {"query": layout, "key": memory, "value": memory, "out": layout}
        streamed["cross"] = branch["cross"] | {
            k: vsl.stream_kernels(branch["cross"][k], of) for k, of in stream.items()
        }
    return {**branch, **streamed}


def no_attend(q: Array, k: Array, v: Array, **rules: object) -> Array:
    """Stand in for attention while parameters are declared: nothing is computed."""
    del k, v, rules
    return q


class Block(nn.Module):
    """One layer: attention and feed-forward, in sequence or in parallel, pre- or post-norm."""

    cfg: BlockConfig
    local: bool = True
    cross: bool = False

    @nn.compact
    def __call__(
        self,
        stream: Stream,
        positions: Int[Array, " T"],
        attend: Attend,
        drop: Drop,
        shared: Params | None = None,
        *,
        memory: Memory | None = None,
        cross_attend: Attend = no_attend,
    ) -> Stream:
        """Run the layer.

        Args:
            stream: the carry.
            positions: position of each slot in its sequence.
            attend: self-attention, see ``wafer.models.layers.attention``.
            drop: (x, rate) -> x with units dropped.
            shared: the tree's 'position' branch.
            memory: what a layer with ``cross`` attends to after itself.
            cross_attend: how.
        """
        cfg, x = self.cfg, stream.x
        routed = stream.routed
        norm = functools.partial(Norm, cfg.norm_type, cfg.layer_norm_epsilon)
        rate = cfg.dropout("residual")
        post = cfg.norm_first_sandwich or cfg.norm_outputs_only

        def attn(h: Array) -> Array:
            module = Attention(cfg, self.local, name="attn")
            a = module(h, positions, attend, shared=shared, depth=stream.depth)
            return norm(name="norm1_post")(a) if post else a

        def cross(h: Array) -> Array:
            module = Attention(cfg, cross=True, name="cross")
            return module(h, positions, cross_attend, memory=memory)

        def branch(name: str, x: Array) -> tuple[Array, Array]:
            """Return what a branch reads, and what is added to its result."""
            if cfg.norm_outputs_only:
                return x, x
            if not cfg.residual_after_norm:
                return norm(name=name)(x, branch=True)
            h = norm(name=name)(x)
            return h, h

        if cfg.parallel_attention:
            h, x = norm(name="norm1")(x, branch=True)
            h2 = norm(name="norm2")(x) if cfg.use_untied_layer_norm else h
            f, routed = self._ffn(h2, routed, drop)
            x = x + drop(attn(h), rate) + drop(f, rate)
        elif cfg.norm_first:
            h, x = branch("norm1", x)
            x = x + drop(attn(h), rate)
            if self.cross:
                h, x = norm(name="norm_cross")(x, branch=True)
                x = x + drop(cross(h), rate)
            h, x = branch("norm2", x)
            f, routed = self._ffn(h, routed, drop)
            f = norm(name="norm2_post")(f) if post else f
            x = x + drop(f, rate)
        else:
            x = norm(name="norm1")(x + drop(attn(x), rate))
            if self.cross:
                x = norm(name="norm_cross")(x + drop(cross(x), rate))
            f, routed = self._ffn(x, routed, drop)
            x = norm(name="norm2")(x + drop(f, rate))
        depth = None if stream.depth is None else stream.depth + 1
        return Stream(x, routed, depth)

    def _ffn(self, h: Array, routed: Array | None, drop: Drop) -> tuple[Array, Array | None]:
        cfg = self.cfg
        ffn_options = {
            "hidden_size": cfg.hidden_size,
            "filter_size": cfg.filter_size,
            "nonlinearity": cfg.nonlinearity,
            "use_bias": cfg.use_ffn_bias,
            "init_in": make_initializer(cfg.init_of("ffn")),
            "init_out": make_initializer(cfg.init_of("ffn_out")),
            "drop": lambda inner: drop(inner, cfg.relu_dropout_rate),
        }
        if cfg.moe is None:
            return FeedForward(**ffn_options, name="ffn")(h), routed
        moe = cfg.moe
        further = {"shared": moe.num_shared_experts, "null_bias": moe.null_expert_bias}
        further["normalize"] = moe.normalize_top_k
        out, added = Experts(moe.num_experts, moe.top_k, ffn_options, **further, name="moe")(h)
        return out, None if routed is None else routed + added


def has_shared(cfg: BlockConfig) -> bool:
    """Whether layers share trainable position parameters: the tree's 'position' branch."""
    slopes = cfg.alibi_trainable_slopes or cfg.alibi_slopes_in_checkpoint
    kind = cfg.position_embedding_type
    return kind == "relative" or (kind == "alibi" and slopes)


def init_shared(cfg: BlockConfig, key: Array) -> dict[str, PyTree]:
    """Draw the 'position' branch."""
    if cfg.position_embedding_type == "alibi":
        return {"slopes": jnp.asarray(vsl.alibi_slopes(cfg.num_heads))}
    init = make_initializer(cfg.init_of("embedding"))
    shape = (cfg.num_relative_attention_buckets, cfg.num_heads)
    return {"relative": {"embedding": init(key, shape)}}


def start_stream(cfg: BlockConfig, x: Float[Array, "T D"]) -> Stream:
    """Wrap embeddings into the carry, with the counters the configuration needs."""
    moe = cfg.moe if cfg.moe and cfg.moe.balance_weight else None
    routed = jnp.zeros((len(x), 2, moe.num_experts), jnp.float32) if moe else None
    depth = jnp.ones((), jnp.float32) if cfg.scale_qk_dot_by_layer_idx else None
    return Stream(x, routed, depth)


def add_positions(cfg: BlockConfig, x: Array, positions: Array, init: InitFn) -> Array:
    """Add learned or fixed positions to embeddings, inside the module that embeds."""
    rows = cfg.max_position_embeddings + cfg.position_embedding_offset
    positions = positions + cfg.position_embedding_offset
    if cfg.position_embedding_type == "learned":
        return x + Embedding(rows, cfg.hidden_size, init, name="position")(positions)
    if cfg.position_embedding_type == "fixed":
        return x + jnp.asarray(sinusoids(rows, cfg.hidden_size))[positions]
    return x


@functools.partial(jit_once, static_argnums=0, static_argnames=("attend", "drop"))
def draw(module: nn.Module, key: Array, *inputs: PyTree, **options: Any) -> dict[str, PyTree]:
    """Draw a module's parameters.

    Jitted, so that the dummy forward pass is dropped. The module is static: all layers of all
    models with the same configuration and shapes share one program.

    Args:
        module: the module; hashable.
        key: [] random key, consumed.
        inputs: arrays of the shapes that the module is called with.
        options: its arguments by keyword; ``attend`` and ``drop`` are functions.
    """
    variables: Any = module.init(key, *inputs, **options)
    return variables.get("params", {})


def init_layers(cfg: BlockConfig, key: Array) -> dict[str, PyTree]:
    """Draw the layers of a stack without cross-attention, and their 'position' branch."""
    ids = jnp.zeros((1,), jnp.int32)
    x = jnp.zeros((1, cfg.hidden_size), cfg.dtype)
    shared = init_shared(cfg, jax.random.fold_in(key, 1)) if has_shared(cfg) else None
    options = {"attend": no_attend, "drop": no_dropout, "shared": shared}
    params: dict[str, Any] = {} if shared is None else {"position": shared}
    for i in range(cfg.num_hidden_layers):
        layer_key = jax.random.fold_in(key, i + 3)
        params[f"layers_{i}"] = draw(Block(cfg), layer_key, Stream(x), ids, **options)
    return params


def stack_stages(
    kinds: Sequence[str], shared: tuple[str, ...], roles: tuple[str, ...]
) -> tuple[Stage, ...]:
    """List a stack's stages: 'embed', 'layers_0', ..., 'head'.

    Args:
        kinds: of each layer.
        shared: branches that every layer reads.
        roles: branches that the head reads.
    """
    layers = [Stage(f"layers_{i}", kind, (f"layers_{i}", *shared)) for i, kind in enumerate(kinds)]
    return Stage("embed", "embed", ("embed",)), *layers, Stage("head", "head", roles)


def apply_layer(
    block: Block,
    branch: Params,
    stream: Stream,
    layout: vsl.Layout,
    *,
    key: Array | None,
    shared: Params | None,
    keys: vsl.Layout | None = None,
) -> Stream:
    """Run a layer without cross-attention on its branch, over the stream of ``layout``.

    Args:
        block: the layer.
        branch: its parameters.
        stream: the carry.
        layout: of the slots that compute.
        key: of dropout; None switches it off.
        shared: the tree's 'position' branch.
        keys: of the slots that are attended to; None is ``layout``.
    """
    attn_key = None if key is None else jax.random.fold_in(key, 0)
    out: Any = block.apply(
        {"params": stream_weights(branch, layout)},
        stream,
        layout.positions,
        stream_attend(layout, attn_key, block.cfg.dropout("attention"), keys),
        stream_dropout(layout, key),
        shared,
    )
    return out
