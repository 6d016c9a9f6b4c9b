"""Which of the vendor's formats each family is read from and written to, by doing it.

Every stored model (tests/golden/hf) is written as a ``.mdl`` of a release, its tensors called as
that release calls them, and read again; optimizer states go the same way. ``--write`` puts the
table between the marks in docs/results/models.md.

    python tests/helpers/format_report.py [--write]
"""

import re
import sys
import tempfile
from pathlib import Path

sys.path += [str(folder) for folder in Path(__file__).parents[1:3]]  # installed ones first

import h5py
import numpy as np
from helpers.mdl import read_weights
from helpers.parity_report import write_page
from helpers.paths import GOLDEN

from wafer.models.convert.api import from_hf
from wafer.models.convert.standard import in_pairs
from wafer.models.names import MODELS
from wafer.models.paths import named_leaves, unflatten
from wafer.models.registry import build
from wafer.optim.groups import ParamGroups
from wafer.optim.sections import parse_optimizer
from wafer.vendor.mdl.file import MdlFile
from wafer.vendor.mdl.optimizer import groupings, read_state
from wafer.vendor.mdl.sections import training_sections
from wafer.vendor.mdl.weights import write_weights
from wafer.vendor.tensors import FAMILIES, tensor_names

MARKS = ("<!-- formats: tests/helpers/format_report.py --write -->", "<!-- /formats -->")
OLDER = {"cs-1.6": (1, 6), "cs-1.7 to 2.0": (2, 0), "cs-2.1 to 2.4": (2, 4)}
WRITTEN = {"cs-2.5": "cs-2.5", "cs-2.6 to 2.10": "cs-2.10"}
STATE = "AdamW's state"
BEFORE_21 = (
    (r"position_embeddings\.embed\.weight$", "position_embeddings.weight"),
    (r"^(encoder|decoder)_embeddings\.position_embed_helper\.", r"relative_position_\1."),
    (r"^embedding_layer\.position_embed_helper\.", "relative_pe_helper."),
)
OF_16 = re.compile(
    r"bert\.(embeddings|encoder|pooler\.dense)\.|cls\.|(en|de)coder(\.(block|final|abs)|_token_emb)"
)


def equal(left, right):
    return left.keys() == right.keys() and all(
        np.array_equal(np.asarray(value), np.asarray(right[name])) for name, value in left.items()
    )


def older_names(model, newest, path, release):
    """Copy a file with its tensors called as a release before 2.5 called them."""
    known = {name: names for names in tensor_names(model).values() for name in names}
    with MdlFile(newest) as file, h5py.File(path, "w") as older:
        for name in file:
            called = own = name.removeprefix("model.").removeprefix("model.")
            if release == (1, 6):
                called = next((n for n in known.get(own, ()) if OF_16.match(n)), own)
            if release < (2, 1):
                for pattern, other in BEFORE_21:
                    called = re.sub(pattern, other, called)
            older[f"model.{called}"] = file[name]


def with_state(model, params, folder):
    """Write and read the moments of an AdamW run."""
    rng = np.random.default_rng(0)
    moments = {
        field: {name: rng.random(np.shape(x), np.float32) for name, x in params.items()}
        for field in ("exp_avg", "exp_avg_sq")
    }
    state = {f"0/{field}/{n}": x for field, own in moments.items() for n, x in own.items()}
    section = {"optimizer_type": "AdamW", "learning_rate": 0.1}
    record = {"config": {"optimizer": section}, "step": 3}
    tree = {"params": unflatten(params), "opt_state": unflatten(state)}
    sections = training_sections(model, record, tree, "cs-2.10")
    write_weights(model, params, folder / "state.mdl", "cs-2.10", step=3, training=sections)
    groups = groupings(parse_optimizer(section), ParamGroups(alias=model.alias))
    with MdlFile(folder / "state.mdl") as file:
        back = read_state(file, model, groups).moments
    trained = {n for n in params if not n.endswith("/slopes")}
    return all(
        equal({n: x for n, x in own.items() if n in trained}, back[field])
        for field, own in moments.items()
    )


def columns(model, params, folder):
    """What one stored model does: format -> whether it came back bit by bit."""
    same = {}
    for column, format_ in WRITTEN.items():
        write_weights(model, params, folder / f"{format_}.mdl", format_)
        same[column] = equal(params, read_weights(folder / f"{format_}.mdl", model))
    for column, release in OLDER.items():
        path = folder / f"{column}.mdl"
        older_names(model, folder / "cs-2.5.mdl", path, release)
        same[column] = equal(params, read_weights(path, model))
    return same | {STATE: with_state(model, params, folder)}


def table():
    by_family = {}
    for path in sorted((GOLDEN / "hf").iterdir()):
        theirs, own = from_hf(path)
        entry = MODELS[theirs.config.name]
        fixed = getattr(theirs.config, "position_embedding_type", "") == "fixed"
        if entry.family not in FAMILIES or fixed:
            by_family.setdefault(entry.hf, [])
            continue
        cfg, params = in_pairs(theirs.config, dict(named_leaves(own)))
        with tempfile.TemporaryDirectory() as folder:
            by_family.setdefault(entry.hf, []).append(columns(build(cfg), params, Path(folder)))
    heads = [*OLDER, *WRITTEN, STATE]
    lines = ["| family | models | " + " | ".join(heads) + " |", "| --- " * (len(heads) + 2) + "|"]
    for family, results in by_family.items():
        words = dict.fromkeys(OLDER, "read") | dict.fromkeys([*WRITTEN, STATE], "read, written")
        cells = [
            "–" if not results else words[head] if all(r[head] for r in results) else "DIFFERS"
            for head in heads
        ]
        lines.append(f"| {family} | {len(results)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    text = table()
    sys.stdout.write(f"{text}\n")
    if "--write" in sys.argv[1:]:
        write_page(text, MARKS)


if __name__ == "__main__":
    main()
