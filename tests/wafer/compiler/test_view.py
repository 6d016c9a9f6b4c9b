"""The page of a floor plan: what a click on a kernel shows is what the compiler found."""

import dataclasses

import jax.numpy as jnp
import pytest
from helpers.browser import Browser, needs_chromium

from wafer.compiler.compile import CompileOptions, compile_graph, trace
from wafer.compiler.picture import fill_color, layer_colors
from wafer.compiler.view import floor_view
from wafer.machine.tools.view.block import unpack
from wafer.spec import WSE2


@pytest.fixture(scope="module")
def compiled():
    params = {f"fc_{i}": {"kernel": jnp.zeros((32, 32))} for i in range(3)}
    net = lambda params, x: jnp.square(
        x @ params["fc_0"]["kernel"] @ params["fc_1"]["kernel"]
    ).sum()
    spec = dataclasses.replace(WSE2, width=24, height=20)
    graph = trace(net, params, jnp.zeros((16, 32)))
    return compile_graph(graph, CompileOptions(spec=spec, batch=8, replicas=2))


def test_the_block_has_each_kernel(compiled):
    header, _ = unpack(floor_view(compiled).block)
    assert [k["name"] for k in header["kernels"]] == [k.name for k in compiled.kernels]
    for shown, region in zip(header["kernels"], compiled.plan.regions, strict=True):
        assert [shown[side] for side in ("x", "y", "width", "height")] == list(region[1:5])
    assert header["replicas"] == [list(shift) for shift in compiled.plan.replicas]
    first = compiled.kernels[0]
    red = fill_color(layer_colors(compiled)[first.layer], first.kind)[0]
    assert int(header["kernels"][0]["color"][1:3], 16) == round(255 * red)


@needs_chromium()
def test_a_click_on_a_kernel(compiled, tmp_path):
    floor_view(compiled).save(tmp_path / "plan.html")
    browser = Browser(tmp_path / "profile")
    try:
        browser.open(tmp_path / "plan.html")
        facts = {row[0]: row[1] for row in browser.rows("#kernel")}
        assert facts["kernels"] == str(len(compiled.kernels))
        for dx, dy in compiled.plan.replicas:
            for kernel, region in zip(compiled.kernels, compiled.plan.regions, strict=True):
                x, y = region.x + dx + region.width // 2, region.y + dy + region.height // 2
                browser.click_plane(x, y)
                facts = {row[0]: row[1] for row in browser.rows("#kernel")}
                assert browser.text("#kernel h3") == kernel.name
                assert facts["cycles per sample"] == f"{kernel.cycles:,}"
                assert facts["shape in PEs"] == f"{region.width} x {region.height}"
                assert ("it bounds" in facts["bound"]) == (kernel == compiled.slowest)
    finally:
        browser.close()
