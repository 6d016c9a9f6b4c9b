"""How-to pages, carried out as a reader does."""

import re
import sys

import pytest
from helpers.paths import ROOT


@pytest.fixture
def carried_out(tmp_path, monkeypatch, cli):
    """Write a page's module and run file into a folder and run its command there, and once more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])  # the file's python_paths alone find the module

    def carry_out(page, module, *more):
        text = (ROOT / "docs" / "howto" / f"{page}.md").read_text(encoding="utf-8")
        blocks = dict(re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL))
        (tmp_path / f"{module}.py").write_text(blocks["python"])
        (tmp_path / "params.yaml").write_text(blocks["yaml"])
        assert blocks["sh"].startswith("wafer ")
        for flags in ("", *more):
            monkeypatch.delitem(sys.modules, module, raising=False)  # each run reads the file
            cli(f"{blocks['sh'].removeprefix('wafer ').strip()} {flags}")
        return tmp_path / "run"

    return carry_out
