"""How large a model is and what a token costs, from shapes alone (nothing is allocated)."""

import math
from typing import Any

import jax

from models.base import Model
from models.paths import named_leaves

__all__ = ["abstract_params", "flops_per_token", "parameter_count"]


def abstract_params(model: Model) -> Any:
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


def _active_share(name: str, cfg: Any) -> float:
    """Give the share of tokens that pay for a kernel: k of E for an expert, else all."""
    moe = getattr(cfg, "moe", None)
    return moe.top_k / moe.num_experts if moe and "/experts_" in name else 1.0


def flops_per_token(model: Model, seq_len: int | None = None, *, training: bool = True) -> float:
    """Count the floating-point operations of one token's matrix products.

    2 per kernel element (a multiply and an add), plus q.k and probabilities.v over the keys a
    query sees (half the sequence when causal, the window at most); training is three times the
    forward pass, the usual convention (Kaplan et al. 2020). Norms, softmax and look-ups are left
    out. For an encoder-decoder: one source and one target token together.

    Args:
        model: any family.
        seq_len: sequence length; default ``max_position_embeddings``.
        training: count the backward pass as well.
    """
    cfg = model.config
    forward = 0.0
    for name, leaf in named_leaves(abstract_params(model)):
        if name.endswith("kernel"):
            forward += 2.0 * math.prod(leaf.shape) * _active_share(name, cfg)
    if getattr(cfg, "with_lm_head", False) and getattr(cfg, "share_embedding_weights", False):
        forward += 2.0 * cfg.vocab_size * cfg.hidden_size
    if hasattr(cfg, "attended_keys"):
        length = seq_len or getattr(cfg, "max_position_embeddings", None) or 512
        forward += 4.0 * cfg.num_heads * cfg.head_dim * cfg.attended_keys(length)
    return forward * (3.0 if training else 1.0)
