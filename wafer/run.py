"""``python -m wafer.run CSX --params …``: ``wafer run`` as a script.

A ``run.py`` of the Model Zoo says ``from wafer.run import run`` instead of
``from cerebras.modelzoo.common.run_utils import run``, and is called as before.
"""

import sys
from typing import NoReturn

from wafer.cli import main

__all__ = ["main", "run"]


def run() -> NoReturn:
    """Run what the command line says, and end the process as ``wafer run`` does."""
    sys.exit(main(["run", *sys.argv[1:]]))


if __name__ == "__main__":
    run()
