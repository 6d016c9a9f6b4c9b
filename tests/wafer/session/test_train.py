"""The trainer: modes, systems, micro-batches, precision, and what happens when things go wrong."""

import itertools
import json
import pathlib
import re
import shutil
import signal
import struct

import jax
import numpy as np
import pytest
import yaml
from helpers.runs import VOCAB, arrays, assert_close, config, losses, metrics, train
from rich.console import Console
from tensorboardX.proto.event_pb2 import Event

from wafer.cli import main
from wafer.commands.inputs import newest_checkpoint
from wafer.commands.run import run as run_mode
from wafer.config import parse_config
from wafer.data.batching.lengths import sequence_lengths
from wafer.errors import CheckpointError, ConfigError, TrainingError
from wafer.experiment import Experiment
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.checkpoint.tree import fill_template
from wafer.models.checkpoint.writer import Checkpoints
from wafer.models.paths import named_leaves
from wafer.session import loop
from wafer.session.build import Run, build
from wafer.session.logs import CONSOLE
from wafer.session.metrics import TrainProgress, read_metrics
from wafer.session.persist import resume
from wafer.sparsity.finalize import finalize


def built(**changes) -> Run:
    return build(Experiment.from_config(parse_config(config(**changes))))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[pathlib.Path, dict[str, np.ndarray]]:
    """A finished run of four steps with checkpoints 2 and 4, and the arrays of the last."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, train(folder)


@pytest.fixture
def run_copy(trained, tmp_path) -> pathlib.Path:
    """A copy of that run, to change."""
    return shutil.copytree(trained[0], tmp_path / "copy", symlinks=True)


SPARSE = {
    "sparsity": {
        "algorithm": "rigl",
        "sparsity": 0.5,
        "update": {"freq": 2},
        "param_filter": "*ffn*kernel",
    }
}


@pytest.mark.slow
@pytest.mark.parametrize("systems", [2, 4])
def test_the_number_of_systems_does_not_change_the_result(tmp_path, systems):
    drops = {"model": {"dropout_rate": 0.1}}
    one = train(tmp_path / "one", **SPARSE, **drops)
    many = train(tmp_path / "many", **SPARSE, **drops, runconfig={"num_csx": systems})
    assert_close(one, many, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant",
    [
        {"train_input": {"micro_batch_size": 1}},
        {"train_input": {"micro_batch_size": 2}},
        {"train_input": {"batch_size": 2}, "optimizer": {"grad_accum_steps": 2}},
        {"model": {"enable_vts": True}},
    ],
    ids=["micro1", "micro2", "accumulate2", "stripped"],
)
def test_ways_of_cutting_the_batch_do_not_change_the_result(tmp_path, variant):
    cut = variant | {"model": {"dropout_rate": 0.1, **variant.get("model", {})}}
    whole = train(tmp_path / "whole", model={"dropout_rate": 0.1})
    assert_close(whole, train(tmp_path / "cut", **cut), atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["static", "rigl"])
def test_compressed_storage_trains_and_resumes_like_masks(tmp_path, algorithm):
    rigl = {"update": {"freq": 2}} if algorithm == "rigl" else {}
    leaves = {}
    for compute in ("masked", "csr"):
        section = {"algorithm": algorithm, "sparsity": 0.5, "compute": compute, **rigl}
        folder = tmp_path / compute
        train(folder, sparsity=section, runconfig={"max_steps": 2})
        leaves[compute] = train(folder, sparsity=section)  # files are dense: resumes at step 2
    masked, csr = leaves["masked"], leaves["csr"]
    kernel = "params/layers_0/ffn/up/kernel"
    np.testing.assert_array_equal(np.isnan(masked[kernel]), np.isnan(csr[kernel]))
    assert_close(masked, csr, atol=1e-5)


def test_loss_falls_on_repeated_patterns(tmp_path):
    train(tmp_path, runconfig={"max_steps": 60, "checkpoint_steps": 60})
    seen = losses(tmp_path)
    assert seen[0] == pytest.approx(np.log(VOCAB), rel=0.05)
    assert np.mean(seen[-5:]) < 0.8 * seen[0]


def test_packed_rows_give_the_loss_of_the_padded_batch(run_copy):
    """One epoch of evaluation sees the same tokens however they are laid out."""
    evaluated = []
    for use_vsl in (False, True):
        cfg = config(eval_input={"use_vsl": use_vsl}, runconfig={"mode": "eval"})
        cfg["runconfig"]["model_dir"] = str(run_copy)
        run_mode(parse_config(cfg))
        evaluated.append(losses(run_copy, "eval")[-1])
    assert evaluated[0] == pytest.approx(evaluated[1], abs=1e-5)


@pytest.mark.slow
def test_eval_all_visits_every_checkpoint_in_order(tmp_path):
    train(tmp_path, runconfig={"max_steps": 6})
    cfg = config(runconfig={"mode": "eval_all", "model_dir": str(tmp_path)})
    assert run_mode(parse_config(cfg)) == 0
    assert [record["step"] for record in metrics(tmp_path, "eval")] == [2, 4, 6]


def test_train_and_eval_evaluates_at_the_start_and_every_stretch(tmp_path):
    train(tmp_path, runconfig={"mode": "train_and_eval", "eval_frequency": 3})
    assert [record["step"] for record in metrics(tmp_path, "eval")] == [0, 3, 4]


def test_without_eval_frequency_an_evaluation_a_pass_and_what_will_be_is_said(tmp_path, caplog):
    caplog.set_level("INFO", logger="wafer")
    keys = {"mode": "train_and_eval", "checkpoint_steps": 4, "steps_per_epoch": 2}
    train(tmp_path, runconfig=keys)
    assert [record["step"] for record in metrics(tmp_path, "eval")] == [0, 2, 4]
    said = caplog.text
    plan = "a log line every 1, a checkpoint every 4, an evaluation every 2"
    assert f"4 steps to step 4 in {tmp_path}; {plan}" in said
    assert "Step=1, Loss=" in said
    assert "Rate=0.00" not in said


@pytest.mark.parametrize(
    ("every", "kept", "plan"),
    [
        (None, ["4"], "a checkpoint of the last (checkpoint_steps)"),
        (0, [], "no checkpoint: nothing of it is kept (runconfig.checkpoint_steps: 0)"),
    ],
)
def test_the_last_step_is_kept_unless_told_not_to(tmp_path, caplog, every, kept, plan):
    caplog.set_level("INFO", logger="wafer")
    keys = {"mode": "train_and_eval", "eval_frequency": 3, "checkpoint_steps": every}
    assert run_mode(parse_config(config(runconfig=keys | {"model_dir": str(tmp_path)}))) == 0
    steps = [p.name for p in tmp_path.glob("checkpoints/*")]
    assert [name for name in steps if name.isdigit()] == kept
    assert f"a log line every 1, {plan}, an evaluation every 3" in caplog.text


@pytest.mark.parametrize(
    "engine", ["resident", pytest.param("weight_streaming", marks=pytest.mark.slow)]
)
def test_a_line_every_ten_steps_and_before_an_evaluation_and_every_sample_counts(
    tmp_path, caplog, engine
):
    caplog.set_level("INFO", logger="wafer")
    cfg = config(runconfig={"execution_strategy": engine})
    del cfg["runconfig"]["log_steps"]
    cfg["runconfig"] |= {"max_steps": 12, "checkpoint_steps": 0, "model_dir": str(tmp_path)}
    assert run_mode(parse_config(cfg)) == 0
    assert [line["step"] for line in read_metrics(tmp_path / "train")] == [10, 12]
    samples = 12 * cfg["train_input"]["batch_size"]
    assert f"Processed {samples} sample(s)" in caplog.text
    (record,) = (tmp_path / "cerebras_logs").rglob("performance.json")
    assert json.loads(record.read_text())["total_samples"] == samples


def test_a_notebook_has_one_bar_with_the_time_that_is_left(monkeypatch):
    drawn = []

    class Cell:
        def update(self, bar):
            drawn.append(bar._repr_mimebundle_(None, None)["text/plain"])

    def display(bar, *, display_id):
        assert display_id
        return Cell()

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(CONSOLE, "is_jupyter", True)
    clock = itertools.count(100.0)  # a second at every look
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    with TrainProgress(40, 10) as bar:
        for step in (20, 30, 40):
            bar.show(step, {"loss": "2.500"})
    assert len(drawn) == 3
    assert "20/40" in drawn[0]
    assert "loss 2.500" in drawn[0]
    assert re.search(r"\d:\d\d|\d\d:\d\d", drawn[1])  # the time that is left
    assert "40/40" in drawn[2]


@pytest.mark.parametrize("width", [80, 115])  # the second is what rich takes a notebook to have
def test_the_bar_of_a_cell_is_one_line_of_80_columns(monkeypatch, width):
    monkeypatch.setattr(
        "rich._console", Console(force_jupyter=True, width=width, color_system=None)
    )
    monkeypatch.setattr(CONSOLE, "is_jupyter", True)
    bar = TrainProgress(20_000, 0)
    bar.show(12_345, {"loss": "2.345", "tok/s": "12,345", "sparsity": "75.0%", "padding": "12%"})
    (line,) = bar._repr_mimebundle_(None, None)["text/plain"].splitlines()
    assert len(line.rstrip()) <= 80
    assert "12345/20000" in line
    assert "loss 2.345  tok/s 12,345  sparsity 75.0%  padding 12%" in line


def tags(folder: pathlib.Path) -> set[str]:
    """Scalar tags of the TensorBoard events in a folder: TFRecord frames of Event messages."""
    names = set()
    for path in folder.glob("events*"):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + size])
            names |= {value.tag for value in event.summary.value}
            at += 12 + size + 4
    return names


@pytest.mark.slow
def test_tensorboard_has_the_vendors_tags(tmp_path):
    optimizer = {"log_summaries": True}
    train(tmp_path, optimizer=optimizer, runconfig={"mode": "train_and_eval", "eval_frequency": 4})
    wanted = {"loss", "lr/0", "local_samples_per_sec", "avg_samples_per_sec", "avg_steps_per_sec"}
    assert wanted | {"per_layer_grad_norm/layers_0"} <= tags(tmp_path / "train")
    assert {"loss", "eval/lm_perplexity", "eval/accuracy"} <= tags(tmp_path / "eval")
    train(tmp_path / "sparse", **SPARSE)
    name = "sparsity/layers_0/ffn/up/kernel"
    assert {f"{name}/target", f"{name}/actual"} <= tags(tmp_path / "sparse" / "train")


def test_a_named_checkpoint_and_parts_of_it(trained, tmp_path):
    folder, whole = trained
    early = str(folder / "checkpoints" / "2")
    again = train(tmp_path / "again", runconfig={"checkpoint_path": early})
    assert_close(whole, again, atol=0)
    # The model alone: weights of step 2, everything else as in a fresh run, from step 0.
    settings = {"checkpoint_path": early, "load_checkpoint_states": "model", "max_steps": 2}
    cfg = config(runconfig=settings | {"model_dir": str(tmp_path / "part")})
    state = resume(build(Experiment.from_config(parse_config(cfg)))).state
    assert int(state.step) == 0
    stored = arrays(early)
    for name, value in named_leaves(state.params):
        np.testing.assert_array_equal(value, stored[f"params/{name}"])
    assert not any(np.any(x) for n, x in named_leaves(state.opt_state) if "exp_avg" in n)


def test_half_precision_stays_near_float32(trained, tmp_path):
    folder, exact = trained
    model = {"mixed_precision": True, "fp16_type": "bfloat16"}
    half = train(tmp_path / "bf16", model=model)
    assert half["params/layers_0/ffn/up/kernel"].dtype == np.float32
    assert_close(exact, half, atol=0.05)
    assert losses(tmp_path / "bf16") == pytest.approx(losses(folder), abs=0.05)


def test_dynamic_loss_scale_skips_overflowing_steps_without_a_trace(tmp_path):
    """Scale 2^31 overflows float16 at first: weights stay, the scale halves, then training goes."""
    model = {"mixed_precision": True, "fp16_type": "float16"}
    scaling = {
        "loss_scaling_factor": "dynamic",
        "initial_loss_scale": 2.0**31,
        "max_loss_scale": 2.0**31,
    }
    arrays = train(tmp_path, model=model, optimizer=scaling, **SPARSE)
    skipped = int(arrays["scale/num_skipped_steps"])
    assert 0 < skipped <= 4
    assert float(arrays["scale/loss_scale"]) == 2.0 ** (31 - skipped)
    meta = load_checkpoint(tmp_path / "checkpoints" / "4")[1]
    assert meta["sparsity"]["step"] == 4 - skipped


def test_nan_loss_stops_with_step_and_norms_and_leaves_the_good_checkpoint(tmp_path):
    wild = {"optimizer_type": "SGD", "learning_rate": 1e30}
    with pytest.raises(
        TrainingError, match=r"step \d+: the loss is (nan|inf)[\s\S]*norms after step \d+:\s+\w+/"
    ):
        train(tmp_path, optimizer=wild, runconfig={"max_steps": 50, "checkpoint_steps": 1})
    for path in (tmp_path / "checkpoints").iterdir():
        leaves = arrays(path)
        assert all(np.isfinite(v).all() for v in leaves.values())


def test_skipped_samples_are_those_after_the_place_in_the_data(tmp_path):
    """At rate 0 the loss is of the data alone: 2 of 3 batches skipped leave the third's."""
    still = {"optimizer": {"learning_rate": 0.0}}
    train(tmp_path / "all", **still, runconfig={"max_steps": 3})
    train(tmp_path / "late", **still, runconfig={"max_steps": 1, "skip_samples": 8})
    assert losses(tmp_path / "late") == pytest.approx(losses(tmp_path / "all")[2:])
    with pytest.raises(ConfigError, match="7 samples are no whole steps of 4"):
        built(runconfig={"skip_samples": 7})


