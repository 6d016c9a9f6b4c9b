"""``python -m wafer``, the ``wafer`` command, and ``csctl`` and ``cszoo``."""

import sys

from wafer import cli, malloc

__all__ = ["csctl", "cszoo", "main"]


def main() -> int:
    """Run the command line of this process."""
    if sys.argv[1:2] in (["run"], ["generate"]):  # the latter for weights in huge pages
        malloc.restart()
    return cli.main()


def csctl() -> int:
    """Run the job verbs as the vendor's stack spells them: ``csctl get jobs``."""
    return cli.main(["jobs", *sys.argv[1:]])


def cszoo() -> int:
    """Run a verb as the vendor's model zoo spells it: ``cszoo fit params.yaml``."""
    from wafer.commands.cszoo import help_text, translate
    from wafer.errors import WaferError

    argv = sys.argv[1:]
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(help_text() + "\n")
        return 0 if argv else 2
    try:
        ours = translate(argv)
    except WaferError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if ours[:1] == ["run"]:
        malloc.restart()
    return cli.main(ours)


if __name__ == "__main__":
    sys.exit(main())
