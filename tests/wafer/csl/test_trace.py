"""What is recorded of a run, and what shows it: intervals, links, profile, files, refusals."""

import argparse
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.csl_program import compiled, ran

import wafer.csl
from wafer.cli import main
from wafer.csl import Machine, Recording, trace
from wafer.csl.host.tools.traced import view_script
from wafer.errors import CompileError
from wafer.machine.costs import ARCHS
from wafer.machine.engine import available
from wafer.machine.tools.recording import TASK
from wafer.machine.tools.trace import profile_of
from wafer.machine.tools.view.block import page, unpack

LIBRARY = Path(wafer.csl.__file__).parent / "library"

pytestmark = pytest.mark.skipif(not available(), reason="the machine is not built")

SENDING = Path(__file__).parent / "programs" / "sending"
LINES = (SENDING / "pe.csl").read_text(encoding="utf-8").splitlines()
LINE_OF_OUT, LINE_OF_IN = (
    next(k for k, line in enumerate(LINES, 1) if start in line)
    for start in ("@mov32(OUT, A", "@mov32(Y, IN")
)


@pytest.fixture(scope="module")
def sending():
    return wafer.csl.compile(SENDING / "layout.csl")


def run(image, *args, **wanted):
    """What is recorded of a run."""
    return ran(image, record=Recording(*args, **wanted)).trace


def rows(recorded, **wanted):
    """Indices of the intervals with these values."""
    keep = np.ones(len(recorded.begin), bool)
    for name, value in wanted.items():
        keep &= getattr(recorded, name) == value
    return np.flatnonzero(keep)


def test_tasks_and_operations_are_intervals(sending):
    seen = run(sending)
    (out,), (into,) = rows(seen, thread=2), rows(seen, thread=3)
    assert (seen.x[out], seen.x[into]) == (0, 1)
    assert (seen.line[out], seen.line[into]) == (LINE_OF_OUT, LINE_OF_IN)
    assert seen.files[seen.file[out]].endswith("pe.csl")
    assert seen.elements[[out, into]].tolist() == [4, 4]
    assert seen.end[out] - seen.begin[out] == 4  # one word in a cycle
    assert seen.names[seen.name[out]] == "function go"
    number = seen.names.index("finish (local task 10)")
    (finish,) = rows(seen, thread=TASK, name=number)
    assert seen.x[finish] == 1
    assert seen.begin[finish] == seen.end[into]  # it is activated in the cycle of the last word
    assert sorted(seen.names[seen.name[k]] for k in rows(seen, thread=TASK)) == [
        *("finish (local task 10)", "function go", "function go")
    ]


def test_words_over_links_by_cycle(sending):
    seen = run(sending)
    (out,) = rows(seen, thread=2)
    assert seen.every == 1
    windows, _, x, port = np.argwhere(seen.links).T
    east, ramp = windows[(x == 0) & (port == 1)], windows[(x == 1) & (port == 4)]
    # Two cycles up the ramp and one in the router; then a hop.
    assert east.tolist() == [seen.begin[out] + 3 + k for k in range(4)]
    assert ramp.tolist() == (east + 1).tolist()
    assert seen.links.sum() == 8


def test_windows_grow_and_lose_no_word(sending):
    machine = ran(sending, record=Recording(windows=4))
    seen = machine.trace
    assert seen.every & seen.every - 1 == 0
    assert 4 * seen.every >= machine.cycle > 2 * seen.every
    np.testing.assert_array_equal(seen.links.sum(axis=0), machine.links)


