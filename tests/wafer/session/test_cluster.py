"""SwarmX over processes: who joins, who reads what, and real processes on this machine."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
import yaml
from helpers.ports import free_address
from helpers.processes import until
from helpers.runs import assert_close, config, train

from wafer.cli import main
from wafer.data.batching.pipeline import Loader
from wafer.data.readers.synthetic import SyntheticSource
from wafer.engines.cluster import membership
from wafer.engines.rendezvous import Peer
from wafer.errors import ConfigError, DataError
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.paths import named_leaves

pytestmark = pytest.mark.alone

# --- who joins -----------------------------------------------------------------------------------


def test_flags_win_over_the_environment_and_that_over_slurm():
    slurm = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_JOB_ID": "7",
             "SLURM_STEP_NODELIST": "node1"}  # fmt: skip
    own = {"WAFER_COORDINATOR": "a:1", "WAFER_NUM_PROCESSES": "3", "WAFER_PROCESS_ID": "2"}
    assert membership(environ={}) is None
    assert membership(environ=slurm) == Peer("node1:61447", 4, 3)
    assert membership(environ=slurm | own) == Peer("a:1", 3, 2)
    assert membership("b:2", 2, 1, environ=slurm | own) == Peer("b:2", 2, 1)
    assert membership("b:2", 1, 0, environ={}) is None
    assert membership(environ={"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) is None


def test_half_a_membership_is_an_error_that_names_the_rest():
    with pytest.raises(ConfigError, match=r"--process_id \(or WAFER_PROCESS_ID\) is missing"):
        membership("a:1", 2, environ={})
    with pytest.raises(ConfigError, match="expected 0 to 1"):
        membership("a:1", 2, 2, environ={})
    with pytest.raises(ConfigError, match="num_processes 0: expected at least 1"):
        membership("a:1", 0, 0, environ={})
    with pytest.raises(ConfigError, match="whole numbers"):
        membership(environ={"WAFER_COORDINATOR": "a:1", "WAFER_NUM_PROCESSES": "two",
                            "WAFER_PROCESS_ID": "0"})  # fmt: skip


# --- who reads what ------------------------------------------------------------------------------


def loader(task, *, pack, epochs=None, drop_last=True, examples=10):
    return Loader(
        SyntheticSource(examples, 50, 16, 0),
        batch_size=6 // task[1],
        row_length=16,
        pack=pack,
        shuffle=True,
        seed=3,
        num_epochs=epochs,
        drop_last=drop_last,
        task=task,
    )


def batches(processes, steps, *, pack, begin=None):
    """Global batches as sorted rows, and the position after them."""
    loaders = [loader((i, processes), pack=pack) for i in range(processes)]
    if begin is not None:
        for one in loaders:
            one.restore(begin)
    seen = []
    for _ in range(steps):
        rows = np.concatenate([next(one)["input_ids"] for one in loaders])
        seen.append(rows[np.lexsort(rows.T)])
    states = [one.state() for one in loaders]
    for one in loaders:
        one.close()
    return seen, states


@pytest.mark.parametrize("pack", [False, True])
def test_processes_share_the_global_order_and_a_restart_keeps_it(pack):
    want, _ = batches(1, 6, pack=pack)
    for first, then in ((2, 3), (3, 1), (1, 2)):
        head, states = batches(first, 2, pack=pack)
        assert all(json.dumps(s) == json.dumps(states[0]) for s in states)
        tail, _ = batches(then, 4, pack=pack, begin=json.loads(json.dumps(states[0])))
        for a, b in zip(want, head + tail, strict=True):
            np.testing.assert_array_equal(a, b)


def test_every_process_gives_the_same_number_of_batches_at_the_end_of_the_data():
    """7 examples in batches of 6: only the first of two processes has one left for the second."""
    counts = []
    for i in range(2):
        one = loader((i, 2), pack=False, epochs=1, drop_last=False, examples=7)
        counts.append([int(b["attention_mask"].any(-1).sum()) for b in one])
        one.close()
    assert counts == [[3, 1], [3, 0]]


def test_more_processes_than_examples_is_an_error():
    with pytest.raises(DataError, match=r"2 example\(s\) for 3 processes"):
        loader((0, 3), pack=False, epochs=1, examples=2)


# --- real processes ------------------------------------------------------------------------------


WIDE = {"hidden_size": 32, "filter_size": 64}  # arrays that are large enough to be split


def write(folder: pathlib.Path, model=None, batch_size=6, **runconfig) -> pathlib.Path:
    path = folder / f"params_{len(list(folder.iterdir()))}.yaml"
    sparse = {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 2}, "compute": "masked"}
    cfg = config(
        model=model or {},
        train_input={"batch_size": batch_size},
        eval_input={"batch_size": batch_size},
        sparsity=sparse,
        optimizer={"max_gradient_norm": 0.5},
        runconfig=runconfig,
    )
    path.write_text(yaml.safe_dump(cfg))
    return path


def launch(
    params: pathlib.Path, model_dir: pathlib.Path, processes: int, *flags: str, each=None, under=()
):
    """Start the processes of one run; they meet on a free port.

    ``each``: flags per process. ``under``: a command that the last one is an argument of.
    """
    address = free_address()
    command = [sys.executable, "-m", "wafer", "run", "-p", str(params), "-o", str(model_dir)]
    command += ["--num_csx", str(processes), *flags]
    if processes > 1:
        command += ["--coordinator", address, "--num_processes", str(processes)]
    return [
        subprocess.Popen(
            [
                *(under if i == processes - 1 else ()),
                *command,
                *(["--process_id", str(i)] if processes > 1 else []),
                *(each[i] if each else []),
            ],
            env={**os.environ, "WAFER_JOBS_DB": str(model_dir / "jobs.db")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(processes)
    ]


def finish(started, timeout=200):
    outputs = []
    for process in started:
        out, _ = process.communicate(timeout=timeout)
        outputs.append(out)
    assert all(p.returncode == 0 for p in started), "\n".join(outputs)
    return outputs


def arrays(folder, step):
    return dict(named_leaves(load_checkpoint(folder / "checkpoints" / str(step))[0]))


SETTINGS = ("model", "train_input", "sparsity", "optimizer")


def one_process(folder, params, **runconfig):
    """Train the same file in this process; returns the arrays of its last checkpoint."""
    changes = yaml.safe_load(params.read_text())
    return train(folder, **{key: changes[key] for key in SETTINGS}, runconfig=runconfig)


def losses(folder):
    lines = (folder / "train" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["resident", "weight_streaming"])
def test_two_processes_train_like_one(tmp_path, execution):
    window = {"start_step": 2, "end_step": 2} if execution == "resident" else None
    params = write(tmp_path, model={"dropout_rate": 0.1}, max_steps=2, op_profiler_config=window)
    two = tmp_path / "two"
    finish(launch(params, two, 2, "--execution", execution))
    profiles = sorted(path.parent.name for path in two.glob("profile/*/op_profile.json"))
    assert profiles == (["process-0", "process-1"] if window else [])  # each its own systems'
    want = one_process(tmp_path / "one", params, max_steps=2)
    assert_close(want, arrays(two, 2), atol=1e-6)
    assert losses(two) == pytest.approx(losses(tmp_path / "one"), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("then", [1, 2, 3])
def test_a_checkpoint_of_two_processes_is_resumed_by_any_number(tmp_path, then):
    params = write(tmp_path, max_steps=2)
    finish(launch(params, tmp_path / "run", 2))
    finish(
        launch(
            params, tmp_path / "run", then, "--max_steps", "4", "--execution", "weight_streaming"
        )
    )
    want = one_process(tmp_path / "one", params, max_steps=4)
    assert_close(want, arrays(tmp_path / "run", 4), atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_share_the_state_and_one_goes_on_with_it(tmp_path, processes):
    """Each writes its parts; also 'hf', for which process 0 needs all of them."""
    params = write(tmp_path, model=WIDE, batch_size=8, max_steps=2, export="hf")
    folder = tmp_path / "run"
    outputs = finish(launch(params, folder, processes, "--shard_state"))
    assert "Sharded state: " in outputs[0]
    copied = launch(params, tmp_path / "copied", processes, "--max_steps", "4")
    finish(launch(params, folder, processes, "--shard_state", "--max_steps", "4"))
    finish(copied)
    assert_close(arrays(tmp_path / "copied", 4), arrays(folder, 4), atol=2e-6)
    assert losses(folder) == pytest.approx(losses(tmp_path / "copied"), abs=2e-6)
    finish(launch(params, folder, 1, "--max_steps", "5"))
    assert main(["checkpoint", "verify", str(folder / "checkpoints" / "4")]) == 0
    assert (folder / "hf" / "4" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_a_dead_process_stops_the_others_with_one_line_and_the_run_goes_on(tmp_path, sharded):
    steps = {"max_steps": 4000, "checkpoint_steps": 5, "max_checkpoints": 2}
    params = write(tmp_path, model=WIDE, shard_state=sharded, **steps)
    folder = tmp_path / "run"
    started = launch(params, folder, 2, "--heartbeat", "20")
    checkpoints = folder / "checkpoints"
    until((checkpoints / "5").is_dir)
    started[1].send_signal(signal.SIGKILL)
    out, _ = started[0].communicate(timeout=200)
    started[1].communicate()
    assert started[0].returncode not in (0, None)
    assert "lost contact with another process" in out
    assert "continues from the last checkpoint" in out
    last = max(int(p.name) for p in checkpoints.iterdir() if p.name.isdigit())
    outputs = finish(launch(params, folder, 2, "--max_steps", str(last + 2)))
    assert f"at step {last}" in outputs[0]
    want = one_process(tmp_path / "one", params, max_steps=last + 2)
    assert_close(want, arrays(folder, last + 2), atol=2e-5)


def one_line(out, *words):
    """One message of ours; no traceback; what JAX says in C++ comes after it."""
    errors = [line for line in out.splitlines() if line.startswith("wafer: error: ")]
    assert len(errors) == 1, out
    assert all(word in errors[0] for word in words), out
    assert "Traceback" not in out
    before = out.partition("wafer: error: ")[0]
    assert not any(word in before for word in ("stack trace", "terminate called", " @ "))


@pytest.mark.slow
def test_processes_that_disagree_do_not_begin(tmp_path):
    """Learning rate, width, batch size, seed, model_dir, shard_state: one line names each."""
    params, other = write(tmp_path, max_steps=2), tmp_path / "other.yaml"
    cfg = yaml.safe_load(params.read_text())
    cfg["train_input"]["batch_size"] = 12
    cfg["model"]["hidden_size"] *= 2
    cfg["optimizer"]["learning_rate"] = 0.125
    other.write_text(yaml.safe_dump(cfg))
    started = launch(params, tmp_path / "run", 2, "--join_timeout", "60", each=[
        [], ["-p", str(other), "--seed", "5", "-o", str(tmp_path / "other"), "--shard_state"],
    ])  # fmt: skip
    keys = ("runconfig.model_dir (", "runconfig.seed (", "runconfig.shard_state (",
            "train_input.batch_size (6 and 12)", "model.hidden_size (",
            "optimizer.learning_rate (")  # fmt: skip
    for process in started:
        out, _ = process.communicate(timeout=200)
        assert process.returncode == 1
        one_line(out, "process 0 and process 1 differ in ", *keys)
    assert not (tmp_path / "run" / "train").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", ["0", "1"])
def test_processes_that_cannot_meet_end_in_one_line(tmp_path, number):
    """The same number twice; of two processes 1 none is process 0. None trains."""
    params = write(tmp_path, max_steps=2, shard_state=True)
    twice = ["--process_id", number]
    started = launch(params, tmp_path / "run", 2, "--join_timeout", "8", each=[twice, twice])
    for process in started:
        out, _ = process.communicate(timeout=200)
        assert process.returncode == 1
        one_line(out, f"process {number} of 2")
    assert not (tmp_path / "run" / "train").exists()


@pytest.mark.slow
def test_another_program_on_the_address_is_named(tmp_path):
    """Process 0 cannot open it, and process 1 gets no answer."""
    params = write(tmp_path, max_steps=2, shard_state=True)
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        address = f"127.0.0.1:{foreign.getsockname()[1]}"
        started = launch(params, tmp_path / "run", 2, "--join_timeout", "8", each=[
            ["--coordinator", address], ["--coordinator", address],
        ])  # fmt: skip
        for number, process in enumerate(started):
            out, _ = process.communicate(timeout=200)
            assert process.returncode == 1
            one_line(out, f"process {number} of 2", address)
    assert not (tmp_path / "run" / "train").exists()


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_lost_process_ends_the_other_in_one_line(tmp_path, lost, how, sharded):
    steps = {"max_steps": 40_000, "checkpoint_steps": 5, "max_checkpoints": 2}
    params = write(tmp_path, model=WIDE, shard_state=sharded, **steps)
    started = launch(params, tmp_path / "run", 2, "--heartbeat", "6")
    until((tmp_path / "run" / "checkpoints" / "5").is_dir)
    started[lost].send_signal(how)
    out, _ = started[1 - lost].communicate(timeout=200)
    assert started[1 - lost].returncode not in (0, None)
    if lost == 0 and how == signal.SIGKILL:  # JAX may be first: its service was in process 0
        assert "lost contact with another process" in out or "another task died" in out
    else:
        one_line(out, "lost contact with another process", "continues from the last checkpoint")
    if how == signal.SIGSTOP:  # it wakes up alone, and ends as well
        started[lost].send_signal(signal.SIGCONT)
        started[lost].communicate(timeout=200)
        assert started[lost].returncode not in (0, None)
    else:
        started[lost].communicate()


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_an_error_of_one_process_ends_all(tmp_path, sharded):
    """Process 1 cannot write its events: a file is where its folder should be."""
    params = write(tmp_path, model=WIDE, max_steps=2, shard_state=sharded)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "process-1").write_text("")
    outputs = [p.communicate(timeout=200)[0] for p in launch(params, tmp_path / "run", 2)]
    one_line(outputs[0], "process 1 of 2 ended: ", "process-1")
    one_line(outputs[1], "process-1")


@pytest.mark.slow
def test_a_full_disk_of_one_process_ends_all_and_the_run_goes_on(tmp_path):
    """No file of process 1 can be longer than 4 KiB: its part of a checkpoint is."""
    params = write(tmp_path, model=WIDE, max_steps=2, shard_state=True)
    folder = tmp_path / "run"
    finish(launch(params, folder, 2))
    full = ["prlimit", "--fsize=4096"]
    started = launch(params, folder, 2, "--max_steps", "4", "--heartbeat", "20", under=full)
    outputs = [process.communicate(timeout=200)[0] for process in started]
    assert all(process.returncode not in (0, None) for process in started), outputs
    one_line(outputs[0], "lost contact with another process", "continues from the last checkpoint")
    one_line(outputs[1], "File too large")
    assert main(["checkpoint", "verify", str(folder)]) == 0
    outputs = finish(launch(params, folder, 2, "--max_steps", "4"))
    assert "at step 2" in outputs[0]


@pytest.mark.slow
def test_a_damaged_part_of_a_checkpoint_is_named_and_the_one_before_continues(tmp_path):
    params = write(tmp_path, model=WIDE, max_steps=2, checkpoint_steps=1, shard_state=True)
    checkpoints = tmp_path / "run" / "checkpoints"
    finish(launch(params, tmp_path / "run", 2))
    part = checkpoints / "2" / "state" / "ocdbt.process_1"
    damaged = max(part.rglob("*"), key=lambda path: path.stat().st_size)
    damaged.write_bytes(bytes(x ^ (k % 50 == 0) for k, x in enumerate(damaged.read_bytes())))
    outputs = finish(launch(params, tmp_path / "run", 2, "--max_steps", "4"))
    assert f"Skipped a damaged checkpoint: {checkpoints / '2'} " in outputs[0]
    assert "at step 1" in outputs[0]
    assert {path.name for path in checkpoints.iterdir()} >= {"1", "2.damaged", "2", "4"}
