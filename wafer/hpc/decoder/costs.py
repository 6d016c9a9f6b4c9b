"""How long does a decoder take for a token? The closed form of the program's cycles."""

from collections.abc import Iterator
from typing import NamedTuple

from wafer.hpc.decoder.sizes import Sizes


class _Line(NamedTuple):
    """A sum, or the greatest, over a line of PEs."""

    pes: int
    words: int


# Cycles on WSE-2 of what is counted below. Elements of products and words of sums take one each;
# the others were fitted by least squares to small runs (docs/results/hpc.md names them),
# then what moving descriptors cost less since was counted.
COSTS = {
    "element": 1,  # of a product
    "word": 1,  # that a PE in the middle of a line adds or sends
    "token": 93,
    "layer": 570,
    "line": 23.8,  # a sum over a line of PEs
    "other side": 12.9,  # of a line of more than two
    "hop": 6.8,  # from PE to PE on the way to the middle of a line
    "row": 13.6,  # of a product
    "feature": 6.9,  # of a layer: norms, residuals
    "head": 155,
    "share": 80.7,  # of a token, in softmax
    "cached row": 15.9,  # of a product with keys or values
    "pair": 36.1,  # of features that turn
    "passed over": 8.1,  # as another PE of the column computes it
    "gelu": 136,
    "gelu_new": 71.5,
    "silu": 116,
    "end": 220,  # the next token is chosen
    "looked at": 17.2,  # scores
}
_SLOW = {2: "gelu", 3: "gelu_new", 4: "silu"}
_GROUPS = {
    "products": ("element", "row"),
    "sums over PEs": ("word", "line", "other side", "hop"),
}


def cycles(sizes: Sizes, position: int, *, writes: bool = True) -> int:
    """Cycles of reading one token.

    Args:
        sizes: how the decoder is divided.
        position: tokens read before.
        writes: whether the next token is chosen, as behind the prompt.
    """
    return round(sum(parts(sizes, position, writes=writes).values()))


def parts(sizes: Sizes, position: int, *, writes: bool = True) -> dict[str, float]:
    """The same by what they are spent on: products, sums over PEs, everything else."""
    out = dict.fromkeys((*_GROUPS, "the rest"), 0.0)
    of = {name: group for group, names in _GROUPS.items() for name in names}
    for name, count in counts(sizes, position, writes=writes).items():
        out[of.get(name, "the rest")] += count * COSTS[name]
    return out


def counts(sizes: Sizes, position: int, *, writes: bool = True) -> dict[str, int]:
    """How often each of ``COSTS`` occurs, on the PE that has most to do."""
    s, layers = sizes, sizes.layers
    held = position // s.height + 1  # tokens whose keys the first PE of a column has
    each = -(-s.filter // s.height)
    lines = list(_lines(s, held, writes=writes))
    out = dict.fromkeys(COSTS, 0)
    out["token"], out["layer"] = 1, layers
    out["line"], out["other side"] = len(lines), sum(line.pes > 2 for line in lines)
    out["hop"] = sum(line.pes // 2 for line in lines)
    out["word"] = sum(line.words * min(line.pes, 3) for line in lines)
    rows = 2 * s.features + s.here + s.filter
    out["row"] = layers * rows + writes * s.features
    out["element"] = layers * (s.features * (3 * s.here + s.up) + (s.here + s.filter) * s.features)
    out["element"] += writes * s.features * s.vocab
    out["element"] += layers * s.heads * held * 2 * s.part
    out["cached row"] = layers * s.heads * (s.part + held)
    out["feature"] = layers * s.features
    out["head"], out["share"] = layers * s.heads, layers * s.heads * held
    out["pair"] = s.rotary * layers * s.heads * s.part
    if s.activation in _SLOW:
        out["passed over"] = layers * s.filter
        out[_SLOW[s.activation]] = layers * each
    out["end"] = int(writes)
    out["looked at"] = writes * -(-s.vocab // s.height)
    return out


def _lines(s: Sizes, held: int, *, writes: bool) -> Iterator[_Line]:
    """The sums over lines of more than one PE, of a token."""
    column = [2, 3 * s.here, s.heads, s.here + s.heads, 2, s.up]
    column += [s.filter] * (s.activation in _SLOW)
    ends = [2, s.vocab, 1, 1] * writes
    words = column * s.layers + ends + [s.part] * s.rotary
    along_row = [s.features] * (2 * s.layers + 1) + [1, 1] * writes
    team = [held] * s.layers * s.heads
    for pes, lengths in ((s.height, words), (s.width, along_row), (min(s.team, s.width), team)):
        if pes > 1:
            yield from (_Line(pes, n) for n in lengths)
