"""Every params YAML of the repository is read, checked and built by shapes alone."""

import hashlib
import json

import jax
import pytest
import yaml
from helpers.paths import GOLDEN, ROOT
from helpers.runs import write_yaml

from wafer import cli
from wafer.config import load
from wafer.experiment import Experiment
from wafer.models.paths import named_leaves

CONFIGS = ROOT / "models" / "configs"
PARAMS = sorted(CONFIGS.rglob("*.yaml"))
V1 = json.loads((GOLDEN / "checkpoints" / "v1" / "expected.json").read_text())["configs"]


def _marked(path):
    """Leave 18,000 expert kernels, and the moments of each, to the slow suite."""
    return pytest.param(path, marks=[pytest.mark.slow] if path.stem == "qwen3_30b_a3b" else [])


@pytest.mark.parametrize("path", [_marked(p) for p in PARAMS], ids=lambda p: p.stem)
def test_params_file(path, tmp_path):
    cfg = load(path)
    experiment = Experiment.from_config(cfg)
    opt_state = jax.eval_shape(experiment.tx.init, experiment.shapes)
    if cfg.sparsity is not None:
        assert experiment.sparsifier.select(experiment.shapes)

    saved = tmp_path / "resolved.yaml"
    saved.write_text(cfg.to_yaml())
    assert load(saved) == cfg

    name = str(path.relative_to(CONFIGS))
    if name in V1:  # what checkpoints of format version 1 hold
        if cfg.model["name"] == "transformer":  # they lack the norm after each stack
            raw = yaml.safe_load(path.read_text())
            raw["model"]["final_norm"] = False
            saved.write_text(yaml.safe_dump(raw))
            experiment = Experiment.from_config(load(saved))
            opt_state = jax.eval_shape(experiment.tx.init, experiment.shapes)
        leaves = named_leaves({"params": experiment.shapes, "opt_state": opt_state})
        lines = sorted(f"{leaf} {x.shape} {x.dtype}" for leaf, x in leaves)
        assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == V1[name]


def test_files_of_version_1_are_still_there():
    assert V1.keys() <= {str(path.relative_to(CONFIGS)) for path in PARAMS}


# the families -> a name that one run file at least must have
FAMILIES = """
    gpt2 gpt3 cerebras-gpt gptj gpt-neox codegen bloom btlm jais crystalcoder falcon-7b
    falcon-40b falcon-11b falcon-rw mpt llama llamaV2 llama3 code-llama mistral mixtral
    santacoder starcoder octocoder bert bert-sequence-classifier bert-token-classifier
    bert-q&a bert-summarization roberta ebert dpr t5 t5-v1.1 flan-t5 ul2 transformer llava
    fc_mnist qwen2 qwen3 qwen3_moe olmo2 phi3 gemma gemma2 gemma3_text smollm tinyllama starcoder2
    opt esm2
"""


def test_every_family_has_a_run_file():
    sections = [yaml.safe_load(path.read_text())["model"] for path in PARAMS]
    assert {section["name"] for section in sections} >= set(FAMILIES.split())
    assert any(section.get("fixed_sparse_attention") for section in sections)
    assert any(section.get("mup_base_hidden_size") for section in sections)


@pytest.mark.slow
@pytest.mark.parametrize("path", PARAMS, ids=lambda p: p.stem)
def test_validates(path, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    flags = ["--mode", "train", "--model_dir", str(tmp_path), "--validate_only"]
    settings = yaml.safe_load(path.read_text())
    settings["runconfig"].pop("checkpoint_path", None)  # what an earlier run of a chain writes
    params = write_yaml(tmp_path / path.name, settings)
    assert cli.main(["run", "--params", str(params), *flags]) == 0


@pytest.mark.parametrize("path", PARAMS, ids=lambda p: p.stem)
def test_head_comment_says_how_to_run_it(path):
    head = path.read_text().split("\n\n")[0]
    assert "wafer run --params " + str(path.relative_to(ROOT)) in head
    assert "time:" in head
    assert "reached:" in head
