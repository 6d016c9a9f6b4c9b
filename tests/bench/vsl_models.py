"""What ``vsl_step`` times: train steps of a GPT and a BERT, in several layouts and attentions."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

from wafer import models, vsl
from wafer.engines.programs import compiler_options, shapes_of

LONGEST = 512
VOCAB = 4096
LAYERS = 4
SIGMA = {2: 0.7, 4: 0.8, 8: 0.9}
MASKED = 0.15
Attend = Callable[..., jax.Array]


class Step(NamedTuple):
    """A train step compiled for some batches, with these bound.

    run: takes one optimizer step on each batch
    tokens: real tokens of all
    memory: temporary bytes of the executable and of the native attention, added over the batches
    slots: token slots the token-wise layers compute
    """

    run: Callable[[], Any]
    tokens: int
    memory: int
    slots: int


def draw_lengths(ratio: int, count: int, seed: int = 0) -> np.ndarray:
    """Lognormal lengths truncated to [1, LONGEST], with LONGEST / mean = ratio."""
    rng = np.random.default_rng([seed, ratio])
    normal = rng.normal(size=8 * max(count, 4096)) * SIGMA[ratio]

    def draw(location: float) -> np.ndarray:
        lengths = np.exp(location + normal)
        return np.ceil(lengths[lengths <= LONGEST])

    low, high = 0.0, 7.0
    for _ in range(40):  # the mean after truncation grows with the location
        middle = (low + high) / 2
        low, high = (middle, high) if draw(middle).mean() < LONGEST / ratio else (low, middle)
    return draw(low).astype(np.int64)[:count]


def typical_batches(ratio: int, batch: int, seed: int = 0) -> list[np.ndarray]:
    """Of 50 random batches by number of tokens, the middle ones of five tens.

    One batch alone would lie by chance just below or just above a rung of the ladder.
    """
    batches = draw_lengths(ratio, 50 * batch, seed).reshape(50, batch)
    order = np.argsort(batches.sum(axis=1))
    return [batches[i] for i in order[5::10]]


def make_examples(lengths: np.ndarray, *, masked: bool, seed: int = 0) -> list[dict[str, Any]]:
    """Random tokens; next-token labels, or labels at 15 % of the positions."""
    rng = np.random.default_rng(seed)
    out = []
    for n in lengths:
        tokens = rng.integers(0, VOCAB, n + 1).astype(np.int32)
        example = {"tokens": tokens[:-1], "labels": tokens[1:], "weights": np.ones(n, np.float32)}
        if masked:
            m = max(1, int(n * MASKED))
            positions = np.sort(rng.choice(n, m, replace=False)).astype(np.int32)
            example = {"tokens": tokens[:-1], "at": positions, "targets": tokens[positions]}
        out.append(example)
    return out


DOMAINS = {
    "gpt": {"tokens": ("tokens", "labels", "weights")},
    "bert": {"tokens": ("tokens",), "mlm": ("at", "targets")},
}


def packed_batch(family: str, examples: list[Any], capacity: Any, most: int) -> models.Batch:
    """One flat stream of real tokens."""
    sizes = {"tokens": capacity, "mlm": 0.16}
    packed = vsl.pack(examples, sizes, most, domains=DOMAINS[family])
    layout = vsl.layout_from_lengths(packed.lengths["tokens"], packed.capacity["tokens"])
    if family == "gpt":
        a = packed.arrays
        return models.Batch(a["tokens"], a["labels"], a["weights"], layout)
    at = vsl.layout_from_lengths(packed.lengths["mlm"], packed.capacity["mlm"])
    return _bert_batch(packed.arrays, layout, at)


def padded_batch(family: str, examples: list[Any], length: int = LONGEST) -> models.Batch:
    """Rows of ``length``, and of 15 % of it for BERT's masked positions."""
    parts = [
        vsl.pad([{n: e[n] for n in names} for e in examples], size, len(examples))
        for names, size in zip(
            DOMAINS[family].values(), (length, int(length * MASKED) + 1), strict=False
        )
    ]
    layout = vsl.padded_layout(parts[0].lengths["tokens"], length)
    if family == "gpt":
        a = parts[0].arrays
        return models.Batch(a["tokens"], a["labels"], a["weights"], layout)
    at = vsl.padded_layout(parts[1].lengths["tokens"], int(length * MASKED) + 1)
    return _bert_batch(parts[0].arrays | parts[1].arrays, layout, at)


def as_stream(batch: models.Batch) -> models.Batch:
    """The same padded batch, taken for a stream with gaps: products are the packed run's own."""
    return batch._replace(layout=dataclasses.replace(batch.layout, rows=None))


def _bert_batch(arrays: Any, layout: vsl.Layout, at: vsl.Layout) -> models.Batch:
    weights = np.asarray(at.valid, np.float32)
    extras = {
        "masked_positions": vsl.ragged_slots(layout, at, jnp.asarray(arrays["at"])),
        "masked_labels": arrays["targets"],
        "masked_weights": weights,
    }
    unused = np.zeros(layout.capacity, np.int32)
    return models.Batch(arrays["tokens"], unused, unused.astype(np.float32), layout, extras)


def stock_attention(q: Any, k: Any, v: Any, *, layout: vsl.Layout, causal: bool, **_: Any) -> Any:
    """The padded, masked attention every transformer tutorial has: [B, N, S, S] scores."""
    batch, length = layout.rows
    q, k, v = (x.reshape(batch, length, *x.shape[1:]) for x in (q, k, v))
    scores = jnp.einsum("bqnh,bknh->bnqk", q, k) * (q.shape[-1] ** -0.5)
    mask = layout.valid.reshape(batch, 1, 1, length)
    if causal:
        mask = mask & jnp.tril(jnp.ones((length, length), bool))
    p = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
    return jnp.einsum("bnqk,bknh->bqnh", p, v).reshape(batch * length, *q.shape[2:])


