"""From rows of features to the flat token stream that models compute on.

1. Rows: NumPy features [B, ...] of the B rows of a batch.
2. ``host_batch``, on the host, shares the rows out to N systems (``num_csx``) and the A
   micro-batches of each, and measures them: [N, A, B/NA, ...]. With a ladder it strips padding
   down to a static capacity of T tokens: [N, A, T, ...].
3. ``to_batch``, inside the jitted step, makes the ``Batch`` of one micro-batch, without N and A.

The features of a row; which are there decides what the batch is:

* ``input_ids``, ``attention_mask``, ``labels`` [B, S]: next-token rows. The mask is a loss mask
  unless ``loss_mask`` [B, S] is there too; then it marks the real tokens.
* ``attention_span``, ``position_ids`` [B, S]: several documents per row (VSL).
* ``token_type_ids`` [B, S], ``labels`` [B] (a class), ``next_sentence_label`` [B],
  ``start_positions``, ``end_positions`` [B], ``gather_positions``, ``gather_labels``,
  ``gather_weights`` [B, M] (slots a head scores): encoders.
* ``decoder_input_ids``, ``decoder_attention_mask``: the target rows of an encoder-decoder, with
  ``labels``; ``input_ids`` and ``attention_mask`` are the source then.
* ``pixel_values`` [B, C, h, w]: one image per row (LLaVA).
* ``images`` [B, pixels], ``labels`` [B], ``attention_mask`` [B] (0 at rows that fill up a batch):
  FC-MNIST.
* ``reference_logps`` [B, 2]: of the two answers in a row of packed pairs (DPO).
* ``context_input_ids``, ``context_attention_mask``, ``context_token_type_ids`` [B, K, S]: DPR's
  contexts, a row's own first.
* ``epigenetic`` [B, S] states of the tokens, or [B, S, E] shares of each state (EBERT).
* Features of a user's task (``wafer.register_task``) reach the model in ``Batch.extras``.
* ``row`` [B]: number of the example, from 1; 0 at rows that fill up a batch. Stays on the host.
"""

from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding
from jaxtyping import Array

from wafer import vsl
from wafer.data.sections.base import InputSection
from wafer.data.tasks import row_features
from wafer.models.base import Batch
from wafer.models.families.fc_mnist import image_batch

_HOST_ONLY = {"row"}
_SOURCE = ("input_ids", "attention_mask", "loss_mask", "labels", "token_type_ids", "epigenetic")
_CONTEXT = ("context_input_ids", "context_attention_mask", "context_token_type_ids")
_READ = {  # what ``_extras`` does not pass on as it is
    *_SOURCE,
    "attention_span",
    "position_ids",
    "lengths",
    "gather_positions",
    "gather_labels",
    "gather_weights",
    *_CONTEXT,
    "context_lengths",
}
_TARGET = ("decoder_input_ids", "decoder_attention_mask", "labels")


def row_lengths(mask: np.ndarray) -> np.ndarray:
    """[B] tokens up to the last position that is not 0: later ones cannot matter.

    A loss mask is 0 over a prompt at the head of a row too; only the tail is padding.
    """
    reach = np.where(mask != 0, np.arange(1, mask.shape[-1] + 1), 0)
    return reach.max(axis=-1).astype(np.int32)


