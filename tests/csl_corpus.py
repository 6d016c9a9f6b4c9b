"""What a folder of CSL programs comes to here: ``python tests/csl_corpus.py FOLDER [--run]``.

The public programs are in the repository Cerebras/sdk-examples; check it out beside this one. With
``--run`` their scripts ``commands*.sh`` are run as they are, in a copy of the folder; some need
scipy, pandas or matplotlib. The last line is JSON. The exit code is 1 if a file has errors here,
its layout is not stable, or a script fails.

``python tests/csl_corpus.py CLONE --releases 1.0.0,1.1.0`` runs the scripts of releases (tags of a
clone of Cerebras/csl-examples or Cerebras/sdk-examples) and prints a row of each.

``python tests/csl_corpus.py CLONES --public tests/csl_public.toml`` runs programs of others: the
list has addresses, commands and how each ends. CLONES holds the clones, as OWNER+NAME/repo,
OWNER/NAME or NAME. The exit code is 1 if one does not end as listed.
"""

import argparse
import collections
import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from helpers.public_programs import run_list

from wafer.csl import CslError, Source, check, format_text, read
from wafer.csl.host.scripts import write_commands

LONGEST = 300  # seconds of a script
SCRIPTS = "commands*.sh"  # commands_wse2.sh and commands_wse3.sh from 1.3 on
# What SdkLayout's scripts of 2.10 say for the command that those of 1.4 name.
TEMPLATE, COMMAND = "%python_sdk_paint", "cs_python run.py"


def outcome(path: Path) -> str:
    """Why a file fails, or ''."""
    try:
        source = Source.open(path)
        parsed = check(source)
        text = format_text(source)
        again = read(Source(source.file, text))
    except CslError as error:
        return str(error).split("\n", 1)[0]
    if again.file != parsed.file:
        return "the layout changes the tree"
    if [c.text for c in again.tokens.comments] != [c.text for c in parsed.tokens.comments]:
        return "the layout loses comments"
    return "" if format_text(again.source) == text else "the layout is not stable"


def seconds_to_read(path: Path) -> float:
    start = time.perf_counter()
    with contextlib.suppress(CslError):
        check(Source.open(path))
    return time.perf_counter() - start


class Run(NamedTuple):
    """How a program's script ended.

    Attributes:
        script: its path.
        status: exit status.
        cycles: of the fabric, of its last run; '' if there was none.
        seconds: of the whole script.
        said: its last line.
    """

    script: str
    status: int
    cycles: str
    seconds: float
    said: str


def cycles_of(folder: Path) -> str:
    """What the newest sim.log says of its end."""
    logs = sorted(folder.rglob("sim.log"), key=lambda log: log.stat().st_mtime)
    ends = re.findall(r"^@(\d+) end;", logs[-1].read_text(), re.MULTILINE) if logs else []
    return ends[-1] if ends else ""


def run_script(script: Path, folder: Path, commands: Path, limit: int) -> Run:
    start = time.perf_counter()
    path = os.pathsep.join([str(commands), os.environ["PATH"]])
    try:
        ended = subprocess.run(
            ["bash", script.name],
            cwd=script.parent,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        status, lines = ended.returncode, (ended.stdout + ended.stderr).strip().splitlines()
    except subprocess.TimeoutExpired:
        status, lines = -1, [f"more than {limit} s"]
    said = lines[-1].strip() if lines else ""
    seconds, name = time.perf_counter() - start, str(script.relative_to(folder))
    return Run(name, status, cycles_of(script.parent), seconds, said)


def run_scripts(folder: Path, limit: int = LONGEST) -> list[Run]:
    """Run every program's scripts in a copy of the folder, and print a table of them."""
    runs = list[Run]()
    with tempfile.TemporaryDirectory() as scratch:
        copy, commands = Path(scratch, "programs"), Path(scratch, "bin")
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".git"))
        write_commands(commands)
        print(f"{'script':64} result    cycles      s  last line")
        for script in sorted(copy.rglob(SCRIPTS)):
            text = script.read_text(encoding="utf-8")
            script.write_text(text.replace(TEMPLATE, COMMAND), encoding="utf-8")
            for log in script.parent.rglob("sim.log"):  # of the other architecture
                log.unlink()
            runs.append(run := run_script(script, copy, commands, limit))
            result = "failed" if run.status else "passed"
            numbers = f"{run.cycles:>9} {run.seconds:6.1f}"
            print(f"{run.script[-64:]:64} {result} {numbers}  {run.said[:60]}", flush=True)
    return runs


def run_releases(clone: Path, releases: list[str], limit: int) -> int:
    """Run the scripts of tags ``vRELEASE`` of a clone; the exit code is 1 if one fails."""
    rows = []
    for release in releases:
        with tempfile.TemporaryDirectory() as scratch:
            archive = subprocess.run(
                ["git", "-C", str(clone), "archive", f"v{release}"], capture_output=True, check=True
            )
            subprocess.run(["tar", "x", "-C", scratch], input=archive.stdout, check=True)
            runs = run_scripts(Path(scratch), limit)
        rows.append((release, len(runs), sum(not run.status for run in runs)))
    print("| release | scripts | passed |\n|---|---|---|")
    for release, scripts, passed in rows:
        print(f"| {release} | {scripts} | {passed} |")
    return int(any(scripts > passed for _, scripts, passed in rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", action="store_true", help="run the programs' scripts, too")
    parser.add_argument("--releases", default="", help="tags without v, of a git clone FOLDER")
    parser.add_argument("--public", type=Path, help="a list; FOLDER holds the clones")
    parser.add_argument("--only", default="", help="part of the names of --public's programs")
    parser.add_argument("--logs", type=Path, help="folder for the output of --public's programs")
    parser.add_argument("--limit", type=int, default=LONGEST, help="seconds of a script")
    args = parser.parse_args()
    folder = args.folder
    if args.public:
        show = functools.partial(print, flush=True)
        return run_list(folder, args.public, args.limit, show, args.only, args.logs)
    if args.releases:
        return run_releases(folder, args.releases.split(","), args.limit)
    files = sorted(folder.rglob("*.csl"))
    times = [seconds_to_read(path) for path in files]
    reasons = {path: reason for path in files if (reason := outcome(path))}
    programs = collections.defaultdict[Path, list[Path]](list)
    for path in files:
        programs[path.parent.relative_to(folder)].append(path)
    print(f"{'folder':60} files  read")
    for program, own in programs.items():
        print(f"{str(program)[-60:]:60} {len(own):5} {sum(p not in reasons for p in own):5}")
    for reason in reasons.values():
        print(reason)
    row = {
        "files": len(files),
        "files_read": len(files) - len(reasons),
        "seconds": round(sum(times), 3),
        "slowest_file_s": round(max(times, default=0), 3),
    }
    runs = run_scripts(folder, args.limit) if args.run else []
    if args.run:
        row |= {"scripts": len(runs), "scripts_passed": sum(not run.status for run in runs)}
    print(json.dumps(row))
    return int(bool(reasons) or any(run.status for run in runs))


if __name__ == "__main__":
    sys.exit(main())
