"""README and docs: their code runs, their commands parse, their sections load, their files exist.

Python blocks of a page run one after another in one scope, in a folder of their own. A comment
``<!-- test: slow -->`` before a block leaves it to the slow suite, where commands run, too. What is
not to be run is ``text`` or ``console``. The how-tos, the notebooks' pages and the checkpoint
format have tests of their own.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from typing import NamedTuple

import pytest
import yaml
from helpers import reference
from helpers.paths import ROOT
from helpers.runs import tiny

from wafer import cli
from wafer.config import parse_config

README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
OWN_TEST = ("notebooks", "howto", "concepts/checkpoint-format.md")
FENCE = re.compile(r"^(?:<!-- test: slow(.*?)-->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KINDS = {"", "python", "sh", "yaml", "text", "console", "csl"}
TEXTS = ["the cat sat on the mat and the dog on the log. " * 30 for _ in range(40)]


class Block(NamedTuple):
    """A fenced block.

    needs: text after "test: slow", where it is marked so; else None
    kind: the fence's language
    body: its lines
    """

    needs: str | None
    kind: str
    body: str


def blocks(path, *kinds):
    """Fenced blocks of a page; of these kinds, or all."""
    matches = re.finditer(FENCE, path.read_text(encoding="utf-8"))
    every = [Block(*match.groups()) for match in matches]
    return [block for block in every if not kinds or block.kind in kinds]


def name(path):
    return str(path.relative_to(ROOT))


def run_here(path):
    """Whether a page's blocks are run by this file."""
    return not any(path.is_relative_to(DOCS / part) for part in OWN_TEST)


def with_blocks(kind, *, slow=False):
    """Pages with blocks of a kind; with slow ones among them."""
    return [
        path
        for path in PAGES
        if run_here(path) and any(b.needs is not None or not slow for b in blocks(path, kind))
    ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, from which the checkout's files are seen as from its root."""
    for part in ("models", "tests"):
        (tmp_path / part).symlink_to(ROOT / part)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_python(path, *, slow):
    scope = {"__name__": path.stem}
    for i, block in enumerate(blocks(path, "python")):
        if slow or block.needs is None:
            exec(compile(block.body, f"{name(path)}, block {i}", "exec"), scope)
    return scope


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=name(path)) for path in with_blocks("python") if path != README],
)
def test_python_runs(path, folder):
    run_python(path, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("path", with_blocks("python", slow=True), ids=name)
def test_slow_python_runs(path, folder):
    run_python(path, slow=True)


def test_readme_runs_and_its_loop_learns_at_80_percent_sparsity(folder, capsys):
    scope = run_python(README, slow=False)
    assert "sparsity 0.80" in capsys.readouterr().out
    assert float(scope["value"]) < 2.0  # ln 32 = 3.47 at the start


def commands(block):
    """The ``wafer`` commands of a block, as lists of arguments."""
    lines = block.body.replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[1:] for line in words if line and line[0].rpartition("/")[2] == "wafer"]


@pytest.mark.parametrize("path", with_blocks("sh"), ids=name)
def test_commands_parse(path, monkeypatch):
    def refuse(parser, message):
        raise AssertionError(f"{name(path)}: {parser.prog}: {message}")

    monkeypatch.setattr(argparse.ArgumentParser, "error", refuse)
    for block in blocks(path, "sh"):
        for argv in commands(block):
            cli._parser(argv[0]).parse_args(argv)


@pytest.mark.slow
@pytest.mark.parametrize("path", with_blocks("sh", slow=True), ids=name)
def test_cheap_commands_run(path, folder):
    (folder / "texts").mkdir()
    for i, text in enumerate(TEXTS):
        (folder / "texts" / f"{i}.txt").write_text(f"{i} {text}")
    quick = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    for block in blocks(path, "sh"):
        for argv in commands(block) if block.needs is not None else ():
            line = [sys.executable, "-m", "wafer", *argv]
            ran = subprocess.run(line, check=False, capture_output=True, text=True, env=quick)
            assert ran.returncode == 0, f"wafer {shlex.join(argv)}:\n{ran.stderr[-3000:]}"


