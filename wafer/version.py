"""Release, and a digest of the code that a run depends on."""

import functools
import hashlib
import importlib.util
import itertools
import pathlib

__version__ = "0.1.0"

_SUFFIXES = {".py", ".json", ".cc", ".h"}  # the placer and the products are C++


@functools.cache
def code_digest(*names: str) -> str:
    """Hash the names and contents of our packages' code.

    Args:
        *names: models, loaders and optimizers as a run file names them. Of ``module:name`` the
            user's module counts too, with the whole package that it is in.

    Returns:
        Hexadecimal SHA-256.
    """
    own = sorted({name.partition(":")[0] for name in names if ":" in name})
    here, content = pathlib.Path(__file__).parent, hashlib.sha256()
    linked = sorted(path for path in here.iterdir() if path.is_symlink())  # in a checkout
    for root in [here, *linked, *itertools.chain(*map(_places, own))]:
        paths = [root] if root.is_file() else sorted(root.rglob("*"))
        for path in (path for path in paths if path.suffix in _SUFFIXES):
            code = path.read_bytes()
            name = path.relative_to(root.parent).as_posix()
            content.update(f"{name} {len(code)}\n".encode() + code)
    return content.hexdigest()


def _places(module: str) -> list[pathlib.Path]:
    """The file or the folders of a module's outermost package; none for what is not there."""
    top = importlib.util.find_spec(module.partition(".")[0])
    if top is None:
        return []
    return [pathlib.Path(place) for place in top.submodule_search_locations or [top.origin or ""]]
