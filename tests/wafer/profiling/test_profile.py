"""Profiles: which module an operation belongs to, self times, and a real run's table."""

import json

import pytest
import yaml
from helpers.runs import config

from wafer.cli import main
from wafer.commands.run import run as run_mode
from wafer.config import parse_config
from wafer.errors import ConfigError
from wafer.profiling.report import chrome_trace, summarize, text_table
from wafer.profiling.scopes import instruction_scopes, module_of
from wafer.profiling.trace import Operation, _match, _nest

HLO = """HloModule jit__step, is_scheduled=true

%fused (p.0: f32[2]) -> f32[2] {
  %a.1 = f32[2] add(%p.0, %p.0), metadata={op_name="jit(_step)/jvp(layers_0)/Block/ffn/up/add"}
  ROOT %b.1 = f32[2] add(%a.1, %a.1), metadata={op_name="jit(s)/jvp(layers_0)/Block/ffn/up/add"}
}

%split (p.1: f32[2]) -> f32[2] {
  ROOT %negate.1 = f32[2] negate(%p.1)
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %x = f32[2] parameter(0)
  %copy.1 = f32[2] copy(%x)
  %broadcast.1 = f32[2] broadcast(%copy.1)
  %lonely = f32[2] copy(%x)
  %fusion = f32[2] fusion(%broadcast.1), kind=kLoop, calls=%fused
  %dot.3 = f32[2] dot(%x, %x), metadata={op_name="jit(s)/transpose(jvp(embed))/Embed/token/dot"}
  %late = f32[2] call(%dot.3, %fusion), to_apply=%split
  ROOT %sum = f32[2] multiply(%broadcast.1, %late), metadata={op_name="jit(s)/optimizer/mul"}
}
"""
PARAMS = {
    "embed": {"token": {"embedding": 0}},
    "layers_0": {"attn": {"query": {"kernel": 0}}, "ffn": {"up": {"kernel": 0}}},
}


def test_a_fusion_without_a_name_takes_that_of_what_it_calls():
    scopes = instruction_scopes(HLO)
    assert scopes["fusion"] == "jit(_step)/jvp(layers_0)/Block/ffn/up/add"  # the first of equals
    assert module_of(scopes["fusion"], PARAMS) == "layers_0/ffn/up.fwd"
    assert module_of(scopes["dot.3"], PARAMS) == "embed/token.bwd"


def test_what_xla_adds_takes_the_name_of_what_uses_it():
    modules = {name: module_of(s, PARAMS) for name, s in instruction_scopes(HLO).items()}
    # Through one unnamed instruction to another; the first user counts, not the last.
    assert modules["copy.1"] == modules["broadcast.1"] == "layers_0/ffn/up.fwd"
    assert modules["late"] == "optimizer.upd"
    assert modules["negate.1"] == "optimizer.upd"  # of the one that calls it
    assert "lonely" not in modules
    tail = HLO.replace(', metadata={op_name="jit(s)/optimizer/mul"}', "")
    assert module_of(instruction_scopes(tail)["sum"], PARAMS) == "layers_0/ffn/up.fwd"  # operand's


@pytest.mark.parametrize(
    ("scope", "module"),
    [
        ("jit(_step)/jvp(layers_0)/Block/attn/attn.query/dot_general", "layers_0/attn.fwd"),
        ("jit(_step)/transpose(jvp(layers_0))/Block/attn/query/dot", "layers_0/attn/query.bwd"),
        ("jit(_step)/optimizer/mul", "optimizer.upd"),
        ("jit(_step)/sparsity/sort", "sparsity.upd"),
        ("jit(_step)/transpose(jvp(loss))/mul", "loss.bwd"),
        ("jit(_step)/jit(clip)/min", "other"),
        ("jit(_step)/shard_map/psum", "swarmx.reduce"),
        ("jit(_step)/transpose(jvp(head))/Head/dot_general", "head.bwd"),
        ("jit(_step)/shard_map/batch/jit(searchsorted)/while/body/add", "batch.fwd"),
        ("jit(_step)/shard_map/transpose(jvp(mask))/select_n", "mask.bwd"),
    ],
)
def test_modules_are_parameter_paths(scope, module):
    assert module_of(scope, PARAMS) == module


def event(name, start, duration, program=("m", 1), line="t0"):
    return Operation("", name, line, start, duration, duration, program)


def test_a_loop_is_not_charged_for_what_runs_inside_it():
    own_times = {e.instruction: e.self_ns for e in _nest([event("in", 2, 5), event("loop", 0, 10)])}
    assert own_times == {"loop": 5, "in": 5}
    own_times = {e.instruction: e.self_ns for e in _nest([event("one", 0, 2), event("two", 2, 3)])}
    assert own_times == {"one": 2, "two": 3}


def test_programs_of_one_name_are_told_apart_by_their_instructions():
    events = [event("a", 0, 1, ("m", 1)), event("b", 1, 1, ("m", 2)), event("c", 2, 1, ("x", 3))]
    matches = _match(events, [("m", {"a": "A"}), ("m", {"b": "B"})])
    assert matches == {("m", 1): {"a": "A"}, ("m", 2): {"b": "B"}}


