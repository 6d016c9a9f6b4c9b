"""The end of a command: nobody reads its output, or its message holds what a terminal obeys."""

import os
import subprocess
import sys

import pytest

from wafer.cli import main


@pytest.mark.parametrize("command", [["models"], ["data", "--help"]])
def test_a_reader_that_has_seen_enough_ends_a_command_quietly(command):
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "wafer", *command],
        check=False,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert ended.stderr == ""
    assert ended.returncode in (0, 141)  # argparse passes over what it cannot print


def test_messages_spell_out_what_steers_a_terminal_and_end_somewhere(capsys):
    assert main(["data", "verify", "no\x1b[31m\x07\x9b\udc80é"]) == 1
    assert r"no\x1b[31m\x07\x9b\udc80é; expected" in capsys.readouterr().err
    assert main(["data", "split", "-i", "a", "-o", "b", "--ratios", "x" * 30_000]) == 1
    assert capsys.readouterr().err.endswith(" more characters)\n")
