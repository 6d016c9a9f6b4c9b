"""``wafer csl``: exit codes, what is printed, which files change."""

import json
import os

import pytest

from wafer.cli import main


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "good.csl").write_text("const x = 1;\n", encoding="utf-8")
    (tmp_path / "deep" / "loose.csl").write_text("const  x=1;", encoding="utf-8")
    return tmp_path


def test_check(folder, cli):
    assert cli(f"csl check {folder}") == "2 file(s), 0 with errors\n"
    (folder / "bad.csl").write_text("const x = ;\n", encoding="utf-8")
    said = cli(f"csl check {folder}", 1)
    assert f"{folder / 'bad.csl'}:1:11: error: expected an expression, found ';'" in said


def test_format(folder, capsys, cli):
    loose = folder / "deep" / "loose.csl"
    assert main(["csl", "format", "--check", str(folder)]) == 1
    assert capsys.readouterr().out == f"{loose}\n2 file(s), 1 would change, 0 with errors\n"
    assert loose.read_text(encoding="utf-8") == "const  x=1;"
    cli(f"csl format {folder}")
    assert loose.read_text(encoding="utf-8") == "const x = 1;\n"
    cli(f"csl format --check {loose}")


def test_a_folder_without_programs_and_a_file_that_is_not_there(tmp_path, cli):
    assert "no .csl file in this folder" in cli(f"csl check {tmp_path}", 1)
    for verb in ("check", "compile"):
        assert "none.csl" in cli(f"csl {verb} {tmp_path}/none.csl", 1)


@pytest.mark.parametrize("command", ["check", "format --check", "compile"])
@pytest.mark.parametrize("kind", ["pipe", "device", "large"])
def test_what_is_no_file_of_text(tmp_path, cli, kind, command):
    path = tmp_path / "odd.csl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 33)
    wrong = "8,589,934,592 bytes" if kind == "large" else "this is no regular file"
    assert f"{path}:1:1: error: {wrong}" in cli(f"csl {command} {path}", 1)


def test_a_looped_link_in_a_folder(folder, capsys):
    (folder / "loop.csl").symlink_to("loop.csl")
    (folder / "deep" / "up").symlink_to("..")
    assert main(["csl", "check", str(folder)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "3 file(s), 1 with errors\n"
    assert f"{folder / 'loop.csl'}:1:1: error: " in captured.err


LAYOUT = """param width: u16;
layout {
  @set_rectangle(width, 1);
  for (@range(u16, width)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{ .x = x });
  }
}
"""
PE = """param x: u16;
var y: i16 = {value};
task t() void {{
  y = 0;
  const z: i16 = {value};
}}
comptime {{ @bind_local_task(t, @get_local_task_id(8)); }}
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "layout.csl").write_text(LAYOUT, encoding="utf-8")
    (tmp_path / "pe.csl").write_text(PE.format(value="1.5"), encoding="utf-8")
    return tmp_path


def test_check_of_a_layout_finds_errors_of_types(program, capsys, cli):
    assert main(["csl", "check", str(program), "--params=width:2"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "2 file(s), 1 layout(s) with their types, 1 with errors\n"
    assert f"{program / 'pe.csl'}:2:14: error: expected i16, found 1.5" in captured.err
    assert f"{program / 'pe.csl'}:5:18: error" in captured.err
    assert captured.err.count("error:") == 2  # not once for each PE and architecture
    (program / "pe.csl").write_text(PE.format(value="1"), encoding="utf-8")
    assert cli(f"csl check {program} --params=width:2").endswith("types, 0 with errors\n")
    assert not (program / "out").exists()


def test_check_says_which_params_it_lacks(program, cli):
    said = f"{program / 'layout.csl'}: types were not checked; give --params=width:…\n"
    assert cli(f"csl check {program}") == f"{said}2 file(s), 0 with errors\n"
    said = cli(f"csl check {program} --params=width:2,hight:3", 1)
    assert "there is no param 'hight' in this file" in said


def test_check_says_an_error_of_grammar_once(program, cli):
    (program / "pe.csl").write_text("var y: i16 = ;\n", encoding="utf-8")
    assert cli(f"csl check {program} --params=width:2", 1).count("error:") == 1


def test_check_takes_what_either_architecture_compiles(program, cli):
    (program / "pe.csl").write_text(
        'param x: u16;\ncomptime { @comptime_assert(@is_arch("wse3")); }\n', encoding="utf-8"
    )
    cli(f"csl check {program} --params=width:2")
    cli(f"csl check {program} --params=width:2 --arch=wse2", 1)


@pytest.mark.native
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_an_example_compiles_and_runs(tmp_path, monkeypatch, capsys, cli, arch):
    from wafer.csl.host.tools.scripts import run_here

    monkeypatch.chdir(tmp_path)
    cli("csl example hello")
    monkeypatch.chdir(folder := tmp_path / "hello")
    cli(f"csl compile layout.csl --arch={arch} -o out")
    assert run_here("run.py", []) == 0
    assert capsys.readouterr().out.endswith("SUCCESS!\n")
    cli(f"csl format --check {folder}")
    said = cli(f"csl example hello {folder}", 1)
    assert "README.md is there already; name another folder" in said
    assert "no example 'helo'; did you mean 'hello'?" in cli("csl example helo", 1)
    assert "hello        Four PEs in a row; each adds" in cli("csl example")


@pytest.mark.parametrize("hyphens", ["-", "--"])
def test_options_with_one_hyphen_or_two(folder, cli, hyphens):
    (folder / "layout.csl").write_text(
        'param n: u16; layout { @set_rectangle(n, 1); @set_tile_code(0, 0, "good.csl"); }\n',
        encoding="utf-8",
    )
    options = "arch=wse3 fabric-dims=9,3 fabric-offsets=4,1 params=n:2 memcpy channels=1"
    options += " max-inlined-iterations=100"
    arguments = [hyphens + option for option in options.split()]
    cli(["csl", "compile", folder / "layout.csl", "-o", folder / "out", *arguments])
    written = json.loads((folder / "out" / "out.json").read_text(encoding="utf-8"))
    assert written["params"] == {"n": "2"}


def test_a_color_without_routes(tmp_path, cli):
    """Early releases name a color without routes by a number above 23, which out.json keeps."""
    (tmp_path / "pe.csl").write_text(
        "param none: color; fn f() void {} comptime { @comptime_assert(@get_int(none) == 43); }\n",
        encoding="utf-8",
    )
    (tmp_path / "layout.csl").write_text(
        "param none: color;\nlayout { @set_rectangle(1, 1);"
        ' @set_tile_code(0, 0, "pe.csl", .{ .none = none }); }\n',
        encoding="utf-8",
    )
    command = f"csl compile {tmp_path / 'layout.csl'} -o {tmp_path / 'out'} --colors=none:"
    cli(f"{command}43")
    written = json.loads((tmp_path / "out" / "out.json").read_text(encoding="utf-8"))
    assert written["colors"] == {"none": "43"}
    for number in (-1, 64):
        said = cli(f"{command}{number}", 1)
        assert f"--colors=none:{number}: the param 'none' is of type color, found {number}" in said
        assert "colors go from 0 to 63" in said
