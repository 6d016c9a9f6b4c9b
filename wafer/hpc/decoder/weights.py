"""A model's parameters as the PEs of a mesh hold them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from wafer.hpc.decoder.sizes import Sizes
from wafer.models.families.decoder_config import DecoderConfig
from wafer.models.layers.positions import rotary_frequencies

_NEVER = -3e38  # the score of a token that does not exist
_NONE = -1  # an index that stands for a zero

Params = Mapping[str, Any]


def pack(cfg: DecoderConfig, params: Params, sizes: Sizes) -> np.ndarray:
    """Lay out the weights of all PEs, in the order that pe.csl reads them.

    Args:
        cfg: the decoder's configuration.
        params: its parameters, a tree of arrays.
        sizes: how it is divided.

    Returns:
        [height, width, words] float32.
    """
    along_y = _parts(cfg.hidden_size, sizes.features, sizes.height)
    heads = _head_features(cfg, sizes)
    wide = _parts(cfg.filter_size, sizes.filter, sizes.width)
    words = _parts(cfg.vocab_size, sizes.vocab, sizes.width)
    shape = sizes.height, sizes.width
    parts: list[np.ndarray] = []
    for k in range(cfg.num_hidden_layers):
        branch = params[f"layers_{k}"]
        attn, ffn = branch["attn"], branch["ffn"]
        query, key, value = (_heads(cfg, attn[name], name) for name in ("query", "key", "value"))
        ups = [_dense(ffn[name]) for name in ("up", "gate") if name in ffn]
        parts += _norm(branch.get("norm1", {}), along_y, shape)
        parts.append(_down_columns([query, key, value], along_y, heads))
        parts.append(_along_rows(_dense(attn["out"]), heads, along_y))
        parts += _norm(branch.get("norm2", {}), along_y, shape)
        parts.append(_down_columns(ups, along_y, wide))
        parts.append(_along_rows(_dense(ffn["down"]), wide, along_y))
    table = _array(params["embed"]["token"]["embedding"])
    parts += _norm(params.get("norm_f", {}), along_y, shape)
    head = params.get("lm_head", {})
    kernel = table.T if cfg.share_embedding_weights else _array(head["kernel"])
    bias = _array(head["bias"]) if "bias" in head else np.zeros(cfg.vocab_size, np.float32)
    parts.append(_down_columns([(kernel, bias)], along_y, words, _NEVER))
    if sizes.own_table:
        parts.append(_taken(table, words[None, :, :, None], along_y[:, None, None, :]))
    if sizes.learned:
        rows = _array(params["embed"]["position"]["embedding"])[: sizes.positions]
        dealt = _dealt(len(rows), sizes.width, sizes.places)
        parts.append(_taken(rows, dealt[None, :, :, None], along_y[:, None, None, :]))
    if sizes.rotary:
        parts.append(_angles(cfg, sizes))
    return np.concatenate([part.reshape(*shape, -1) for part in parts], axis=-1)


def _array(value: Any) -> np.ndarray:
    return np.asarray(value, np.float32)


def _parts(count: int, size: int, by: int) -> np.ndarray:
    """[by, size] indices below ``count`` in order, then ``_NONE``."""
    at = np.arange(by * size).reshape(by, size)
    return np.where(at < count, at, _NONE)


def _dealt(count: int, by: int, size: int) -> np.ndarray:
    """[by, size] indices below ``count``, dealt out in turns."""
    at = np.arange(by * size).reshape(size, by).T
    return np.where(at < count, at, _NONE)


def _taken(values: np.ndarray, *at: np.ndarray) -> np.ndarray:
    """``values[at]`` with zeros where an index is ``_NONE``."""
    return np.pad(values, [(0, 1)] * values.ndim)[at]


def _dense(leaf: Params) -> tuple[np.ndarray, np.ndarray]:
    """Kernel [in, out] and bias [out]."""
    kernel = _array(leaf["kernel"])
    bias = _array(leaf["bias"]) if "bias" in leaf else np.zeros(kernel.shape[1], np.float32)
    return kernel, bias


def _heads(cfg: DecoderConfig, leaf: Params, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Of as many heads as there are queries; the scores' factor is in the queries."""
    kernel, bias = _dense(leaf)
    if name == "query":
        return kernel * np.float32(cfg.attention_scale), bias * np.float32(cfg.attention_scale)
    shared = cfg.num_heads // cfg.num_kv_heads
    split = kernel.reshape(len(kernel), cfg.num_kv_heads, cfg.head_dim)
    each = bias.reshape(cfg.num_kv_heads, cfg.head_dim)
    return (
        np.repeat(split, shared, axis=1).reshape(len(kernel), -1),
        np.repeat(each, shared, axis=0).ravel(),
    )


