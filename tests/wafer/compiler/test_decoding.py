"""Floor plans of decoders that write: kernels of one token, their cycles, tokens per second."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from helpers.paths import ROOT

from wafer.commands.inputs import experiment_of
from wafer.commands.planning.compile import compile
from wafer.compiler.compile import CompileOptions, compile_graph
from wafer.compiler.costs import Setting, choices_of
from wafer.compiler.decode import mesh
from wafer.compiler.decode.kernels import Inference, decoding_graph, with_decoding
from wafer.compiler.decode.mesh import gemv_cycles
from wafer.compiler.graph import Graph, Kernel, Product
from wafer.compiler.report import from_json, report_text, to_json
from wafer.errors import ConfigError
from wafer.spec import WSE2

GPT = ROOT / "models" / "configs" / "gpt_pystdlib.yaml"
SMALL = dataclasses.replace(WSE2, width=60, height=50)


def kernel(name, kind, products, **more):
    """Of a sequence of ten tokens."""
    fields = {
        "layer": name, "lanes": 0, "half_lanes": 0, "elements": 10, "weights": 0, "names": (),
        "inputs": 10, "outputs": 10, "stashed": 99, "needs_dx": True, "needs_dw": True, "bits": 32,
    }  # fmt: skip
    return Kernel(name=name, kind=kind, products=products, **fields | more)


def written():
    """An embedding, a product, attention of 6 heads to 3 keys' heads, a head, a loss."""
    tokens, shared = 10, 2
    kernels = (
        kernel("embed", "embedding", (Product(1, tokens, 50, 8),), weights=400),
        kernel("up", "matmul", (Product(1, tokens, 8, 24),), lanes=240, weights=192, density=0.2),
        kernel(
            "attn",
            "attention",
            (Product(3, tokens, 4, shared * tokens), Product(3, 4, tokens, shared * tokens)),
            lanes=1200,
        ),
        kernel("head", "matmul", (Product(1, tokens, 24, 50),), weights=1200),
        kernel("loss", "loss", (), lanes=5000),
    )
    edges = ((0, 1, 80), (1, 2, 240), (2, 3, 240), (3, 4, 500))
    return Graph(kernels, edges, 40)


def test_kernels_of_one_token_by_hand():
    graph = decoding_graph(written(), Inference(context=64))
    embed, up, attn, head, last = graph.kernels
    assert embed.products == (Product(1, 1, 50, 8),)
    assert up.products == (Product(1, 1, 8, 24),)
    assert (up.lanes, up.density, up.needs_dx, up.stashed) == (24, 1.0, False, 0)
    assert attn.products == (Product(3, 2, 4, 64), Product(3, 2, 64, 4))
    assert attn.lanes == 1200 * 64 // 100
    assert head.macs == 24 * 50
    assert (last.name, last.kind, last.elements, last.lanes) == ("likeliest", "norm", 50, 100)
    assert graph.edges == ((0, 1, 8), (1, 2, 24), (2, 3, 24), (3, 4, 50))


def test_a_gemv_by_hand():
    """8 inputs on two columns, 24 outputs on three rows: 4 rows of 8 numbers, sums of 8 words."""
    cycles = gemv_cycles(np.array(4), np.array(8), (np.array(3), np.array(2)), 1)
    product = 4 * (8 + mesh.ROW_CYCLES)
    summed = mesh.LINE_CYCLES + mesh.HOP_CYCLES + 8 * 2
    assert cycles == 4 + 3 + product + summed
    assert mesh.line_cycles(1, 8) == 0
    both = mesh.LINE_CYCLES + mesh.SIDE_CYCLES
    assert mesh.line_cycles(9, 8) == both + mesh.HOP_CYCLES * 4 + 8 * 3
    packed = gemv_cycles(np.array(4), np.array(8), (np.array(3), np.array(2)), 4)
    assert packed == 2 + 3 + 4 * (2 + mesh.ROW_CYCLES) + summed - 8


