"""Checkpoints of our own: damage in any of their files."""

import io
import pathlib
import shutil
import zipfile

import numpy as np

from fuzz.mutations import damaged
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.checkpoint.writer import write_checkpoint
from wafer.models.paths import named_leaves

_STATE = {
    "params": {
        "a": {"kernel": np.linspace(0, 1, 48 * 64, dtype=np.float32).reshape(48, 64)},
        "b": np.full(5, np.nan, np.float16),
    },
    "step": np.int32(7),
}
_META = {"step": 7, "config": {"model": {"name": "gpt2", "rate": 1e-5}}}


def checkpoint_files(rng, folder):
    """Archives of a checkpoint with one damaged file."""
    sound = folder / "sound"
    write_checkpoint(sound, _STATE, _META)
    files = {str(p.relative_to(sound)): p.read_bytes() for p in sound.rglob("*") if p.is_file()}
    shutil.rmtree(sound)
    while True:
        chosen, out = rng.choice(sorted(files)), io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, damaged(content, rng) if name == chosen else content)
        yield "a.checkpoint", out.getvalue(), _is_what_was_written


def read_checkpoint(path):
    """Its arrays and its record."""
    folder = pathlib.Path(f"{path}.files")
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return load_checkpoint(folder)


def _is_what_was_written(checkpoint):
    """Whoever loads damage without a word loads nothing of it: a mark, or superseded data."""
    tree, record = checkpoint
    same = record == _META and [(n, x.tobytes()) for n, x in named_leaves(tree)] == [
        (n, np.asarray(x).tobytes()) for n, x in named_leaves(_STATE)
    ]
    return "" if same else "damage was loaded silently"
