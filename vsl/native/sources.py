"""Which native libraries there are, and the files that each is built from and only used with.

``setup.py`` runs this file before the package can be imported: it imports nothing of ours.
"""

import hashlib
import pathlib

LIBRARIES = {  # package -> what its library computes, for messages
    "wafer.vsl.native": "attention, products, norms and losses",
    "wafer.sparsity.kernels": "sparse kernels",
    "wafer.fabric.native": "timing planes",
    "wafer.machine.native": "the machine for CSL",
}


def sources(root: pathlib.Path, package: str) -> list[pathlib.Path]:
    """List a library's own files, those that all libraries share, and ``setup.py``.

    Args:
        root: the folder of ``setup.py``.
        package: where the library lives, with dots.
    """
    own, shared = root.joinpath(*package.split(".")), root / "wafer" / "vsl" / "native"
    files = {*own.rglob("*.cc"), *own.rglob("*.h"), *shared.glob("*.h"), shared / "library.cc"}
    return [root / "setup.py", *sorted(files)]


def digest(root: pathlib.Path, package: str) -> str:
    """Hash the names and contents of ``sources``."""
    content = hashlib.sha256()
    for path in sources(root, package):
        content.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return content.hexdigest()
