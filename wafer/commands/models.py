"""``wafer models``: names a params YAML may use, and the keys that each takes."""

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("name", nargs="?", help="list every key of this model's section")
    parser.set_defaults(run=_main)


def _main(args: argparse.Namespace) -> int:
    from wafer.config.keys import keys
    from wafer.models.names import lookup
    from wafer.models.registry import list_models

    if args.name is not None:
        sys.stdout.write(f"{args.name}: {lookup(args.name).family}\n")
        ((_, table),) = keys(args.name.rpartition(":")[2])
        sys.stdout.writelines(f"{key.line}\n" for key in table)
        return 0
    for name, entry in list_models().items():
        presets = ", ".join(f"{key}={value}" for key, value in entry.presets.items())
        sys.stdout.write(f"{name:<24} {entry.family:<9} {presets or 'no presets'}\n")
    return 0
