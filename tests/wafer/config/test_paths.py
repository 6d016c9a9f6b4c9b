"""Paths that lead to no file: each message says what is there."""

import os

import pytest

from wafer.cli import main
from wafer.models.files import require_path


@pytest.mark.parametrize("command", [["run"], ["plan"], ["data", "stats"]])
def test_run_files_that_are_no_files(command, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")  # as of `--params <(…)`
    (tmp_path / "link.yaml").symlink_to("gone.yaml")
    (tmp_path / "folder.yaml").mkdir()
    for name, said in {
        "pipe": "a pipe or device, which can be read once; write its text to a file",
        "link.yaml": "a link to gone.yaml, which does not exist",
        "folder.yaml": "is a folder, not a file",
        "links.yaml": "no such file; did you mean 'link.yaml'?",
    }.items():
        assert main([*command, "-p", str(tmp_path / name)]) == 1
        assert f"{tmp_path / name}: {said}" in capsys.readouterr().err


def test_a_link_that_leads_nowhere_names_its_end(tmp_path):
    (tmp_path / "model").symlink_to(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=r"model is a link to .*gone, which does not exist"):
        require_path(tmp_path / "model")
