"""Figures show themselves in notebooks, without pyplot."""

import pickle
import re
import subprocess
import sys

from helpers.paths import ROOT

from wafer.models.shown.figures import new_figure

SHOWN = """
import sys
import numpy as np
from IPython.core.formatters import DisplayFormatter
from wafer.frames import draw_heat_map

shown, _ = DisplayFormatter().format(draw_heat_map(np.eye(2), "t", "m", highest=1))
assert shown["image/png"].startswith(b"\\x89PNG"), shown
assert "matplotlib.pyplot" not in sys.modules
"""


def test_a_notebook_shows_a_figure_as_a_picture():
    subprocess.run([sys.executable, "-c", SHOWN], check=True)


def test_a_figure_can_be_pickled():
    again = pickle.loads(pickle.dumps(new_figure(figsize=(2, 1))))
    assert again._repr_png_().startswith(b"\x89PNG")


def test_every_figure_comes_from_there():
    rooms = [ROOT / name for name in ("vsl", "models", "sparsity", "wafer")]
    files = [path for room in rooms for path in room.rglob("*.py")]
    made = [
        p
        for p in files
        if re.search(r"\.Figure\(|\bpyplot\b.*import|import.*pyplot", p.read_text())
    ]
    assert [path.name for path in made] == ["figures.py"]