def jax_attention(q: Any, k: Any, v: Any, *, layout: vsl.Layout, causal: bool, **_: Any) -> Any:
    """``jax.nn.dot_product_attention`` with sequence lengths."""
    batch, length = layout.rows
    q, k, v = (x.reshape(batch, length, *x.shape[1:]) for x in (q, k, v))
    out = jax.nn.dot_product_attention(
        q, k, v, is_causal=causal, query_seq_lengths=layout.lengths,
        key_value_seq_lengths=layout.lengths,
    )  # fmt: skip
    return out.reshape(batch * length, *q.shape[2:])


def rows_attention(q: Any, k: Any, v: Any, *, layout: vsl.Layout, causal: bool, **_: Any) -> Any:
    """Packed rows: [R, N, S, S] scores under a mask of equal segments."""
    batch, length = layout.rows
    q, k, v = (x.reshape(batch, length, *x.shape[1:]) for x in (q, k, v))
    segments = layout.segments.reshape(batch, length)
    mask = (segments[:, :, None] == segments[:, None, :])[:, None]
    if causal:
        mask = mask & jnp.tril(jnp.ones((length, length), bool))
    scores = jnp.einsum("bqnh,bknh->bnqk", q, k) * (q.shape[-1] ** -0.5)
    p = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
    return jnp.einsum("bnqk,bknh->bqnh", p, v).reshape(batch * length, *q.shape[2:])


def restoring_attention(
    q: Any, k: Any, v: Any, *, layout: vsl.Layout, causal: bool, **_: Any
) -> Any:
    """Packed tokens, restored to padded rows around a stock attention."""
    count = layout.lengths.shape[0]
    rows = vsl.padded_layout(layout.lengths, LONGEST)
    there = jnp.where(layout.valid, layout.segments * LONGEST + layout.positions, count * LONGEST)
    place = jnp.arange(count * LONGEST)
    offset = jnp.cumsum(layout.lengths) - layout.lengths
    back = offset[place // LONGEST] + place % LONGEST
    back = jnp.where(rows.valid, back, layout.capacity)
    q, k, v = (x.at[back].get(mode="fill", fill_value=0) for x in (q, k, v))
    out = stock_attention(q, k, v, layout=rows, causal=causal)
    return out.at[there].get(mode="fill", fill_value=0)


def make_model(family: str, width: int, layers: int = LAYERS) -> models.Model:
    """A small GPT-2, or a BERT with the masked-language-model head alone; no dropout."""
    own = {"gpt": {"name": "gpt2"}, "bert": {"name": "bert", "head": "mlm"}}[family]
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_heads": width // 64,
        "filter_size": 4 * width,
        "vocab_size": VOCAB,
        "max_position_embeddings": LONGEST,
        "dropout_rate": 0.0,
    }
    return models.build(own | sizes)


def native_bytes(lowered: jax.stages.Lowered, model: models.Model, batch: models.Batch) -> int:
    """What native kernels keep beside XLA's temporaries: one scratch, which they take in turns.

    Attention: k, k^T, v^T, and dk and dv once per chunk of its backward pass. Products: panels of
    the largest weight and of the widest gradient.
    """
    text, tokens, width = lowered.as_text(), batch.layout.capacity, model.config.hidden_size
    chunks = -(-8 // model.config.num_heads)
    attention = 4 * (3 + 2 * chunks) * tokens * width
    products = 4 * (max(VOCAB, 4 * width) * width + 4 * width * tokens)
    return max(
        attention if "wafer_attention_backward" in text else 0,
        products if "wafer_product_backward" in text else 0,
    )


def make_step(
    model: models.Model, batches: models.Batch | Sequence[models.Batch], attention: Attend
) -> Step:
    """Compile forward, backward and AdamW for each shape of the batches."""
    params = model.init(jax.random.key(0))
    tx = optax.adamw(1e-3)

    def train(state: Any, batch: models.Batch) -> Any:
        (value, _), grads = jax.value_and_grad(model.loss, has_aux=True)(state[0], batch)
        updates, moments = tx.update(grads, state[1], state[0])
        return (optax.apply_updates(state[0], updates), moments), value

    def attend(q: Any, k: Any, v: Any, **rules: Any) -> Any:
        return attention(q, k, v, **rules)

    given = [batches] if isinstance(batches, models.Batch) else batches
    given = [jax.tree.map(jnp.asarray, batch) for batch in given]
    state = [(params, tx.init(params))]
    programs: dict[Any, tuple[Any, int]] = {}
    for batch in given:
        if (shapes := shapes_of(batch)) not in programs:
            with mock.patch.object(vsl, "attention", attend):
                lowered = jax.jit(train, donate_argnums=0).lower(state[0], batch)
            compiled = lowered.compile(compiler_options=compiler_options())
            memory = compiled.memory_analysis().temp_size_in_bytes
            programs[shapes] = compiled, memory + native_bytes(lowered, model, batch)
    bound = [(*programs[shapes_of(batch)], batch) for batch in given]

    def run() -> Any:
        for compiled, _, batch in bound:
            state[0], value = compiled(state[0], batch)
        return value

    return Step(
        run,
        sum(int(batch.layout.lengths.sum()) for batch in given),
        sum(memory for _, memory, _ in bound),
        sum(batch.layout.capacity for batch in given),
    )
