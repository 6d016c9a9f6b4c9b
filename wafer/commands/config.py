"""``wafer config``: run files."""

import argparse
import pathlib
import sys

__all__ = ["add_arguments"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs."""
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    upgrade = verbs.add_parser("upgrade", help="write a file with `trainer:` in our sections")
    upgrade.add_argument("file", type=pathlib.Path, help="params YAML of Model Zoo 2.3 or later")
    upgrade.add_argument(
        "-o", "--output", type=pathlib.Path, help="file to write (default: stdout)"
    )
    upgrade.set_defaults(run=_upgrade)


def _upgrade(args: argparse.Namespace) -> int:
    import yaml

    from wafer.config.trainer_form import upgrade
    from wafer.errors import ConfigError, Problem
    from wafer.yamlfile import read_yaml

    raw, _ = read_yaml(args.file)
    if not isinstance(raw, dict) or "trainer" not in raw:
        message = (
            "there is no `trainer` in it; files with runconfig, model, ... are read as they are"
        )
        raise ConfigError([Problem((), message)], str(args.file))
    sections, left = upgrade(raw["trainer"])
    text = "".join(f"# not read here: {path}\n" for path in left)
    text += yaml.safe_dump(sections, sort_keys=False, default_flow_style=None)
    if args.output is None:
        sys.stdout.write(text)
    elif args.output.exists():
        raise FileExistsError(f"{args.output} is there already; name another file")
    else:
        args.output.write_text(text, encoding="utf-8")
    return 0