def test_a_signal_in_the_middle_of_telling_the_others_is_not_lost(tmp_path, monkeypatch):
    heard = iter([True])

    def largest(value: int) -> int:
        if next(heard, False):  # comes in after the value was read
            signal.raise_signal(signal.SIGTERM)
        return value

    monkeypatch.setattr(loop, "all_max", largest)
    before = signal.getsignal(signal.SIGTERM)
    section = {"model_dir": str(tmp_path), "max_steps": 50, "checkpoint_steps": 50}
    assert run_mode(parse_config(config(runconfig=section))) == 128 + signal.SIGTERM
    steps = [int(path.name) for path in (tmp_path / "checkpoints").iterdir()]
    assert steps == [2]  # told after step 1, known to all after step 2
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("mode", ["train_and_eval", pytest.param("train", marks=pytest.mark.slow)])
def test_finished_training_says_so_and_is_no_error(trained, run_copy, caplog, mode):
    settings = {"mode": mode, "eval_frequency": 4}
    written = (run_copy / "train" / "metrics.jsonl").read_bytes()
    with caplog.at_level("INFO", "wafer"):
        again = train(run_copy, runconfig=settings)  # asserts exit code 0
    assert "at step 4, runconfig.max_steps is 4: nothing is left to train" in caplog.text
    assert (run_copy / "train" / "metrics.jsonl").read_bytes() == written
    assert_close(trained[1], again, atol=0)


