"""Public CSL programs that are not the vendor's: where they are, how they run, how they end."""

import os
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from wafer.csl.host.scripts import write_commands


class PublicProgram(NamedTuple):
    """A program of a list (a TOML file with addresses and commands, no code).

    Attributes:
        repository: OWNER/NAME.
        commit: of the repository.
        folder: in which its commands run.
        commands: of a shell.
        release: of the SDK that it is written for.
        success: regular expression that its output matches at success, with exit status 0.
        outcome: why it does not end so; empty if it does.
        message: regular expression that its output matches if ``outcome`` is not empty.
    """

    repository: str
    commit: str
    folder: str
    commands: str
    release: str
    success: str
    outcome: str = ""
    message: str = ""

    @property
    def name(self) -> str:
        return f"{self.repository}: {self.folder}"


def read_list(file: Path) -> list[PublicProgram]:
    """The programs of a list."""
    tables = tomllib.loads(file.read_text(encoding="utf-8"))["repository"]
    return [
        PublicProgram(table["name"], table["commit"], **row)
        for table in tables
        for row in table["program"]
    ]


def _clone(folder: Path, repository: str) -> Path:
    owner, name = repository.split("/")
    places = [folder / f"{owner}+{name}" / "repo", folder / owner / name, folder / name]
    for place in places:
        if place.exists():
            return place
    raise SystemExit(f"{repository}: no clone; expected one of {', '.join(map(str, places))}")


def _git(clone: Path, *arguments: str) -> bytes | None:
    run = subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True, check=False)
    return None if run.returncode else run.stdout


def _write_tree(clone: Path, commit: str, target: Path) -> None:
    """Write a commit's files; those that the clone lacks (large ones) are left out."""
    listed = _git(clone, "ls-tree", "-rz", commit)
    if listed is None:
        raise SystemExit(f"{clone}: has no commit {commit}; fetch the repository again")
    for entry in filter(None, listed.decode().split("\0")):
        (mode, kind, digest), path = entry.split("\t")[0].split(), target / entry.split("\t")[1]
        content = _git(clone, "cat-file", "blob", digest) if kind == "blob" else None
        if content is None:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode == "120000":
            path.symlink_to(content.decode())
        else:
            path.write_bytes(content)
            path.chmod(int(mode[-3:], 8))


def _run(program: PublicProgram, tree: Path, path: str, limit: int) -> tuple[int, str]:
    names = {"PATH": path, "CSLC": "cslc", "CS_PYTHON": "cs_python"}
    try:
        ended = subprocess.run(
            ["timeout", "-k", "5", str(limit), "bash", "-c", program.commands],
            cwd=tree / program.folder,
            env=os.environ | names,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        return -1, str(error)
    return ended.returncode, ended.stdout + ended.stderr


def judge(program: PublicProgram, status: int, output: str) -> tuple[bool, str]:
    """Whether a program ended as its list says, and its result in words."""
    success = status == 0 and re.search(program.success, output) is not None
    if success:
        return not program.outcome, "success"
    if program.outcome and re.search(program.message, output):
        return True, program.outcome
    lines = output.strip().splitlines() or ["no output"]
    return False, f"exit status {status}: {lines[-1].strip()[:200]}"


def run_list(
    clones: Path,
    file: Path,
    limit: int,
    show: Callable[[str], None],
    only: str = "",
    logs: Path | None = None,
) -> int:
    """Run a list's programs and show a table of them.

    Args:
        clones: folder with clones ``OWNER+NAME/repo``, ``OWNER/NAME`` or ``NAME``.
        file: the list.
        limit: seconds of a program.
        show: takes the table's lines.
        only: part of the names of those to run.
        logs: folder for the programs' output.

    Returns:
        1 if a program does not end as its list says, else 0.
    """
    programs = [program for program in read_list(file) if only in program.name]
    show("| program | release | result |\n|---|---|---|")
    agree = 0
    with tempfile.TemporaryDirectory() as scratch:
        write_commands(Path(scratch, "bin"))
        path = os.pathsep.join([str(Path(scratch, "bin")), os.environ["PATH"]])
        for number, program in enumerate(programs):
            tree = Path(scratch, str(number))
            _write_tree(_clone(clones, program.repository), program.commit, tree)
            status, output = _run(program, tree, path, limit)
            as_listed, result = judge(program, status, output)
            agree += as_listed
            flag = "" if as_listed else " (**not as listed**)"
            show(f"| {program.name} | {program.release} | {result}{flag} |")
            if logs:
                logs.mkdir(parents=True, exist_ok=True)
                log = re.sub(r"[^A-Za-z0-9.-]+", "_", program.name)
                (logs / f"{log}.{number}").write_text(output, encoding="utf-8")
    show(f"{agree} of {len(programs)} programs end as listed")
    return int(agree < len(programs))
