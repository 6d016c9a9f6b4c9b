"""Which files a native library is built from, so that it is only used with them.

``setup.py`` runs this file before the package can be imported: it imports nothing of ours.
"""

import hashlib
import pathlib


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
