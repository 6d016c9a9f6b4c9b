"""Areas in this process: try files until the time is over, count how the attempts end."""

import argparse
import collections
import faulthandler
import json
import pathlib
import resource
import sys
import tempfile
import time
import traceback
import warnings

from fuzz.areas import AREAS
from fuzz.mutations import generator

_LEAST = 20  # attempts, however slow the machine
_LONGEST = 20.0  # seconds of one attempt; the process ends with a stack after that
_MEMORY = 6 << 30  # bytes of address space: a size that is believed is a MemoryError
_LINE = 2000  # characters of a message


def _complaint(error, path):
    """What is wrong with the way an attempt ended; '' where nothing is."""
    if not isinstance(error, ValueError | OSError):
        return "".join(traceback.format_exception(error)[-4:])
    text = str(error)
    if path.name not in text:
        return f"does not name the file: {type(error).__name__}: {text[:300]}"
    return "" if len(text) <= _LINE else f"{len(text)} characters"


def attack(area, seconds, seed, folder):
    """Attempts of an area: counts, and one example of each bad kind."""
    tries, read = AREAS[area]
    rng = generator(seed, area)
    counts, bad = collections.Counter(), {}
    end = time.monotonic() + seconds
    for number, (name, content, check) in enumerate(tries(rng, folder)):
        if time.monotonic() > end and number >= _LEAST:
            break
        path = folder / name
        path.write_bytes(content)
        faulthandler.dump_traceback_later(_LONGEST, exit=True)
        try:
            value = read(path)
            problem = check(value) if check else ""
            counts["read"] += 1
        except BaseException as error:  # a Rust panic is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            problem = _complaint(error, path)
        faulthandler.cancel_dump_traceback_later()
        counts["attempts"] += 1
        counts["bad" if problem else "clean"] += 1
        if problem:
            kind = problem.strip().splitlines()[-1][:60]
            bad.setdefault(kind, problem)
            (folder / f"{name}.bad-{len(bad)}").write_bytes(content)
    return {**dict.fromkeys(("attempts", "clean", "read", "bad"), 0), **counts}, bad


def main():
    """Print one JSON line of counts for each area; bad kinds go to stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("areas", choices=AREAS, nargs="+")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each area")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the files that were tried")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    faulthandler.enable()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found = {area: attack(area, args.seconds, args.seed, folder) for area in args.areas}
    problems = [problem for _, bad in found.values() for problem in bad.values()]
    for area, (counts, _) in found.items():
        sys.stdout.write(json.dumps({"area": area, **counts}) + "\n")
    for problem in problems:
        sys.stderr.write(f"--- {problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
