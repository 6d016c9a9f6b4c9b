"""A decoder's cycles per token on PEs, simulated and by closed form: docs/results/hpc.md.

python tests/bench/hpc_decoder.py [--quick]
python tests/bench/hpc_decoder.py --large  # and a model of GPT-2's size: minutes, gigabytes
"""

import pathlib
import sys

import harness
import jax
import numpy as np
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(pathlib.Path(__file__).parent)]

from wafer import models
from wafer.hpc import decoder
from wafer.hpc.decoder import costs

CLOCK = 0.85e9
TINY = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "filter_size": 32,
    "max_position_embeddings": 24,
}
GPT2 = {"name": "gpt2", **TINY}
LLAMA = {
    "name": "llama",
    "attention_module": "multiquery_attention",
    "extra_attention_params": {"num_kv_groups": 2},
    **TINY,
}
CASES = (
    ("GPT-2, tiny", GPT2, ((1, 1), (2, 3), (5, 4), (3, 8), (12, 12)), 4, 8),
    ("LLaMA, tiny", LLAMA, ((1, 5), (4, 4), (7, 9)), 4, 8),
    ("gpt_pystdlib", None, ((8, 16), (16, 16), (32, 16), (32, 32)), 4, 60),
)
LARGE = (("GPT-2 small", {"name": "gpt2"}, ((64, 264),), 1, 2),)


def drawn(section):
    """A model and random parameters."""
    model = models.build(section)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    rng = np.random.default_rng(0)
    draw = lambda leaf: rng.normal(0, 0.1, leaf.shape).astype(np.float32)
    return model, jax.tree.map(draw, shapes)


def rows(cases):
    """Pairs: the case, and the columns of its last token."""
    path = ROOT / "models" / "configs" / "gpt_pystdlib.yaml"
    for name, section, grids, read, count in cases:
        job = section or yaml.safe_load(path.read_text(encoding="utf-8"))["model"]
        model, params = drawn(job)
        for grid in grids:
            wafer = decoder.Decoder(model.config, params, grid, read + count)
            spent = wafer.generate(range(1, 1 + read), count).cycles
            last = len(spent) - 1
            case = f"{name}, {grid[0]} x {grid[1]} PEs, token {last}"
            yield (
                case,
                {
                    "simulated": int(spent[-1]),
                    "closed form": costs.cycles(wafer.sizes, last, writes=last >= read - 1),
                    "tokens per second": CLOCK / int(spent[-1]),
                    "bytes of a PE": wafer.sizes.bytes,
                },
            )


if __name__ == "__main__":
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="a model of GPT-2's size: minutes")
    options = parser.parse_args()
    cases = LARGE if options.large else CASES[: 2 if options.quick else None]
    harness.cycles(dict(rows(cases)))
