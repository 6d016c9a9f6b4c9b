"""A language model on a mesh of PEs, whose weights stay in their memory, writes text."""

import argparse
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from weights import pack


def run(runner, p, prompt, count, packed=None):
    """Continue a prompt by ``count`` tokens, the likeliest each time.

    Returns these tokens; the scores that they were taken from, [count, vocabulary]; and the cycles
    of each token that was read, the last ``count`` of which gave a token. Weights that are not
    ``packed`` anew are those of before.
    """
    height, width, vocab = p["height"], p["width"], p["vocab"]
    if packed is not None:
        words = packed.astype(np.float32).ravel()
        region = 0, 0, width, height, packed.shape[2]
        runner.memcpy_h2d(runner.get_id("weights"), words, *region)
    tokens = np.zeros(p["positions"] + 1, np.uint32)
    tokens[: len(prompt)] = prompt
    everywhere = np.tile(tokens, height * width)
    runner.memcpy_h2d(runner.get_id("tokens"), everywhere, 0, 0, width, height, len(tokens))
    runner.launch("restart")
    scores, cycles = [], []
    for read in range(1, len(prompt) + count):
        start = runner.cycles
        runner.launch("decode", np.uint16(len(prompt)), np.uint16(1))
        cycles.append(runner.cycles - start)
        if read >= len(prompt):
            row = np.zeros((width, 2 + vocab), np.float32)  # all rows of PEs have the same
            runner.memcpy_d2h(row, runner.get_id("logits"), 0, 0, width, 1, 2 + vocab)
            scores.append(row[:, 2:].ravel())
    written = np.zeros(len(prompt) + count, np.uint32)
    runner.memcpy_d2h(written, runner.get_id("tokens"), 0, 0, 1, 1, len(written))
    return written[len(prompt) :].astype(int), np.array(scores), np.array(cycles)


ACTIVATIONS = (
    lambda x: np.maximum(x, 0),
    lambda x: np.maximum(x, 0) ** 2,
    lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    lambda x: x / (1 + np.exp(-x)),
)


def reference(p, model, weights, text):
    """Scores [tokens, vocabulary] in double precision, from the whole text at once, no cache."""

    def dense(x, leaf):
        return x @ np.asarray(leaf["kernel"], float) + np.asarray(leaf.get("bias", 0))

    def norm(x, leaf):
        x = x - x.mean(-1, keepdims=True) * p["centred"]
        epsilon = np.uint32(p["epsilon"]).view(np.float32)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
        return x * np.asarray(leaf.get("scale", 1)) + np.asarray(leaf.get("bias", 0))

    def turned(x):  # pairs [tokens, heads, features] as complex numbers times their rotation
        size = model.rotary_features
        at = np.arange(size).reshape(-1, 2) if model.rotary_interleaved else (
            np.arange(size).reshape(2, -1).T
        )  # fmt: skip
        angle = np.arange(len(x))[:, None] * model.rope_theta ** (-np.arange(0, size, 2) / size)
        pairs = (x[..., at[:, 0]] + 1j * x[..., at[:, 1]]) * np.exp(1j * angle)[:, None]
        x[..., at[:, 0]], x[..., at[:, 1]] = pairs.real, pairs.imag
        return x

    def attention(x, leaf):
        q, k, v = (
            dense(x, leaf[name]).reshape(len(x), -1, model.head_dim)
            for name in ("query", "key", "value")
        )
        if p["rotary"]:
            q, k = turned(q), turned(k)
        k, v = (np.repeat(each, q.shape[1] // each.shape[1], 1) for each in (k, v))
        scores = np.einsum("tnh,snh->nts", q, k) * model.attention_scale
        shares = np.exp(scores - scores.max(-1, keepdims=True)) * np.tri(len(x))
        shares = shares / shares.sum(-1, keepdims=True)
        return dense(np.einsum("nts,snh->tnh", shares, v).reshape(len(x), -1), leaf["out"])

    def feed_forward(x, leaf):
        up, activation = dense(x, leaf["up"]), ACTIVATIONS[p["activation"]]
        gated = up * activation(dense(x, leaf["gate"])) if "gate" in leaf else activation(up)
        return dense(gated, leaf["down"])

    table = np.asarray(weights["embed"]["token"]["embedding"], float)
    x = table[text]
    if p["learned"]:
        x = x + np.asarray(weights["embed"]["position"]["embedding"])[: len(text)]
    for layer in (weights[f"layers_{k}"] for k in range(p["layers"])):
        x = x + attention(norm(x, layer.get("norm1", {})), layer["attn"])
        x = x + feed_forward(norm(x, layer.get("norm2", {})), layer["ffn"])
    x = norm(x, weights.get("norm_f", {}))
    return dense(x, {"kernel": table.T} | weights.get("lm_head", {}))


def random_model(p):
    """A model that fills all PEs, and weights that are large enough for all parts to matter."""
    rng = np.random.default_rng(7)
    head, heads, hidden = p["team"] * p["part"], p["width"] // p["team"] * p["heads"], p["hidden"]
    model = SimpleNamespace(
        head_dim=head, num_heads=heads, num_kv_heads=heads // 2 if p["rotary"] else heads,
        attention_scale=head**-0.5, rotary_features=head, rotary_interleaved=True, rope_theta=1e4,
    )  # fmt: skip

    def draw(*shape):
        return rng.normal(0, 0.4, shape).astype(np.float32)

    def dense(inputs, outputs):
        return {"kernel": draw(inputs, outputs), "bias": draw(outputs)}

    def layer():
        every, shared, wide = heads * head, model.num_kv_heads * head, p["filter"] * p["width"]
        attention = {"query": dense(hidden, every), "key": dense(hidden, shared),
                     "value": dense(hidden, shared), "out": dense(every, hidden)}  # fmt: skip
        filters = {"up": dense(hidden, wide), "down": dense(wide, hidden)}
        if p["gates"] == 2:
            filters["gate"] = dense(hidden, wide)
        return {"norm1": norm(), "attn": attention, "norm2": norm(), "ffn": filters}

    def norm():
        return {"scale": draw(hidden), "bias": draw(hidden)}

    vocab = p["vocab"] * p["width"]
    weights = {f"layers_{k}": layer() for k in range(p["layers"])} | {"norm_f": norm()}
    if p["own_table"]:
        weights["lm_head"] = dense(hidden, vocab)
    tables = {"token": {"embedding": draw(vocab, hidden)}}
    tables["position"] = {"embedding": draw(p["positions"], hidden)}
    return model, weights | {"embed": tables}


def main():
    from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="out", help="folder of the compiled program")
    parser.add_argument("--cmaddr", help="IP:port of a system")
    args = parser.parse_args()
    params = json.loads(Path(args.name, "out.json").read_text())["params"]
    p = {name: int(value) for name, value in params.items()}
    model, weights = random_model(p)
    runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
    runner.load()
    runner.run()
    packed = pack(p, model, weights)
    for prompt in ([3, 1, 4, 1], [5, 9, 2]):  # for the second text the weights stay
        tokens, scores, cycles = run(runner, p, prompt, 4, packed)
        packed = None
        expected = reference(p, model, weights, [*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        limit = 2e-4 * np.abs(expected).max()
        np.testing.assert_allclose(scores, expected, rtol=2e-4, atol=limit)
        np.testing.assert_array_equal(tokens, scores.argmax(-1))
        print(f"{prompt} goes on with {tokens}; cycles of each token: {cycles}")
    runner.stop()
    print("SUCCESS!")


if __name__ == "__main__":
    main()
