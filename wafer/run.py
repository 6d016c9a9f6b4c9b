"""``python -m wafer.run CSX --params …``: the vendor's run.py, which is ``wafer run``."""

import sys

from wafer.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
