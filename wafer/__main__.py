"""``python -m wafer`` and the ``wafer`` command."""

import sys

from wafer.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
