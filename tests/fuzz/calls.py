"""Wrong arguments of the native libraries, one area in this process: counts of how calls end.

A call is clean if it returns, or raises one line. A call that ends the process ends this program.
"""

import argparse
import collections
import faulthandler
import json
import sys
import time
import traceback
import warnings

import jax

from fuzz import cslcalls
from fuzz.mutations import generator

AREAS = {
    "images": cslcalls.image_calls,
    "machine": cslcalls.method_calls,
}
_LEAST = 20  # calls, however slow the machine
_LONGEST = 60.0  # seconds of one call; the process ends with a stack after that
_REFUSED = (ValueError, jax.errors.JaxRuntimeError)


def _problem(error):
    """What is wrong with an exception; '' where nothing is."""
    if not isinstance(error, _REFUSED):
        return "".join(traceback.format_exception(error)[-4:])
    text = str(error).strip()
    return "" if text and "\n" not in text else f"not one line: {text[:500]!r}"


def attack(area, seconds, seed):
    """Calls of an area: counts, and one example of each bad kind."""
    rng = generator(seed, area)
    counts, bad = collections.Counter(), {}
    end = time.monotonic() + seconds
    for number, call in enumerate(AREAS[area](rng)):
        if time.monotonic() > end and number >= _LEAST:
            break
        faulthandler.dump_traceback_later(_LONGEST, exit=True)
        problem = ""
        try:
            jax.block_until_ready(call())
            counts["returned"] += 1
        except Exception as error:
            problem = _problem(error)
        faulthandler.cancel_dump_traceback_later()
        counts["attempts"] += 1
        counts["bad" if problem else "clean"] += 1
        if problem:
            bad.setdefault(problem.strip().splitlines()[-1][:60], problem)
    return {**dict.fromkeys(("attempts", "clean", "returned", "bad"), 0), **counts}, bad


def main():
    """Print one JSON line of counts; bad kinds go to stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("area", choices=AREAS)
    parser.add_argument("seconds", type=float, nargs="?", default=1.0)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    args = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    counts, bad = attack(args.area, args.seconds, args.seed)
    sys.stdout.write(json.dumps({"area": args.area, **counts}) + "\n")
    for problem in bad.values():
        sys.stderr.write(f"--- {problem}\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
