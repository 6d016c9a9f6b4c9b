"""Train steps on variable-length batches: share of longest/mean that each scheme reaches.

A row is (time of the padded step / time of the variant) / (512 * B / real tokens): 1.0 means that
time follows the real tokens exactly. Steps are forward, backward and AdamW of four layers, float32,
on five batches of different sizes, timed in one process in turn. Rows: ``gpt_256_r4`` packed
against stock padded masked attention; ``_fair`` against padding with the same block-skipping
attention; ``_same`` against padding with the same attention and products that stop at the last
token (those of a padded run, stock and fair, are native and compute every row); ``_budget``
throughput of one fixed token budget; ``_mem`` the same share for temporary memory, which needs no
clock. For one configuration also the JAX form of the attention (``_blocks``) and what others do:
``_rows`` (packed rows of 512), ``_buckets`` (length buckets), ``_restore`` (pad again around
attention), ``_batchmax`` (pad to the
longest of the batch), ``_dpa`` (jax.nn.dot_product_attention with lengths).
"""

import functools
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import harness
import numpy as np
import vsl_models as lab

from wafer import malloc, models, vsl

AUTO = vsl.attention  # the native kernel where it is built, else blocks
BLOCKS = functools.partial(vsl.attention, implementation="blocks")
BUDGET = 4096
BUCKETS = (64, 128, 192, 256, 384, 512)
BATCH = {256: 16, 512: 8}
ELSE = ("gpt", 256, 4)


Examples = list[dict[str, Any]]


def row_batch(examples: Examples) -> models.Batch:
    """Packed rows of 512, first fit decreasing within the batch."""
    lengths = [len(e["tokens"]) for e in examples]
    bins = vsl.first_fit(lengths, lab.LONGEST)
    merged, spans = [], []
    for b in bins:
        parts = [examples[i] for i in b]
        merged.append({n: np.concatenate([p[n] for p in parts]) for n in parts[0]})
        n = [lengths[i] for i in b]
        spans.append(
            {
                "span": np.concatenate([np.arange(x)[::-1] for x in n]),
                "position": np.concatenate([np.arange(x) for x in n]),
            }
        )
    tokens = vsl.pad(merged, lab.LONGEST, len(bins)).arrays
    rows = {k: v.reshape(len(bins), -1) for k, v in vsl.pad(spans, 512, len(bins)).arrays.items()}
    layout = vsl.layout_from_spans(
        rows["span"], rows["position"], tokens["weights"].reshape(len(bins), -1), len(examples)
    )
    return models.Batch(tokens["tokens"], tokens["labels"], tokens["weights"], layout)


def bucket_steps(model: models.Model, ratio: int, count: int) -> dict[str, Any]:
    """One step per length bucket, and how many of 20 batches fall into each."""
    lengths = lab.draw_lengths(ratio, 20 * count)
    steps: dict[str, Any] = {"tokens": int(lengths.sum())}
    for group in np.argsort(lengths, kind="stable").reshape(-1, count):  # of similar length
        size = next(b for b in BUCKETS if b >= lengths[group].max())
        name = f"bucket{size}"
        if name not in steps:
            examples = lab.make_examples(lengths[group], masked=False)
            batch = lab.padded_batch("gpt", examples, size)
            steps[name] = [lab.make_step(model, batch, lab.stock_attention), 0]
        steps[name][1] += 1
    return steps


