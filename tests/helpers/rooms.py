"""Measure the table of rooms in CONTRIBUTING.md: its tests and processor seconds, in one process.

python tests/helpers/rooms.py            every room, an hour at most; the table is written
python tests/helpers/rooms.py wafer/csl  the rows with this word
"""

import glob
import pathlib
import re
import resource
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
ROW = re.compile(r"^(\| .* \| `pytest (.*)` \| )\d+ \| \d+ \|$", re.MULTILINE)


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(row):
    """A row of the table with the number of its tests and their seconds."""
    files = [file for word in row[2].split() for file in sorted(glob.glob(word, root_dir=ROOT))]
    before = cpu_seconds()
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", *files]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{row[2]}: exit {ended.returncode}\n{ended.stdout[-3000:]}{ended.stderr[-1000:]}")
    (passed,) = re.findall(r"(\d+) passed", ended.stdout.splitlines()[-1])
    line = f"{row[1]}{passed} | {cpu_seconds() - before:.0f} |"
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    return line


def main(words):
    text = PAGE.read_text(encoding="utf-8")
    chosen = lambda row: not words or any(word in row[0] for word in words)
    PAGE.write_text(
        ROW.sub(lambda row: measured(row) if chosen(row) else row[0], text), encoding="utf-8"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
