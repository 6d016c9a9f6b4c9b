"""The list of public programs, and what running such a list says."""

import re

import pytest
from helpers.paths import ROOT
from helpers.public_programs import PublicProgram, judge, read_list


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
