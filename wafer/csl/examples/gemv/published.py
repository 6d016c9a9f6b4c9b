"""Figures of WaferLLM (arXiv:2502.04563) beside what its sizes take by programs like this one.

No wafer was simulated: cycles of a sum, of products and of a cache are closed forms of gemv, gemm
and kvshift, whose constants were read off runs of 1 x 1 to 13 x 13 PEs of WSE-2. They were checked
within 5 % on up to 32 x 32 PEs, lines of 64 PEs and caches of 12 rows. Numbers have 16 bits.
"""

from math import ceil
from types import SimpleNamespace as Model

CLOCK_HZ = 1.1e9  # of the paper's conversions
# Cycles until a sum's first word: of each PE that adds and passes on; of the first; of a root that
# passes on, of one that adds, of the main root's last input; more where a queue changes colors.
HOP, PASS, NEXT, ADD, BACK, SWITCH = 6, 9, 11, 15, 14, 5
# Cycles of an operation on a vector besides its numbers, four a cycle; of an exponential; of SiLU.
OPERATION, EXPONENTIAL, SILU = 10, 70, 115
ROTARY = 14  # operations on a vector that turn queries and keys

# PEs of a side -> tokens per second of LLaMA3-8B (tables 3 and 4), tokens in and out -> tokens per
# second (table 2), rows and columns of a matrix -> cycles on 720 x 720 PEs (table 6).
PREFILL = {480: 20320.6, 600: 25037.2, 720: 27686.5}
DECODE = {420: 2699.9, 540: 2501.5, 660: 2243.3}
ANSWERS = {(2048, 128): 764.4, (4096, 128): 604.4, (2048, 2048): 2370.3, (4096, 4096): 2459.0}
GEMV = {16384: 1320, 32768: 2233}


LLAMA = Model(
    width=4096, hidden=14336, heads=32, kv_heads=8, head=128, layers=32, vocabulary=128256
)


def public_shape(size):
    """The paper's public decoder: one head, no last matrix, sizes that the mesh divides."""
    width, hidden = ceil(4096 / size) * size, ceil(14336 / size) * size
    return Model(
        width=width, hidden=hidden, heads=1, kv_heads=1, head=width, layers=32, vocabulary=0
    )


