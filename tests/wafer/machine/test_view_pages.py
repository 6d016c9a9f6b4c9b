"""Pages of four programs in a browser: what is clicked shows what the machine says."""

import numpy as np
import pytest
from helpers.browser import Browser, needs_chromium
from helpers.csl_program import compiled, ran
from helpers.csl_wire import route, wire
from helpers.paths import ROOT
from helpers.view_lines import LINES, lines_executed

import wafer.csl
from wafer import fabric
from wafer.csl import trace
from wafer.fabric.library import lowering
from wafer.machine.costs import ARCHS
from wafer.machine.engine import available
from wafer.machine.tools.reports import Reason

pytestmark = [needs_chromium(), pytest.mark.skipif(not available(), reason="no machine built")]
SENDING = ROOT / "tests" / "wafer" / "csl" / "programs" / "sending" / "layout.csl"
LEGEND = "[...document.querySelectorAll('#legend b')].map(b => Number(b.innerText))"
STATES = ["idle", "computes", "waits for a wavelet", "waits to send", "waits otherwise", "fault"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of a run, at an address behind it."""

    def opened(run, ending="", address=""):
        view = trace.view(run, "a run", ending)
        view.save(tmp_path / "run.html")
        browser.open(tmp_path / "run.html", address or view.address)
        return browser

    return opened


def states_at(machine, cycle):
    """[PEs] state in a cycle, from the recorded rows."""
    rows = machine.trace.detail.states
    out = np.zeros(machine.image.tiles.size, int)
    for row in rows[rows["cycle"] <= cycle]:
        out[row["cell"]] = row["state"]
    return out


def step_to(page, cycle):
    """Steps by the page's own buttons."""
    steps = cycle - page.evaluate("window.view.cycle")
    for _ in range(abs(steps)):
        page.click("#step1" if steps > 0 else "#back1")
    assert page.evaluate("document.getElementById('cycle').value") == str(cycle)


def click_pe(page, x, y):
    """Click into the middle of a PE on the plane, wherever the plane was zoomed to."""
    page.evaluate(f"window.plane.show({x}, {y})")
    page.click_plane(x, y)


def test_a_program_step_by_step(show):
    machine = ran(wafer.csl.compile(SENDING), record=trace.VIEW)
    seen = machine.trace
    (into,) = np.flatnonzero(seen.thread == 3)
    page = show(machine, address="#cycle=0")
    for cycle in range(machine.cycle):
        step_to(page, cycle)
        shares = np.bincount(states_at(machine, cycle), minlength=6)
        assert page.evaluate(LEGEND) == shares.tolist()
    click_pe(page, 1, 0)
    assert page.text("#pe h3") == "PE (1, 0)"
    memory = {row[0]: row[2] for row in page.rows("#memory")}
    assert memory["y"] == "11 2 3 4"
    arrives = int(seen.begin[seen.thread == 2][0]) + 5  # docs/concepts/machine.md
    step_to(page, arrives)
    (row,) = [row for row in page.rows("#queues") if row[0] == "0"]
    # The first word is in the queue, the second comes down, the third has entered the router.
    assert row == ["0", "1", "0", "3", "0x00000001", "0"]
    assert page.text("#state") == f"waits for a wavelet at pe.csl:{seen.line[into]}"
    step_to(page, arrives + 1)
    assert page.text("#state").startswith("computes")
    page.click("#state a")
    profile = machine.profile
    share = 100 * profile[seen.files[seen.file[into]], int(seen.line[into])] / sum(profile.values())
    assert f"{share:.1f} % of all cycles; 1 PEs are at it" in page.text("#line")


@pytest.mark.parametrize("name", LINES)
def test_each_cycle_shows_the_line_that_is_executed(show, tmp_path, name):
    image = compiled(tmp_path, LINES[name])
    machine, executed = ran(image, record=trace.VIEW), lines_executed(image)
    page = show(machine, address="#cycle=0")
    begin = int(machine.trace.begin[0]) + ARCHS["wse2"].switch_task
    shown = page.evaluate(
        f"Array.from({{ length: {len(executed)} }}, (_, k) => run.lines[run.line(0, {begin} + k)])"
        ".map(([file, line]) => [run.files[file][0], line])"
    )
    assert [*map(tuple, shown)] == executed
    cycle = begin + len(executed) // 2
    page.evaluate(f"(c => (c.value = {cycle}, c.dispatchEvent(new Event('change'))))(cycle)")
    click_pe(page, 0, 0)
    assert page.text("#state") == f"computes at pe.csl:{executed[len(executed) // 2][1]}"


@pytest.fixture
def deadlock(tmp_path):
    """A chain of 8 PEs whose seventh takes the color from the north: the error, the runtime."""
    routes = [route(0, "RAMP", "EAST"), *(route(x, "WEST", "RAMP, EAST") for x in range(1, 6))]
    routes += [route(6, "NORTH", "EAST"), route(7, "WEST", "RAMP")]
    image = wire(tmp_path, [("x == 0", "role == 0")], routes="".join(routes), width=8, words=20)
    runtime = wafer.csl.Runtime(image, record=trace.VIEW)
    runtime.launch("go", nonblock=True)
    with pytest.raises(wafer.csl.DeadlockError) as caught:
        runtime.memcpy_d2h(np.zeros(8, np.uint32), runtime.get_id("y"), 0, 0, 8, 1, 1)
    return caught.value, runtime


def test_from_a_deadlock_to_the_wrong_route_in_three_clicks(show, deadlock):
    error, runtime = deadlock
    page = show(runtime, str(error).splitlines()[0], "#")
    assert page.text("#report p") == str(error).splitlines()[0]
    first = error.waiting[0]
    cause = page.text("#report .cause")
    assert cause in str(error)
    assert cause.startswith("a neighbor that takes no word: PE (5, 0)")
    page.click("#report a")  # 1: what holds up the others
    assert page.text("#pe h3") == f"PE ({first.x}, {first.y})" == "PE (5, 0)"
    assert page.text("#color h3") == "Color 4"
    page.click("#router .refusal a")  # 2: the PE that does not take the color
    assert page.text("#pe h3") == "PE (6, 0)"
    row = next(row for row in page.rows("#router") if row[0] == "4")
    assert row[1:3] == ["NORTH", "EAST"]
    page.click("#router tr[data-color='4'] td:last-child a")  # 3: the line that says so
    assert ".rx = .{ NORTH }" in page.text("tr.chosen code")
    held = {tuple(map(int, row[0][4:-1].split(", "))): int(row[1]) for row in page.rows("#color")}
    waiting = {(w.x, w.y) for w in error.waiting if w.code == Reason.IN_ROUTER}
    assert {pe for pe, words in held.items() if words} == waiting


def test_the_address_of_a_report_shows_its_pe_and_cycle(show, deadlock):
    error, runtime = deadlock
    page = show(runtime, str(error))
    assert page.text("#pe h3") == "PE (5, 0)"
    assert page.evaluate("window.view.cycle") == runtime.cycles - 1
    page = show(runtime, str(error), "#cycle=x&pe=x,y")  # not an address: as without one
    assert page.evaluate("[view.cycle, view.place]") == [runtime.cycles - 1, -1]
    click_pe(page, 7, 0)
    (row,) = page.rows("#pe")
    assert row[3].endswith(f" to {runtime.cycles - 1}")  # it waits until the end


def test_a_fault_is_at_its_line(show, tmp_path):
    text = "fn go() void {\n  var k: u16 = 5;\n  y[k * 5000] = 3;\n}\n"
    machine = wafer.csl.Machine(compiled(tmp_path, text, width=2), record=trace.VIEW)
    machine.launch(wafer.csl.Rectangle(1, 0, 1, 1), "go")
    machine.run()
    assert "is outside of the" in machine.fault
    page = show(machine)
    assert page.text("#report a") == machine.fault
    assert page.text("#pe h3") == "PE (1, 0)"
    assert page.text("#state").startswith("fault at pe.csl:")
    assert page.text("#at") == "y[k * 5000] = 3;"
    assert "Words were kept until" not in page.text("#queues")


def test_a_program_of_the_fabric(show):
    program = lowering.broadcast_program(4, 2, 3)
    values = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    state, _ = fabric.trace.record(program, {program.arrays[0].name: values})
    page = show(state, address="#cycle=0")
    middle = state.machine.cycle // 2
    page.evaluate(f"(c => (c.value = {middle}, c.dispatchEvent(new Event('change'))))(cycle)")
    states = states_at(state.machine, middle)
    width = program.width
    for cell in range(states.size):
        click_pe(page, cell % width, cell // width)
        assert page.text("#state").partition(" at ")[0] == STATES[states[cell]]
    shown = {row[0]: row[2].split() for row in page.rows("#memory")}
    last = state.arrays[next(iter(shown))][-1, -1]
    np.testing.assert_allclose(np.array(shown[next(iter(shown))], float), last, rtol=1e-5)
