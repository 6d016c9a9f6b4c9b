"""The ``wafer`` command: parse, call, and turn errors into one message and an exit code.

Only the chosen verb's file is imported, so ``--help`` answers at once.
"""

import argparse
import errno
import gc
import itertools
import logging
import os
import pkgutil
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from wafer.errors import WaferError
from wafer.models.errors import DISK_FULL, MissingPackageError, did_you_mean, plain
from wafer.models.files import require_local
from wafer.models.user.flags import own_flags
from wafer.models.user.trust import trusting
from wafer.version import __version__

_LONGEST = 20_000  # characters of a message
_TEXTS = {"prompt"}  # arguments that name no file
_ADDRESSES = {"checkpoint_path", "draft"}  # arguments that may name an object store
_SMALLER = (
    "Take a smaller model, batch_size or micro_batch_size, or keep the weights in a file "
    "(--execution weight_streaming); `wafer plan` says what a run file needs"
)

_BATCHED = ("run", "sweep", "score")  # verbs whose arrays on a device grow with the batch

# verb -> help line, function that adds its arguments to a parser and sets `run`
_VERBS = {
    "run": ("train or evaluate a params YAML", "wafer.commands.run:add_arguments"),
    "sweep": (
        "arms of a run file over seeds, and the table that compares them",
        "wafer.commands.sweep:add_arguments",
    ),
    "generate": ("sample text from a checkpoint", "wafer.commands.generate:add_arguments"),
    "evaluate": (
        "tasks of the EleutherAI harness on a checkpoint",
        "wafer.commands.checkpoints.evaluate:add_arguments",
    ),
    "score": ("a model's log-probabilities of DPO's answers", "wafer.commands.score:add_arguments"),
    "plan": (
        "predict memory, traffic and time of N systems",
        "wafer.commands.planning.plan:add_arguments",
    ),
    "compile": (
        "floor plan of a model on the wafer, and its predicted speed",
        "wafer.commands.planning.compile:add_arguments",
    ),
    "config": ("write run files, list their keys", "wafer.commands.config:add_arguments"),
    "csl": (
        "check, format, compile, run and trace programs in CSL",
        "wafer.commands.csl:add_arguments",
    ),
    "models": (
        "names a params YAML may use, and their knobs",
        "wafer.commands.models:add_arguments",
    ),
    "data": ("make, check and look at data before training", "wafer.commands.data:add_arguments"),
    "notebooks": ("list the notebooks, or write them", "wafer.commands.examples:add_arguments"),
    "prune": (
        "choose masks from data, without training: Wanda, SparseGPT, SNIP, SynFlow",
        "wafer.commands.checkpoints.prune:add_arguments",
    ),
    "checkpoint": ("is a checkpoint sound?", "wafer.commands.checkpoints.inspect:add_arguments"),
    "finalize": (
        "turn NaN at pruned weights into 0",
        "wafer.commands.checkpoints.finalize:add_arguments",
    ),
    "jobs": (
        "list, cancel and label runs; share the systems out",
        "wafer.commands.jobs:add_arguments",
    ),
    "convert": (
        "checkpoints and configs of Hugging Face and of Cerebras's Model Zoo, both ways",
        "wafer.commands.checkpoints.convert:add_arguments",
    ),
}


_OF_OTHERS = (argparse.PARSER, argparse.REMAINDER)  # from here on another parser reads


