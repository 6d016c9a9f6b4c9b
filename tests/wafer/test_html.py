"""What users hold shows itself in a notebook: HTML that is whole, safe and short."""

import datetime
import pathlib
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from wafer.commands.checkpoints.convert import ConversionSummary
from wafer.commands.checkpoints.inspect import CheckpointInfo
from wafer.commands.checkpoints.prune import PruneSummary
from wafer.commands.planning.scaling import ScalingPlan
from wafer.commands.results import Trained
from wafer.commands.sweep import SweepOutcome
from wafer.compiler.experiment import CompileResult
from wafer.compiler.plan import Compiled, FloorPlan, PlacedKernel
from wafer.machine.tools.recording import TASK, Trace
from wafer.machine.tools.trace import Line, LineProfile
from wafer.models.checkpoint.checksums import ArrayRecord
from wafer.models.errors import MissingPackageError
from wafer.models.shown.html import table
from wafer.profiling.report import ModuleShare, Profile
from wafer.roofline import MACHINES, Prediction
from wafer.session.metrics import History
from wafer.sparsity.finalize import Report, TensorReport
from wafer.sparsity.selected import SelectionRow, SelectionTable
from wafer.spec import WSE2, Region
from wafer.sweeps.table import Summary, TrialResult

BAD = "<script>alert('&')</script>"
MANY = 10_000
VOID = {"img", "br"}


class Page(HTMLParser):
    """Text of a page whose elements are closed in order."""

    def __init__(self, page):
        super().__init__()
        self.open, self.text = [], []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag != "script"
        assert not any(name.startswith("on") for name, _ in attrs)
        self.open += [tag] * (tag not in VOID)

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def trained(rows):
    metrics = [{"step": i + 1, "time": 1e9, "loss": 5.25, BAD: 1.0} for i in range(rows)]
    scores = {i: {"loss": 4.5} for i in range(rows)}
    path = pathlib.Path("runs") / BAD.replace("/", "")
    return Trained(path, path, 731, {}, (path / "731",), scores, metrics, 0)


def swept(rows):
    runs = tuple(TrialResult(BAD, "g", i, 2.125, 8, 4, 9, 1.0, 1.0, 2.0) for i in range(rows))
    arm = Summary(BAD, rows, 2.125, None, 0, None, None, None)
    missing = {f"{BAD}/{i}": "killed" for i in range(rows)}
    return SweepOutcome(runs, (arm,), "loss", pathlib.Path("sweep"), missing, {})


def history(rows):
    steps = np.arange(rows) + 1.0
    loss = np.full(rows, 3.0625)
    return History(
        {"step": steps, "loss": loss, BAD: loss}, {f"tag {i}": loss for i in range(rows)}
    )


def profiled(rows):
    module = ModuleShare(BAD, 1.375, 50.0, 2)
    return Profile((2, 4), 1.375 * rows, (module,) * rows)


def planned(rows):
    stages = {"layer": (1.0, 2.0)}
    one = {"compute": 1.625, "waited": 0.5, "latency": 0.1, "memory": 1.0, "streamed": 1.0}
    systems = [Prediction(systems=i + 1, seconds=2.25, stages=stages, **one) for i in range(rows)]
    return ScalingPlan(BAD, MACHINES["cs2"], tuple(systems), 99, 8, 7, ("a", "b"), 4)


