"""Print the README's table: family, parity error, conversions.

Reads the golden folders (tests/golden/hf, and /work/shared/goldens/hf where it exists). With
``--live`` and transformers installed, each model is exported, loaded by transformers, and its
logits compared with the recorded ones: what we write is what they read.

    python tests/parity_report.py [--live] [CASE ...]
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import hf_parity
import jax
import numpy as np

import models
from models.convert.files import open_tensors, read_config

NOT_OUTPUTS = {"loss", "grad_norm", "global_norm", "grads_checked"}


def live_error(model, params, runs):
    """Largest relative error of transformers' logits on our export, or '-' without a class."""
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        models.to_hf(model, params, folder)
        architecture = read_config(folder).get("architectures", [""])[0]
        cls = getattr(transformers, architecture, None)
        if cls is None:
            return "-"
        # Falcon's eager attention adds ALiBi twice in transformers 5.23.
        attention = "sdpa" if architecture.startswith("Falcon") else "eager"
        theirs = cls.from_pretrained(folder, attn_implementation=attention, dtype=torch.float32)
    inputs, outputs, _ = runs["full"]
    with torch.no_grad():
        got = theirs.eval()(**{k: torch.tensor(v) for k, v in inputs.items()})
    shared = [k for k in ("logits", "prediction_logits", "last_hidden_state") if k in outputs]
    shared = shared or ["pooler_output" if "pooler_output" in outputs else "start_logits"]
    return max(hf_parity.relative(got[name].numpy(), outputs[name]) for name in shared)


def round_trip(path):
    """Whether the folder comes back bit for bit through our model."""
    model, params = models.from_hf(path, dtype=None)
    with tempfile.TemporaryDirectory() as folder:
        models.to_hf(model, params, folder)
        before, after = open_tensors(path), open_tensors(folder)
        after = {name.replace("vision_model.", ""): after[name] for name in after}
        names = {name.replace("vision_model.", ""): name for name in before}
        same = names.keys() == after.keys() and all(
            before[name].dtype == after[key].dtype and np.array_equal(before[name], after[key])
            for key, name in names.items()
        )
    return "bit-equal" if same else "DIFFERS"


def row(name, path, live):
    """One case: (family, outputs error, loss, gradients, greedy, live error)."""
    result = hf_parity.compare(path)
    greedy = result.pop("greedy", None)
    errors = [e for run in result.values() for k, e in run.items() if k not in NOT_OUTPUTS]
    loss = [run["loss"] for run in result.values() if "loss" in run]
    grads = [run["grad_norm"] for run in result.values() if "grad_norm" in run]
    model, params, _, runs = hf_parity.load(path)
    theirs = live_error(model, params, runs) if live else None
    kind = getattr(model.config, "name", "")
    loss, grads = max(loss, default=None), max(grads, default=None)
    return kind, name, max(errors), loss, grads, greedy, round_trip(path), theirs


def cell(value):
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "same" if value else "DIFFERS"
    return value if isinstance(value, str) else f"{value:.1e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live", action="store_true", help="also load our export in transformers")
    parser.add_argument("cases", nargs="*")
    args = parser.parse_args()
    jax.config.update("jax_default_matmul_precision", "highest")
    head = ["model", "case", "outputs", "loss", "gradients", "greedy tokens", "hf ↔ wafer"]
    head += ["transformers on our export"] if args.live else []
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    worst = 0.0
    for name, path in hf_parity.cases().items():
        if args.cases and name not in args.cases:
            continue
        *cells, theirs = row(name, path, args.live)
        worst = max(worst, cells[2])
        values = [*map(cell, cells)] + ([cell(theirs)] if args.live else [])
        lines.append("| " + " | ".join(values) + " |")
        sys.stderr.write(lines[-1] + "\n")
    sys.stdout.write("\n".join(lines) + f"\n\nWorst: {np.float64(worst):.1e}\n")


if __name__ == "__main__":
    main()
