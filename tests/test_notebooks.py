"""Notebooks run from the top, in a kernel of their own, in under two minutes each."""

import ast
import importlib.util
import re

import nbclient
import nbformat
import pytest
from helpers.paths import ROOT

pytestmark = pytest.mark.alone

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_committed_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    assert all(cell.get("id") for cell in notebook.cells)


# What the docs describe and the notebooks may use.
PUBLIC = (
    "wafer",
    "wafer.models",
    "wafer.models.checkpoint.writer",
    "wafer.sparsity",
    "wafer.sparsity.pictures",
    "wafer.vsl",
    "wafer.csl",
    "wafer.csl.trace",
    "wafer.engines",
    "wafer.fabric",
    "wafer.fabric.library",
    "wafer.fabric.library.timing",
    "wafer.fabric.trace",
    "wafer.sweeps.table",
)


LINES = 25
SECONDS = 120
# Other processes, bytes by hand, the environment, the search for modules: what a user would not do.
FORBIDDEN = {"ctypes", "importlib", "os", "runpy", "struct", "subprocess", "sys"}


def faults(notebook):
    """What a notebook does that none should."""
    first, *rest = notebook.cells
    head = "\n".join(first.source.splitlines()[:6])
    time = re.search(r"It takes about (\d+) seconds", head)
    found = [] if first.cell_type == "markdown" and "Shows " in head else ["what it shows"]
    found += [] if time and int(time[1]) <= SECONDS else ["how long it takes"]
    for cell in (cell for cell in rest if cell.cell_type == "code"):
        found += [f"{cell.id}: lines"] * (len(cell.source.splitlines()) > LINES)
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None), *(alias.name for alias in node.names)]
                tops = {name.partition(".")[0] for name in names if name}
                found += [f"{cell.id}: {name}" for name in tops & FORBIDDEN]
            elif isinstance(node, ast.Constant) and str(node.value).endswith(".py"):
                found.append(f"{cell.id}: a module")
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_cells_are_short_and_the_first_says_what_one_sees(path):
    assert not faults(nbformat.read(path, as_version=4))


def test_long_cells_and_other_processes_are_faults():
    code = "from os import environ\nimport subprocess\nfolder / 'idea.py'"
    cells = [nbformat.v4.new_markdown_cell("# A title\n\nShows it. It takes about 121 seconds.")]
    cells += [nbformat.v4.new_code_cell(code, id="a")]
    cells += [nbformat.v4.new_code_cell("x\n" * (LINES + 1), id="b")]
    assert sorted(faults(nbformat.v4.new_notebook(cells=cells))) == [
        "a: a module",
        "a: os",
        "a: subprocess",
        "b: lines",
        "how long it takes",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_uses_public_names_alone(path):
    cells = nbformat.read(path, as_version=4).cells
    source = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    tree = ast.parse(source)
    modules = {}  # name in the notebook -> our module
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            ours = [a for a in node.names if a.name.split(".")[0] in PUBLIC]
            assert {a.name for a in ours} <= set(PUBLIC)
            modules |= {a.asname or a.name: a.name for a in ours}
        elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in PUBLIC:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in PUBLIC:
                    modules[alias.asname or alias.name] = full
                else:
                    assert node.module in PUBLIC
                    assert alias.name in _public_in(node.module)
    assert modules
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules:
            module = modules[ast.unparse(node.value)]
            known = {*_public_in(module), *_public_below(module), "__file__"}
            assert node.attr in known, f"{module}.{node.attr} is not public"


def _public_in(module):
    loaded = importlib.import_module(module)
    return getattr(loaded, "__all__", [name for name in vars(loaded) if name[0] != "_"])


def _public_below(module):
    return {name.rpartition(".")[2] for name in PUBLIC if name.rpartition(".")[0] == module}


def test_the_gallery_shows_pictures_that_notebooks_draw():
    drawn = {
        cell.metadata["picture"]
        for path in NOTEBOOKS
        for cell in nbformat.read(path, as_version=4).cells
        if "picture" in cell.metadata
    }
    gallery = (ROOT / "docs" / "notebooks" / "pictures.md").read_text()
    shown = re.findall(r"\(\.\./pictures/([\w.]+)\)", gallery)
    assert len(shown) >= 10
    assert set(shown) <= drawn
    sizes = [(ROOT / "docs" / "pictures" / name).stat().st_size for name in shown]
    assert max(sizes) < 60_000
    assert sum(sizes) < 500_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_docs_show_the_notebook_as_it_is(path):
    spec = importlib.util.spec_from_file_location("render", ROOT / "notebooks" / "render.py")
    render = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(render)
    shown = render.page_of(path).read_text(encoding="utf-8")
    assert render.page(path, render.kept_outputs(path)) == shown, "run notebooks/render.py --text"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")  # pyzmq's loop
@pytest.mark.parametrize("place", ["beside", "empty"])
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs(path, place, tmp_path, monkeypatch):
    # The kernel is a user's: it gets none of the settings that make tests quick.
    monkeypatch.setenv("XLA_FLAGS", "")
    notebook = nbformat.read(path, as_version=4)
    # As Jupyter opens it, in its folder or in one of a user's: nothing before its first cell.
    folder = path.parent if place == "beside" else tmp_path
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=900, resources=resources).execute()
    assert not list(tmp_path.iterdir()), "what it writes lies in folders of its own"
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        shown = [output.get("data", {}) for output in cell.outputs]
        streams = [output for output in cell.outputs if output.output_type == "stream"]
        assert not [out.text for out in streams if out.name == "stderr"], cell.source
        assert not [out.text for out in streams if re.search(r"(?m)^\|[ :-]+\|", out.text)], (
            "Markdown"
        )
        as_text = [one for one in shown if one.get("text/plain", "").startswith("<Figure")]
        assert all("image/png" in one for one in as_text), cell.source
        pictured = any("image/png" in one for one in shown)
        assert pictured == ("picture" in cell.metadata), "its page has each picture"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_reads_no_file_by_a_path_of_the_checkout(path):
    """Its kernel starts in the notebook's folder, or wherever Jupyter was called."""
    cells = nbformat.read(path, as_version=4).cells
    for cell in (cell for cell in cells if cell.cell_type == "code"):
        tree = ast.parse(cell.source)
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        named = [text for text in texts if isinstance(text, str) and "/" in text]
        relative = [text for text in named if "\n" not in text and not text.startswith("/")]
        assert not [text for text in relative if (ROOT / text).exists()]