def test_a_checkpoint_of_another_model_lists_what_differs(run_copy):
    with pytest.raises(CheckpointError, match=r"embed/token/embedding: shape \(32, 16\)"):
        train(run_copy, model={"hidden_size": 32}, runconfig={"max_steps": 8})


def test_fill_template_suggests_names():
    with pytest.raises(CheckpointError, match="did you mean 'a/kernel'"):
        fill_template({"a": {"kernels": np.zeros(2)}}, {"a": {"kernel": np.zeros(2)}}, "here")


@pytest.mark.slow
def test_half_written_and_damaged_checkpoints_are_skipped(run_copy, caplog):
    folder = run_copy / "checkpoints"
    (folder / "6.orbax-checkpoint-tmp-1").mkdir()
    for file in (folder / "4" / "state" / "ocdbt.process_0" / "d").iterdir():
        file.write_bytes(file.read_bytes()[:10])
    with caplog.at_level("WARNING"):
        checkpoints = Checkpoints(run_copy)
        assert (folder / "6.orbax-checkpoint-tmp-1").exists()  # somebody may be writing it
        checkpoints.remove_leftovers()
        restored = checkpoints.restore_latest()
    assert restored is not None
    assert restored[0] == 2
    assert "half-written" in caplog.text
    assert "damaged" in caplog.text
    assert not (folder / "6.orbax-checkpoint-tmp-1").exists()
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(folder / "4")


