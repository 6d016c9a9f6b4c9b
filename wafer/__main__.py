"""``python -m wafer``, the ``wafer`` command, and ``csctl``, which is ``wafer jobs``."""

import sys

from wafer import cli, malloc

__all__ = ["csctl", "main"]


def main() -> int:
    """Run the command line of this process."""
    if sys.argv[1:2] in (["run"], ["generate"]):  # the latter for weights in huge pages
        malloc.restart()
    return cli.main()


def csctl() -> int:
    """Run the job verbs as the vendor's stack spells them: ``csctl get jobs``."""
    return cli.main(["jobs", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