def missing_files(path):
    """Files that a page or a script names, and that are not there."""
    text = path.read_text(encoding="utf-8")
    rooms = "tests|models|notebooks|wafer|docs"
    named = re.findall(rf"(?<![\w/.])((?:{rooms})/[\w./-]+\.\w+)|`((?:{rooms})/[\w./-]+)`", text)
    files = [file for pair in named for file in pair if file and "NAME" not in file]
    return [file for file in files if not (ROOT / file).exists()]


@pytest.mark.parametrize("path", sorted((ROOT / ".ci").iterdir()), ids=name)
def test_checks_name_files_that_exist(path):
    assert not missing_files(path)


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_scripts_exist(path):
    """Files that a command or a sentence names are there."""
    assert not missing_files(path)
    assert {block.kind for block in blocks(path)} <= KINDS


def whole(section):
    """A small run with a page's sections in it."""
    model = {"vocab_size": 512, "hidden_size": 64, "max_position_embeddings": 512}
    data = {"data_processor": "PyStdlibDataProcessor", "vocab_size": 512, "batch_size": 8}
    base = tiny(model=model, runconfig=section.get("runconfig", {}))
    del base["eval_input"]
    base["train_input"] = data | {"max_sequence_length": 128}
    base["optimizer"] = {"optimizer_type": "AdamW", "learning_rate": 0.01}
    return base | section | {"runconfig": base["runconfig"]}


@pytest.mark.parametrize("path", with_blocks("yaml"), ids=name)
def test_sections_load(path):
    for block in blocks(path, "yaml"):
        parse_config(whole(yaml.safe_load(block.body)))


def test_readme_is_short():
    assert len(README.read_text().splitlines()) <= 150


def test_the_test_command_is_what_ci_runs():
    (command,) = re.findall(r"^python3 -m venv .*pytest$", README.read_text(), flags=re.MULTILINE)
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


def test_the_main_command_is_in_the_head_of_its_params_file():
    for path in (README, DOCS / "index.md", DOCS / "guides" / "train.md"):
        command = re.findall(
            r"wafer run --params (models/configs/\S+ --mode train_and_eval .*)$",
            path.read_text(),
            flags=re.MULTILINE,
        )[0]
        head = (ROOT / command.split()[0]).read_text()
        assert f"wafer run --params {command}" in head


def test_links_of_readme_lead_somewhere():
    """mkdocs checks those of the docs."""
    for path in (README, ROOT / "CONTRIBUTING.md"):
        targets = re.findall(r"\]\((?!http)([^)#]+)", path.read_text())
        assert not [target for target in targets if not (ROOT / target).exists()]


@pytest.mark.parametrize("path", reference.pages(), ids=name)
def test_the_reference_lists_every_public_name(path):
    """`python tests/helpers/reference.py` writes the tables anew."""
    assert path.read_text() == reference.with_table(path)


def test_no_page_is_only_a_line_for_a_generator():
    generated = re.compile(r"^(:::|--8<--).*$|^#.*$", flags=re.MULTILINE)
    assert not [name(path) for path in PAGES if not generated.sub("", path.read_text()).strip()]


def test_the_navigation_has_five_short_groups_from_which_every_page_is_reached():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    home, *groups = [entry for row in nav for entry in row.values()]
    assert len(groups) == 5
    assert max(len(group) for group in groups) <= 8
    pages = [home, *(page for group in groups for row in group for page in row.values())]
    reached, ahead = set(), {DOCS / page for page in pages}
    while ahead:
        page = ahead.pop()
        reached.add(page)
        links = re.findall(r"\]\(([^)#:\s]+\.md)", page.read_text(encoding="utf-8"))
        ahead |= {(page.parent / link).resolve() for link in links} - reached
    assert reached == set(DOCS.rglob("*.md"))
