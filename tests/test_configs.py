"""Every params YAML of the repository is read, checked and built by shapes alone."""

import pathlib

import jax
import pytest

from wafer.checks import CHECKS
from wafer.config import load
from wafer.train.build import plan

ROOT = pathlib.Path(__file__).parent.parent
PARAMS = sorted((ROOT / "models" / "configs").rglob("*.yaml"))


@pytest.mark.parametrize("path", PARAMS, ids=lambda p: p.stem)
def test_params_file(path, tmp_path):
    cfg = load(path, checks=CHECKS)
    made = plan(cfg)
    jax.eval_shape(made.tx.init, made.shapes)
    if cfg.sparsity is not None:
        assert made.sparsifier.select(made.shapes), "the sparsity section selects no parameter"

    saved = tmp_path / "resolved.yaml"
    saved.write_text(cfg.to_yaml())
    assert load(saved, checks=CHECKS) == cfg


@pytest.mark.parametrize("path", PARAMS, ids=lambda p: p.stem)
def test_head_comment_says_how_to_run_it(path):
    head = path.read_text().split("\n\n")[0]
    assert "wafer run --params " + str(path.relative_to(ROOT)) in head
    assert "time:" in head
    assert "reached:" in head