def others(
    model: models.Model, drawn: list[Examples], packed: list[models.Batch]
) -> dict[str, lab.Step]:
    """The schemes of other systems."""
    longest = [max(len(e["tokens"]) for e in examples) for examples in drawn]
    up = [
        lab.padded_batch("gpt", examples, -(-most // 64) * 64)
        for examples, most in zip(drawn, longest, strict=True)
    ]
    rows = [row_batch(examples) for examples in drawn]
    padded = [lab.padded_batch("gpt", examples) for examples in drawn]
    return {
        "blocks": lab.make_step(model, packed, BLOCKS),
        "rows": lab.make_step(model, rows, lab.rows_attention),
        "restore": lab.make_step(model, packed, lab.restoring_attention),
        "batchmax": lab.make_step(model, up, lab.stock_attention),
        "dpa": lab.make_step(model, padded, lab.jax_attention),
    }


def measure(
    family: str, width: int, ratio: int, *, full: bool, repeats: int, seconds: float
) -> dict[str, float]:
    """Rows of one configuration."""
    count = BATCH[width]
    drawn = [
        lab.make_examples(lengths, masked=family == "bert")
        for lengths in lab.typical_batches(ratio, count)
    ]
    model = lab.make_model(family, width)
    padded = [lab.padded_batch(family, examples) for examples in drawn]
    ladder = vsl.fit_ladder(lab.draw_lengths(ratio, 4096), count)
    packed = [lab.packed_batch(family, examples, ladder, count) for examples in drawn]
    steps = {
        "padded": lab.make_step(model, padded, lab.stock_attention),
        "fair": lab.make_step(model, padded, AUTO),
        "same": lab.make_step(model, [lab.as_stream(batch) for batch in padded], AUTO),
        "packed": lab.make_step(model, packed, AUTO),
    }
    buckets: dict[str, Any] = {}
    if full:
        data = lab.draw_lengths(ratio, 600, seed=1)
        chosen = next(vsl.budget_batches(data, BUDGET, max_sequences=128, window=600))
        batch = lab.make_examples(data[chosen], masked=family == "bert")
        steps["budget"] = lab.make_step(model, lab.packed_batch(family, batch, BUDGET, 128), AUTO)
    if full and (family, width, ratio) == ELSE:
        steps |= others(model, drawn, packed)
        buckets = bucket_steps(model, ratio, count)
        steps |= {n: s[0] for n, s in buckets.items() if n != "tokens"}

    apart = [n for n in steps if n == "budget" or n in buckets]  # of other batches
    same = {n: s.run() for n, s in steps.items() if n not in apart}
    harness.agree(same, 1e-4)
    times = harness.interleave({n: s.run for n, s in steps.items()}, repeats, seconds)
    name = f"{family}_{width}_r{ratio}"
    tokens, slots = steps["packed"].tokens, steps["packed"].slots
    ideal = lab.LONGEST * count * len(drawn) / tokens
    print(f"\n{name}: longest/mean {ideal:.2f}, {tokens} tokens in {slots} of {len(drawn)} batches")
    rows: dict[str, float] = {}

    def row(suffix: str, base: str, step: str, factor: float = 1.0) -> None:
        middle, least, cpu = (r * factor / ideal for r in harness.ratio(times, base, step))
        rows[name + suffix] = middle
        print(
            f"  {name + suffix:24s} {middle:5.2f} [{least:5.2f}, cpu {cpu:5.2f}] of ideal, "
            f"{times[step].median * 1e3:7.0f} ms, {steps[step].memory / 2**20:6.0f} MiB"
        )

    row("", "padded", "packed")
    row("_fair", "fair", "packed")
    row("_same", "same", "packed")
    if "budget" in steps:
        row("_budget", "padded", "budget", steps["budget"].tokens / steps["packed"].tokens)
    for other in ("blocks", "rows", "restore", "batchmax", "dpa"):
        if other in steps:
            row(f"_{other}", "padded", other)
    if buckets:
        total = sum(times[n].median * s[1] for n, s in buckets.items() if n != "tokens")
        rows[f"{name}_buckets"] = (
            20
            * times["padded"].median
            / len(drawn)
            / total
            / (lab.LONGEST * 20 * count / buckets["tokens"])
        )
        print(f"  {name}_buckets {rows[f'{name}_buckets']:.2f} of ideal, {len(buckets) - 1} shapes")
    rows[f"{name}_mem"] = steps["padded"].memory / steps["packed"].memory / ideal
    print(f"  {name}_mem {rows[f'{name}_mem']:.2f} of ideal")
    return rows


def main() -> None:
    """Print the table."""
    malloc.restart()  # as `wafer run` does, for every arm
    parser = harness.arguments(__doc__)
    parser.add_argument("--only", default="", help="configurations whose name contains this")
    options = parser.parse_args()
    print(harness.environment())
    rows: dict[str, float] = {}
    if options.quick:
        rows = measure("gpt", 256, 8, full=False, repeats=3, seconds=15)
    else:
        for width in (256, 512):
            for family in ("gpt", "bert"):
                for ratio in (2, 4, 8):
                    if options.only in f"{family}_{width}_r{ratio}":
                        rows |= measure(
                            family, width, ratio, full=width == 256, repeats=7, seconds=40
                        )
    harness.report(rows)


if __name__ == "__main__":
    main()
