"""``wafer config``: run files."""

import argparse
import pathlib
import sys
from collections.abc import Iterator

from wafer.models.user.trust import add_option, looking


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs."""
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    upgrade = verbs.add_parser("upgrade", help="write a file with `trainer:` in our sections")
    upgrade.add_argument("file", type=pathlib.Path, help="params YAML that has `trainer:`")
    upgrade.add_argument(
        "-o", "--output", type=pathlib.Path, help="file to write (default: stdout)"
    )
    upgrade.set_defaults(run=_upgrade)
    keys = verbs.add_parser("keys", help="every key: what it takes, its default, its meaning")
    keys.add_argument(
        "section", nargs="?", help="runconfig, train_input, model, AdamW, gpt2, ... (default: all)"
    )
    keys.set_defaults(run=_keys)
    schema = verbs.add_parser("schema", help="JSON schema of run files, for editors")
    schema.set_defaults(run=_schema)
    new = verbs.add_parser("new", help="write a commented run file for rows you have")
    what = new.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", help="a name of `wafer models`")
    what.add_argument("--checkpoint_path", help="fine-tune this model; its masks are kept")
    new.add_argument("--data", required=True, type=pathlib.Path, help="folder of HDF5 rows")
    new.add_argument("--eval_data", type=pathlib.Path, help="rows kept for evaluation")
    new.add_argument("--sparsity", type=float, help="share of the weights that is 0, such as 0.9")
    new.add_argument("-o", "--output", type=pathlib.Path, help="file to write (default: stdout)")
    add_option(new)
    new.set_defaults(run=_new)
    _add_example(verbs)
    diff = verbs.add_parser("diff", help="keys in which two YAML files differ")
    diff.add_argument("left", type=pathlib.Path)
    diff.add_argument("right", type=pathlib.Path)
    diff.set_defaults(run=_diff)
    ift = verbs.add_parser("ift", help="a larger, sparse model of a dense one's FLOPs (Sparse-IFT)")
    ift.add_argument("file", type=pathlib.Path, help="params YAML of the dense model")
    ift.add_argument("--sparsity", type=float, required=True, help="share of the weights left out")
    ift.add_argument("--family", default="wide", help="wide, parallel, factorized or doped")
    ift.add_argument("-o", "--output", type=pathlib.Path, help="file to write (default: stdout)")
    add_option(ift)
    ift.set_defaults(run=_ift)
    spdf = verbs.add_parser(
        "spdf", help="a sweep of sparse pre-training and dense fine-tuning (SPDF)"
    )
    spdf.add_argument("file", type=pathlib.Path, help="params YAML of the pre-training")
    spdf.add_argument(
        "--finetune", type=pathlib.Path, required=True, help="params YAML of the fine-tuning"
    )
    spdf.add_argument(
        "--sparsity", type=float, nargs="+", required=True, help="share of the weights left out"
    )
    spdf.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="(default: 1 2 3)")
    spdf.add_argument("-o", "--output", type=pathlib.Path, help="file to write (default: stdout)")
    spdf.set_defaults(run=_spdf)


def _upgrade(args: argparse.Namespace) -> int:
    import yaml

    from wafer.errors import ConfigError, Problem
    from wafer.vendor.runfile import upgraded
    from wafer.yamlfile import read_yaml

    raw, _ = read_yaml(args.file)
    if not isinstance(raw, dict) or "trainer" not in raw:
        message = (
            "there is no `trainer` in it; files with runconfig, model, ... are read as they are"
        )
        raise ConfigError([Problem((), message)], str(args.file))
    sections, left, _ = upgraded(raw)
    text = "".join(f"# not read here: {path}\n" for path in left)
    text += yaml.safe_dump(sections, sort_keys=False, default_flow_style=None)
    return _written(text, args.output)


def _written(text: str, output: pathlib.Path | None) -> int:
    if output is None:
        sys.stdout.write(text)
    elif output.exists():
        raise FileExistsError(f"{output} is there already; name another file")
    else:
        from wafer.models.files import write_text

        write_text(output, text)
    return 0


def _keys(args: argparse.Namespace) -> int:
    from wafer.config.keys import keys, section_classes

    for section in [args.section] if args.section else section_classes():
        for name, table in keys(section):
            sys.stdout.write(f"\n{section}{name and f' ({name})'}\n")
            sys.stdout.writelines(f"{key.line}\n" for key in table)
    return 0


def _diff(args: argparse.Namespace) -> int:
    from wafer.yamlfile import read_yaml

    left, right = (dict(_leaves(read_yaml(path)[0])) for path in (args.left, args.right))
    lines = [f"Added: {key}: {right[key]!r}" for key in right if key not in left]
    lines += [f"Removed: {key}: {left[key]!r}" for key in left if key not in right]
    lines += [
        f"Changed: {key}: {left[key]!r} -> {right[key]!r}"
        for key in left
        if key in right and left[key] != right[key]
    ]
    sys.stdout.write("\n".join(lines or ["Configs are identical."]) + "\n")
    return 0


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every value that is no mapping or list, with its path."""
    if isinstance(value, dict) and value:
        items = [(f"{path}.{key}" if path else str(key), item) for key, item in value.items()]
    elif isinstance(value, list) and value:
        items = [(f"{path}[{i}]", item) for i, item in enumerate(value)]
    else:
        yield path, value
        return
    for name, item in items:
        yield from _leaves(item, name)