def test_a_recording_does_not_depend_on_the_threads(tmp_path):
    image = compiled(tmp_path, "fn go() void { y[0] = x; }", width=1)
    image = image._replace(
        tiles=np.zeros((4, 3), np.int32),
        **{
            name: np.broadcast_to(value, (4, 3, *value.shape[2:]))
            for name in ("colors", "switches", "routed", "filters")
            for value in [getattr(image, name)]
        },
    )
    seen = [ran(image, threads=count, record=Recording()).trace for count in (1, 3)]
    assert len(seen[0].begin) == 12
    for one, other in zip(*([*each[:-1], *each.detail] for each in seen), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_window_of_cycles_and_a_rectangle(sending):
    whole = run(sending)
    (into,) = rows(whole, thread=3)
    first, last = int(whole.begin[into]) + 2, int(whole.end[into]) - 1
    part = run(sending, begin=first, end=last, rectangle=(1, 0, 1, 1))
    assert set(part.x.tolist()) <= {1}
    assert part.cycles == (first, last)
    assert part.rectangle == (1, 0, 1, 1)
    (spans,) = rows(part, thread=3)
    assert (part.begin[spans], part.end[spans]) == (first, last)
    ends = run(sending, begin=first)
    (cut,) = rows(ends, thread=3)
    assert (ends.begin[cut], ends.end[cut]) == (first, whole.end[into])
    np.testing.assert_array_equal(
        part.links.sum(axis=0), whole.links[first:last, :, 1:].sum(axis=0)
    )


def test_what_has_not_ended_lasts_until_now(sending):
    seen = run(sending, end=10)
    (out,) = rows(seen, thread=2)
    assert seen.end[out] == 10


def test_the_limit_of_events_is_said(sending):
    seen = run(sending, events=2)
    assert seen.full is not None
    assert seen.end.max() == seen.full  # what still ran is cut there
    assert run(sending).full is None


@pytest.mark.parametrize(
    ("recording", "message"),
    [
        (Recording(rectangle=(1, 0, 2, 1)), r"2 x 1 PEs from \(1, 0\) on: the program has 2 x 1"),
        (Recording(begin=7, end=7), "from cycle 7 to 7: there is no cycle"),
        (Recording(windows=50_000_000), "takes 1907 MiB, of 1024; name a smaller rectangle"),
    ],
)
def test_a_recording_that_cannot_be_made(sending, recording, message):
    with pytest.raises(CompileError, match=message):
        Machine(sending, record=recording)


def test_no_recording_no_trace(sending):
    with pytest.raises(CompileError, match=r"nothing was recorded; .* record=Recording\(\)"):
        _ = Machine(sending).trace


def test_a_profile_sums_to_the_busy_cycles(tmp_path):
    """A task that waits for nobody: all cycles but the switch to it are some line's."""
    text = """
const Y = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> y[i] });
fn go() void {
  for (@range(i16, 500)) |k| {
    @add32(Y, Y, 3);
  }
}
"""
    image = compiled(tmp_path, text.replace("@add32", "@mov32").replace("Y, Y, 3", "Y, 3"))
    runtime = wafer.csl.Runtime(image, record=Recording())
    runtime.launch("go")
    runtime.stop()
    (task,) = rows(runtime.trace, thread=TASK)
    busy = runtime.trace.end[task] - runtime.trace.begin[task]
    profile = runtime.profile
    assert sum(line.cycles for line in profile) == busy - ARCHS["wse2"].switch_task
    assert sum(line.share for line in profile) == pytest.approx(1)
    assert [line.cycles for line in profile] == sorted((p.cycles for p in profile), reverse=True)
    assert any(line.text == "@mov32(Y, 3);" for line in profile)
    shown = trace.profile_text(profile, most=1)
    assert "cycles  share" in shown
    assert f"in {len(profile) - 1} more lines" in shown


def test_chrome_events(sending):
    events = trace.chrome_trace(run(sending))["traceEvents"]
    named = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {"PE (0, 0)", "PE (1, 0)", "task", "microthread 2", "microthread 3"} == named
    spans = [e for e in events if e["ph"] == "X"]
    assert all({"name", "ts", "dur", "pid", "tid", "args"} <= e.keys() for e in spans)
    assert {e["pid"] for e in spans} == {0, 1}
    (out,) = [e for e in spans if e["args"]["line"] == LINE_OF_OUT and "of" in e["args"]]
    assert (out["dur"], out["args"]["elements"], out["args"]["of"]) == (4, 4, "function go")
    assert json.loads(json.dumps(events)) == events


@pytest.mark.slow
def test_pictures(sending, tmp_path):
    seen = run(sending)
    axes = trace.timeline(seen, str(tmp_path / "t.png")).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["PE (0, 0)", "PE (1, 0)"]
    assert {text.get_text() for text in axes.texts} == {"go", "finish"}
    (plane, _) = trace.heat_map(seen, "east", str(tmp_path / "h.png")).axes
    assert plane.get_aspect() == 1  # a PE is a square
    with pytest.raises(ValueError, match="there are task, west, east"):
        trace.heat_map(seen, "up")


SCRIPT = """
import sys
from pathlib import Path
from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime
assert sys.argv[1:3] == ["--name", "out"], sys.argv
runner = SdkRuntime(sys.argv[2])
runner.load(); runner.run()
runner.launch("go", nonblock=False)
runner.stop()
print("SUCCESS")
sys.exit(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shutil.copytree(SENDING, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.py").write_text(SCRIPT, encoding="utf-8")
    assert main(["csl", "compile", "layout.csl", "-o", "out"]) == 0
    return tmp_path


def test_the_command_writes_what_is_asked_for(folder, cli):
    path = list(sys.path)
    asked = "--chrome trace.json --picture t.png --profile --energy"
    printed = cli(f"csl trace run.py --name out {asked}")
    assert "SUCCESS\n" in printed
    assert "tasks and operations in cycles 0 to" in printed
    assert f"pe.csl:{LINE_OF_IN}" in printed
    assert "pJ a cycle; at 0.85 GHz" in printed
    assert json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert (folder / "t.png").exists()
    assert sys.path == path


def test_reports_name_the_table_of_cycles_and_the_clock_of_wse3(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    cli("csl example hello")
    cli("csl compile hello/layout.csl -o out --arch wse3 --timing silicon")
    printed = cli("csl trace hello/run.py --profile --energy")
    assert "timing: silicon\n" in printed
    assert "pJ a cycle; at 0.875 GHz" in printed


def test_the_command_keeps_the_scripts_status_and_its_options(folder, cli):
    cli("csl trace --profile run.py --from 3 -- --name out 5", 5)
    printed = cli("csl trace --events 1 --chrome t.json run.py --name out")
    assert "the limit of events was reached in cycle" in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run.py --name out", ["nothing to show; give --chrome"]),
        ("--profile none.py", ["ran no program on PEs"]),
        ("--picture t.xyz long.py", ["--picture t.xyz: unknown kind of file; endings: ", "png"]),
    ],
)
def test_the_command_refuses_what_shows_nothing_before_the_run(folder, words, said, cli):
    (folder / "none.py").write_text("", encoding="utf-8")
    (folder / "long.py").write_text("raise SystemExit(9)", encoding="utf-8")
    err = cli(f"csl trace {words}", 1)
    assert all(part in err for part in said), err


def test_a_profile_names_files_as_a_reader_looks_for_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = [
        str(tmp_path / "src" / "pe.csl"),
        str(LIBRARY / "memcpy" / "memcpy.csl"),
        "/far/pe.csl",
    ]
    shown = trace.profile_text(profile_of({(file, 7): 10 - k for k, file in enumerate(files)}))
    places = [row.split()[2] for row in shown.splitlines()[1:]]
    assert places == ["src/pe.csl:7", "<memcpy/memcpy>:7", "/far/pe.csl:7"]


def test_the_view_of_a_script_of_a_folder_and_of_a_recording(folder, cli):
    assert "wrote run.view\n" in cli("csl view run.py --name out -o run.view --from 2")
    header, columns = unpack((folder / "run.view").read_bytes())
    assert (header["title"], header["cycles"][0]) == ("run.py", 2)
    assert columns["run_count"].sum() > 0
    cli("csl view run.view -o run.html")
    assert (folder / "run.html").read_text() == page((folder / "run.view").read_bytes())
    cli("csl view -o routes.view out")
    header, columns = unpack((folder / "routes.view").read_bytes())
    assert (header["cycles"], header["report"]) == ([0, 1], [])
    assert header["notes"] == ["timing: simulator", "nothing has run"]
    assert columns["route"].tolist() == [16 | 2 << 5, 1 | 16 << 5]


def test_the_view_of_a_deadlock_prints_the_address_of_its_cause(folder, capsys):
    """No task frees the command stream, so the copy waits for ever."""
    copy = "\nimport numpy\ny = numpy.zeros(8, numpy.int32)\n"
    copy += 'runner.memcpy_d2h(y, runner.get_id("y"), 0, 0, 2, 1, 4)\n'
    text = SCRIPT.replace("\nrunner.stop()", copy)
    (folder / "run.py").write_text(text, encoding="utf-8")
    assert main(["csl", "view", "run.py", "--name", "out", "-o", "run.view"]) == 1
    out, err = capsys.readouterr()
    header, _ = unpack((folder / "run.view").read_bytes())
    assert header["ending"] in err
    assert out == "wrote run.view\n"  # which no browser opens
    assert main(["csl", "view", "run.py", "--name", "out", "-o", "run.html"]) == 1
    first, cycle = header["report"][0], header["cycles"][1] - 1
    address = f"run.html#cycle={cycle}&pe={first['x']},{first['y']}\n"
    assert address in capsys.readouterr().out


@pytest.mark.parametrize("end", ["assert 1 == 2, 'a wrong result'", "raise KeyboardInterrupt"])
def test_a_script_that_ends_otherwise_has_its_page(folder, end):
    text = SCRIPT.replace('print("SUCCESS")', end)
    (folder / "run.py").write_text(text, encoding="utf-8")
    args = argparse.Namespace(script=Path("run.py"), arguments=["--name", "out"], pes=None)
    vars(args).update(output=Path("run.view"), begin=None, end=None, events=None)
    with pytest.raises((AssertionError, KeyboardInterrupt)):
        view_script(args)
    header, columns = unpack((folder / "run.view").read_bytes())
    assert header["ending"] == ""
    assert columns["run_count"].sum() > 0


def test_the_view_of_a_program_of_the_fabric(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    script = "from wafer import fabric\nfrom wafer.fabric.library import lowering\n"
    script += "for _ in range(2): fabric.simulate(lowering.broadcast_program(4, 2, 3))\n"
    (tmp_path / "two.py").write_text(script, encoding="utf-8")
    assert "wrote two-1.view\nwrote two-2.view\n" in cli("csl view two.py -o two.view")
    header, _ = unpack((tmp_path / "two-2.view").read_bytes())
    assert (header["title"], header["size"]) == ("two.py, 2", [4, 2])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run.py", "no file to write; give -o FILE.html"),
        ("none.py -o x.html", "none.py does not exist"),
        ("layout.csl -o x.html", "view: no recording"),
        ("run.py --name out -o none/x.html", "none/x.html: its folder is missing or read-only"),
        ("run.py --name out -o out", "out: it is a folder; expected a file"),
    ],
)
def test_the_view_refuses_what_it_can_not_show(folder, words, said, cli):
    before = sorted(folder.iterdir())
    assert said in cli(f"csl view {words}", 1)
    assert sorted(folder.iterdir()) == before  # the script has not run: no sim.log


def test_a_window_behind_the_end_is_in_the_notes(folder, cli):
    cli("csl view run.py --name out -o late.view --from 100000")
    header, _ = unpack((folder / "late.view").read_bytes())
    ended = "no cycles: the run ended before cycle 100,000"
    assert header["notes"] == ["timing: simulator", ended]
