"""Every params YAML of the repository is read, checked and built by shapes alone."""

import resource
import subprocess
import sys
import time

import jax
import pytest
import yaml
from helpers.paths import ROOT

from wafer import cli
from wafer.config import load
from wafer.experiment import Experiment

PARAMS = sorted((ROOT / "models" / "configs").rglob("*.yaml"))


@pytest.mark.parametrize("path", PARAMS, ids=lambda p: p.stem)
def test_params_file(path, tmp_path):
    cfg = load(path)
    experiment = Experiment.from_config(cfg)
    jax.eval_shape(experiment.tx.init, experiment.shapes)
    if cfg.sparsity is not None:
        assert experiment.sparsifier.select(experiment.shapes), (
            "the sparsity section selects no parameter"
        )

    saved = tmp_path / "resolved.yaml"
    saved.write_text(cfg.to_yaml())
    assert load(saved) == cfg


# the families -> a name that one run file at least must have
FAMILIES = {
    "gpt2",
    "gpt3",
    "cerebras-gpt",
    "gptj",
    "gpt-neox",
    "codegen",
    "bloom",
    "btlm",
    "jais",
    "crystalcoder",
    "falcon-7b",
    "falcon-40b",
    "falcon-11b",
    "falcon-rw",
    "mpt",
    "llama",
    "llamaV2",
    "llama3",
    "code-llama",
    "mistral",
    "mixtral",
    "santacoder",
    "starcoder",
    "octocoder",
    "bert",
    "bert-sequence-classifier",
    "bert-token-classifier",
    "bert-q&a",
    "bert-summarization",
    "roberta",
    "ebert",
    "dpr",
    "t5",
    "t5-v1.1",
    "flan-t5",
    "ul2",
    "transformer",
    "llava",
    "fc_mnist",
}


def test_every_family_has_a_run_file():
    sections = [yaml.safe_load(path.read_text())["model"] for path in PARAMS]
    assert {section["name"] for section in sections} >= FAMILIES
    assert any(section.get("fixed_sparse_attention") for section in sections)
    assert any(section.get("mup_base_hidden_size") for section in sections)


@pytest.mark.slow
@pytest.mark.parametrize("path", PARAMS, ids=lambda p: p.stem)
def test_validates_within_ten_seconds(path, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    flags = ["--mode", "train", "--model_dir", str(tmp_path), "--validate_only"]
    settings = yaml.safe_load(path.read_text())
    settings["runconfig"].pop("checkpoint_path", None)  # what an earlier run of a chain writes
    params = tmp_path / path.name
    params.write_text(yaml.safe_dump(settings))
    began = time.process_time()
    assert cli.main(["run", "--params", str(params), *flags]) == 0
    used = time.process_time() - began
    assert used < 6, f"{used:.1f} s of processor time"  # the rest of the ten is for imports


@pytest.mark.slow
def test_a_process_of_its_own_validates_within_ten_seconds(tmp_path):
    path = ROOT / "models" / "configs" / "mixtral" / "mixtral_8x7b.yaml"  # the most work
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    flags = ["--mode", "train", "--model_dir", str(tmp_path), "--validate_only"]
    subprocess.run(
        [sys.executable, "-m", "wafer", "run", "--params", str(path), *flags],
        check=True,
        capture_output=True,
        cwd=ROOT,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 10, f"{used:.1f} s of processor time"


@pytest.mark.parametrize("path", PARAMS, ids=lambda p: p.stem)
def test_head_comment_says_how_to_run_it(path):
    head = path.read_text().split("\n\n")[0]
    assert "wafer run --params " + str(path.relative_to(ROOT)) in head
    assert "time:" in head
    assert "reached:" in head
