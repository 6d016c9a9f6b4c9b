"""The ``wafer`` command: parse, call, and turn errors into one message and an exit code.

Importing this file costs no jax: ``--help`` and a wrong params file answer at once.
"""

import argparse
import errno
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from wafer import __version__
from wafer.commands.jobs import add_parser as add_jobs_parser
from wafer.errors import WaferError

__all__ = ["main"]

_MODES = ("train", "eval", "eval_all", "train_and_eval")


def _run(args: argparse.Namespace) -> int:
    from wafer.config import load
    from wafer.config.checks import CHECKS
    from wafer.jobs.track import tracked
    from wafer.session.logs import setup_logging

    began = time.perf_counter()
    flags = {key: getattr(args, key) for key in _RUN_FLAGS}
    cfg = load(args.params, flags, checks=CHECKS)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's own chatter
    from wafer.engines.cluster import membership

    member = membership(args.coordinator, args.num_processes, args.process_id)
    first = member is None or member.index == 0
    setup_logging(cfg.runconfig.logging if first else "WARNING")
    if not first:  # the first process is the job
        return _start(cfg, member, args, began)
    with tracked(cfg, args.typed) as job:
        return job.done(_start(cfg, member, args, began))


def _start(cfg: Any, member: Any, args: argparse.Namespace, began: float) -> int:
    """Make this process's systems, before the first use of any; keep compiled programs."""
    import jax

    from wafer.engines.cluster import join, prepare

    settings = cfg.runconfig
    prepare(settings.num_csx, 1 if member is None else member.count, settings.pipeline.devices)
    if cfg.runconfig.compile_dir is not None:
        jax.config.update("jax_compilation_cache_dir", cfg.runconfig.compile_dir)
    if member is not None:
        join(member, args.heartbeat)
    from wafer.commands.run import run

    return run(cfg, began)


def _generate(args: argparse.Namespace) -> int:
    from wafer.commands.generate import generate_text

    for text in generate_text(
        args.checkpoint_path,
        args.prompt,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        seed=args.seed,
        num_samples=args.num_samples,
    ):
        sys.stdout.write(text + "\n")
    return 0


def _finalize(args: argparse.Namespace) -> int:
    from models.convert.tokenizer import carry_tokenizer
    from sparsity.finalize import finalize
    from wafer.session.logs import setup_logging

    setup_logging("INFO")
    if args.fold_lora:
        from wafer.commands.fold import fold_lora

        lines = fold_lora(args.input, args.output)
    else:
        lines = finalize(args.input, args.output).lines()
    carry_tokenizer(args.input, args.output)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _score(args: argparse.Namespace) -> int:
    from wafer.commands.score import score_pairs
    from wafer.config import load
    from wafer.config.checks import CHECKS

    cfg = load(args.params, checks=CHECKS)
    sys.stdout.write(score_pairs(cfg, args.checkpoint_path, args.input, args.output) + "\n")
    return 0


def _plan(args: argparse.Namespace) -> int:
    from wafer.commands.plan import scaling_table
    from wafer.config import load
    from wafer.config.checks import CHECKS

    # A plan needs neither the data nor as many devices as it asks about.
    cfg = load(args.params, {"num_csx": 1}, checks=CHECKS)
    systems = [int(n) for n in args.num_csx.split(",")]
    sys.stdout.write(scaling_table(cfg, systems, args.machine, args.folder, stages=args.stages))
    return 0


def _compile(args: argparse.Namespace) -> int:
    import pathlib

    from wafer.config import load
    from wafer.config.checks import CHECKS

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    flags = {key: getattr(args, key) for key in ("multireplica", "num_replicas", "model_dir")}
    cfg = load(args.params, flags | {"compile_dir": args.compile_dir}, checks=CHECKS)
    from wafer.compiler import experiment as compiling

    if args.validate_only:
        from wafer.compiler.report import graph_table

        graph, _ = compiling.config_graph(cfg)
        sys.stdout.write(graph_table(graph, cfg.model["name"]))
        sys.stdout.write("Every operation has a kernel. Nothing was placed (--validate_only).\n")
        return 0
    folder = compiling.default_folder(cfg, args.seed, args.spec)
    folder = pathlib.Path(args.output) if args.output else folder
    began = time.perf_counter()
    done = compiling.compile_config(cfg, folder, seed=args.seed, spec=args.spec)
    from wafer.compiler.report import summary

    how = "found from before" if done.kept else "compiled"
    sys.stdout.write(summary(done.compiled))
    sys.stdout.write(
        f"{how} in {time.perf_counter() - began:.2f} s; report and pictures in {folder}\n"
    )
    return 0


