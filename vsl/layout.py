"""Where the sequences of a batch lie in one flat stream of tokens.

Every model of the library computes on a flat token axis T. A packed batch has its sequences one
after another with slack only at the end; a padded ``[B, S]`` batch is the same stream with gaps,
which ``rows`` remembers so that the stock padded attention can still be asked for.
"""

import dataclasses
import json
import typing

import jax
import jax.core
import jax.export
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Num, Shaped

from wafer.vsl.lengths import check_capacity

AnyArray = Array | np.ndarray
"""JAX under a trace; on the host also NumPy."""


@jax.tree_util.register_dataclass
@typing.no_type_check  # unflattening runs __init__ on tracers and placeholders
@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The sequences of a flat stream of T token slots.

    Attributes:
        lengths: [B] int32, tokens of each sequence; 0 for an unused slot.
        segments: [T] int32, index of the token's sequence, -1 at padding and slack.
        positions: [T] int32, position inside the sequence, 0 at padding and slack.
        starts: [T] int32, stream index of the first token of the token's sequence; T at slack.
        ends: [T] int32, one past its last token; 0 at slack, so that ``starts <= j < ends`` is
            never true there.
        rows: static (B, S) when the stream is a padded batch flattened row by row, else None.
        first: [] int32, number of segment 0 in the whole batch, of which this stream may be a
            share: noise is addressed by it, so that it does not depend on how a batch is cut. -1
            where a traced layout is of lengths, a mask or a capacity that outside jit are an
            error: ``complete`` is false then.
        spacing: static (size, stride): segments come in groups of ``size``, one for each row of
            the batch, and the first segments of two rows are ``stride`` numbers apart; more than
            ``size`` where the rows between them are elsewhere.
    """

    lengths: Int[Array, " B"]
    segments: Int[Array, " T"]
    positions: Int[Array, " T"]
    starts: Int[Array, " T"]
    ends: Int[Array, " T"]
    rows: tuple[int, int] | None = dataclasses.field(default=None, metadata={"static": True})
    first: Int[Array, ""] = dataclasses.field(
        default_factory=lambda: typing.cast(Array, np.int32(0))
    )
    spacing: tuple[int, int] = dataclasses.field(default=(1, 1), metadata={"static": True})

    @property
    def sequences(self) -> Int[Array, " T"]:
        """Number of the token's sequence in the whole batch; meaningless at padding."""
        size, stride = self.spacing
        between = 0 if size == stride else self.segments // size * (stride - size)
        return self.segments + self.first + between

    @property
    def complete(self) -> Bool[Array, ""] | np.bool_:
        """False where a traced layout is of what is refused outside jit; ``np.True_`` if known."""
        return self.first >= 0

    def require_complete(self, x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
        """Return x; NaN, with NaN gradients, if it is of floats and the layout not ``complete``.

        ``attention``, sums and maxima over segments and ``Model.loss`` do so by themselves; a loss
        that only reads ``valid`` or ``lengths`` calls it.
        """
        return nan_unless(self.complete, x)

    def numbered(self, first: Int[Array, ""], spacing: tuple[int, int] = (1, 1)) -> "Layout":
        """Return the layout with its segments counted from ``first``, as complete as it was."""
        first = jnp.where(self.complete, first, -1).astype(jnp.int32)
        return dataclasses.replace(self, first=first, spacing=spacing)

    @property
    def capacity(self) -> int:
        """Static number of token slots T."""
        return self.segments.shape[0]

    @property
    def row_count(self) -> Int[Array, ""]:
        """Number of rows with a token: of a padded or packed batch, else of sequences."""
        if self.rows is None:
            return jnp.sum(self.lengths > 0)
        return jnp.sum(self.valid.reshape(self.rows).any(axis=1))

    @property
    def valid(self) -> Bool[Array, " T"]:
        """True at real tokens."""
        return self.segments >= 0

    @property
    def offsets(self) -> Int[Array, " B"]:
        """Stream index of each sequence's first token; T for an empty one."""
        size = self.lengths.shape[0]
        slot = jnp.where(self.valid, self.segments, size)  # slack goes out of bounds: dropped
        first = jnp.full((size,), self.capacity, jnp.int32)
        return first.at[slot].min(self.starts, mode="drop")


def nan_unless(
    complete: Bool[Array, ""] | np.bool_, x: Shaped[Array, "*shape"]
) -> Shaped[Array, "*shape"]:
    """Return x, or NaN with NaN gradients if it is of floats and ``complete`` is false."""
    if complete is np.True_ or not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    return x * jnp.where(complete, 1, jnp.nan).astype(x.dtype)


def _layout(
    lengths: Array,
    offsets: Array,
    capacity: int,
    rows: tuple[int, int] | None,
    complete: Array | None,
) -> Layout:
    slot = jnp.arange(capacity, dtype=jnp.int32)
    # The last sequence that begins at or before a slot; empty sequences share their offset with
    # the next one, and `right` picks the later, non-empty one.
    seq = jnp.clip(jnp.searchsorted(offsets, slot, side="right") - 1, 0, lengths.shape[0] - 1)
    seq = seq.astype(jnp.int32)
    start, length = offsets[seq], lengths[seq]
    valid = slot < start + length
    return Layout(
        lengths=lengths,
        segments=jnp.where(valid, seq, -1),
        positions=jnp.where(valid, slot - start, 0),
        starts=jnp.where(valid, start, capacity),
        ends=jnp.where(valid, start + length, 0),
        rows=rows,
        first=_first(complete),
    )


def _first(complete: Array | None) -> Array:
    if complete is None:
        return typing.cast(Array, np.int32(0))
    return jnp.where(complete, 0, -1).astype(jnp.int32)


def _check(name: str, lengths: AnyArray, *, validate: bool) -> np.ndarray | None:
    """Refuse what are no lengths; return them where they are known and to be looked at."""
    known = not isinstance(lengths, jax.core.Tracer)
    shape, dtype = np.shape(lengths), np.asarray(lengths).dtype if known else lengths.dtype
    if len(shape) != 1 or not shape[0] or dtype.kind not in "iu":
        raise ValueError(f"{name}: lengths are {dtype}{list(shape)}; expected integers [B], B >= 1")
    if not (validate and known):
        return None
    host = np.asarray(lengths)
    if (host < 0).any():
        at = int(np.argmax(host < 0))
        raise ValueError(f"{name}: sequence {at} has {host[at]} tokens; expected 0 or more")
    return host


def layout_from_lengths(
    lengths: Int[AnyArray, " B"], capacity: int, *, validate: bool = True
) -> Layout:
    """Lay sequences one after another in a stream of static ``capacity``.

    Args:
        lengths: [B] int32, tokens of each sequence, zeros allowed.
        capacity: static T. What lies beyond is cut under jit, where nothing can raise
            (``wafer.vsl.checks.check_fit`` reports it from inside).
        validate: look at the lengths.

    Returns:
        The layout; usable under jit, where it is not ``complete`` if the lengths do not fit.

    Raises:
        ValueError: no [B] integers; outside jit, a negative length or tokens that do not fit.
    """
    host = _check("layout_from_lengths", lengths, validate=validate)
    if host is not None:
        check_capacity(host, capacity)
    traced = validate and host is None
    lengths = jnp.asarray(lengths, jnp.int32)
    ends = jnp.cumsum(lengths, dtype=jnp.int32)
    complete = (ends[-1] <= capacity) & (lengths >= 0).all() if traced else None
    return _layout(lengths, ends - lengths, capacity, None, complete)


def padded_layout(
    lengths: Int[AnyArray, " B"], max_length: int, *, validate: bool = True
) -> Layout:
    """Describe a padded ``[B, S]`` batch, flattened row by row, as a stream with gaps.

    Args:
        lengths: [B] int32, real tokens at the head of each row.
        max_length: static S.
        validate: look at the lengths.

    Returns:
        The layout, with ``rows == (B, S)``; under jit not ``complete`` if a length does not fit.

    Raises:
        ValueError: no [B] integers; outside jit, a length that is negative or above S.
    """
    host = _check("padded_layout", lengths, validate=validate)
    if host is not None and (host > max_length).any():
        at = int(np.argmax(host > max_length))
        raise ValueError(
            f"padded_layout: row {at} has {host[at]} tokens > max_length {max_length}; cut it, or "
            "raise max_length"
        )
    traced = validate and host is None
    lengths = jnp.asarray(lengths, jnp.int32)
    complete = ((lengths >= 0) & (lengths <= max_length)).all() if traced else None
    batch = lengths.shape[0]
    offsets = jnp.arange(batch, dtype=jnp.int32) * max_length
    return _layout(lengths, offsets, batch * max_length, (batch, max_length), complete)


def layout_from_spans(
    attention_span: Int[AnyArray, "B S"],
    position_ids: Int[AnyArray, "B S"],
    loss_mask: Num[AnyArray, "B S"] | Bool[AnyArray, "B S"] | None = None,
    max_sequences: int | None = None,
) -> Layout:
    """Describe rows that pack several documents, flattened, as a stream with gaps.

    A VSL row of Cerebras's Model Zoo carries, per key j, how many later queries may attend it
    (``attention_span``, counting down to 0 inside each document) and its position
    (``position_ids``, counting up from 0). Causal: query i sees key j iff j <= i <= j + span[j].

    Padding has span 0 and position 0, and so has a document of one token; the loss mask tells
    them apart. Where both agree the slot carries no loss, so treating it as padding is exact.

    Args:
        attention_span: later queries of the same document, per key.
        position_ids: position inside the document.
        loss_mask: [B, S] the row's ``attention_mask``; None takes slots with span and position 0
            for padding.
        max_sequences: static bound on the documents of the batch, which are then counted through;
            by default there are B * S segments, S for each row, always enough.

    Returns:
        The layout, with ``rows == (B, S)``; usable under jit, where it is not ``complete`` if there
        are more documents than ``max_sequences``.

    Raises:
        ValueError: outside jit, more documents than ``max_sequences``.
    """
    batch, length = attention_span.shape
    span = jnp.asarray(attention_span, jnp.int32).reshape(-1)
    position = jnp.asarray(position_ids, jnp.int32).reshape(-1)
    total = batch * length
    valid = (span > 0) | (position > 0)
    if loss_mask is not None:
        valid |= jnp.asarray(loss_mask).reshape(-1) != 0
    slot = jnp.arange(total, dtype=jnp.int32)
    first = valid & (position == 0)
    if max_sequences is None:  # a row's numbers do not depend on the rows before it
        inside = jnp.cumsum(first.reshape(batch, length), axis=1, dtype=jnp.int32) - 1
        seq, count = inside.reshape(-1) + slot // length * length, total
        complete = None
    else:
        seq, count = jnp.cumsum(first, dtype=jnp.int32) - 1, max_sequences
        complete = _documents_fit(seq[-1] + 1, max_sequences)
    lengths = jnp.zeros((count,), jnp.int32)
    lengths = lengths.at[jnp.where(first, seq, count)].set(span + 1, mode="drop")
    return Layout(
        lengths=lengths,
        segments=jnp.where(valid, seq, -1),
        positions=jnp.where(valid, position, 0),
        starts=jnp.where(valid, slot - position, total),
        ends=jnp.where(valid, slot + span + 1, 0),
        rows=(batch, length),
        first=_first(complete),
    )


def _documents_fit(documents: Int[Array, ""], most: int) -> Bool[Array, ""] | None:
    if isinstance(documents, jax.core.Tracer):
        return documents <= most
    if int(documents) > most:
        raise ValueError(
            f"layout_from_spans: {int(documents)} documents > max_sequences={most}; raise it, or "
            "leave it out"
        )
    return None


jax.export.register_pytree_node_serialization(
    Layout,
    serialized_name="vsl.Layout",
    serialize_auxdata=lambda fields: json.dumps(fields).encode(),
    deserialize_auxdata=lambda text: tuple(
        tuple(rows) if rows else None for rows in json.loads(text)
    ),
)
