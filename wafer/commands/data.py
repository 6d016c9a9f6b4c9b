"""Make, check and look at data before training: ``wafer data``."""

import argparse
import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from wafer.data.preprocess.settings import HIDDEN, Settings
from wafer.models.sections import meanings
from wafer.models.user.trust import add_option, looking, refusal
from wafer.vendor.preprocess.keys import MODES, HookKeys, OlderKeys

if TYPE_CHECKING:
    from wafer.config import RunConfig
    from wafer.data.preprocess.output import OutputSummary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs."""
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    _add_benchmark(verbs)
    _add_dedup(verbs)
    _add_make(verbs)
    _add_merge(verbs)
    _add_new(verbs)
    _add_preprocess(verbs)
    _add_split(verbs)
    _add_show(verbs)
    _add_verify(verbs)
    _add_shuffle(verbs)
    _add_stats(verbs)


def _add_preprocess(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser(
        "preprocess",
        help="text to HDF5 rows",
        description="Turn text into HDF5 rows. A run that was killed goes on when the same "
        "command is given again. Keys come from --params (a YAML), flags win.",
    )
    parser.add_argument("mode", nargs="?", choices=MODES, help="what the rows are for")
    parser.add_argument("-p", "--params", "--config", help="YAML with the keys below")
    told = meanings(Settings) | meanings(HookKeys) | meanings(OlderKeys)
    for name, field in _keys().items():
        if name != "mode":
            default = "" if field.is_required() or field.default is None else str(field.default)
            shown = f"{told.get(name, '')} [{default}]" if default else told.get(name, "")
            if get_origin(field.annotation) is Literal:
                shown = f"{shown}; one of {', '.join(map(str, get_args(field.annotation)))}"
            parser.add_argument(f"--{name}", metavar="X", help=shown.replace("%", "%%"))
    parser.set_defaults(run=_preprocess)


def _keys() -> dict[str, Any]:
    """Every key of a preprocessing file of either form, but those whose value is a mapping."""
    every = Settings.model_fields | HookKeys.model_fields | OlderKeys.model_fields
    hidden = (*HIDDEN, "tokenizer_params")
    known = {key: field for key, field in every.items() if key not in hidden}
    return {k: field for k, field in known.items() if get_origin(field.annotation) is not dict}


def _preprocess(args: argparse.Namespace) -> int:
    _show_log()
    for summary in _parts(args.params, {name: getattr(args, name, None) for name in _keys()}):
        _say(summary)
    return 0


def _parts(
    params: str | os.PathLike[str] | None, keys: Mapping[str, Any]
) -> "Iterable[OutputSummary]":
    from wafer.data.preprocess.parts import preprocess_all
    from wafer.vendor.preprocess.load import load_settings

    return preprocess_all(load_settings(None if params is None else os.fspath(params), keys))


def preprocess(
    params: str | os.PathLike[str] | None = None, **keys: Any
) -> "tuple[OutputSummary, ...]":
    """Turn text into HDF5 rows; a call that was interrupted goes on when it is made again.

    Args:
        params: a preprocessing YAML; None where the keys say all.
        **keys: of the file, which they win over: ``mode``, ``input_dir``, ``output_dir``, ...
            A program without ``if __name__ == "__main__"`` needs ``processes=1``.

    Returns:
        What was written, for each part of the data; printed, one says what is in it.

    Raises:
        ConfigError: unknown keys, wrong values, keys that do not go together.
        DataError: input, tokenizer or output folder that cannot be used.

    Examples:
        >>> wafer.preprocess(
        ...     mode="LMData_VSL",
        ...     input_dir="texts",
        ...     output_dir="rows",
        ...     tokenizer_type="TrainBPE",
        ...     vocab_size=8192,
        ...     max_seq_length=512,
        ... )  # doctest: +SKIP
    """
    return tuple(_parts(params, keys))


def _show_log() -> None:
    import logging

    from rich.logging import RichHandler

    handler = RichHandler(show_path=False, show_time=False)
    logging.basicConfig(level="INFO", format="%(message)s", handlers=[handler])


def _add_dedup(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser(
        "dedup",
        help="remove texts that resemble an earlier one",
        description="Keep the first of near-duplicate texts (MinHash). A run that was killed goes "
        "on when the same command is given again.",
    )
    parser.add_argument("-i", "--input_dir", nargs="+", required=True, help="files or folders")
    parser.add_argument(
        "-o", "--output_dir", required=True, help="kept.jsonl, removed.jsonl and dedup.json"
    )
    parser.add_argument("--jsonl_key", default="text", dest="key", help="field of the text [text]")
    parser.add_argument(
        "--threshold", type=float, default=0.8, help="least similarity that removes [0.8]"
    )
    parser.add_argument("--ngram", type=int, default=13, help="characters of an n-gram [13]")
    parser.add_argument("--num_perm", type=int, default=128, help="size of a signature [128]")
    parser.add_argument("--seed", type=int, default=1, help="of the hash functions [1]")
    parser.add_argument(
        "--skip_bad_records", type=_flag, default=False, help="leave out what cannot be read"
    )
    parser.set_defaults(run=_dedup)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return text.lower() == "true"


def _dedup(args: argparse.Namespace) -> int:
    from wafer.data.preprocess.dedup import Deduplication, deduplicate

    options = Deduplication(**{name: getattr(args, name) for name in Deduplication._fields})
    _say(deduplicate(args.input_dir, args.output_dir, options))
    return 0


def _add_split(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser(
        "split",
        help="share a folder of rows out to several folders, by document",
        description="Share a folder of rows out to several folders; no document is in two of them. "
        "Rows that hold pieces of documents are made again from the texts that `wafer data "
        "preprocess` read.",
    )
    parser.add_argument("-i", "--input_dir", required=True)
    parser.add_argument(
        "-o", "--output_dir", required=True, help="one folder in it for each part: split_0, ..."
    )
    parser.add_argument(
        "--ratios", required=True, help="shares with commas, for example 0.9,0.05,0.05"
    )
    parser.add_argument(
        "--by",
        choices=("document", "row"),
        default="document",
        help="row: rows as they are, which may put pieces of one document on both sides [document]",
    )
    parser.add_argument("--seed", type=int, default=0, help="what goes where")
    parser.add_argument("--samples_per_file", type=int, default=50_000)
    parser.set_defaults(run=_split)


def _split(args: argparse.Namespace) -> int:
    from wafer.data.preprocess.parts import split_rows

    _show_log()
    ratios = [_number(part) for part in args.ratios.split(",")]
    counts = split_rows(
        args.input_dir,
        args.output_dir,
        ratios,
        seed=args.seed,
        size=args.samples_per_file,
        by=args.by,
    )
    for folder, count in counts.items():
        _say(f"{count:,} rows in {folder}")
    return 0


def _add_merge(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser(
        "merge",
        help="the shards of `preprocess --shard I/N` become one folder of rows",
        description="Check the shards in OUTPUT_DIR/shards, number their files through, and add up "
        "their data_params.json. Missing and doubled shards are named, and nothing is moved. "
        "After a kill, give the command again.",
    )
    parser.add_argument("output_dir", help="that of the shards")
    parser.set_defaults(run=_merge)


def _merge(args: argparse.Namespace) -> int:
    from wafer.data.preprocess.merge import merge_shards

    _show_log()
    for summary in merge_shards(args.output_dir):
        _say(summary)
    return 0


def _add_make(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser(
        "make",
        help="a small valid data set for a data processor, and a run file that trains on it",
        description="Write a small valid data set for a data processor, and params.yaml beside it.",
    )
    parser.add_argument(
        "name",
        help="GptHDF5DataProcessor (rows of tokens), SST2DataProcessor (texts with classes), "
        "Seq2SeqDataProcessor (pairs of texts) or MNISTDataProcessor (images)",
    )
    parser.add_argument("folder", help="where to; it is made")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn [0]")
    parser.set_defaults(run=_make)


def _make(args: argparse.Namespace) -> int:
    from wafer.data.make import make_data
    from wafer.session.hints import typed

    path = make_data(args.name, args.folder, args.seed)
    _say(f"{path}\nTry: wafer run CPU --params {typed(path)} --mode train --validate_only")
    return 0


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--ratios: {text!r} is not a number") from None


def _add_shuffle(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("shuffle", help="put the rows of a folder into random order")
    parser.add_argument("-i", "--input_dir", required=True)
    parser.add_argument("-o", "--output_dir", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples_per_file", type=int, default=50_000)
    parser.set_defaults(run=_shuffle)


def _shuffle(args: argparse.Namespace) -> int:
    from wafer.data.rowfiles.folders import shuffle_folder

    count = shuffle_folder(
        args.input_dir, args.output_dir, seed=args.seed, samples_per_file=args.samples_per_file
    )
    _say(f"{count:,} rows in {args.output_dir}")
    return 0


def _add_verify(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser(
        "verify", help="read every row; name the file and row of whatever is wrong"
    )
    parser.add_argument("data_dir", nargs="+")
    parser.add_argument("--vocab_size", type=int, help="ids must be below; data_params.json's")
    parser.set_defaults(run=_verify)


def _verify(args: argparse.Namespace) -> int:
    from wafer.data.rowfiles.verify import verify_folder

    wrong = 0
    for folder in args.data_dir:
        report = verify_folder(folder, args.vocab_size)
        _say(report)
        wrong += len(report.problems)
    return 1 if wrong else 0


def _add_show(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser(
        "show",
        help="rows as text: what carries loss, which documents share a row",
        description="Decode rows: tokens with loss, without, and padding; packed documents apart. "
        "In color on a terminal, unless NO_COLOR is set.",
    )
    parser.add_argument("file", help="HDF5 file, folder of them, or params YAML of a run")
    parser.add_argument("-n", type=int, default=3, dest="count", help="rows [3]")
    parser.add_argument("--first", type=int, default=0, help="number of the first row [0]")
    parser.add_argument("--tokenizer", help="tokenizer.json; default: the one beside the rows")
    parser.add_argument("--split", choices=("train", "eval"), default="train", help="of a YAML")
    parser.add_argument("-o", "--model_dir", help="where a trained tokenizer is kept")
    add_option(parser)
    parser.set_defaults(run=_show)


def _show(args: argparse.Namespace) -> int:
    import pathlib

    from wafer.commands.show import print_rows
    from wafer.data.rowfiles.show import read_rows_of
    from wafer.data.text.tokenizer import load_tokenizer

    if args.count < 1 or args.first < 0:
        raise ValueError(f"-n {args.count}, --first {args.first}: expected at least 1, and 0")
    path = pathlib.Path(args.file)
    beside = path if path.is_dir() else path.parent
    named = pathlib.Path(args.tokenizer) if args.tokenizer else beside / "tokenizer.json"
    tokenizer = load_tokenizer(named) if args.tokenizer or named.is_file() else None
    if path.suffix in (".yaml", ".yml"):
        rows, own = _rows_of_run(args)
        tokenizer = tokenizer if args.tokenizer else own
    else:
        rows = read_rows_of(path, args.first, args.count)
    if not print_rows(rows, tokenizer):
        raise ValueError(f"{path}: no row {args.first}; it has fewer")
    return 0


def _rows_of_run(args: argparse.Namespace) -> tuple[Any, Any]:
    """Examples as a run reads them, and the tokenizer of their ids, if it is known."""
    from tokenizers import Tokenizer

    from wafer.data.batching.dataset import Context, build_dataset
    from wafer.data.rowfiles.show import ShownRow

    with looking():
        cfg = _looked_at(args.file, args)
        context = Context(training=args.split == "train")
        data = build_dataset(_section(cfg, args.split), cfg.runconfig.model_dir, context)
    _say(data.summary)
    if data.pack:
        _say("use_vsl: a run packs these examples into rows")
    numbers = range(args.first, min(args.first + args.count, len(data.source)))
    rows = (ShownRow(f"{args.file}: example {i}", data.example(i)) for i in numbers)
    return rows, None if data.tokenizer is None else Tokenizer.from_str(data.tokenizer)


def _add_benchmark(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("benchmark", help="read a run's data without the model: batches/s")
    parser.add_argument("-p", "--params", required=True, help="params YAML")
    parser.add_argument("-o", "--model_dir", help="where a trained tokenizer is kept")
    parser.add_argument("--num_epochs", type=int, default=1, help="passes (default: 1)")
    parser.add_argument("--steps_per_epoch", type=int, help="batches of a pass at most")
    parser.set_defaults(run=_benchmark)


def _benchmark(args: argparse.Namespace) -> int:
    import numpy as np

    from wafer.config import load
    from wafer.data.batching.dataset import Context, build_dataset
    from wafer.errors import ConfigError, Problem

    cfg = load(args.params, {"model_dir": args.model_dir})
    sections = {"train_input": cfg.train_input, "eval_input": cfg.eval_input}
    given = {name: section for name, section in sections.items() if section is not None}
    if not given:
        raise ConfigError([Problem(("train_input",), "missing; there is no data to read")])
    for name, section in given.items():
        data = build_dataset(section, cfg.runconfig.model_dir, Context(name == "train_input"))
        batches = size = 0
        begin = time.monotonic()
        for _ in range(args.num_epochs):
            with contextlib.closing(data.loader(section.batch_size, num_epochs=1)) as loader:
                for batch in itertools.islice(loader, args.steps_per_epoch):
                    batches += 1
                    size += sum(np.asarray(values).nbytes for values in batch.values())
        seconds = max(time.monotonic() - begin, 1e-9)
        _say(
            f"{name}: {batches:,} batches in {seconds:.2f} s: {batches / seconds:,.1f} "
            f"batches/s, {size / seconds / 1e6:,.1f} MB/s"
        )
    return 0


def _add_new(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("new", help="list preprocessing files to begin with, or write one")
    parser.add_argument("template", nargs="?", help="name of a template (default: list them)")
    parser.add_argument("-o", "--output_dir", default=".", help="folder of the file (default: .)")
    parser.set_defaults(run=_new)


def _new(args: argparse.Namespace) -> int:
    import pathlib

    from wafer.models.files import made_folder
    from wafer.vendor.preprocess.templates import preprocessing_file, template_names

    if args.template is None:
        _say("\n".join(f"{name:<16} {about}" for name, about in template_names().items()))
        return 0
    text = preprocessing_file(args.template)
    path = pathlib.Path(args.output_dir) / f"{args.template}.yaml"
    with made_folder(path.parent), path.open("x", encoding="utf-8") as file:
        file.write(text)
    _say(f"Saved {path}; set its paths: texts, tokenizer and rows")
    return 0


def _add_stats(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("stats", help="what padding would cost, and what VSL saves")
    parser.add_argument("-p", "--params", required=True, help="params YAML")
    parser.add_argument("--split", choices=("train", "eval"), default="train")
    parser.add_argument("-o", "--model_dir", help="where a trained tokenizer is kept")
    add_option(parser)
    parser.set_defaults(run=_stats)


def _stats(args: argparse.Namespace) -> int:
    with looking():
        _say(padding_stats(_looked_at(args.params, args), args.split))
    return 0


def _looked_at(path: str, args: argparse.Namespace) -> "RunConfig":
    """Load a run file whose code is imported only if it is trusted."""
    from wafer.config import load, unseen_lines
    from wafer.errors import ConfigError, Problem

    section = f"{args.split}_input"
    cfg = load(path, {"model_dir": args.model_dir})
    if section in cfg.unseen:
        raise ConfigError([Problem((section,), refusal(cfg.unseen[section]))], path)
    for line in unseen_lines(cfg):
        _say(line)
    return cfg


def _section(cfg: "RunConfig", split: str) -> Any:
    from wafer.errors import ConfigError, Problem

    section = cfg.train_input if split == "train" else cfg.eval_input
    if section is None:
        raise ConfigError([Problem((f"{split}_input",), "missing; there is no data to look at")])
    return section


def padding_stats(cfg: "RunConfig", split: str) -> str:
    """Report longest, mean, expected speed-up and compiled shapes of a run's data.

    Raises:
        ConfigError: the file has no such input section.
    """
    from wafer import vsl
    from wafer.data.batching.dataset import Context, build_dataset
    from wafer.data.batching.lengths import sequence_lengths

    section = _section(cfg, split)
    data = build_dataset(section, cfg.runconfig.model_dir, Context(training=split == "train"))
    if data.row_length == 1:
        return f"{data.summary}\none value per example (no sequences): nothing is padded"
    budget = section.batch_size * data.row_length if section.use_vsl else None
    report = vsl.padding_report(
        sequence_lengths(data), section.batch_size, max_length=data.row_length, budget=budget
    )
    return f"{data.summary}\n{report}"


def _say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