def _models(args: argparse.Namespace) -> int:
    from models.registry import knobs, list_models, lookup

    if args.name is not None:
        sys.stdout.write(f"{args.name}: {lookup(args.name).family}\n")
        for key, takes, default in knobs(args.name):
            sys.stdout.write(f"  {key:<40} {takes:<40} {default}\n")
        return 0
    for name, entry in list_models().items():
        knobs = ", ".join(f"{key}={value}" for key, value in entry.presets.items())
        sys.stdout.write(f"{name:<24} {entry.family:<9} {knobs or args.none}\n")
    return 0


def _data_stats(args: argparse.Namespace) -> int:
    from wafer.commands.stats import padding_stats
    from wafer.config import load
    from wafer.config.checks import CHECKS

    cfg = load(args.params, {"model_dir": args.model_dir}, checks=CHECKS)
    sys.stdout.write(padding_stats(cfg, args.split) + "\n")
    return 0


# Flags of `wafer run` that override runconfig, with their argparse settings.
_RUN_FLAGS: dict[str, dict] = {
    "mode": {"choices": _MODES, "help": "what to do (default: runconfig.mode, or train)"},
    "model_dir": {"help": "folder for checkpoints, logs and events"},
    "checkpoint_path": {"help": "start from this checkpoint instead of the newest in model_dir"},
    "load_checkpoint_states": {"help": "comma list: model,optimizer,sparsity,dataloader,..."},
    "disable_strict_checkpoint_loading": {
        "action": "store_true",
        "help": "keep parameters the checkpoint lacks as initialized (a new head)",
    },
    "is_pretrained_checkpoint": {
        "action": "store_true",
        "help": "take the model only, start at step 0",
    },
    "num_steps": {"type": int, "help": "steps to train now"},
    "max_steps": {"type": int, "help": "global step to stop at"},
    "num_epochs": {"type": int, "help": "passes over the training data"},
    "eval_steps": {"type": int, "help": "batches per evaluation (default: one epoch)"},
    "num_csx": {"type": int, "help": "systems that share the batch"},
    "execution_strategy": {
        "choices": ("resident", "weight_streaming", "pipelined", "fabric"),
        "help": "where the weights live (default: resident when they fit)",
    },
    "validate_only": {
        "action": "store_true",
        "help": "check the file and list what will be sparse (`wafer compile` matches kernels)",
    },
    "compile_only": {
        "action": "store_true",
        "help": "compile the step for this machine (`wafer compile` does for the wafer)",
    },
    "logging": {"help": "DEBUG, INFO, WARNING or ERROR"},
    "seed": {"type": int, "help": "of weights, masks, data order and dropout"},
    "job_labels": {"nargs": "+", "metavar": "K=V", "help": "labels that `wafer jobs get` shows"},
    "job_priority": {"choices": ("p1", "p2", "p3"), "help": "turn in the queue, p1 first"},
}