def sum_cycles(size, words, group=0):
    """Of a sum of vectors along a line of PEs, in groups; 0: of the best size."""
    if size <= 1:
        return 0
    if not group:
        return min(sum_cycles(size, words, k) for k in range(1, size + 1))
    starts = range(0, size, group)
    ends = [min(k + group, size) for k in starts]
    roots = [(k + end) // 2 for k, end in zip(starts, ends, strict=True)]
    main = len(roots) // 2
    sides = [range(main), range(len(roots) - 1, main, -1)]
    near = []  # of each root: when its last input from its group begins and ends, its switches
    for k, root in enumerate(roots):
        beyond = sum(len(side) > 0 and (k == main or k in side[1:]) for side in sides)
        lengths = [n for n in (root - starts[k], ends[k] - 1 - root) if n]
        switch = SWITCH if len(lengths) + beyond > 1 else 0
        begin, time = PASS, 0
        for n, length in enumerate(lengths):
            passes = k != main and n + 1 == len(lengths) + beyond
            begin = max(time + switch + (NEXT if passes else ADD), PASS + HOP * length)
            time = begin + words
        near.append((begin, time, switch))
    _, time, switch = near[main]
    for side in sides:
        arrival = 0
        for n, k in enumerate(side):
            begin, end, more = near[k]
            leaves = max(end + more + NEXT, arrival) if n else begin
            following = roots[side[n + 1]] if n + 1 < len(side) else roots[main]
            arrival = leaves + HOP + abs(following - roots[k]) - 1
        if side:
            time = max(time + ADD + switch, arrival) + words
    return time + BACK + switch + words + max(roots[main], size - 1 - roots[main])


def lanes(numbers):
    """Four numbers of 16 bits a cycle, of a row that is padded to 16 bytes."""
    return 2 * ceil(numbers / 8)


def product_cycles(rows, columns):
    """Of a vector times a PE's block."""
    return 17 + lanes(columns) + rows * (7 + lanes(columns))


def gemv_cycles(size, side):
    """Of a square matrix on size x size PEs."""
    part = ceil(side / size)
    return 11 + product_cycles(part, part) + sum_cycles(size, 4 * lanes(part))


def gemm_cycles(size, rows, inner, columns):
    """Of a product of matrices, by the blocks of a PE."""
    a_words = ceil(rows * inner / 8) * 4
    words = 2 * (a_words + 2 * inner * lanes(columns))
    product = rows * (17 + inner * (7 + lanes(columns)))
    if rows * 8 > 281:  # the loop is not unrolled
        product += 7 * rows + 2
    fill, align = rows * lanes(columns), max(66, 55 + 2 * a_words)
    return 56 + fill + product + (size - 1) * (114 + product + words) + size // 2 * align


def push_cycles(size, words):
    """Of an entry of a cache: in the lowest row, or in one that hears it and passes one on."""
    start, push, wait = (17, 71, 0.5) if size % 2 else (13, 74, 1)
    lowest, between = push + words + ceil(words / 2), 65 + (2 + wait / size) * words
    return round(start + max(lowest, between))


def vector_cycles(operations, numbers):
    return operations * (OPERATION + ceil(numbers / 4))


def norm_cycles(size, rows, width):
    return vector_cycles(4, rows * width) + sum_cycles(size, rows) + rows * EXPONENTIAL


def decode_rate(m, size, context):
    """Tokens per second of one request, with so many tokens before."""
    width, hidden, kv, tokens, last = (
        ceil(n / size) for n in (m.width, m.hidden, m.kv_heads * m.head, context, m.vocabulary)
    )
    group = m.heads // m.kv_heads
    layer = (
        2 * norm_cycles(size, 1, width)
        # queries, keys and values; their positions; the cache
        + product_cycles(width, width) + 2 * product_cycles(width, kv)
        + sum_cycles(size, width + 2 * kv) + vector_cycles(ROTARY, width) + push_cycles(size, kv)
        # scores, softmax, values
        + product_cycles(kv * group, tokens) + sum_cycles(size // m.kv_heads, group * tokens)
        + group * tokens * EXPONENTIAL + 2 * sum_cycles(size, group) + vector_cycles(4, tokens)
        + product_cycles(group * tokens, kv) + sum_cycles(size, group * kv)
        # output; gate and up; SiLU; down
        + product_cycles(width, width) + sum_cycles(size, width) + vector_cycles(1, width)
        + 2 * product_cycles(width, hidden) + sum_cycles(size, 2 * hidden)
        + hidden * SILU + vector_cycles(2, hidden)
        + product_cycles(hidden, width) + sum_cycles(size, width) + vector_cycles(1, width)
    )  # fmt: skip
    padded = 2 * width * (lanes(width) + lanes(kv) + lanes(hidden)) + hidden * lanes(width)
    held = max(1, 40 * 1024 // (2 * (4 * padded + 2 * width)))  # layers in 40 KiB of a PE
    total = m.layers * layer + (ceil(m.layers / held) - 1) * (size + width)  # to the next mesh
    if last:
        total += norm_cycles(size, 1, width) + product_cycles(width, last) + sum_cycles(size, last)
    return CLOCK_HZ / total


def prefill_rate(m, size, prompt):
    """Tokens of a prompt per second, without the last matrix."""
    rows, width, hidden, kv = (
        ceil(n / size) for n in (prompt, m.width, m.hidden, m.kv_heads * m.head)
    )
    numbers = m.heads * rows * rows
    products = (
        *((width, n) for n in (width, kv, kv, rows, width, hidden, hidden)),
        (rows, width),
        (hidden, width),
    )
    layer = (
        2 * norm_cycles(size, rows, width)
        + sum(gemm_cycles(size, rows, inner, columns) for inner, columns in products)
        + vector_cycles(ROTARY, rows * width)
        + numbers * EXPONENTIAL + 2 * sum_cycles(size, m.heads * rows)
        + 2 * vector_cycles(1, rows * width)
        + rows * hidden * SILU + vector_cycles(2, rows * hidden)
    )  # fmt: skip
    return CLOCK_HZ * prompt / (m.layers * layer)


def rows():
    """Triples: the case, its figure by these formulas, and the paper's."""
    for side, theirs in GEMV.items():
        yield f"gemv, {side:,}, 720 x 720 PEs, cycles", gemv_cycles(720, side), theirs
    for size, theirs in PREFILL.items():
        ours = prefill_rate(LLAMA, size, 4096)
        yield f"prefill of 4,096 tokens, {size} x {size} PEs, tokens per second", ours, theirs
    for size, theirs in DECODE.items():
        for name, m in (("the public program's shape", public_shape(size)), ("LLaMA3-8B", LLAMA)):
            ours = decode_rate(m, size, 4096)
            yield f"decoding, {name}, {size} x {size} PEs, tokens per second", ours, theirs
    for (prompt, answer), theirs in ANSWERS.items():
        seconds = prompt / prefill_rate(LLAMA, 660, prompt)
        seconds += answer / decode_rate(public_shape(360), 360, prompt + answer // 2)
        ours = answer / seconds
        yield f"{prompt:,} tokens in, {answer:,} out, tokens per second", ours, theirs


if __name__ == "__main__":
    for case, ours, theirs in rows():
        print(f"{case:<80} {ours:>10,.1f} {theirs:>10,.1f} {ours / theirs - 1:>+7.1%}")
