"""Checkpoints at S3 and Google's storage, against servers of packages; skipped without them."""

import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorstore as ts
from helpers.runs import arrays, config, write_yaml

import wafer
from wafer.cli import main
from wafer.commands.checkpoints.finalize import finalize
from wafer.commands.run import run
from wafer.config import parse_config
from wafer.data.text.tokenizer import train_bpe
from wafer.errors import CheckpointError, ConfigError
from wafer.models.checkpoint import stores
from wafer.models.checkpoint.layout import META, RECORD
from wafer.models.checkpoint.stores import Store, synchronize
from wafer.models.paths import named_leaves

SPARSE = {"sparsity": {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 2}}}


@pytest.fixture(scope="module")
def server():
    """Address of an S3 server in this process."""
    moto = pytest.importorskip("moto.server", reason="needs pip install 'moto[server]'")
    one = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    one.start()
    host, port = one.get_host_and_port()
    yield f"http://{host}:{port}"
    one.stop()


@pytest.fixture
def bucket(server, monkeypatch):
    """URL of a new bucket, whose server the environment names."""
    import boto3

    for key, value in {
        "ACCESS_KEY_ID": "a",
        "SECRET_ACCESS_KEY": "b",
        "REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(f"AWS_{key}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    name = f"b{time.monotonic_ns()}"
    boto3.client("s3", endpoint_url=server, region_name="us-east-1").create_bucket(Bucket=name)
    return f"s3://{name}"


def train(folder, root=None, **settings):
    keys = {"model_dir": str(folder), "mode": "train", "checkpoint_root": root} | settings
    assert run(parse_config(config(runconfig=keys, **SPARSE))) == 0
    return arrays(max((folder / "checkpoints").iterdir(), key=lambda p: int(p.name)))


def checkpoint(folder, text=b"x"):
    """A folder that has the files of a checkpoint."""
    for name in ("state/d/array", "state/_METADATA", f"{META}/{RECORD}"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return folder


def content(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.slow
def test_a_run_continues_from_the_store_in_another_folder(bucket, tmp_path):
    """Bit for bit: the new machine has nothing but the address."""
    whole = train(tmp_path / "whole", max_steps=6)
    train(tmp_path / "one", f"{bucket}/run", max_steps=4, max_checkpoints=1)
    assert Store(f"{bucket}/run").steps() == [4]
    again = train(tmp_path / "two", f"{bucket}/run", max_steps=6)
    assert Store(f"{bucket}/run").steps() == [4, 6]
    assert again.keys() == whole.keys()
    assert all(np.array_equal(again[name], whole[name], equal_nan=True) for name in whole)
    with pytest.raises(CheckpointError, match=r"holds checkpoints \[4, 6\], whose steps"):
        train(tmp_path / "three", f"{bucket}/run", autoload_last_checkpoint=False)
    # Start from it, finalize from it and to it, load what is there.
    url = f"{bucket}/run/6"
    train(tmp_path / "four", checkpoint_path=url, load_checkpoint_states="model", max_steps=2)
    report = finalize(url, f"{bucket}/dense")
    assert report.sparse
    dense = dict(named_leaves(wafer.load(f"{bucket}/dense")[1]))
    kept = {f"params/{name}": np.asarray(leaf) for name, leaf in dense.items()}
    assert all(np.array_equal(kept[name], np.nan_to_num(again[name])) for name in kept)
    with pytest.raises(CheckpointError, match="is there already"):
        finalize(url, f"{bucket}/dense")
    assert main(["checkpoint", "copy", url, str(tmp_path / "copy")]) == 0
    assert content(tmp_path / "copy") == content(tmp_path / "two" / "checkpoints" / "6")
    assert main(["checkpoint", "delete", url]) == 0
    assert Store(f"{bucket}/run").steps() == [4]


@pytest.fixture
def google(monkeypatch):
    """URL of a bucket of an emulator of Google's storage."""
    emulator = pytest.importorskip(
        "gcp_storage_emulator.server", reason="needs pip install gcp-storage-emulator"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("GCE_METADATA_ROOT", "127.0.0.1:9")  # no machine of Google's
    one = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    one.start()
    yield "gs://bucket"
    one.stop()


def test_google_storage_keeps_checkpoints_as_s3_does(google, tmp_path):
    folder = checkpoint(tmp_path / "checkpoints" / "4")
    store = Store(f"{google}/run")
    store.require_writable()
    store._kv.write("4/state/left-by-a-killed-writer", b"x").result()
    assert store.steps() == []
    synchronize(store.url, folder.parent, trains=True)
    store.upload(folder, "12")
    assert store.steps() == [4, 12]
    synchronize(store.url, tmp_path / "other", trains=True, every=True)
    assert content(tmp_path / "other") == {
        f"{n}/{k}": v for n in (4, 12) for k, v in content(folder).items()
    }
    store.delete("4")
    assert store.steps() == [12]
    assert stores.local_path(f"{google}/run/12").name == "12"


KILLED = """
import os, pathlib, signal, sys
from wafer.models.checkpoint.stores import Store
store, read = Store(sys.argv[1]), pathlib.Path.read_bytes
def bytes_of(path, names=[]):
    names.append(path)
    if len(names) > int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return read(path)
pathlib.Path.read_bytes = bytes_of
store.upload(pathlib.Path(sys.argv[2]), "4")
"""


@pytest.mark.slow
@pytest.mark.parametrize("written", [1, 2])
def test_an_upload_that_was_killed_is_no_checkpoint_and_is_repeated(bucket, tmp_path, written):
    folder = checkpoint(tmp_path / "checkpoints" / "4")
    command = [sys.executable, "-c", KILLED, bucket, str(folder), str(written)]
    killed = subprocess.run(command, check=False, env=os.environ)
    assert killed.returncode == -signal.SIGKILL
    store = Store(bucket)
    assert store.steps() == []
    with pytest.raises(CheckpointError, match="no complete checkpoint there"):
        store.download("4", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    synchronize(bucket, folder.parent, trains=False)  # an evaluation writes nothing
    assert store.steps() == []
    synchronize(bucket, folder.parent, trains=True)
    assert store.steps() == [4]
    synchronize(bucket, tmp_path / "other", trains=True)
    assert content(tmp_path / "other" / "4") == content(folder)


@pytest.mark.slow
def test_kill_9_of_a_run(bucket, tmp_path):
    keys = {"checkpoint_root": f"{bucket}/run", "max_steps": 40, "checkpoint_steps": 1}
    path = write_yaml(tmp_path / "run.yaml", config(runconfig=keys, **SPARSE))
    command = [
        sys.executable,
        "-m",
        "wafer",
        "run",
        "CPU",
        "--params",
        str(path),
        "--mode",
        "train",
    ]
    process = subprocess.Popen([*command, "--model_dir", str(tmp_path / "killed")])
    store = Store(f"{bucket}/run")
    while not store.steps() and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert store.steps()[-1] < 40
    again = train(tmp_path / "again", f"{bucket}/run", max_steps=40, checkpoint_steps=40)
    whole = train(tmp_path / "whole", max_steps=40, checkpoint_steps=40)
    assert all(np.array_equal(again[name], whole[name], equal_nan=True) for name in whole)


@pytest.mark.slow
def test_all_checkpoints_are_evaluated(bucket, tmp_path):
    train(tmp_path / "one", f"{bucket}/run")
    keys = {"model_dir": str(tmp_path / "two"), "mode": "eval_all"}
    keys |= {"checkpoint_root": f"{bucket}/run"}
    assert run(parse_config(config(runconfig=keys, **SPARSE))) == 0
    assert sorted(p.name for p in (tmp_path / "two" / "checkpoints").iterdir()) == ["2", "4"]


@pytest.fixture
def dense(bucket, tmp_path):
    """(address of a model with its tokenizer, the same in a folder)."""
    train_bpe(["the cat sat on the mat. " * 20] * 4, 280).save(str(tmp_path / "tokenizer.json"))
    sizes = {"vocab_size": 280, "max_position_embeddings": 32}
    rows = {"vocab_size": 280}
    keys = {"model_dir": str(tmp_path / "run"), "max_steps": 1, "checkpoint_steps": 1}
    sections = {"train_input": rows, "eval_input": rows, "model": sizes, "runconfig": keys}
    assert run(parse_config(config(**sections))) == 0
    shutil.copy(tmp_path / "tokenizer.json", tmp_path / "run")
    source = tmp_path / "run" / "checkpoints" / "1"
    finalize(source, tmp_path / "dense")
    finalize(source, f"{bucket}/dense")
    return f"{bucket}/dense", tmp_path / "dense"


def test_commands_take_an_address_as_they_take_a_folder(dense, tmp_path, monkeypatch, cli):
    address, folder = dense
    say = lambda path: cli(f"generate --checkpoint_path {path} --prompt the --max_new_tokens 8")
    assert say(address) == say(folder)
    seen = []
    record = {"results": {"cloze": {"acc,none": 0.5}}}
    score = lambda texts, _: seen.append(texts.likelihoods([([5, 6], [7])])) or record
    monkeypatch.setattr("wafer.session.harness.tasks.run_tasks", score)
    for path in dense:
        cli(f"evaluate --checkpoint_path {path} --tasks cloze")
    assert seen[0] == seen[1]
    size = sum(len(content) for content in content(folder).values())
    assert cli(f"checkpoint info {address}") == f"{address}: {size / 1e6:,.1f} MB, step 1\n"
    assert cli(f"checkpoint info {folder}").startswith(f"{folder}: {size / 1e6:,.1f} MB, last mod")
    sound = cli(f"checkpoint verify {folder}")
    assert cli(f"checkpoint verify {address}") == sound.replace(str(folder), address)
    assert f" in {address}-2\n" in cli(f"finalize -i {address} -o {address}-2")


def test_an_object_that_leads_out_of_the_checkpoint_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    store = Store("s3://bucket")
    store._kv = ts.KvStore.open({"driver": "memory"}).result()  # moto resolves such names
    store.upload(checkpoint(tmp_path / "4"), "4")
    store._kv.write("4/state/../../../x", b"x").result()
    with pytest.raises(CheckpointError, match=r"4/state/\.\./.*leads out"):
        store.download("4", tmp_path / "in" / "4")
    assert not (tmp_path / "in" / "4").exists()


def test_several_processes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("jax.process_count", lambda: 2)
    with pytest.raises(CheckpointError, match="expected a run in one process"):
        synchronize("s3://bucket/run", tmp_path, trains=True)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(stores, "_RETRIES", {"max_retries": 1, "initial_delay": "1ms"})


def failure(tmp_path, root, capsys):
    """Exit code and lines of a run that cannot reach its store, which must not train."""
    keys = {"checkpoint_root": root, "model_dir": str(tmp_path / "run")}
    path = write_yaml(tmp_path / "run.yaml", config(runconfig=keys))
    code = main(["run", "CPU", "--params", str(path), "--mode", "train"])
    assert not (tmp_path / "run" / "checkpoints").exists()
    return code, capsys.readouterr().err.strip().splitlines()


def test_a_wrong_bucket_is_one_line_before_training(bucket, quick, tmp_path, capsys):
    code, lines = failure(tmp_path, "s3://no-such-bucket/run", capsys)
    assert code == 1
    assert "s3://no-such-bucket/run: NOT_FOUND: NoSuchBucket" in lines[-1]
    assert "AWS_ACCESS_KEY_ID" in lines[-1]


class Denied(http.server.BaseHTTPRequestHandler):
    """Answers as S3 does for wrong credentials."""

    def do_PUT(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b"<Error><Code>InvalidAccessKeyId</Code><Message>no such key</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_DELETE = do_PUT

    def log_message(self, *_):
        pass


@pytest.fixture
def refusing():
    one = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Denied)
    threading.Thread(target=one.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{one.server_port}"
    one.shutdown()
    one.server_close()


@pytest.mark.parametrize("where", ["credentials", "address"])
def test_wrong_credentials_and_addresses_are_one_line(
    refusing, quick, tmp_path, capsys, monkeypatch, where
):
    address = refusing if where == "credentials" else "http://127.0.0.1:9"
    for key, value in {
        "ENDPOINT_URL": address,
        "ACCESS_KEY_ID": "a",
        "SECRET_ACCESS_KEY": "b",
    }.items():
        monkeypatch.setenv(f"AWS_{key}", value)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    code, lines = failure(tmp_path, "s3://bucket/run", capsys)
    assert code == 1
    assert "s3://bucket/run: " in lines[-1]
    assert ("InvalidAccessKeyId" if where == "credentials" else "connect") in lines[-1]


@pytest.mark.parametrize("root", ["runs/x", "s3:/bucket", "s3://", "http://x/y", "gs:///x"])
def test_a_root_is_an_address(root):
    with pytest.raises(ConfigError, match="expected s3://BUCKET/PATH or gs://BUCKET/PATH"):
        parse_config(config(runconfig={"checkpoint_root": root}))