def _add_run(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("run", help="train or evaluate a params YAML")
    parser.add_argument("-p", "--params", required=True, help="params YAML")
    short = {"mode": ["-m"], "model_dir": ["-o"], "execution_strategy": ["--execution"]}
    for name, settings in _RUN_FLAGS.items():
        parser.add_argument(*short.get(name, []), f"--{name}", dest=name, default=None, **settings)
    several = parser.add_argument_group("several processes (flags, environment or SLURM)")
    several.add_argument("--coordinator", metavar="HOST:PORT", help="of process 0")
    several.add_argument("--num_processes", type=int, help="processes that share the systems")
    several.add_argument("--process_id", type=int, help="of this one, from 0")
    several.add_argument(
        "--heartbeat", type=int, default=100, help="seconds until a silent process is lost"
    )
    parser.set_defaults(run=_run)


def _add_plan(commands: argparse._SubParsersAction) -> None:
    planner = commands.add_parser("plan", help="predict memory, traffic and time of N systems")
    planner.add_argument("-p", "--params", required=True, help="params YAML")
    planner.add_argument("--num_csx", default="1,4,16,64", help="systems to predict, e.g. 1,4,16")
    planner.add_argument("--machine", choices=("cs2", "h200", "host"), default="cs2")
    planner.add_argument("--folder", help="with host: where MemoryX would put its file")
    planner.add_argument("--stages", action="store_true", help="also show the time of each stage")
    planner.set_defaults(run=_plan)


def _add_compile(commands: argparse._SubParsersAction) -> None:
    compiler = commands.add_parser(
        "compile", help="floor plan of a model on the wafer, and its predicted speed"
    )
    compiler.add_argument("-p", "--params", required=True, help="params YAML")
    compiler.add_argument(
        "-o", "--output", metavar="DIR", help="for report and pictures (default: model_dir/cs_HASH)"
    )
    compiler.add_argument("--model_dir", help="folder of the default for --output")
    compiler.add_argument("-c", "--compile_dir", help="where plans are kept (default: ~/.cache)")
    compiler.add_argument(
        "--validate_only", action="store_true", help="match kernels and stop: no costs, no places"
    )
    copies = compiler.add_mutually_exclusive_group()
    copies.add_argument(
        "--multireplica", action="store_true", default=None, help="as many copies as are fastest"
    )
    copies.add_argument("--num_replicas", type=int, help="copies on the wafer")
    compiler.add_argument("--seed", type=int, default=0, help="of the placer")
    compiler.add_argument("--spec", choices=("wse2", "wse3"), default="wse2", help="the machine")
    compiler.set_defaults(run=_compile)


def _add_generate(commands: argparse._SubParsersAction) -> None:
    generate = commands.add_parser("generate", help="sample text from a checkpoint")
    generate.add_argument("--checkpoint_path", required=True, help="checkpoint, or a model_dir")
    generate.add_argument("--prompt", default="", help="text to continue")
    generate.add_argument("--max_new_tokens", type=int, default=200)
    generate.add_argument("--temperature", type=float, default=0.8, help="0 is greedy")
    generate.add_argument("--top_k", type=int, default=None, help="sample from the k likeliest")
    generate.add_argument("--seed", type=int, default=0)
    generate.add_argument("--num_samples", type=int, default=1)
    generate.set_defaults(run=_generate)


def _add_convert(commands: argparse._SubParsersAction, *, chosen: bool) -> None:
    if chosen:  # its parser is the models package's own, which imports jax
        from models.convert.cli import add_parser

        add_parser(commands)
    else:
        commands.add_parser("convert", help="Hugging Face checkpoints and configs, both ways")


def _parser(command: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wafer", description="The Cerebras wafer-scale software stack in JAX."
    )
    parser.add_argument("--version", action="version", version=f"wafer {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)

    _add_generate(commands)

    score = commands.add_parser("score", help="a model's log-probabilities of DPO's answers")
    score.add_argument("-p", "--params", required=True, help="params YAML of the DPO run")
    score.add_argument("--checkpoint_path", required=True, help="the reference model")
    score.add_argument("-i", "--input", required=True, help="JSON lines: prompt, chosen, rejected")
    score.add_argument("-o", "--output", required=True, help="the same with the numbers added")
    score.set_defaults(run=_score)

    _add_plan(commands)
    _add_compile(commands)

    listing = commands.add_parser("models", help="names a params YAML may use, and their knobs")
    listing.add_argument("name", nargs="?", help="list every key of this model's section")
    listing.set_defaults(run=_models, none="vendor defaults")

    data = commands.add_parser("data", help="make, check and look at data before training")
    verbs = data.add_subparsers(required=True, metavar="VERB")
    if command == "data":  # its help lists every key, which takes pydantic
        from wafer.commands.data import add_verbs

        add_verbs(verbs)
    stats = verbs.add_parser("stats", help="what padding would cost, and what VSL saves")
    stats.add_argument("-p", "--params", required=True, help="params YAML")
    stats.add_argument("--split", choices=("train", "eval"), default="train")
    stats.add_argument("-o", "--model_dir", help="where a trained tokenizer is kept")
    stats.set_defaults(run=_data_stats)

    finalize = commands.add_parser("finalize", help="turn NaN at pruned weights into 0")
    finalize.add_argument("-i", "--input", required=True, help="sparse checkpoint")
    finalize.add_argument("-o", "--output", required=True, help="dense checkpoint to write")
    finalize.add_argument(
        "--fold_lora", action="store_true", help="also bake LoRA adapters in; keeps the model only"
    )
    finalize.set_defaults(run=_finalize)
    add_jobs_parser(commands)
    _add_convert(commands, chosen=command == "convert")
    return parser


def _after(error: OSError) -> str:
    """Say what to do about a disk that takes no more."""
    if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        return ""
    return (
        ". The disk takes no more; complete checkpoints are intact. Free some space, then run the "
        "same command again"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (0 done, 1 the user's error, 130 interrupted)."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = _parser(argv[0] if argv else None).parse_args(argv)
    args.typed = argv
    try:
        return args.run(args)
    except OSError as error:  # a full disk, a folder that cannot be written, a missing file
        sys.stderr.write(f"wafer: error: {error}{_after(error)}\n")
        return 1
    except (WaferError, ValueError) as error:
        if logging.getLogger("wafer").isEnabledFor(logging.DEBUG):
            raise
        sys.stderr.write(f"wafer: error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("wafer: interrupted\n")
        return 130
