"""``python -m wafer``, the ``wafer`` command, and ``csctl`` and ``cszoo``."""

import signal
import sys
from collections.abc import Sequence

from wafer import malloc


def main() -> int:
    """Run the command line of this process."""
    if sys.argv[1:2] in (["run"], ["generate"]):  # the latter for weights in huge pages
        malloc.restart()
    return _run()


def _run(argv: Sequence[str] | None = None) -> int:
    """Run a command; from its end on, Ctrl-C ends the process at once.

    The interpreter then waits for worker threads, such as those that compile. An interrupt would
    end the wait alone, and a thread that returned to an interpreter that is gone aborts.
    """
    from wafer import cli

    try:
        return cli.main(argv)
    except KeyboardInterrupt:  # a second one, while the command ends by the first
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def csctl() -> int:
    """Run the job verbs under their other name: ``csctl get jobs``."""
    return _run(["jobs", *sys.argv[1:]])


def cszoo() -> int:
    """Run a verb of ``cszoo`` as the command that does the same: ``cszoo fit params.yaml``."""
    from wafer.errors import WaferError
    from wafer.vendor.cszoo import VERBS, help_text, translate

    argv = sys.argv[1:]
    group = argv[:1] if argv and any(name.startswith(f"{argv[0]} ") for name in VERBS) else []
    asked = argv[len(group) :][:1]
    if not asked or asked[0] in ("-h", "--help"):
        sys.stdout.write(help_text(*group) + "\n")
        return 0 if asked else 2
    try:
        ours = translate(argv)
    except WaferError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if ours[:1] == ["run"]:
        malloc.restart()
    return _run(ours)


if __name__ == "__main__":
    sys.exit(main())