def test_a_copy_that_broke_off_is_skipped_by_every_command(run_copy, caplog, capsys):
    folder = run_copy / "checkpoints"
    shutil.copytree(folder / "4" / "state", folder / "6" / "state")
    (folder / "8").mkdir()
    shutil.copytree(folder / "4" / "state", folder / "10.orbax-checkpoint-tmp" / "state")
    skipped = [f"{folder / '6'} has no meta/metadata", f"{folder / '8'} has no state"]
    with caplog.at_level("WARNING"):
        assert newest_checkpoint(run_copy) == folder / "4"
    assert [r.getMessage().partition(": ")[2] for r in caplog.records] == skipped
    caplog.clear()
    with caplog.at_level("WARNING"):
        evaluated = config(runconfig={"mode": "eval_all", "model_dir": str(run_copy)})
        assert run_mode(parse_config(evaluated)) == 0
    assert [r.getMessage().partition(": ")[2] for r in caplog.records] == skipped
    assert [record["step"] for record in metrics(run_copy, "eval")][-2:] == [2, 4]
    with pytest.raises(CheckpointError, match=r"for example .../4 \(found \[2, 4\]\)"):
        finalize(run_copy, run_copy / "dense")
    assert main(["checkpoint", "verify", str(run_copy)]) == 1
    out, err = capsys.readouterr()
    assert (out.count("sound"), err.count("is not a checkpoint")) == (2, 2)
    shutil.rmtree(folder / "2")
    shutil.rmtree(folder / "4")
    with pytest.raises(CheckpointError, match="has no complete checkpoint"):
        newest_checkpoint(run_copy)


