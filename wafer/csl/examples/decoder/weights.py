"""A decoder's weights as the PEs of the mesh hold them, in the order that pe.csl reads them."""

import numpy as np

NEVER = -3e38  # the score of a token that does not exist
NONE = -1  # an index that stands for a zero


def parts(count, size, by):
    """[by, size] indices below ``count`` in order, then NONE."""
    at = np.arange(by * size).reshape(by, size)
    return np.where(at < count, at, NONE)


def taken(values, *at):
    """``values[at]`` with zeros where an index is NONE."""
    return np.pad(np.asarray(values, np.float32), [(0, 1)] * np.ndim(values))[at]


def head_parts(p, model):
    """[width, here] which features of all heads a column has; pairs that turn are neighbours."""
    order = np.arange(model.head_dim)
    if p["rotary"] and not model.rotary_interleaved:
        turned = model.rotary_features
        order[:turned] = np.arange(turned).reshape(2, -1).T.ravel()
    of_head = np.full((p["team"], p["part"]), NONE)
    of_head.ravel()[: model.head_dim] = order
    out = np.full((p["width"], p["here"]), NONE)
    for x in range(p["width"]):
        for h in range(p["heads"]):
            head = x // p["team"] * p["heads"] + h
            if head < model.num_heads:
                own = of_head[x % p["team"]]
                columns = slice(h * p["part"], (h + 1) * p["part"])
                out[x, columns] = np.where(own == NONE, NONE, own + head * model.head_dim)
    return out


def block(leaf, inputs, outputs, down, missing=0.0):
    """[height, width, 1 + in, out] of a product: a row of the bias, on one PE, then the kernel.

    ``down``: sums go down the columns, so inputs are divided along y and outputs along x.
    """
    rows, columns = (inputs[:, None], outputs[None]) if down else (inputs[None], outputs[:, None])
    kernel = taken(leaf["kernel"], rows[..., None], columns[:, :, None])
    bias = np.zeros((*kernel.shape[:2], 1, kernel.shape[3]), np.float32)
    first = taken(leaf.get("bias", np.zeros(leaf["kernel"].shape[1])), outputs)
    bias[(0, slice(None), 0) if down else (slice(None), 0, 0)] = np.where(
        outputs == NONE, missing, first
    )
    return np.concatenate([bias, kernel], axis=2)


def heads(model, leaf, name):
    """Of as many heads as there are queries; the scores' factor is in the queries."""
    if name == "query":
        return {key: np.asarray(value) * model.attention_scale for key, value in leaf.items()}
    shared = model.num_heads // model.num_kv_heads

    def repeated(value):
        each = np.reshape(value, (*np.shape(value)[:-1], model.num_kv_heads, model.head_dim))
        return np.repeat(each, shared, axis=-2).reshape(*np.shape(value)[:-1], -1)

    return {key: repeated(value) for key, value in leaf.items()}


def pack(p, model, weights):
    """[height, width, words] float32 of a tree of arrays."""
    height, width = p["height"], p["width"]
    table = np.asarray(weights["embed"]["token"]["embedding"], np.float32)
    vocab, hidden = table.shape
    stream = parts(hidden, p["features"], height)
    tokens = parts(vocab, p["vocab"], width)
    columns = head_parts(p, model)
    out = []

    def norm(leaf):
        pair = leaf.get("scale", np.ones(hidden)), leaf.get("bias", np.zeros(hidden))
        out.extend(np.repeat(taken(values, stream)[:, None], width, axis=1) for values in pair)

    for k in range(p["layers"]):
        layer = weights[f"layers_{k}"]
        attention, filters = layer["attn"], layer["ffn"]
        wide = parts(filters["up"]["kernel"].shape[1], p["filter"], width)
        norm(layer.get("norm1", {}))
        each = [heads(model, attention[name], name) for name in ("query", "key", "value")]
        out.append(np.concatenate([block(leaf, stream, columns, True) for leaf in each], axis=3))
        out.append(block(attention["out"], columns, stream, False))
        norm(layer.get("norm2", {}))
        each = [filters[name] for name in ("up", "gate") if name in filters]
        out.append(np.concatenate([block(leaf, stream, wide, True) for leaf in each], axis=3))
        out.append(block(filters["down"], wide, stream, False))
    norm(weights.get("norm_f", {}))
    head = {"kernel": table.T} | weights.get("lm_head", {})
    out.append(block(head, stream, tokens, True, NEVER))
    if p["own_table"]:
        out.append(taken(table, tokens[None, :, :, None], stream[:, None, None]))
    if p["learned"]:  # columns are dealt positions in turn
        rows = weights["embed"]["position"]["embedding"][: p["positions"]]
        dealt = parts(len(rows), width, -(-p["positions"] // width)).T
        out.append(taken(rows, dealt[None, :, :, None], stream[:, None, None]))
    if p["rotary"]:
        out.append(angles(p, model))
    return np.concatenate([part.reshape(height, width, -1) for part in out], axis=-1)


def angles(p, model):
    """[height, width, slots, part] cosines of the pairs, then sines; rows are dealt positions."""
    slots = -(-p["positions"] // p["height"] // 4) * 4
    size = np.float32(model.rotary_features)
    frequencies = np.zeros(p["team"] * p["part"] // 2, np.float32)  # 0: does not turn
    turns = np.float32(model.rope_theta) ** (np.arange(0, size, 2, dtype=np.float32) / size)
    frequencies[: len(turns)] = 1 / turns
    frequencies = frequencies.reshape(p["team"], -1)[np.arange(p["width"]) % p["team"]]
    at = np.arange(slots * p["height"], dtype=np.float32).reshape(slots, -1).T
    angle = at[:, None, :, None] * frequencies[None, :, None]
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)
