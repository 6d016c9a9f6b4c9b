"""Example programs for the wafer: folders with CSL files, a host script and its commands."""

from pathlib import Path

from wafer.errors import CompileError
from wafer.models.errors import did_you_mean
from wafer.models.files import made_folder

EXAMPLES = Path(__file__).parents[2] / "examples"
_KINDS = (".csl", ".md", ".py", ".sh")  # other files are outputs of a run


def summaries() -> dict[str, str]:
    """Names of the examples, each with the first sentence of its README."""
    readmes = sorted(EXAMPLES.glob("*/README.md"))
    return {p.parent.name: p.read_text(encoding="utf-8").splitlines()[2] for p in readmes}


def write_example(name: str, folder: Path) -> list[Path]:
    """Write an example's files into a folder.

    Args:
        name: of the example.
        folder: where; none of the files may be there.

    Returns:
        The files.

    Raises:
        CompileError: no such example, or one of the files is there.
    """
    if name not in (known := summaries()):
        hint = did_you_mean(name, known)
        raise CompileError(f"no example '{name}'{hint}; `wafer csl example` lists all {len(known)}")
    sources = [p for p in sorted((EXAMPLES / name).iterdir()) if p.suffix in _KINDS]
    with made_folder(folder):
        for source in sources:
            try:
                with (folder / source.name).open("xb") as file:
                    file.write(source.read_bytes())
            except FileExistsError as error:
                raise CompileError(
                    f"{error.filename} is there already; name another folder"
                ) from None
    return [folder / source.name for source in sources]