def _schema(args: argparse.Namespace) -> int:
    import json

    from wafer.config.keys import json_schema
    from wafer.vendor.keys import spellings

    del args
    sys.stdout.write(json.dumps(json_schema(spellings), indent=1) + "\n")
    return 0


def _new(args: argparse.Namespace) -> int:
    from wafer.config.newfile import run_file

    model = args.model
    if model is None:
        from wafer.commands.inputs import start_of

        model = start_of(args.checkpoint_path)
    return _written(run_file(model, args.data, args.eval_data, args.sparsity), args.output)


def _add_example(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("example", help="list the run files of the package, or write one")
    parser.add_argument("name", nargs="?", help="of the run file; without it all are listed")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="file to write (default: stdout)")
    parser.set_defaults(run=_example)


def _example(args: argparse.Namespace) -> int:
    from wafer.commands.examples import list_run_files, run_file

    if args.name is None:
        return _written(list_run_files(), None)
    return _written(run_file(args.name, args.output), args.output)


def _ift(args: argparse.Namespace) -> int:
    import yaml

    from wafer.config.ift import transform
    from wafer.errors import ConfigError, Problem, errors_of_file
    from wafer.yamlfile import read_yaml

    raw, _ = read_yaml(args.file)
    if not isinstance(raw, dict) or not isinstance(raw.get("model"), dict):
        raise ConfigError(
            [Problem(("model",), "missing section; it is what grows")], str(args.file)
        )
    with errors_of_file(args.file), looking():
        sections, dense, sparse = transform(raw, args.sparsity, args.family)
    text = (
        f"# Sparse-IFT, {args.family}, {args.sparsity:g}, of {args.file.name}: "
        f"{sparse:.4g} FLOPs per trained token, {dense:.4g} dense\n"
    )
    text += yaml.safe_dump(sections, sort_keys=False, default_flow_style=None)
    return _written(text, args.output)


def _spdf(args: argparse.Namespace) -> int:
    import os

    import yaml

    from wafer.config.spdf import sweep_of
    from wafer.errors import ConfigError, Problem
    from wafer.yamlfile import read_yaml

    raw, _ = read_yaml(args.file)
    if not isinstance(raw, dict) or "model" not in raw:
        message = "missing section; expected a run file of one run"
        raise ConfigError([Problem(("model",), message)], str(args.file))
    here = pathlib.Path() if args.output is None else args.output.parent
    pretrain, finetune = (os.path.relpath(path, here) for path in (args.file, args.finetune))
    sweep = sweep_of(pretrain, finetune, args.sparsity, raw.get("sparsity"), args.seeds)
    text = "# SPDF: `dense` and `spdf` arms are both phases; `-before` is the first one.\n"
    text += yaml.safe_dump(sweep, sort_keys=False)
    return _written(text, args.output)
