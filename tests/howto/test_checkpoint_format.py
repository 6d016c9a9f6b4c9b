"""docs/howto/checkpoint-format.md: its changes to a copy of layout.py make version 3."""

import json
import re
import types

import pytest
from helpers.paths import ROOT

from wafer.models.checkpoint import layout
from wafer.models.checkpoint.layout import FormatVersionError

PAGE = ROOT / "docs" / "howto" / "checkpoint-format.md"
RECORD = {"step": 7, "data": {"next_index": 28}}


@pytest.fixture(scope="module")
def version_3():
    """``layout`` with the page's changes."""
    source = (ROOT / "models" / "checkpoint" / "layout.py").read_text()
    for block in re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL):
        lines = block.splitlines(keepends=True)
        old, new = ("".join(x[1:] for x in lines if x[0] == sign) for sign in "-+")
        assert source.count(old) == 1, f"the page's line is not in layout.py: {old}"
        source = source.replace(old, new)
    module = types.ModuleType("layout_version_3")
    exec(compile(source, "layout.py", "exec"), vars(module))
    return module


def folder(path, write):
    (path / "state").mkdir(parents=True)
    write(path)
    return path


def test_the_new_code_reads_every_version(version_3, tmp_path):
    def first(path):  # version 1 has neither a version nor checksums
        (path / "meta").mkdir()
        (path / "meta" / "metadata").write_text(json.dumps(RECORD))

    kinds = {
        "1": first,
        "2": lambda path: layout.write_record(path, RECORD, {"w": "0"}),
        "3": lambda path: version_3.write_record(
            path, {"step": 7, version_3.DATA: RECORD["data"]}, {"w": "0"}
        ),
    }
    for name, write in kinds.items():
        record, sums = version_3.read_record(folder(tmp_path / name, write))
        assert record == {"step": 7, "loader": {"next_index": 28}}, name
        assert sums == (None if name == "1" else {"w": "0"})


def test_the_present_code_refuses_what_the_new_one_writes(version_3, tmp_path):
    new = folder(tmp_path / "3", lambda path: version_3.write_record(path, {"step": 7}, {}))
    with pytest.raises(FormatVersionError, match=r"format 3, .*reads formats up to 2"):
        layout.read_record(new)


def test_the_page_has_this_version_and_golden_files_of_the_one_before():
    text = PAGE.read_text().replace("-FORMAT", "FORMAT")
    assert f"FORMAT_VERSION = {layout.FORMAT_VERSION}\n" in text
    golden = ROOT / "tests" / "golden" / "checkpoints"
    assert [path.name for path in golden.glob("v*")] == ["v1"]  # version 2 gets its own with 3
    files = {path.name for path in (golden / "v1").iterdir()}
    assert files == {"checkpoints.tar.xz", "expected.json"}
