"""Run the notebooks and keep the README's pictures: ``python notebooks/pictures.py [NAME ...]``.

A cell whose metadata has ``picture: name.png`` draws one; it is written to ``notebooks/pictures``
with at most 64 colours, which is enough for plots and keeps the repository small.
"""

import base64
import io
import pathlib
import sys

import nbclient
import nbformat
from PIL import Image

HERE = pathlib.Path(__file__).parent
SETUP = "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.rcParams['figure.dpi'] = 100"


def run(path: pathlib.Path) -> None:
    """Execute a notebook; write the pictures of its marked cells."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SETUP))
    resources = {"metadata": {"path": str(HERE.parent)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    for cell in notebook.cells:
        name = cell.metadata.get("picture")
        if name is None:
            continue
        data = [o.data["image/png"] for o in cell.outputs if "image/png" in o.get("data", {})]
        image = Image.open(io.BytesIO(base64.b64decode(data[-1]))).convert("RGB")
        target = HERE / "pictures" / name
        target.parent.mkdir(exist_ok=True)
        image.quantize(64, dither=Image.Dither.NONE).save(target, optimize=True)
        print(f"{target.relative_to(HERE.parent)}: {target.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    for notebook_path in sorted(HERE.glob("*.ipynb")):
        if not sys.argv[1:] or any(name in notebook_path.stem for name in sys.argv[1:]):
            run(notebook_path)
