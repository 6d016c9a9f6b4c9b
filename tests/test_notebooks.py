"""Notebooks run from the top, in a kernel of their own, in under three minutes each."""

import pathlib
import re

import nbclient
import nbformat
import pytest

pytestmark = pytest.mark.alone

ROOT = pathlib.Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_committed_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    assert all(cell.get("id") for cell in notebook.cells)


def test_the_gallery_shows_pictures_that_notebooks_draw():
    drawn = {
        cell.metadata["picture"]
        for path in NOTEBOOKS
        for cell in nbformat.read(path, as_version=4).cells
        if "picture" in cell.metadata
    }
    shown = re.findall(r"\(notebooks/pictures/([\w.]+)\)", (ROOT / "README.md").read_text())
    assert len(shown) >= 10
    assert set(shown) <= drawn
    sizes = [(ROOT / "notebooks" / "pictures" / name).stat().st_size for name in shown]
    assert max(sizes) < 60_000
    assert sum(sizes) < 500_000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")  # pyzmq's loop
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs(path, monkeypatch):
    # The kernel is a user's: it gets none of the settings that make tests quick.
    monkeypatch.setenv("XLA_FLAGS", "")
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(ROOT)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
