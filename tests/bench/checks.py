"""What checks cost: the rules of stored rows, and the looks that public functions take.

Processor time, with and without, in turn in one process, so that other work beside it counts as
little as it can. The rules are compared with an arm that returns a row's arrays unseen.
"""

import pathlib
import tempfile
import time
from unittest import mock

import jax
import numpy as np
from data import VOCABULARY, corpus
from harness import arguments, environment, report

from wafer import vsl
from wafer.data.rowfiles import files
from wafer.sparsity.kernels.pattern import pattern_from_flat


def in_turn(programs, rounds, repeats):
    """Microseconds of processor time a call, per program: (least, median) of the rounds."""
    times = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            begin = time.process_time()
            for _ in range(repeats):
                program()
            times[name].append((time.process_time() - begin) / repeats * 1e6)
    return {name: (min(each), float(np.median(each))) for name, each in times.items()}


def unseen(groups, stored, vocab_size, states=None):
    """A row by feature, whatever it holds."""
    del vocab_size, states
    return {
        feature: row
        for group, values in zip(groups, stored, strict=True)
        for feature, row in zip(group.features, values.astype(np.int32, copy=False), strict=True)
    }


def rows_of(folder, compression, count):
    """Arms that read ``count`` rows of 512 tokens from all over a folder."""
    path = corpus(pathlib.Path(folder) / str(compression), 800, 512, compression)
    order = np.random.default_rng(1).permutation(800)[:count].tolist()
    source = files.Hdf5Source([path], VOCABULARY)

    def read():
        for index in order:
            source[index]

    def without():
        with mock.patch.object(files, "checked_row", unseen):
            read()

    return {"with": read, "without": without}


def calls():
    """Public functions that look at concrete values: name -> arms, calls in a round."""
    rng = np.random.default_rng(0)
    lengths = np.asarray(rng.integers(1, 513, 512), np.int32)
    total = int(lengths.sum())
    size = 2048 * 2048
    flat = np.flatnonzero(rng.random(size) < 0.1).astype(np.int32)
    functions = {
        "layout_from_lengths, 512 rows": (vsl.layout_from_lengths, (lengths, total), 5),
        "padded_layout, 512 rows": (vsl.padded_layout, (lengths, 512), 5),
        f"pattern_from_flat, {len(flat):,} of 2,048 x 2,048": (
            pattern_from_flat,
            (flat, (2048, 2048)),
            2,
        ),
    }

    def arm(function, values, validate):
        return lambda: jax.block_until_ready(function(*values, validate=validate))

    for name, (function, values, repeats) in functions.items():
        arms = {"with": arm(function, values, True), "without": arm(function, values, False)}
        yield name, arms, repeats


def main() -> None:
    args = arguments(__doc__).parse_args()
    print(environment())
    rounds, rows = (7, {}) if args.quick else (25, {})

    def show(name, arms, repeats, each=1):
        for program in arms.values():
            program()
        times = in_turn(arms, rounds, repeats)
        (least, middle), (base, base_middle) = times["with"], times["without"]
        print(
            f"{name}: {least / each:.2f} us with, {base / each:.2f} us without (fastest); medians "
            f"{middle / each:.2f} and {base_middle / each:.2f}"
        )
        rows[f"{name}, with"], rows[f"{name}, without"] = least / each, base / each

    with tempfile.TemporaryDirectory() as folder:
        for compression in ("gzip", None):
            show(f"a row of 512 tokens, {compression}", rows_of(folder, compression, 400), 1, 400)
    for name, arms, repeats in calls():
        show(name, arms, repeats)
    report(rows)


if __name__ == "__main__":
    main()
