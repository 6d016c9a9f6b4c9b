"""Run files and notebooks of the package: ``wafer config example``, ``wafer notebooks``."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wafer.errors import ConfigError, Problem
from wafer.models.errors import did_you_mean

_PACKAGE = Path(__file__).parents[1]
RUN_FILES = {path.stem: path for path in sorted((_PACKAGE / "models/configs").rglob("*.yaml"))}
NOTEBOOKS = {path.stem: path for path in sorted((_PACKAGE / "notebooks").glob("*.ipynb"))}


def example(name: str) -> dict[str, Any]:
    """Return the sections of a run file that comes with the package.

    Args:
        name: of the file, without its ending; ``wafer config example`` lists them.

    Returns:
        Its sections as plain dicts, to change and to train.

    Raises:
        ConfigError: no such run file.

    Examples:
        >>> import wafer
        >>> sections = wafer.example("gpt_pystdlib")
        >>> sections["runconfig"]["max_steps"] = 100
        >>> run = wafer.train(sections, model_dir="runs/demo")  # doctest: +SKIP
    """
    from wafer.yamlfile import read_yaml

    return read_yaml(find(RUN_FILES, name, "run file", "config example"))[0]


def find(files: Mapping[str, Path], name: str, kind: str, verb: str) -> Path:
    """Return the file of a name.

    Args:
        files: name -> file.
        name: to look up.
        kind: what the files are, for the error.
        verb: the command that lists them.

    Raises:
        ConfigError: no such name.
    """
    if name in files:
        return files[name]
    hint = did_you_mean(name, files)
    message = f"no {kind} '{name}'{hint}; `wafer {verb}` lists all {len(files)}"
    raise ConfigError([Problem((), message)])


def run_file(name: str, output: Path | None) -> str:
    """Return the text of a run file, whose command names the file ``output`` (None: NAME.yaml)."""
    path = find(RUN_FILES, name, "run file", "config example")
    inside = path.relative_to(_PACKAGE).as_posix()
    return path.read_text(encoding="utf-8").replace(inside, str(output or path.name))


def list_run_files() -> str:
    """Return a line for each run file: its name, and the first line of its comment."""
    lines = [path.read_text(encoding="utf-8").partition("\n")[0] for path in RUN_FILES.values()]
    pairs = zip(RUN_FILES, lines, strict=True)
    return "".join(f"{name:<30} {line.removeprefix('# ')}\n" for name, line in pairs)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``wafer notebooks``."""
    parser.add_argument("name", nargs="?", help="of a notebook; without it and -o all are listed")
    parser.add_argument(
        "-o", "--output_dir", type=Path, help="folder to write into (default: ., of a name)"
    )
    parser.set_defaults(run=_notebooks)


def _notebooks(args: argparse.Namespace) -> int:
    from wafer.models.files import made_folder

    if args.name is None and args.output_dir is None:
        for name, path in NOTEBOOKS.items():
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            title = "".join(cells[0]["source"]).partition("\n")[0]
            sys.stdout.write(f"{name:<26} {title.removeprefix('# ')}\n")
        return 0
    names = NOTEBOOKS if args.name is None else [args.name]
    folder = args.output_dir or Path()
    pairs = [(find(NOTEBOOKS, n, "notebook", "notebooks"), folder / f"{n}.ipynb") for n in names]
    for _, target in pairs:
        if target.exists():
            raise FileExistsError(f"{target} is there already; name another folder")
    with made_folder(folder):
        for source, target in pairs:
            target.write_bytes(source.read_bytes())
            sys.stdout.write(f"{target}\n")
    return 0
