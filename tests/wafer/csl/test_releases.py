"""What only some releases of the SDK have: old modules and builtins, and the table of them."""

from pathlib import Path

import numpy as np
import pytest
from helpers.csl_program import ran
from helpers.paths import ROOT

import wafer.csl
from wafer.csl.syntax.releases import FEATURES, Feature, feature_of

FOLDER = Path(__file__).parent / "programs" / "releases"
STREAMS, STREAMED, TALLY, TALLY_PE, ONE, CALLED = (
    (FOLDER / f"{name}.csl").read_text(encoding="utf-8")
    for name in ("streams", "streamed", "tally", "tally_pe", "one", "called")
)


def compiled(folder, layout, pe, **options):
    (folder / "layout.csl").write_text(layout, encoding="utf-8")
    (folder / "pe.csl").write_text(pe, encoding="utf-8")
    return wafer.csl.compile(folder / "layout.csl", **options)


@pytest.mark.native
def test_programs_name_their_own_streams_in_memcpy_multi(tmp_path):
    image = compiled(tmp_path, STREAMS, STREAMED)
    assert image.streams == {3: "MEMCPYH2D_1", 4: "MEMCPYD2H_1"}
    runtime = wafer.csl.Runtime(image)
    runtime.launch("go")
    runtime.memcpy_h2d(3, np.array([6, 41], np.uint32), 0, 0, 1, 1, 2, streaming=True)
    back = np.zeros(2, np.uint32)
    runtime.memcpy_d2h(back, 4, 0, 0, 1, 1, 2, streaming=True)
    assert back.tolist() == [7, 42]
    assert any("memcpy_multi" in file for file in image.programs[0].files)  # of simfab_traces


@pytest.mark.native
def test_the_tally_without_callback_sends_its_total_north(tmp_path):
    image = compiled(tmp_path, TALLY, TALLY_PE)
    assert (image.programs[0].tables["queues"][:8, 0] == -1).all()
    machine = ran(image)
    assert machine.links[..., 3].tolist() == [[0, 1], [0, machine.links[1, 1, 3]]]


@pytest.mark.parametrize(
    ("sdk", "pe", "message"),
    [
        ("1.4", STREAMED, "<memcpy_multi/memcpy> is of SDK 0.6 to 0.9; now: <memcpy/memcpy>"),
        ("0.9.0", None, "@bind_local_task is of SDK 1.0 and later; before: @bind_task"),
    ],
)
def test_a_release_that_is_told_has_nothing_of_others(tmp_path, sdk, pe, message):
    pe = pe or STREAMED.replace("@bind_task(take, into)", "@bind_local_task(take, into)")
    layout = STREAMS
    if sdk == "1.4":  # the layout's module has the same row
        layout = STREAMS.replace("memcpy_multi/", "memcpy/")
    with pytest.raises(wafer.csl.CslError) as caught:
        compiled(tmp_path, layout, pe, sdk=sdk)
    assert caught.value.problems[0].message == message
    assert caught.value.problems[0].hint == f"compiled with --sdk={sdk}"


def test_releases():
    row = Feature("@x", "0.8", "1.0")
    assert [row.is_in(sdk) for sdk in ("0.6", "0.8.0", "1.0.0", "1.1")] == [0, 1, 1, 0]
    assert feature_of("@get_int").is_in("2.10")
    assert feature_of("@mov32") is None


def test_the_guide_has_the_table():
    text = (ROOT / "docs" / "guides" / "csl-releases.md").read_text(encoding="utf-8")
    for row in FEATURES:
        last = row.last or "–"
        assert f"| `{row.name}` | {row.first} | {last} | {row.instead or '–'} |" in text


@pytest.mark.native
def test_tasks_were_functions_too(tmp_path):
    image = compiled(tmp_path, ONE, CALLED, sdk="1.3")
    assert ran(image).read(0, 0, image.programs[0].symbols["y"].address, 2).view(np.uint16) == [6]
    for sdk in ("", "1.4"):
        with pytest.raises(wafer.csl.CslError) as caught:
            compiled(tmp_path, ONE, CALLED, sdk=sdk)
        problem = caught.value.problems[0]
        assert problem.message == (
            "the task 'add' is activated, not called; a task called as a function is of SDK 0.4 to"
            " 1.3; now: @activate"
        )
        assert problem.hint == "@activate(its id), or compile with --sdk=1.3"


def test_modules_in_angle_brackets_may_be_of_an_import_path(tmp_path):
    (tmp_path / "own" / "deep").mkdir(parents=True)
    (tmp_path / "own" / "deep" / "more.csl").write_text("const three = 3;", encoding="utf-8")
    pe = """const more = @import_module("<deep/more>");
    var y: u16 = more.three;
    fn go() void { y += 1; }
    comptime { @export_symbol(go); }"""
    image = compiled(tmp_path, ONE, pe, import_paths=(str(tmp_path / "own"),))
    program = image.programs[0]
    assert program.memory[program.symbols["y"].address] == 3
    with pytest.raises(wafer.csl.CslError, match="there is no system module <deep/more>"):
        compiled(tmp_path, ONE, pe)