def _streams(rows: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(mask, name of the lengths, features that run along it) of every token stream of the rows."""
    if "attention_span" in rows or rows["attention_mask"].ndim == 1:
        return
    if "decoder_input_ids" in rows:
        yield "decoder_attention_mask", "decoder_lengths", _TARGET
        yield "attention_mask", "lengths", ("input_ids", "attention_mask")
        return
    if "context_input_ids" in rows:
        along = tuple(name for name in _CONTEXT if name in rows)
        yield "context_attention_mask", "context_lengths", along
    along = tuple(name for name in _SOURCE if name in rows and rows[name].ndim > 1)
    yield "attention_mask", "lengths", along


def host_batch(
    rows: Mapping[str, np.ndarray],
    num_csx: int = 1,
    micro_batches: int = 1,
    ladder: vsl.Ladder | None = None,
    largest: Callable[[int], int] = lambda value: value,
) -> dict[str, np.ndarray]:
    """Share the rows out, and strip padding when a ladder of capacities is given.

    Args:
        rows: features [B, ...], see the module.
        num_csx: N, the systems that share the batch.
        micro_batches: A parts of each system's share, computed one after another; N * A
            divides B.
        ladder: capacities for stripped streams (``model.enable_vts``); None keeps rows padded.
            VSL rows are packed already and stay as they are.
        largest: number of tokens -> the largest of all processes', which must agree on a capacity.

    Returns:
        Arrays [N, A, B/NA, ...], plus ``lengths`` [N, A, B/NA] per token stream unless packed;
        stripped features are [N, A, T, ...].
    """
    shares = num_csx * micro_batches
    split = {k: v.reshape(shares, -1, *v.shape[1:]) for k, v in rows.items() if k not in _HOST_ONLY}
    for mask, name, along in _streams(rows):
        lengths = row_lengths(split[mask])
        if ladder is not None:
            capacity = ladder.capacity(largest(int(lengths.reshape(shares, -1).sum(axis=-1).max())))
            keep = np.arange(split[mask].shape[-1]) < lengths[..., None]
            split |= {k: _strip(split[k], keep, capacity) for k in along}
        split[name] = lengths
    return {k: v.reshape(num_csx, micro_batches, *v.shape[1:]) for k, v in split.items()}


def _strip(x: np.ndarray, keep: np.ndarray, capacity: int) -> np.ndarray:
    out = np.zeros((x.shape[0], capacity, *x.shape[keep.ndim :]), x.dtype)
    for shard, (values, mask) in enumerate(zip(x, keep, strict=True)):
        tokens = values[mask]
        out[shard, : len(tokens)] = tokens
    return out


def feature_shapes(
    section: InputSection,
    config: object,
    lead: tuple[int, ...],
    sharding: Sharding | None = None,
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of rows of an input section, padded, and of their ``lengths``.

    Args:
        section: exact if it ``decides_shapes``; else files may hold rows of other lengths.
        config: of the model.
        lead: axes before those of a row, such as (N, A, B/NA) for what ``host_batch`` returns.
        sharding: of all features.
    """
    return {
        name: jax.ShapeDtypeStruct((*lead, *feature.shape), feature.dtype, sharding=sharding)
        for name, feature in row_features(section, config).items()
    }


def _layout(lengths: Array, like: Array) -> vsl.Layout:
    """Layout of features shaped as ``like``: [T] stripped, or [B, S] padded."""
    if like.ndim == 1:
        return vsl.layout_from_lengths(lengths, like.shape[0], validate=False)
    return vsl.padded_layout(lengths, like.shape[1], validate=False)


def to_batch(features: Mapping[str, Array] | Batch) -> Batch:
    """Build one micro-batch inside jit, from features without the axes N and A, or take one."""
    if isinstance(features, Batch):
        return features
    mask = features["attention_mask"]
    if "images" in features:
        batch = image_batch(features["images"], features["labels"])
        return batch._replace(weights=mask.astype(jnp.float32))
    if "decoder_input_ids" in features:
        source, target = features["input_ids"], features["decoder_input_ids"]
        return Batch(
            tokens=target.reshape(-1),
            labels=features["labels"].reshape(-1),
            weights=features["decoder_attention_mask"].reshape(-1).astype(jnp.float32),
            layout=_layout(features["decoder_lengths"], target),
            extras={
                "source_tokens": source.reshape(-1),
                "source_layout": _layout(features["lengths"], source),
            },
        )
    if "attention_span" in features:
        layout = vsl.layout_from_spans(
            features["attention_span"], features["position_ids"], mask != 0
        )
    else:
        layout = _layout(features["lengths"], mask)
    tokens = features["input_ids"].reshape(-1)
    labels = features.get("labels")
    per_token = labels is not None and labels.size == tokens.size
    weights = features.get("loss_mask", mask) if per_token else mask
    return Batch(
        tokens=tokens,
        # Tokens only fill the field: without labels of tokens no model reads it.
        labels=tokens if labels is None or not per_token else labels.reshape(-1),
        weights=weights.reshape(-1).astype(jnp.float32),
        layout=layout,
        extras=_extras(features, layout, per_token=per_token),
    )


def numbered(batch: Batch, shard: Array, shards: int = 1, processes: int = 1) -> Batch:
    """Number a micro-batch's sequences as in the whole batch: dropout depends on the numbers.

    Args:
        batch: one of equal shares.
        shard: [] int32, how many shares come before it, those of process 0 first.
        shards: N * A, the shares of the whole batch.
        processes: P; each has every P-th row of the batch (``pipeline.Loader``).
    """
    layout = batch.layout
    rows = layout.lengths.shape[-1] if layout.rows is None else layout.rows[0]
    process, before = jnp.divmod(shard, shards // processes)

    def number(x: object) -> object:
        if not isinstance(x, vsl.Layout):
            return x
        own = x.lengths.shape[-1]
        size = own // rows  # sequences of a row
        first = before * own * processes + process * size
        return x.numbered(first, (size, size * processes))

    return jax.tree.map(number, batch, is_leaf=lambda node: isinstance(node, vsl.Layout))


def _contexts(features: Mapping[str, Array]) -> dict[str, Array | vsl.Layout]:
    ids, lengths = features["context_input_ids"], features["context_lengths"].reshape(-1)
    rows = ids if ids.ndim == 1 else ids.reshape(-1, ids.shape[-1])
    out = {"context_tokens": ids.reshape(-1), "context_layout": _layout(lengths, rows)}
    if "context_token_type_ids" in features:
        out["context_segment_ids"] = features["context_token_type_ids"].reshape(-1)
    return out


def _extras(
    features: Mapping[str, Array], layout: vsl.Layout, *, per_token: bool
) -> dict[str, Array | vsl.Layout]:
    extras: dict[str, Array | vsl.Layout] = {k: v for k, v in features.items() if k not in _READ}
    if "context_input_ids" in features:
        extras |= _contexts(features)
    if "token_type_ids" in features:
        extras["segment_ids"] = features["token_type_ids"].reshape(-1)
    if "epigenetic" in features:
        tokens = features["input_ids"]
        states = features["epigenetic"]
        extras["epigenetic"] = states.reshape(tokens.size, *states.shape[tokens.ndim :])
    if "labels" in features and not per_token:
        extras["class_labels"] = features["labels"]
    if "gather_positions" in features:
        used = features["gather_weights"]
        first = layout.offsets
        if layout.rows is not None:  # packed rows, too, are scored by places in the row
            first = jnp.arange(layout.rows[0]) * layout.rows[1]
        slots = first[:, None] + features["gather_positions"]
        extras["masked_positions"] = jnp.where(used != 0, slots, 0).reshape(-1)
        extras["masked_labels"] = features["gather_labels"].reshape(-1)
        extras["masked_weights"] = used.reshape(-1).astype(jnp.float32)
    return extras