def test_the_table_and_the_chrome_trace():
    operations = [
        Operation("layers_0/attn.fwd", "dot.1", "t0", 5_000, 3_000_000, 2_000_000),
        Operation("layers_0/attn.fwd", "dot.2", "t1", 9_000, 1_000_000, 1_000_000),
        Operation("optimizer.upd", "mul.1", "t0", 4_000, 1_000_000, 1_000_000),
    ]
    rows = summarize(operations)
    assert [(r.module, r.time_ms, r.percent, r.count) for r in rows] == [
        ("layers_0/attn.fwd", 3.0, 75.0, 2),
        ("optimizer.upd", 1.0, 25.0, 1),
    ]
    table = text_table(rows, (3, 5)).splitlines()
    assert "steps 3 to 5: 4.000 ms" in table[0]
    assert table[1:] == [
        "+---+---------------------+------------------+------------+",
        "|   | PYTORCH MODULE NAME | CSX TIME (in ms) | % CSX TIME |",
        "|---+---------------------+------------------+------------|",
        "| 0 | layers_0/attn.fwd   |            3.000 |      75.00 |",
        "| 1 | optimizer.upd       |            1.000 |      25.00 |",
        "+---+---------------------+------------------+------------+",
    ]
    spans = [e for e in chrome_trace(operations)["traceEvents"] if e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"], e["tid"]) for e in spans] == [
        ("layers_0/attn.fwd", 1.0, 3000.0, 0),
        ("layers_0/attn.fwd", 5.0, 1000.0, 1),
        ("optimizer.upd", 0.0, 1000.0, 0),
    ]


def test_a_run_writes_its_profile(tmp_path, capsys):
    cfg = config(
        model={"num_hidden_layers": 2},
        sparsity={"algorithm": "static", "sparsity": 0.5, "compute": "masked"},
        runconfig={"op_profiler_config": {"start_step": 2, "end_step": 3}, "max_steps": 4},
    )
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(cfg))
    assert main(["run", "-p", str(path), "-m", "train", "-o", str(tmp_path / "run")]) == 0
    folder = tmp_path / "run" / "profile"
    record = json.loads((folder / "op_profile.json").read_text())
    assert (record["start_step"], record["end_step"]) == (2, 3)
    share = {row["module"]: row["percent"] for row in record["modules"]}
    assert sum(share.values()) == pytest.approx(100)
    assert share.get("other", 0) < 15
    for name in ("attn/query", "attn", "ffn/up", "ffn/down", "norm1"):
        for phase in ("fwd", "bwd"):
            assert f"layers_0/{name}.{phase}" in share
            assert f"layers_1/{name}.{phase}" in share
    assert {"optimizer.upd", "sparsity.upd", "loss.fwd"} <= share.keys()
    table = (folder / "op_profile.txt").read_text()
    assert len(table.splitlines()) == 15  # ten rows
    assert table.splitlines()[4] in capsys.readouterr().out
    assert {"batch.fwd", "mask.fwd"} <= share.keys()
    assert_trace_events(json.loads((folder / "chrome_trace.json").read_text()))
    assert list(folder.parent.parent.glob("run/profile/*/")) == []  # one process: no folders below


def assert_trace_events(trace):
    """Check what the Trace Event Format asks of the events used here, which Perfetto imports."""
    assert trace.keys() == {"traceEvents", "displayTimeUnit"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    named, stacks = set(), {}
    for e in trace["traceEvents"]:
        assert isinstance(e["pid"], int)
        assert isinstance(e["tid"], int)
        assert isinstance(e["name"], str)
        if e["ph"] == "M":  # metadata: the name of a process or a thread
            assert e["name"] in ("process_name", "thread_name")
            assert e["args"]["name"]
            named.add((e["name"], e["pid"], e["tid"] if e["name"] == "thread_name" else None))
            continue
        assert e["ph"] == "X"
        assert {("process_name", e["pid"], None), ("thread_name", e["pid"], e["tid"])} <= named
        assert e["ts"] >= 0
        assert e["dur"] > 0
        # Complete events of one thread nest: each ends before the one it began inside.
        stack = stacks.setdefault((e["pid"], e["tid"]), [])
        while stack and stack[-1] <= e["ts"] + 1e-3:
            stack.pop()
        assert not stack or e["ts"] + e["dur"] <= stack[-1] + 1e-3
        stack.append(e["ts"] + e["dur"])
    assert stacks


def test_a_window_beyond_the_run_is_refused(tmp_path):
    window = {"op_profiler_config": {"start_step": 3, "end_step": 9}, "model_dir": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"op_profiler_config.end_step: 9, but this run takes 4"):
        run_mode(parse_config(config(runconfig=window)))
    window |= {"execution_strategy": "weight_streaming", "max_steps": 9}
    with pytest.raises(ConfigError, match="op_profiler_config: needs execution_strategy: resident"):
        run_mode(parse_config(config(runconfig=window)))


@pytest.mark.slow
def test_programs_of_several_shapes_and_systems_share_a_profile(tmp_path):
    """RigL's topology step falls into the window, two systems, streams of two capacities."""
    cfg = config(
        model={"enable_vts": True},
        sparsity={"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 3}},
        runconfig={"op_profiler_config": {"start_step": 2, "end_step": 6}, "max_steps": 9}
        | {"model_dir": str(tmp_path), "num_csx": 2},
    )
    assert run_mode(parse_config(cfg)) == 0
    record = json.loads((tmp_path / "profile" / "op_profile.json").read_text())
    share = {row["module"]: row["percent"] for row in record["modules"]}
    assert share.get("other", 0) < 15
    assert {"layers_0/attn.bwd", "swarmx.reduce", "sparsity.upd"} <= share.keys()
