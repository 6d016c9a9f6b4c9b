"""``wafer checkpoint``: is what lies on the disk what was written?"""

import argparse
import sys

from models.errors import plain

__all__ = ["add_arguments"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    verify = verbs.add_parser("verify", help="read every array, compare it with its checksum")
    verify.add_argument("folder", help="a checkpoint, or a model_dir: all of its checkpoints")
    verify.set_defaults(run=_verify)


def _verify(args: argparse.Namespace) -> int:
    from models.checkpoint.verify import checkpoints_in, verify
    from models.errors import CheckpointError

    damaged = 0
    for path in checkpoints_in(args.folder):
        try:
            report = verify(path)
        except CheckpointError as error:
            damaged = 1
            sys.stderr.write(plain(f"{error}\n"))
            continue
        said = "sound" if report.checked else "readable (format 1 has no checksums)"
        sys.stdout.write(f"{path}: {said}, {report.arrays} arrays, {report.size / 1e6:,.1f} MB\n")
    return damaged
