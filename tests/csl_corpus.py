"""What a folder of CSL programs comes to here: ``python tests/csl_corpus.py FOLDER``.

The public programs are in the repository Cerebras/sdk-examples; check it out beside this one. The
last line is JSON. The exit code is 1 if a file has errors here, or its layout is not stable.
"""

import argparse
import collections
import contextlib
import json
import sys
import time
from pathlib import Path

from wafer.csl import CslError, Source, check, format_text, read


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
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
    print(json.dumps(row))
    return int(bool(reasons))


if __name__ == "__main__":
    sys.exit(main())
