"""What a command suggests to do next, as the user would type it."""

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wafer.models.user.trust import code_in

if TYPE_CHECKING:  # a command that only prints suggestions reads no data
    from wafer.data.batching.dataset import Dataset
    from wafer.session.build import Run

_READ = 32  # tokens that are decoded for a prompt
_WRITES = {"lm", "seq2seq", "dpo"}  # tasks whose models `wafer generate` takes


def command() -> str:
    """Return how this process was called: ``wafer``, ``.venv/bin/wafer``, ``python -m wafer``.

    In a program that imports wafer it is ``wafer``.
    """
    called = pathlib.Path(sys.argv[0])
    if called.name == "__main__.py" and called.parent.name == "wafer":
        return f"{_program(sys.executable)} -m wafer"
    return _program(str(called)) if called.stem == "wafer" and called.suffix != ".py" else "wafer"


def tensorboard(folder: pathlib.Path) -> str:
    """Return the line that starts TensorBoard on a folder; where it is missing, how to get it."""
    beside = pathlib.Path(sys.executable).with_name("tensorboard")
    if beside.is_file():
        return f"{_program(str(beside))} --logdir {typed(folder)}"
    line = f"tensorboard --logdir {typed(folder)}"
    if shutil.which("tensorboard"):
        return line
    return f"{line}    (first: {_program(sys.executable)} -m pip install tensorboard)"


def first_words(data: "Dataset") -> str:
    """Return the first words of the training text, as a prompt; ``The`` where they are not known.

    Args:
        data: whose first example has ``input_ids`` of its tokenizer.
    """
    from tokenizers import Tokenizer

    if data.tokenizer is None:  # a user's own reader, perhaps, that gives no first example
        return "The"
    ids = data.source[0].get("input_ids")
    if ids is None:
        return "The"
    text = Tokenizer.from_str(data.tokenizer).decode(ids[:_READ].tolist())
    plain = re.findall(r"[\w',.;:-]+(?: [\w',.;:-]+){0,2}", text)  # nothing that a shell reads
    return plain[0] if plain else "The"


def typed(path: str | os.PathLike[str]) -> str:
    """Return a path as a shell takes it: quoted where it has blanks or other special letters."""
    return shlex.quote(os.fspath(path))


def with_trust(line: str, **sections: object) -> str:
    """Add the option that a command needs where a checkpoint's sections name code."""
    return f"{line} --trust_code" if code_in(sections) else line


def after_training(job: "Run", checkpoint: pathlib.Path) -> list[str]:
    """Return the commands that go on from the last checkpoint of a run."""
    from wafer.sparsity.stored.inference import masks_forward

    with contextlib.suppress(ValueError):  # elsewhere on the disk the absolute path is right
        checkpoint = checkpoint.relative_to(pathlib.Path.cwd())
    section, sections, lines = job.experiment.section("train"), job.cfg.to_dict(), []
    writes = section.task in _WRITES and getattr(job.experiment.model.config, "with_lm_head", False)
    if writes and (job.model_dir / "tokenizer.json").exists():
        functions = section.data_processor == "PyStdlibDataProcessor"
        begin = "def read_" if functions or job.train is None else first_words(job.train)
        line = f'wafer generate --checkpoint_path {typed(checkpoint)} --prompt "{begin}"'
        lines.append(with_trust(line, model=sections["model"], sparsity=sections.get("sparsity")))
    if sparsifier := job.experiment.sparsifier:
        line = f"wafer finalize -i {typed(checkpoint)} -o {typed(job.model_dir / 'finalized')}"
        built = any(masks_forward(algorithm) for _, algorithm in sparsifier.groups)
        model = sections["model"] if built else None
        lines.append(with_trust(line, sparsity=sections["sparsity"], model=model))
    return lines


def next_lines(lines: Sequence[str]) -> list[str]:
    """Lay suggestions out; lines that begin with ``wafer`` get the command as it was called."""
    named = (re.sub("^wafer(?= )", lambda _: command(), line) for line in lines)
    return ["Next:", *(f"  {line}" for line in named)]


def _program(program: str) -> str:
    """Shorten a program's path: its name where the shell finds it, else relative if below here."""
    path = pathlib.Path(os.path.abspath(program))  # links are kept: a venv's python is one
    if shutil.which(path.name) == str(path):
        return path.name
    here = pathlib.Path.cwd()
    if path.is_relative_to(here):
        short = str(path.relative_to(here))
        return typed(short if os.sep in short else f".{os.sep}{short}")
    return typed(path)
