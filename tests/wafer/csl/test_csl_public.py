"""The list of public programs, and what running such a list says."""

import re
import subprocess

import pytest
from helpers.paths import ROOT
from helpers.public_programs import PublicProgram, judge, read_list, run_list

LIST = """
[[repository]]
name = "someone/kernels"
commit = "HEAD"
[[repository.program]]
folder = "one"
commands = "cat said.txt"
release = "1.4"
success = "SUCCESS"
[[repository.program]]
folder = "one"
commands = "echo 'no module named x' >&2; exit 3"
release = "1.0"
success = "SUCCESS"
outcome = "needs something outside CSL: x"
message = "module named x"
"""


def test_the_list():
    programs = read_list(ROOT / "tests" / "csl_public.toml")
    assert programs
    for program in programs:
        assert len(program.commit) == 40
        assert bool(program.outcome) == bool(program.message)
        assert not re.search(program.success, "compiled out\nstep 1\nend"), program.name


@pytest.mark.parametrize(
    ("outcome", "status", "output", "expected"),
    [
        ("", 0, "SUCCESS!", (True, "success")),
        ("", 1, "SUCCESS!\nbut", (False, "exit status 1: but")),
        ("", 0, "", (False, "exit status 0: no output")),
        ("broken itself: why", 1, "no such name", (True, "broken itself: why")),
        ("broken itself: why", 1, "other", (False, "exit status 1: other")),
        ("broken itself: why", 0, "SUCCESS!", (False, "success")),
    ],
)
def test_how_a_program_is_judged(outcome, status, output, expected):
    program = PublicProgram("a/b", "0", ".", "x", "1.4", "SUCCESS", outcome, "no such name")
    assert judge(program, status, output) == expected


def test_programs_of_a_clone(tmp_path):
    clone = tmp_path / "clones" / "someone" / "kernels"
    (clone / "one").mkdir(parents=True)
    (clone / "one" / "said.txt").write_text("SUCCESS\n", encoding="utf-8")
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    (tmp_path / "list.toml").write_text(LIST, encoding="utf-8")
    lines = []
    logs = tmp_path / "logs"
    clones = tmp_path / "clones"
    assert run_list(clones, tmp_path / "list.toml", 20, lines.append, logs=logs) == 0
    assert lines[1:] == [
        "| someone/kernels: one | 1.4 | success |",
        "| someone/kernels: one | 1.0 | needs something outside CSL: x |",
        "2 of 2 programs end as listed",
    ]
    assert (logs / "someone_kernels_one.0").read_text(encoding="utf-8") == "SUCCESS\n"
    with pytest.raises(SystemExit, match="someone/kernels: no clone; expected one of "):
        run_list(tmp_path, tmp_path / "list.toml", 20, lines.append)
