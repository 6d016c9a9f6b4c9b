"""Run the notebooks, keep what they show: ``python notebooks/render.py [--text] [NAME ...]``.

Notebooks are committed without outputs. ``docs/notebooks`` has a page of each with what it printed,
``docs/pictures`` the pictures of cells whose metadata has ``picture: name.png``, with at most 64
colors, which is enough for plots and keeps the repository small. ``--text`` runs nothing: pages
get the notebooks' text as it is, and keep the outputs they have.
"""

import base64
import io
import pathlib
import re
import sys
import tempfile

import nbformat

ROOT = pathlib.Path(__file__).parent.parent
_OUTPUT = re.compile(
    r"<!-- output of (\S+) -->\n(?:```text\n(.*?)\n```\n|\n(\|.*?)\n\n<!-- end -->\n)", re.DOTALL
)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def page_of(path: pathlib.Path) -> pathlib.Path:
    """Where a notebook's page is."""
    return ROOT / "docs" / "notebooks" / f"{path.stem}.md"


def kept_outputs(path: pathlib.Path) -> dict[str, str]:
    """What the cells printed when the page was written, by cell id."""
    page = page_of(path)
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    return {i: fenced or table for i, fenced, table in re.findall(_OUTPUT, text)}


def page(path: pathlib.Path, outputs: dict[str, str]) -> str:
    """Write a notebook as Markdown: text, code, what was printed, pictures."""
    parts = []
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(f"{cell.source}\n")
            continue
        parts.append(f"```python\n{cell.source}\n```\n")
        if cell.id in outputs:
            text = outputs[cell.id]
            shown = f"\n{text}\n\n<!-- end -->" if text.startswith("|") else f"```text\n{text}\n```"
            parts.append(f"<!-- output of {cell.id} -->\n{shown}\n")
        if "picture" in cell.metadata:
            name = cell.metadata["picture"]
            parts.append(f"![{name.removesuffix('.png')}](../pictures/{name})\n")
    return "\n".join([*parts, f"*From `notebooks/{path.name}`.*\n"])


def printed(cell: nbformat.NotebookNode) -> str:
    """What a cell printed, and the value of its last line; of a cell with a table that alone."""
    data = [o.get("data", {}) for o in cell.outputs]
    tables = [shown["text/markdown"] for shown in data if "text/markdown" in shown]
    texts = tables or [
        o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.outputs
    ]
    shown = "".join(text for text in texts if not text.startswith(("<Figure", "<IPython")))
    shown = re.sub(r"\x1b\[[\d;]*m", "", shown)  # colors
    shown = re.sub(r"(?m)^━.* \d+/\d+ .*\n+", "", shown)  # progress bars that ended
    folder = re.escape(f"{tempfile.gettempdir()}/tmp")
    return re.sub(rf"{folder}\w+", "folder", shown).rstrip()


def keep_picture(cell: nbformat.NotebookNode) -> None:
    """Write the last picture of a cell."""
    from PIL import Image

    data = [o.data["image/png"] for o in cell.outputs if "image/png" in o.get("data", {})]
    image = Image.open(io.BytesIO(base64.b64decode(data[-1]))).convert("RGB")
    target = ROOT / "docs" / "pictures" / cell.metadata["picture"]
    image.quantize(64, dither=Image.Dither.NONE).save(target, optimize=True)


def run(path: pathlib.Path) -> dict[str, str]:
    """Execute a notebook, keep its pictures, return its outputs by cell id."""
    import nbclient

    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}  # where Jupyter starts its kernel
    nbclient.NotebookClient(notebook, timeout=900, resources=resources).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in cells:
        if "picture" in cell.metadata:
            keep_picture(cell)
    return {cell.id: text for cell in cells if (text := printed(cell))}


if __name__ == "__main__":
    names = [argument for argument in sys.argv[1:] if argument != "--text"]
    for notebook_path in NOTEBOOKS:
        if not names or any(name in notebook_path.stem for name in names):
            show = kept_outputs if "--text" in sys.argv else run
            page_of(notebook_path).write_text(
                page(notebook_path, show(notebook_path)), encoding="utf-8"
            )
            print(page_of(notebook_path).relative_to(ROOT))