class _Parser(argparse.ArgumentParser):
    """Shows what there is where no verb was given, and what comes near a wrong word or option."""

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Iterable[str] | None = None, namespace: object = None
    ) -> Any:  # it has overloads
        """Name a wrong option before what was meant as its value is taken for another argument."""
        others = any(action.nargs in _OF_OTHERS for action in self._actions)
        ends = lambda word: word == "--" or (others and not word.startswith("-"))
        words = sys.argv[1:] if args is None else list(args)
        known = [option for action in self._actions for option in action.option_strings]
        for word in itertools.takewhile(lambda word: not ends(word), words):
            name = word.partition("=")[0]
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                self.error(f"no option {name}{did_you_mean(name, known)}")
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        if message.rpartition(" ")[2] in ("COMMAND", "VERB", "ACTION"):
            self.print_help(sys.stderr)
            self.exit(2, f"{self.prog}: error: name one of these\n")
        wrong, _, choices = message.partition("(choose from ")
        if choices:
            word = wrong.rpartition("choice: ")[2].strip(" '")
            message += did_you_mean(word, re.findall(r"[\w.-]+", choices))
        super().error(message)


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    parser = _Parser(prog="wafer", description="The Cerebras wafer-scale software stack in JAX.")
    parser.add_argument("--version", action="version", version=f"wafer {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")
    for verb, (help_line, target) in _VERBS.items():
        subparser = verbs.add_parser(verb, help=help_line)
        if verb == chosen:
            pkgutil.resolve_name(target)(subparser)
    return parser


def _advice(error: OSError) -> str:
    """Say what to do about a disk that takes no more, and which file is in a folder's place."""
    if error.errno in (errno.EEXIST, errno.ENOTDIR) and isinstance(error.filename, str):
        path = error.filename
        while path and not os.path.lexists(path):
            path = os.path.dirname(path)
        return f" ({path} is a file; expected a folder)" if os.path.isfile(path) else ""
    if error.errno not in DISK_FULL:
        return ""
    return (
        ". The disk takes no more; complete files and checkpoints are intact. Free some space or "
        "name another folder, then run the command again"
    )


def _complain(error: object) -> None:
    """Print a message of any content."""
    text = f"wafer: error: {error}"
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} ... ({len(text) - _LONGEST:,} more characters)"
    sys.stderr.write(plain(text) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code: 0 done, 1 the user's error, 130 interrupted, 141 nobody reads the output.
    """
    if argv is None:  # a process of our own: shapes of deep models are many small tuples
        gc.set_threshold(100_000, 20, 20)
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # ``| head`` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _without_noun(argv: list[str]) -> list[str]:
    """Take the noun of ``csctl``'s verbs away: get jobs, cancel job ID, job list."""
    if argv[:1] != ["jobs"]:
        return argv
    words = [word for word in argv[1:] if word not in ("job", "jobs")]
    return ["jobs", *(["get", *words[1:]] if words[:1] == ["list"] else words)]


def _require_local(args: argparse.Namespace) -> None:
    """Refuse addresses of object stores, but for the arguments that ``addresses`` names, too.

    Raises:
        ValueError: names the argument.
    """
    takes = {"addresses", *_ADDRESSES, *_TEXTS, *getattr(args, "addresses", ())}
    for name, value in vars(args).items():
        for given in value if isinstance(value, list) else [value]:
            if name not in takes and isinstance(given, str | os.PathLike):
                try:
                    require_local(os.fspath(given))
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None


def _run(argv: list[str]) -> int:
    argv = _without_noun(argv)
    args = _parser(argv[0] if argv else None).parse_args(argv)
    for name, value in vars(args).items():
        if name not in _TEXTS and isinstance(value, str) and value.startswith("~/"):
            setattr(args, name, os.path.expanduser(value))  # after "=" or in quotes no shell does
    try:
        _require_local(args)
        args.typed = argv
        with own_flags(), trusting(trust_code=getattr(args, "trust_code", False)):
            return args.run(args)
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, a folder that cannot be written, a missing file
        named = error.strerror and isinstance(error.filename, str)
        _complain(f"{f'{error.filename}: {error.strerror}' if named else error}{_advice(error)}")
        return 1
    except (WaferError, MissingPackageError, ValueError) as error:
        if logging.getLogger("wafer").isEnabledFor(logging.DEBUG):
            raise
        _complain(error)
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("wafer: interrupted\n")
        return 130
    except Exception as error:
        # XLA's error is not named here: jax would be loaded for every command.
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        helps = argv[0] in _BATCHED and not isinstance(error, MemoryError)
        _complain(f"not enough memory ({reason}){f'. {_SMALLER}' if helps else ''}")
        return 1
