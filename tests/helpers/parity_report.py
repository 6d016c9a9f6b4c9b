"""Measure parity with transformers case by case; write the docs' table of families.

Reads the golden folders (tests/golden/hf, and ../shared/goldens/hf where it exists). With
``--live`` and transformers installed, each model is exported, loaded by transformers, and its
logits compared with the recorded ones: what we write is what they read.

    python tests/helpers/parity_report.py [--live] [--rows FILE] [--write] [CASE ...]

``--rows`` keeps measured cases in a file, so that an interrupted run continues; ``--write`` puts
the table between the marks in docs/results/models.md.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

sys.path += [str(folder) for folder in Path(__file__).parents[1:3]]  # installed ones first

import jax
import numpy as np
from helpers import hf_parity
from helpers.paths import ROOT

from wafer import models
from wafer.models.convert.files import read_config
from wafer.models.names import MODELS

PAGE = ROOT / "docs" / "results" / "models.md"
MARKS = ("<!-- parity: tests/helpers/parity_report.py --write -->", "<!-- /parity -->")
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


def row(path, live):
    """Measure one case."""
    result = hf_parity.compare(path)
    greedy = result.pop("greedy", None)
    errors = [e for run in result.values() for k, e in run.items() if k not in NOT_OUTPUTS]
    loss = [run["loss"] for run in result.values() if "loss" in run]
    grads = [run["grad_norm"] for run in result.values() if "grad_norm" in run]
    model, params, _, runs = hf_parity.load(path)
    with tempfile.TemporaryDirectory() as folder:
        differing = hf_parity.round_trip(path, folder)
    out = {
        "family": MODELS[model.config.name].hf,
        "outputs": max(errors),
        "loss": max(loss, default=None),
        "gradients": max(grads, default=None),
        "greedy": greedy,
        "hf <-> wafer": "DIFFERS" if differing else "bit-equal",
    }
    return out | ({"transformers": live_error(model, params, runs)} if live else {})


def cell(value):
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "same" if value else "DIFFERS"
    return value if isinstance(value, str) else f"{value:.1e}"


def family_rows(rows):
    """One line per Hugging Face model type: names, cases, the worst of each column."""
    lines = [
        "| family | names here | cases | outputs | loss | gradients | greedy tokens | hf ↔ wafer |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for family in dict.fromkeys(entry.hf for entry in MODELS.values() if entry.hf):
        cases = [r for r in rows.values() if r["family"] == family]
        names = ", ".join(name for name, entry in MODELS.items() if entry.hf == family)
        worst = {}
        for key in ("outputs", "loss", "gradients"):
            worst[key] = max((r[key] for r in cases if r[key] is not None), default=None)
        greedy = [r["greedy"] for r in cases if r["greedy"] is not None]
        trips = {r["hf <-> wafer"] for r in cases}
        cells = [family, names, str(len(cases)), *map(cell, worst.values())]
        cells += [cell(all(greedy) if greedy else None), " ".join(sorted(trips)) or "–"]
        lines.append("| " + " | ".join(cells) + " |")
    none = ", ".join(name for name, entry in MODELS.items() if not entry.hf)
    return "\n".join([*lines, f"| no Hugging Face form | {none} |" + " – |" * 6])


def write_page(table, marks):
    pattern = re.compile(f"{re.escape(marks[0])}.*?{re.escape(marks[1])}", re.DOTALL)
    text, count = pattern.subn(lambda _: f"{marks[0]}\n{table}\n{marks[1]}", PAGE.read_text())
    if count != 1:
        raise SystemExit(f"{PAGE}: expected the marks {marks} once")
    PAGE.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live", action="store_true", help="also load our export in transformers")
    parser.add_argument("--rows", type=Path, help="JSON of cases measured so far")
    parser.add_argument("--write", action="store_true", help="write the docs' table")
    parser.add_argument("cases", nargs="*")
    args = parser.parse_args()
    jax.config.update("jax_default_matmul_precision", "highest")
    rows = json.loads(args.rows.read_text()) if args.rows and args.rows.exists() else {}
    for name, path in hf_parity.cases().items():
        if name in rows or (args.cases and name not in args.cases):
            continue
        rows[name] = row(path, args.live)
        sys.stderr.write(f"{name}: {', '.join(f'{k} {cell(v)}' for k, v in rows[name].items())}\n")
        if args.rows:
            args.rows.write_text(json.dumps(rows, indent=1))
        jax.clear_caches()
    table = family_rows(rows)
    worst = max(r["outputs"] for r in rows.values())
    sys.stdout.write(f"{table}\n\n{len(rows)} cases, worst output: {np.float64(worst):.1e}\n")
    if args.write:
        write_page(table, MARKS)


if __name__ == "__main__":
    main()
