"""A decoder's cycles per token on PEs, simulated and by closed form: docs/results/hpc-decoder.md.

python tests/bench/hpc_decoder.py
python tests/bench/hpc_decoder.py --large  # and a model of GPT-2's size: minutes, gigabytes
"""

import json
import pathlib
import sys
import time

import jax
import numpy as np
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import models
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
    """Triples: the case, cycles of its last token simulated and by closed form."""
    path = ROOT / "models" / "configs" / "gpt_pystdlib.yaml"
    for name, section, grids, read, count in cases:
        job = section or yaml.safe_load(path.read_text(encoding="utf-8"))["model"]
        model, params = drawn(job)
        for grid in grids:
            began = time.perf_counter()
            wafer = decoder.Decoder(model.config, params, grid, read + count)
            spent = wafer.generate(range(1, 1 + read), count).cycles
            last = len(spent) - 1
            forms = [costs.cycles(wafer.sizes, at, writes=at >= read - 1) for at in range(last + 1)]
            worst = float(max(abs(np.array(forms) / spent - 1)))
            yield {
                "case": f"{name}, {grid[0]} x {grid[1]} PEs, token {last}",
                "cycles": int(spent[-1]),
                "form": forms[-1],
                "worst": worst,
                "tokens_per_s": CLOCK / int(spent[-1]),
                "parts": costs.parts(wafer.sizes, last),
                "bytes": wafer.sizes.bytes,
                "seconds": time.perf_counter() - began,
            }


if __name__ == "__main__":
    measured = []
    for row in rows(LARGE if "--large" in sys.argv else CASES):
        measured.append(row)
        print(
            f"{row['case']:<42} {row['cycles']:>8,} {row['form']:>8,}"
            f" {row['form'] / row['cycles'] - 1:+.1%} (worst {row['worst']:.1%})"
            f" {row['tokens_per_s']:>8,.0f} tokens/s {row['bytes']:>7,} B {row['seconds']:.0f} s",
            flush=True,
        )
    print(json.dumps(measured))
