"""``wafer csl``: exit codes, what is printed, which files change."""

import pytest

from wafer.cli import main


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "good.csl").write_text("const x = 1;\n", encoding="utf-8")
    (tmp_path / "deep" / "loose.csl").write_text("const  x=1;", encoding="utf-8")
    return tmp_path


def test_check(folder, capsys):
    assert main(["csl", "check", str(folder)]) == 0
    assert capsys.readouterr().out == "2 file(s), 0 with errors\n"
    (folder / "bad.csl").write_text("const x = ;\n", encoding="utf-8")
    assert main(["csl", "check", str(folder)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "3 file(s), 1 with errors\n"
    assert f"{folder / 'bad.csl'}:1:11: error: expected an expression, found ';'" in captured.err


def test_format(folder, capsys):
    loose = folder / "deep" / "loose.csl"
    assert main(["csl", "format", "--check", str(folder)]) == 1
    assert capsys.readouterr().out == f"{loose}\n2 file(s), 1 would change, 0 with errors\n"
    assert loose.read_text(encoding="utf-8") == "const  x=1;"
    assert main(["csl", "format", str(folder)]) == 0
    assert loose.read_text(encoding="utf-8") == "const x = 1;\n"
    capsys.readouterr()
    assert main(["csl", "format", "--check", str(loose)]) == 0


def test_a_folder_without_programs(tmp_path, capsys):
    assert main(["csl", "check", str(tmp_path)]) == 1
    assert "no .csl file in this folder" in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["csl", "check", str(tmp_path / "none.csl")]) == 1
    assert "none.csl" in capsys.readouterr().err