def compiled(rows):
    spec = WSE2
    side = 7
    kernels = tuple(
        PlacedKernel(
            name=BAD, kind="matmul", layer=f"{BAD}{i}", rows=side, columns=side, forward=1250,
            backward=0, update=0, useful=9.0, flops=8, sram=64, held=9, weights=1, density=1.0,
            in_side="W", out_side="N",
        )
        for i in range(rows)
    )  # fmt: skip
    regions = tuple(
        Region(BAD, side * (i % 100), side * (i // 100), side, side) for i in range(rows)
    )
    floor = FloorPlan(spec.width, spec.height, regions)
    plan = Compiled(
        BAD, spec, kernels, (), floor, 4, 1, train=False, bound=1.0, single=1250, seed=0
    )
    return CompileResult(plan, pathlib.Path("plan"), kept=False)


def finalized(rows):
    tensors = [TensorReport(BAD, ArrayRecord((4, 2), "float32", ""), 3) for _ in range(rows)]
    return Report(pathlib.Path("from"), pathlib.Path("dense"), tuple(tensors))


def pruned(rows):
    layers = tuple((BAD, 8, 3) for _ in range(rows))
    return PruneSummary(pathlib.Path("half"), "62.50% of 8 weights pruned", layers)


def converted(rows):
    return ConversionSummary(pathlib.Path("there"), BAD, rows, 771, tokenizer=True)


def described(rows):
    modified = datetime.datetime(2026, 11, 29)
    params = tuple((BAD, (4, 2), "float32") for _ in range(rows))
    return CheckpointInfo(BAD, 5_500_000, modified, 300, params)


def selected(rows):
    row = SelectionRow(BAD, (4, 2), "io", 0.5, 0.625, "masked", "it matches")
    return SelectionTable([row] * rows)


def recorded(rows):
    zeros = np.zeros(rows, np.int64)
    columns = {"begin": zeros, "end": zeros + 5, "x": zeros, "y": zeros, "thread": zeros + TASK}
    columns |= {"name": np.arange(rows), "names": (BAD,) * rows, "file": zeros, "files": ("f",)}
    columns |= {"line": zeros, "elements": zeros, "links": np.zeros((1, 1, 1, 5)), "every": 1}
    columns |= {"full": None, "detail": None}
    return Trace(**columns, cycles=(0, 5), rectangle=(0, 0, 33, 1))


def line_profile(rows):
    return LineProfile([Line(f"{BAD}.csl", 1, 321, 0.5, "x")] * rows)


RESULTS = {  # what makes it of so many rows -> a value of it
    trained: "731",
    swept: "2.125",
    history: "3.0625",
    profiled: "1.375",
    planned: "1.625",
    compiled: "1,250 cycles per sample",
    finalized: "37.5",
    pruned: "62.50%",
    converted: "771",
    described: "5.5 MB",
    selected: "50.0% to 62.5%",
    recorded: "33 x 1 PEs",
    line_profile: "321",
}


@pytest.mark.parametrize("make", RESULTS)
def test_a_result_shows_itself_in_a_notebook(make, monkeypatch):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)  # where rich prints by display
    monkeypatch.setenv("FORCE_COLOR", "1")  # as kernels do
    for rows in (2, MANY):
        result, value = make(rows), RESULTS[make]
        page = result._repr_html_()
        assert "<script" not in page
        assert "&lt;script&gt;" in page
        assert len(page.encode()) < 100_000
        assert value in "".join(Page(page).text)
    assert value in repr(make(2))
    assert "\x1b" not in repr(make(2))


def test_a_compilation_has_its_floor_plan_as_a_picture():
    page = compiled(300)._repr_html_()
    assert 'src="data:image/' in page
    assert len(page.encode()) < 100_000


def test_a_long_table_says_how_many_rows_it_leaves_out():
    page = table("rows", ("n",), [(i,) for i in range(1000)])
    shown = [int(n) for n in re.findall(r"<td>(\d+)</td>", page)]
    assert (shown[0], shown[-1]) == (0, 999)
    assert f"… {1000 - len(shown)} more rows" in page
    wide = table("rows", ["head"] * 20, [["é" * 200] * 20] * 30)
    assert len(wide.encode()) < 30_000


def test_a_history_as_frames(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match=r"needs the package pandas.*notebooks"):
        history(2).to_pandas()
    monkeypatch.undo()
    pandas = pytest.importorskip("pandas")
    train, _ = history(2).to_pandas()
    assert isinstance(train, pandas.DataFrame)
    assert train["step"].tolist() == [1, 2]
