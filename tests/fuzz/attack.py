"""Areas in this process: try files or calls until the time is over, count how they end.

An attempt is clean if it returns, or raises one line (which names the file).
"""

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

import jax

from fuzz.areas import CALLS, FILES
from fuzz.mutations import generator

_LEAST = 20  # attempts, however slow the machine
_LONGEST = 60.0  # seconds of one attempt; the process ends with a stack after that
_MEMORY = 6 << 30  # bytes of address space: a size that is believed is a MemoryError
_LINE = 2000  # characters of a message
_REFUSED = (ValueError, OSError, jax.errors.JaxRuntimeError)


def _complaint(error, path):
    """What is wrong with the way an attempt ended; '' where nothing is."""
    if not isinstance(error, _REFUSED):
        return "".join(traceback.format_exception(error)[-4:])
    text = str(error).strip()
    if path is None:
        return "" if text and "\n" not in text else f"not one line: {text[:500]!r}"
    if path.name not in text:
        return f"does not name the file: {type(error).__name__}: {text[:300]}"
    return "" if len(text) <= _LINE else f"{len(text)} characters"


def _attempts(area, rng, folder):
    """Functions that read a file, or make a call, and give what is wrong; and the file."""
    if area in CALLS:
        for call in CALLS[area](rng):
            yield lambda call=call: jax.block_until_ready(call()) and "", None
        return
    tries, read = FILES[area]
    for name, content, check in tries(rng, folder):
        path = folder / name
        path.write_bytes(content)
        yield lambda path=path, check=check: (check or (lambda _: ""))(read(path)), path


def attack(area, seconds, seed, folder):
    """Attempts of an area: counts, and one example of each bad kind."""
    counts, bad = collections.Counter(attempts=0, clean=0, returned=0, bad=0), {}
    end = time.monotonic() + seconds
    for number, (attempt, path) in enumerate(_attempts(area, generator(seed, area), folder)):
        if time.monotonic() > end and number >= _LEAST:
            break
        faulthandler.dump_traceback_later(_LONGEST, exit=True)
        try:
            problem = attempt()
            counts["returned"] += 1
        except BaseException as error:  # a Rust panic is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            problem = _complaint(error, path)
        faulthandler.cancel_dump_traceback_later()
        counts["attempts"] += 1
        counts["bad" if problem else "clean"] += 1
        if problem:
            bad.setdefault(problem.strip().splitlines()[-1][:60], problem)
            if path is not None:
                (folder / f"{path.name}.bad-{len(bad)}").write_bytes(path.read_bytes())
    return counts, bad


def main():
    """Print one JSON line of counts for each area; bad kinds go to stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("areas", choices=[*FILES, *CALLS], nargs="+")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each area")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the files that were tried")
    args = parser.parse_args()
    if not CALLS.keys() & {*args.areas}:
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
