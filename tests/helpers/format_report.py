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
from helpers.parity_report import PAGE
from helpers.paths import GOLDEN

from wafer.models.alias import is_decayed
from wafer.models.convert.api import from_hf
from wafer.models.convert.standard import in_pairs
from wafer.models.convert.vendor.state import read_optimizer_state, structural_groups
from wafer.models.convert.vendor.training import training_sections
from wafer.models.convert.vendor.weights import FAMILIES, open_cs, renamed, to_cs
from wafer.models.names import MODELS
from wafer.models.paths import named_leaves, unflatten
from wafer.models.registry import build
from wafer.models.vendor.mdl import MdlFile
from wafer.models.vendor.older import names_of_16

MARKS = ("<!-- formats: tests/helpers/format_report.py --write -->", "<!-- /formats -->")
OLDER = {"cs-1.6": (1, 6), "cs-1.7 to 2.0": (2, 0), "cs-2.1 to 2.4": (2, 4)}
WRITTEN = {"cs-2.5": "cs-2.5", "cs-2.6 to 2.10": "cs-2.10"}
STATE = "AdamW's state"


def equal(left, right):
    return left.keys() == right.keys() and all(
        np.array_equal(np.asarray(value), np.asarray(right[name])) for name, value in left.items()
    )


def older_names(newest, path, release):
    """Copy a file with its tensors called as a release before 2.5 called them."""
    with MdlFile(newest) as file, h5py.File(path, "w") as older:
        for name in file:
            own = name.removeprefix("model.").removeprefix("model.")
            called = next(names_of_16(own), own) if release == (1, 6) else own
            older[f"model.{renamed(called, release)}"] = file.read(name)


def with_state(model, params, folder):
    """Write and read the moments of an AdamW run."""
    rng = np.random.default_rng(0)
    moments = {
        field: {name: rng.random(np.shape(x), np.float32) for name, x in params.items()}
        for field in ("exp_avg", "exp_avg_sq")
    }
    state = {f"0/{field}/{n}": x for field, own in moments.items() for n, x in own.items()}
    record = {"config": {"optimizer": {"optimizer_type": "AdamW"}}, "step": 3}
    tree = {"params": unflatten(params), "opt_state": unflatten(state)}
    sections = training_sections(model, record, tree, "cs-2.10")
    to_cs(model, params, folder / "state.mdl", "cs-2.10", step=3, training=sections)
    groups = structural_groups(lambda name: is_decayed(name, model.alias(name)))
    back = read_optimizer_state(folder / "state.mdl", model, groups).moments
    trained = {n for n in params if not n.endswith("/slopes")}
    return all(
        equal({n: x for n, x in own.items() if n in trained}, back[field])
        for field, own in moments.items()
    )


def columns(model, params, folder):
    """What one stored model does: format -> whether it came back bit by bit."""
    same = {}
    for column, format_ in WRITTEN.items():
        to_cs(model, params, folder / f"{format_}.mdl", format_)
        same[column] = equal(params, dict(open_cs(folder / f"{format_}.mdl", model)))
    for column, release in OLDER.items():
        path = folder / f"{column}.mdl"
        older_names(folder / "cs-2.5.mdl", path, release)
        same[column] = equal(params, dict(open_cs(path, model)))
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
        pattern = re.compile(f"{re.escape(MARKS[0])}.*?{re.escape(MARKS[1])}", re.DOTALL)
        page, count = pattern.subn(lambda _: f"{MARKS[0]}\n{text}\n{MARKS[1]}", PAGE.read_text())
        if count != 1:
            raise SystemExit(f"{PAGE}: expected the marks {MARKS} once")
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