def test_a_run_goes_on_before_a_damaged_checkpoint_and_saves_again(trained, run_copy, caplog):
    folder, sound = run_copy / "checkpoints", trained[1]
    for file in (folder / "4" / "state" / "ocdbt.process_0" / "d").iterdir():
        file.write_bytes(file.read_bytes()[:10])
    settings = {"model_dir": str(run_copy), "max_checkpoints": 2}
    with caplog.at_level("WARNING"):
        assert run_mode(parse_config(config(runconfig=settings))) == 0
    assert "4 cannot be read, it is damaged" in caplog.text
    assert f"It is called {folder / '4.damaged'} from now on" in caplog.text
    assert sorted(path.name for path in folder.iterdir()) == ["2", "4", "4.damaged"]
    again = arrays(folder / "4")
    for name, value in sound.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


def test_sections_that_do_not_go_together_are_refused_before_any_work(tmp_path):
    with pytest.raises(ConfigError, match=r"max_sequence_length: 16 positions"):
        built(model={"max_position_embeddings": 8})
    with pytest.raises(ConfigError, match=r"vocab_size: 32 token ids"):
        built(model={"vocab_size": 31})


def test_every_wrong_key_is_reported_by_the_command_line(tmp_path, capsys):
    cfg = config(
        runconfig={"max_step": 3}, model={"hiden_size": 8}, sparsity={"algorithm": "rigel"}
    )
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(cfg))
    assert main(["run", "--params", str(path), "--validate_only"]) == 1
    message = capsys.readouterr().err
    for hint in ("'max_steps'", "'hidden_size'", "rigl"):
        assert hint in message


def test_dry_modes_run_nothing(tmp_path, capsys):
    path = tmp_path / "ok.yaml"
    path.write_text(yaml.safe_dump(config(sparsity={"sparsity": 0.9, "algorithm": "static"})))
    flags = ["run", "--params", str(path), "--model_dir", str(tmp_path / "run")]
    assert main([*flags, "--validate_only"]) == 0
    out = capsys.readouterr().out
    assert "layers_0/ffn/down/kernel" in out
    assert main([*flags, "--compile_only"]) == 0
    assert "GFLOP per step" in capsys.readouterr().out
    assert main([*flags, "--compile_only", "--execution", "weight_streaming"]) == 1
    assert "`wafer plan` has its figures" in capsys.readouterr().err
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_few_capacities_hold_the_batches_of_a_dataset(tmp_path):
    """At most 8 shapes over 50 batches of 16 rows, and nearly no slack in them."""
    data = {"batch_size": 16, "num_examples": 800, "max_sequence_length": 512}
    model = {"enable_vts": True, "max_position_embeddings": 512}
    runconfig = {"model_dir": str(tmp_path), "mode": "train"}
    job = built(train_input=data, model=model, runconfig=runconfig)
    lengths = np.random.default_rng(0).permutation(sequence_lengths(job.train))
    need = lengths.reshape(50, 16).sum(axis=1)
    got = [job.ladder.capacity(int(n)) for n in need]
    assert len(set(got)) <= 8
    assert need.sum() / sum(got) >= 0.92


def test_step_compiles_once(tmp_path):
    job = built(runconfig={"model_dir": str(tmp_path)})
    assert job.train is not None
    shape = job.experiment.batch("train")
    loader = job.train.loader(shape.samples, num_epochs=None)
    state = job.engine.init(jax.random.key(0))
    for _ in range(3):
        state, _ = job.engine.step(state, job.place_batch(next(loader), shape), topology=False)
    loader.close()
    assert job.engine.programs.names() == ["step"]


def test_a_run_from_its_first_checkpoint_is_the_run(tmp_path, capsys):
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(config()))
    init = ["checkpoint", "init", "-p", str(path), "-o", str(tmp_path / "a")]
    assert main(init) == 0
    first = tmp_path / "a" / "checkpoints" / "0"
    assert f"Saved initial checkpoint at: {first}" in capsys.readouterr().out
    for name in "ab":
        assert main(["run", "-p", str(path), "-o", str(tmp_path / name)]) == 0
    one, two = (arrays(tmp_path / name / "checkpoints" / "4") for name in "ab")
    assert one.keys() == two.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(values, two[name], err_msg=name)
    assert main(init) == 1
    assert "holds checkpoints already" in capsys.readouterr().err