def test_keys_and_values_of_all_sequences_are_in_a_pe_s_memory():
    attn = decoding_graph(written(), Inference(64)).kernels[2]
    one, four = (choices_of(attn, Setting(sequences=count)) for count in (1, 4))
    assert (one.cycles == four.cycles).all()
    own, held = -(-3 // one.rows), -(-64 // one.columns)
    np.testing.assert_array_equal(four.sram - one.sram, 3 * 2 * own * 4 * held * 4)


def test_tokens_per_second_by_hand():
    """The way of a token is the sum of kernels and ways; the slowest kernel bounds the rest."""
    inference = Inference(64)
    graph = decoding_graph(written(), inference)
    compiled = compile_graph(graph, CompileOptions(spec=SMALL, train=False, sequences=1))
    alone = with_decoding(compiled, graph, inference, None)
    centres = [(2 * r.x + r.width, 2 * r.y + r.height) for r in compiled.plan.regions]
    ways = sum((abs(a[0] - b[0]) + abs(a[1] - b[1])) // 2 for a, b in itertools.pairwise(centres))
    total = sum(k.forward for k in compiled.kernels) + ways
    assert alone.decoding.latency == total
    assert alone.decoding.kinds["ways"] == ways
    assert sum(alone.decoding.kinds.values()) == total
    assert alone.tokens == WSE2.clock_hz / total
    assert alone.bounded_by.startswith("the way of a token: ")
    many = with_decoding(compiled, graph, Inference(64, 1000), None)
    assert many.tokens == WSE2.clock_hz / max(k.forward for k in compiled.kernels)
    assert many.bounded_by == f"the slowest kernel, {many.slowest.name}"
    assert alone.decoding.cache == 2 * 3 * 4 * 64 * 4


def test_a_run_file_s_report(tmp_path):
    options = {
        "inference": True,
        "context": 64,
        "sequences": 2,
        "fabric": {"width": 120, "height": 110},
        "compile_dir": str(tmp_path / "kept"),
    }
    result = compile(GPT, tmp_path / "plan", **options)
    compiled = result.compiled
    assert compiled.decoding.context == 64
    assert compiled.decoding.cache == 2 * 2 * 128 * 64 * 4  # layers, keys and values, in 32 bits
    assert {k.kind for k in compiled.kernels} == {"embedding", "norm", "matmul", "attention"}
    assert all(k.backward == k.update == 0 for k in compiled.kernels)
    best = compiled.decoding.mesh
    parts = mesh.mesh_parts(experiment_of(GPT).model.config, (best.height, best.width), 64)
    assert best.cycles == mesh.token_cycles(parts, 63)
    text = report_text(compiled)
    assert "Decoding (a sample is a token)" in text
    assert f"{compiled.tokens:,.0f}" in text
    assert from_json(json.loads(json.dumps(to_json(compiled)))) == compiled
    stored = json.loads((tmp_path / "plan" / "compile_report.json").read_text(encoding="utf-8"))
    assert stored["estimate"]["tokens_per_s"] == compiled.tokens
    again = compile(GPT, tmp_path / "plan", **options)
    assert again.kept
    assert again.compiled == compiled


def test_errors():
    digits = ROOT / "models" / "configs" / "fc_mnist" / "fc_digits.yaml"
    for message, file, options in (
        (r"context.*without --inference", GPT, {"context": 64}),
        ("1000 tokens; the model has 1 to 512", GPT, {"inference": True, "context": 1000}),
        (r"sequences.*0; expected 1 or more", GPT, {"inference": True, "sequences": 0}),
        ("writes no text", digits, {"inference": True}),
    ):
        with pytest.raises(ConfigError, match=message):
            compile(file, **options)
    with pytest.raises(ValueError, match="no embedding"):
        decoding_graph(Graph((), (), 0), Inference(8))
