"""``python -m wafer`` and the ``wafer`` command."""

import sys

from wafer import cli, malloc

__all__ = ["main"]


def main() -> int:
    """Run the command line of this process."""
    if sys.argv[1:2] == ["run"]:
        malloc.restart()
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
