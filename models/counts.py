"""How large a model is and what a token costs, from shapes alone (nothing is allocated)."""

import math
from collections.abc import Mapping

import jax
from jaxtyping import PyTree

from wafer.models.base import Model
from wafer.models.paths import named_leaves


def abstract_params(model: Model) -> PyTree:
    """Return the parameter tree as shapes and dtypes, through ``jax.eval_shape``."""
    return jax.eval_shape(model.init, jax.random.key(0))


def parameter_count(model: Model, *, trainable_matrices_only: bool = False) -> int:
    """Count parameters; tied weights once.

    Args:
        model: any family.
        trainable_matrices_only: count kernels alone (what sparsity and FLOPs see).
    """
    leaves = named_leaves(abstract_params(model))
    return sum(
        math.prod(leaf.shape)
        for name, leaf in leaves
        if not trainable_matrices_only or name.endswith("kernel")
    )


def forward_flops(model: Model, seq_len: int | None = None) -> dict[str, float]:
    """Count one token's forward pass by kernel; see ``flops_per_token``.

    Returns:
        kernel -> FLOPs; under '' what no kernel has a part in: attention over positions, and the
        product with tied embeddings.
    """
    cfg = model.config
    configs = getattr(cfg, "parts", (cfg,))
    moe = next((config.moe for config in configs if hasattr(config, "moe")), None)
    active = moe.top_k / moe.num_experts if moe else 1.0  # k of E experts see a token
    flops = {
        name: 2.0 * math.prod(leaf.shape) * (active if "/experts_" in name else 1.0)
        for name, leaf in named_leaves(abstract_params(model))
        if name.endswith("kernel")
    }
    extra, text = 0.0, getattr(cfg, "text_model", cfg)
    if getattr(text, "with_lm_head", False) and getattr(text, "share_embedding_weights", False):
        extra += 2.0 * text.vocab_size * text.hidden_size
    for config in configs:
        if hasattr(config, "attended_keys"):
            length = seq_len or config.max_position_embeddings
            keys = config.attended_keys(getattr(config, "image_slots", length))
            extra += 4.0 * config.num_heads * config.head_dim * keys
    return {**flops, "": extra}


def flops_per_token(
    model: Model,
    seq_len: int | None = None,
    *,
    training: bool = True,
    density: Mapping[str, float] | None = None,
) -> float:
    """Count the floating-point operations of one token's matrix products.

    2 per kernel element (a multiply and an add), plus q.k and probabilities.v over the keys a
    query sees (half the sequence when causal, the window at most); training is three times the
    forward pass, the usual convention (Kaplan et al. 2020). Norms, softmax and look-ups are left
    out. Models of several stacks count one token of each together: a source and a target token,
    a question and a context token, an image slot and a text token. An encoder's tied
    masked-LM head, which scores the masked positions only, is left out.

    Args:
        model: any family.
        seq_len: sequence length; default ``max_position_embeddings``.
        training: count the backward pass as well.
        density: kernel -> share of it that is left; 1 where nothing is said.
    """
    left = density or {}
    forward = sum(v * left.get(name, 1.0) for name, v in forward_flops(model, seq_len).items())
    return forward * (3.0 if training else 1.0)
