"""Floor plans: the checker, capacity, replicas, reports, the kept answer, the command."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest
from helpers.paths import ROOT

from wafer.commands.run import run
from wafer.compiler import experiment as compiling
from wafer.compiler.check import check_plan
from wafer.compiler.compile import CompileOptions, compile_graph, trace
from wafer.compiler.picture import layer_colors
from wafer.compiler.report import from_json, report_text, summary, to_json
from wafer.config import load, parse_config
from wafer.engines.choose import check
from wafer.errors import CapacityError, ConfigError
from wafer.experiment import Experiment
from wafer.spec import WSE2, Region

DIGITS = ROOT / "models" / "configs" / "fc_mnist" / "fc_digits.yaml"
GPT3_XL = ROOT / "models" / "configs" / "gpt3" / "gpt3_xl_fixed_sparse.yaml"


def net(params, x):
    for name in sorted(params):
        x = jax.nn.relu(x @ params[name]["kernel"])
    return jnp.square(x).mean()


def graph_of(width=32, depth=3, T=16):
    params = {f"fc_{i}": {"kernel": jnp.zeros((width, width))} for i in range(depth)}
    return trace(net, params, jnp.zeros((T, width)))


SMALL = dataclasses.replace(WSE2, width=24, height=20)


def compiled_small(**more):
    graph = graph_of()
    return compile_graph(graph, CompileOptions(spec=SMALL, batch=8, **more)), graph


def moved(compiled, name, **change):
    regions = tuple(r._replace(**change) if r.name == name else r for r in compiled.plan.regions)
    return dataclasses.replace(compiled, plan=dataclasses.replace(compiled.plan, regions=regions))


def changed(compiled, name, **change):
    kernels = tuple(
        dataclasses.replace(k, **change) if k.name == name else k for k in compiled.kernels
    )
    return dataclasses.replace(compiled, kernels=kernels)


def test_the_checker_accepts_what_is_placed_and_refuses_what_cannot_be():
    compiled, graph = compiled_small()
    check_plan(compiled, graph)
    one, other = compiled.plan["fc_0"], compiled.plan["fc_1"]
    on_one = {side: getattr(one, side) for side in ("x", "y", "width", "height")}
    refused = {
        "fc_0 and fc_1 overlap": moved(compiled, "fc_1", **on_one),
        "leaves the 24x20 wafer": moved(compiled, "fc_1", x=24 - other.width + 1),
        r"fc_1: \d+x\d+ on \d+ PEs": moved(compiled, "fc_1", width=other.width - 1),
        "bytes on the fullest of": changed(compiled, "fc_0", sram=WSE2.sram_bytes + 1),
        "multiply-accumulates do not fit 1 cycles": changed(compiled, "fc_0", forward=1),
    }
    for message, wrong in refused.items():
        with pytest.raises(ValueError, match=message):
            check_plan(wrong, graph)
    fewer = dataclasses.replace(compiled, kernels=compiled.kernels[1:])
    with pytest.raises(ValueError, match="not the graph's"):
        check_plan(fewer, graph)


def test_a_copy_may_not_lie_on_another():
    compiled, graph = compiled_small(replicas=2)
    assert len(compiled.plan.replicas) == 2
    check_plan(compiled, graph)
    twice = dataclasses.replace(compiled.plan, replicas=((0, 0), (0, 0)))
    with pytest.raises(ValueError, match="overlap"):
        check_plan(dataclasses.replace(compiled, plan=twice), graph)


def test_the_slowest_kernel_bounds_the_speed_and_no_plan_beats_the_areas():
    compiled, _ = compiled_small()
    assert compiled.cycles == max(k.cycles for k in compiled.kernels)
    assert compiled.bound <= compiled.cycles <= compiled.single
    assert compiled.compute_samples == WSE2.clock_hz / compiled.cycles
    assert compiled.samples == min(compiled.compute_samples, compiled.transmission_samples)
    assert compiled.transmission_samples == 150e9 / (4 * 16 * 32)


def test_the_same_seed_gives_the_same_plan():
    assert compiled_small(seed=3)[0] == compiled_small(seed=3)[0]


def test_twice_the_wafer_is_almost_twice_as_fast():
    graph = graph_of(width=256, depth=4, T=64)
    slow, fast = (
        compile_graph(graph, CompileOptions(spec=dataclasses.replace(WSE2, width=w, height=60)))
        for w in (60, 120)
    )
    assert 1.7 < slow.cycles / fast.cycles < 2.2


def test_pruned_weights_leave_room_and_time():
    params = {f"fc_{i}": {"kernel": jnp.zeros((256, 256))} for i in range(3)}
    args = net, params, jnp.zeros((64, 256))
    densities = {f"fc_{i}/kernel": 0.1 for i in range(3)}
    spec = dataclasses.replace(WSE2, width=40, height=40)
    dense = compile_graph(trace(*args), CompileOptions(spec=spec))
    sparse = compile_graph(trace(*args, densities=densities), CompileOptions(spec=spec))
    assert sparse.cycles < 0.35 * dense.cycles


def test_a_model_that_does_not_fit_names_the_kernel_the_bytes_and_the_way_out():
    graph = graph_of(width=512, depth=3)
    with pytest.raises(CapacityError) as caught:
        compile_graph(graph, CompileOptions(spec=dataclasses.replace(WSE2, width=10, height=10)))
    error, text = caught.value, str(caught.value)
    assert error.kernel.startswith("fc_")
    assert error.needed > error.available == 100 * 49152
    assert "786,432 weights" in text
    assert f"{error.kernel} (matmul) with 4 MiB" in text
    assert "execution_strategy: weight_streaming" in text


def test_gpt3_xl_gets_its_answer_from_shapes_alone():
    cfg = load(GPT3_XL)
    experiment = Experiment.from_config(cfg)
    graph = compiling.config_graph(experiment)
    assert len([k for k in graph.kernels if k.kind == "attention"]) == 24
    with pytest.raises(CapacityError, match="weight_streaming"):
        compile_graph(graph, compiling.options_of(experiment, seed=0))


def test_copies_of_a_small_net_are_faster_than_one():
    graph = graph_of(width=8, depth=2, T=1)
    one = compile_graph(graph, CompileOptions(spec=SMALL, batch=8, micro=4))
    many = compile_graph(graph, CompileOptions(spec=SMALL, batch=8, micro=4, replicas=0))
    assert len(many.plan.replicas) > 1
    assert many.speedup == pytest.approx(many.samples / one.samples)
    assert many.speedup > 1.5
    check_plan(many, graph)
    with pytest.raises(CapacityError):
        compile_graph(graph, CompileOptions(spec=SMALL, replicas=400))


def test_the_report_has_the_vendors_head_and_a_line_per_kernel():
    compiled, _ = compiled_small()
    lines = report_text(compiled).splitlines()
    assert lines[:2] == ["Estimated Overall Performance", "-" * 31]
    head = "Samples/s, Compute Samples/s, Transmission Samples/s, Active PEs, Compute Utilization"
    assert ", ".join(line.split(":")[0] for line in lines[2:7]) == head
    assert lines[2] == f"{'Samples/s:':<30}{compiled.samples:.1f}"
    assert lines[5] == f"{'Active PEs:':<30}{compiled.active_share:.0%}"
    assert [line.split()[0] for line in lines[-4:]] == ["fc_0", "fc_1", "fc_2", "loss"]
    assert "Slowest Kernel" in summary(compiled)


def test_json_keeps_everything():
    compiled, _ = compiled_small(replicas=2)
    stored = json.loads(json.dumps(to_json(compiled)))
    assert from_json(stored) == compiled
    assert stored["estimate"]["samples_per_s"] == compiled.samples
    with pytest.raises(ValueError, match="version 0"):
        from_json(stored | {"version": 0})


def test_regions_are_found_by_name_and_layers_differ_in_color():
    compiled, _ = compiled_small()
    assert isinstance(compiled.plan["fc_1"], Region)
    with pytest.raises(KeyError, match="kernels are fc_0, fc_1, fc_2, loss"):
        compiled.plan["fc_9"]
    colors = layer_colors(compiled)
    assert list(colors) == ["fc_0", "fc_1", "fc_2", "loss"]
    assert len(set(colors.values())) == 4


def test_an_answer_is_kept_and_found_and_made_anew_when_damaged(tmp_path):
    cfg = Experiment.from_yaml(DIGITS, compile_dir=str(tmp_path / "kept"))
    first = compiling.compile_experiment(cfg, tmp_path / "a")
    again = compiling.compile_experiment(cfg, tmp_path / "b")
    assert (first.kept, again.kept) == (False, True)
    assert again.compiled == first.compiled
    for name in compiling.FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (tmp_path / "a" / "floor_plan.png").read_bytes()[:4] == b"\x89PNG"
    assert b"<svg" in (tmp_path / "a" / "floor_plan.svg").read_bytes()[:600]
    assert not compiling.compile_experiment(cfg, tmp_path / "c", seed=1).kept
    places = list((tmp_path / "kept" / "floor_plans").iterdir())
    assert len(places) == 2  # nothing half-made is left beside the two answers
    for place in places:
        (place / "compile_report.json").write_text("{")
    assert not compiling.compile_experiment(cfg, tmp_path / "d").kept


def test_kept_answers_are_of_this_code_alone(monkeypatch):
    experiment = Experiment.from_yaml(DIGITS)
    options = compiling.options_of(experiment, seed=0)
    keys = [compiling._key(experiment, options, None)]
    monkeypatch.setattr(compiling, "code_digest", lambda model: f"other code, {model}")
    keys.append(compiling._key(experiment, options, None))
    assert len(set(keys)) == 2


@pytest.mark.slow
def test_a_kept_answer_is_found_with_another_learning_rate_and_not_with_another_batch(tmp_path):
    kept = {"compile_dir": str(tmp_path / "kept")}
    sections = Experiment.from_yaml(DIGITS, **kept).cfg.to_dict()
    compiling.compile_experiment(Experiment.from_yaml(DIGITS, **kept), tmp_path / "a")
    for section, change, found in (
        ("optimizer", {"learning_rate": 0.5}, True),
        ("train_input", {"shuffle_seed": 7}, True),
        ("train_input", {"batch_size": 2 * sections["train_input"]["batch_size"]}, False),
    ):
        raw = sections | {section: sections[section] | change}
        experiment = Experiment.from_config(parse_config(raw))
        assert compiling.compile_experiment(experiment, tmp_path / "b").kept == found, change


def test_how_many_replicas_is_the_compilers_business():
    cfg = load(DIGITS, {"multireplica": True})
    experiment = Experiment.from_config(cfg)
    assert compiling.options_of(experiment, seed=0).replicas == 0
    check(experiment)  # a file of 1.x allows copies, whatever runs it
    named = load(DIGITS, {"multireplica": True, "execution_strategy": "resident"})
    with pytest.raises(ConfigError, match="multireplica: True: copies are of a pipeline"):
        check(Experiment.from_config(named))


def test_dry_modes_of_pipelined_runs_are_the_compilers(tmp_path, capsys):
    flags = {"execution_strategy": "pipelined", "model_dir": str(tmp_path)}
    flags |= {"compile_dir": str(tmp_path / "kept")}
    assert run(load(DIGITS, flags | {"validate_only": True})) == 0
    assert "5 kernels, FLOPs per sample" in capsys.readouterr().out
    assert run(load(DIGITS, flags | {"compile_only": True})) == 0
    assert "Compute Utilization" in capsys.readouterr().out
    (folder,) = tmp_path.glob("cs_*")
    assert {p.name for p in folder.iterdir()} == set(compiling.FILES)


@pytest.mark.parametrize("name", ["t5/t5_small", "bert/bert_base", "dpr/dpr_base"])
def test_samples_of_other_tasks_have_kernels(name):
    cfg = load(ROOT / "models" / "configs" / f"{name}.yaml")
    graph = compiling.config_graph(Experiment.from_config(cfg))
    kinds = {kernel.kind for kernel in graph.kernels}
    assert kinds >= {"matmul", "attention", "norm", "embedding", "loss"}
    layers = [layer for layer in graph.layers if "layers_0" in layer]
    blocks = [k for k in graph.kernels if k.layer == layers[0] and k.kind == "attention"]
    assert len(blocks) == 1


def test_the_command(tmp_path, cli):
    said = cli(f"compile -p {DIGITS} -o {tmp_path}/out --compile_dir {tmp_path} --multireplica")
    assert "Speed-up of Replicas" in said
    assert {p.name for p in (tmp_path / "out").iterdir()} == set(compiling.FILES)
