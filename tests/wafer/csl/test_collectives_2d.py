"""``<collectives_2d>``: any roots, sizes from 1 on, both axes at once, PEs that begin late."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from wafer.csl.host.runtime import Runtime
from wafer.csl.semantics.compile import compile_layout

engine = pytest.importorskip("wafer.machine.engine")
pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not engine.available(), reason="no compiled machine"),
]
LAYOUT = Path(__file__).parent / "programs" / "collectives" / "layout.csl"


class Axis:
    """One axis of the program: its arrays, and what they must hold in the end.

    Values are [lines, PEs, n]: lines are rows for x, columns for y.
    """

    def __init__(self, runtime, axis, roots, n, random):
        height, width = runtime.image.tiles.shape
        self.runtime, self.axis, self.roots, self.n = runtime, axis, roots, n
        lines, size = (height, width) if axis == "x" else (width, height)
        self.size = size
        self.first, self.last = random.integers(0, 2**32, (2, lines, size, n), np.uint32)
        self.parts = random.integers(0, 2**32, (lines, size, size * n), np.uint32)
        self.terms = random.integers(-50, 50, (lines, size, n)).astype(np.float32)

    def move(self, name, values, copy):
        height, width = self.runtime.image.tiles.shape
        there = values if self.axis == "x" else values.swapaxes(0, 1)
        flat = np.ascontiguousarray(there).reshape(-1)
        symbol = self.runtime.get_id(f"{self.axis}_{name}")
        copy(symbol, flat, 0, 0, width, height, values.shape[2])
        there = flat.reshape(height, width, -1)
        return there if self.axis == "x" else there.swapaxes(0, 1)

    def put(self):
        for name in ("first", "last", "parts", "terms"):
            self.move(name, getattr(self, name), self.runtime.memcpy_h2d)

    def get(self, name, like):
        def take(symbol, flat, *region):
            self.runtime.memcpy_d2h(flat, symbol, *region)

        return self.move(name, np.zeros_like(like), take)

    def check(self):
        a, b, c, d, e = self.roots
        shape = self.first.shape
        for name, root in (("first", a), ("last", e)):
            expected = np.broadcast_to(getattr(self, name)[:, root : root + 1], shape)
            np.testing.assert_array_equal(self.get(name, self.first), expected)
        sent = self.parts[:, b].reshape(shape)
        np.testing.assert_array_equal(self.get("part", self.first), sent)
        whole = np.zeros_like(self.parts)
        whole[:, c] = sent.reshape(shape[0], -1)
        np.testing.assert_array_equal(self.get("whole", self.parts), whole)
        sums = np.zeros_like(self.terms)
        sums[:, d] = self.terms.sum(1)
        np.testing.assert_array_equal(self.get("sum", self.terms), sums)


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize(
    ("width", "height", "n", "x_roots", "y_roots"),
    [
        (1, 1, 1, (0, 0, 0, 0, 0), (0, 0, 0, 0, 0)),
        (2, 1, 5, (0, 1, 0, 1, 0), (0, 0, 0, 0, 0)),
        (3, 4, 7, (1, 2, 0, 1, 2), (3, 0, 2, 1, 3)),
        (6, 5, 3, (0, 5, 5, 0, 3), (4, 4, 0, 2, 1)),
        (5, 2, 16, (2, 2, 2, 2, 2), (1, 0, 1, 0, 1)),
        (4, 3, 1, (0, 1, 2, 3, 0), (0, 1, 2, 0, 1)),
    ],
)
def test_all_operations(arch, width, height, n, x_roots, y_roots):
    params = {"width": width, "height": height, "n": n}
    params |= {f"x{k}": root for k, root in enumerate(x_roots)}
    params |= {f"y{k}": root for k, root in enumerate(y_roots)}
    image = compile_layout(LAYOUT, params, arch=arch)
    runtime = Runtime(image, engine.Machine(image))
    random = np.random.default_rng(width * 100 + height)
    rooted = {"x": x_roots, "y": y_roots}
    axes = [Axis(runtime, axis, roots, n, random) for axis, roots in rooted.items()]
    for axis in axes:
        axis.put()
    runtime.launch("run")
    for axis in axes:
        axis.check()
    runtime.stop()


TASKS = ".x_colors = .{ c0, c1 }, .x_entrypoints = .{ t0, t1 }"


@pytest.mark.parametrize(
    "params", [TASKS, ".x_colors = [4]color{ c0, c1, @get_color(10), @get_color(11) }"]
)
def test_a_program_may_have_one_axis_alone(tmp_path, params):
    """A broadcast along a row of four; before SDK 1.0 the tasks are two more colors."""
    shutil.copytree(LAYOUT.parents[1] / "one_axis", tmp_path, dirs_exist_ok=True)
    layout = tmp_path / "layout.csl"
    text = layout.read_text(encoding="utf-8").replace(TASKS, params)
    layout.write_text(text, encoding="utf-8")
    image = compile_layout(layout)
    runtime = Runtime(image, engine.Machine(image))
    runtime.launch("go")
    runtime.machine.run(10_000)
    for x in range(4):
        assert runtime.read_symbol(x, 0, "y").tolist() == [3, 7]
        assert runtime.read_symbol(x, 0, "done").tolist() == [1]