def _order(cfg: DecoderConfig, sizes: Sizes) -> np.ndarray:
    """Features of a head in the order of the PEs, in which pairs that turn are neighbours."""
    order = np.arange(cfg.head_dim)
    if sizes.rotary and not cfg.rotary_interleaved:
        turned = cfg.rotary_features
        order[:turned] = np.arange(turned).reshape(2, -1).T.ravel()
    return order


def _head_features(cfg: DecoderConfig, sizes: Sizes) -> np.ndarray:
    """[width, here] which features of all heads a column has."""
    of_head = np.full((sizes.team, sizes.part), _NONE)
    of_head.ravel()[: cfg.head_dim] = _order(cfg, sizes)
    out = np.full((sizes.width, sizes.here), _NONE)
    for x in range(sizes.width):
        for h in range(sizes.heads):
            head, at = x // sizes.team * sizes.heads + h, x % sizes.team
            if head < cfg.num_heads:
                own = of_head[at]
                filled = np.where(own == _NONE, _NONE, own + head * cfg.head_dim)
                out[x, h * sizes.part : (h + 1) * sizes.part] = filled
    return out


def _norm(leaf: Params, along_y: np.ndarray, shape: tuple[int, int]) -> list[np.ndarray]:
    """Scale and bias; ones and zeros where there is none."""
    count = along_y.max() + 1
    scale = _array(leaf["scale"]) if "scale" in leaf else np.ones(count, np.float32)
    bias = _array(leaf["bias"]) if "bias" in leaf else np.zeros(count, np.float32)
    return [
        np.broadcast_to(_taken(v, along_y)[:, None], (*shape, along_y.shape[1]))
        for v in (scale, bias)
    ]


def _down_columns(
    matrices: list[tuple[np.ndarray, np.ndarray]],
    rows: np.ndarray,
    columns: np.ndarray,
    missing: float = 0.0,
) -> np.ndarray:
    """[height, width, bias and in, out] of products that go from along y to along x."""
    blocks = []
    for kernel, bias in matrices:
        block = _taken(kernel, rows[:, None, :, None], columns[None, :, None, :])
        first = np.zeros((*block.shape[:2], 1, block.shape[3]), np.float32)
        first[0, :, 0] = np.where(columns == _NONE, missing, _taken(bias, columns))
        blocks.append(np.concatenate([first, block], axis=2))
    return np.concatenate(blocks, axis=3)


def _along_rows(
    dense: tuple[np.ndarray, np.ndarray], rows: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """[height, width, bias and in, out] of a product that goes from along x to along y."""
    kernel, bias = dense
    block = _taken(kernel, rows[None, :, :, None], columns[:, None, None, :])
    first = np.zeros((*block.shape[:2], 1, block.shape[3]), np.float32)
    first[:, 0, 0] = _taken(bias, columns)
    return np.concatenate([first, block], axis=2)


def _angles(cfg: DecoderConfig, sizes: Sizes) -> np.ndarray:
    """[height, width, slots, part] cosines of the pairs, then sines."""
    frequencies = np.zeros(sizes.team * sizes.part // 2, np.float32)  # 0: does not turn
    turning = rotary_frequencies(cfg.rotary_features, cfg.rope_theta)
    frequencies[: len(turning)] = turning
    of_columns = frequencies.reshape(sizes.team, -1)[np.arange(sizes.width) % sizes.team]
    at = np.arange(sizes.slots * sizes.height).reshape(sizes.slots, sizes.height).T
    angle = at.astype(np.float32)[:, None, :, None] * of_columns[None, :, None, :]
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)
