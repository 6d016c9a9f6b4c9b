"""BTLM, Jais and CrystalCoder in NumPy, from what their config.json and tensors are published as.

transformers has no class of them: their code comes with the weights. The arithmetic here is written
without our layers.
"""

import math

import numpy as np


def _norm(x, tensors, name):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


def _linear(x, tensors, name):
    return x @ tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


def _rotated(x, features):
    """[S, heads, d]: pairs (0, 1), (2, 3), ... of the first features turn, each slower."""
    out = x.copy()
    for s in range(len(x)):
        for pair in range(features // 2):
            angle = s * 10000.0 ** (-2 * pair / features)
            a, b = x[s, :, 2 * pair], x[s, :, 2 * pair + 1]
            out[s, :, 2 * pair] = a * math.cos(angle) - b * math.sin(angle)
            out[s, :, 2 * pair + 1] = b * math.cos(angle) + a * math.sin(angle)
    return out


def _gelu_new(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _filters(x, config, tensors, block):
    inner = _linear(x, tensors, f"{block}.mlp.c_fc")
    if config["activation_function"] == "swiglu":  # the second matrix is the gate
        gate = _linear(x, tensors, f"{block}.mlp.c_fc2")
        inner = gate / (1 + np.exp(-gate)) * inner
    elif config["activation_function"] == "gelu_new":
        inner = _gelu_new(inner)
    else:
        raise NotImplementedError(config["activation_function"])
    return _linear(inner, tensors, f"{block}.mlp.c_proj")


def _attention(x, config, tensors, block, layer):
    length, heads = len(x), config["n_head"]
    joined = _linear(x, tensors, f"{block}.attn.c_attn")
    q, k, v = (part.reshape(length, heads, -1) for part in np.split(joined, 3, axis=1))
    if config["position_embedding_type"] == "rotary":
        q, k = (_rotated(part, config["rotary_dim"]) for part in (q, k))
    size = q.shape[-1] ** (1.0 if config["mup_scale_qk_dot_by_d"] else 0.5)
    if config["scale_attn_by_inverse_layer_idx"]:
        size *= layer + 1
    scores = np.einsum("shd,thd->hst", q, k) / size
    if config["position_embedding_type"] == "alibi":
        distance = np.abs(np.arange(length)[:, None] - np.arange(length))
        scores = scores - tensors["relative_pe.slopes"].reshape(-1, 1, 1) * distance
    scores = scores + np.triu(np.full((length, length), -np.inf), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    context = np.einsum("hst,thd->shd", weights, v).reshape(length, -1)
    return _linear(context, tensors, f"{block}.attn.c_proj")


def logits(config, tensors, ids):
    """[S, vocabulary] of one text.

    Args:
        config: the content of config.json, every key named.
        tensors: name -> array, as in the file.
        ids: [S] token ids.
    """
    names = {name: name.removeprefix("transformer.") for name in tensors}
    tensors = {short: np.asarray(tensors[name], np.float64) for name, short in names.items()}
    x = tensors["wte.weight"][ids]
    if config["position_embedding_type"] == "learned":
        x = x + tensors["wpe.weight"][: len(ids)]
    x = x * config["mup_embeddings_scale"]
    for i in range(config["n_layer"]):
        block = f"h.{i}"
        x = x + _attention(_norm(x, tensors, f"{block}.ln_1"), config, tensors, block, i)
        x = x + _filters(_norm(x, tensors, f"{block}.ln_2"), config, tensors, block)
    head = tensors.get("lm_head.weight", tensors["wte.weight"])
    scale = config["mup_output_alpha"] * config["mup_width_scale"]
    return _norm(x, tensors, "ln_f") @ head.T * scale
