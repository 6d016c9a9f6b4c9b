"""Bits per byte of compressors on the main job's held-out functions, and what they have seen.

``bz2`` and ``xz`` compress all held-out functions as one text and have seen nothing before. ``xz,
after the training text``: how much longer the compressed training text becomes by the held-out one,
with a dictionary as long as both. ``training text`` and ``held-out text`` are in bytes, and so is
``compressed weights`` of a finalized checkpoint of the job (``--model``), as xz makes them.

    python tests/bench/compressors.py [--quick] [--model runs/demo/finalized]
"""

import lzma
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parents[2]), str(pathlib.Path(__file__).parent)]

import harness
import numpy as np
import yaml

from wafer.data.text.functions import load_corpus, yardsticks
from wafer.models.checkpoint.reader import open_params

CONFIG = pathlib.Path(__file__).parents[2] / "models" / "configs" / "gpt_pystdlib.yaml"


def compressed(data):
    """Length by xz at its best, with a dictionary that holds all of it."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 26}]
    return len(lzma.compress(data, lzma.FORMAT_XZ, filters=filters))


def weights(folder):
    """Bytes of a checkpoint's parameters by xz."""
    leaves = open_params(folder)[1].values()
    return len(lzma.compress(b"".join(np.asarray(leaf).tobytes() for leaf in leaves), preset=9))


def main():
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--model", help="a finalized checkpoint of the main job")
    options = parser.parse_args()
    given = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["train_input"]
    corpus = load_corpus(None, 64 if options.quick else given["max_bytes"])
    before, held = (
        "".join(f"{text}\n" for text in part).encode() for part in (corpus.train, corpus.held_out)
    )
    rows = yardsticks(corpus.held_out)
    rows["xz, after the training text"] = 8 * (compressed(before + held) - compressed(before))
    rows["xz, after the training text"] /= len(held)
    units = dict.fromkeys(rows, "bits per byte")
    rows |= {"training text": len(before), "held-out text": len(held)}
    if options.model:
        rows["compressed weights"] = weights(options.model)
    harness.report(rows, units=lambda name: units.get(name, "bytes"), where=harness.ANY)


if __name__ == "__main__":
    main()
