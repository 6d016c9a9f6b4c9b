"""Masks of a run that starts from a checkpoint: stored ones, new ones, and none in evaluation."""

import logging

import numpy as np
import pytest
from helpers.runs import config

import wafer
from wafer.session.masks import mask_lines
from wafer.sparsity.stored.resume import Origin

STATIC = {"algorithm": "static", "sparsity": 0.75}
SECTIONS = {
    "static": STATIC,
    "csr": STATIC | {"compute": "csr"},
    "1.8": {"sparsity": 0.5, "seed": 3, "init_method": "random"},
    "sr-ste": {"algorithm": "sr-ste", "pattern": {"type": "n:m", "n": 2, "m": 4}, "stop": 1},
}


@pytest.fixture(scope="module")
def finalized(tmp_path_factory):
    """A sparse run of two steps, and its finalized checkpoint."""
    folder = tmp_path_factory.mktemp("sparse")
    run = {"max_steps": 2, "model_dir": str(folder / "run")}
    wafer.train(config(sparsity=STATIC, runconfig=run))
    wafer.finalize(folder / "run" / "checkpoints" / "2", folder / "dense")
    return folder / "run" / "checkpoints" / "2", folder / "dense"


def loss(checkpoint, folder, section, **run):
    run |= {"model_dir": str(folder), "eval_steps": 2}
    return wafer.evaluate(config(sparsity=section, runconfig=run), checkpoint)["loss"]


def test_an_evaluation_has_the_masks_of_the_checkpoint_or_none(finalized, tmp_path, caplog):
    sparse, dense = finalized
    plain = loss(dense, tmp_path, None)
    caplog.set_level(logging.INFO)
    with caplog.at_level(logging.INFO):
        assert loss(dense, tmp_path, STATIC) == plain
    assert f"{dense} has no masks for 6 weights; they are evaluated as stored" in caplog.text
    assert "Will apply sparsity" not in caplog.text
    with caplog.at_level(logging.INFO):
        assert loss(sparse, tmp_path, STATIC) == pytest.approx(plain)
    assert f"6 weights keep their masks from {sparse} (75.0% pruned)\n" in caplog.text
    assert loss(sparse, tmp_path, None) == pytest.approx(plain)  # the checkpoint says which masks


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["resident", "weight_streaming", "pipelined"])
@pytest.mark.parametrize("name", SECTIONS)
def test_no_section_and_no_engine_masks_finalized_weights(finalized, tmp_path, name, strategy):
    sparse, dense = finalized
    plain = loss(dense, tmp_path, None)
    engine = {"execution_strategy": strategy}
    assert loss(dense, tmp_path, SECTIONS[name], **engine) == pytest.approx(plain)
    if name != "sr-ste":  # which computes with other weights than those it keeps
        assert loss(sparse, tmp_path, SECTIONS[name], **engine) == pytest.approx(plain)


@pytest.mark.slow
def test_training_says_which_masks_are_new_and_which_are_kept(finalized, tmp_path, caplog):
    sparse, dense = finalized
    before = np.asarray(wafer.load(dense)[1]["layers_0"]["ffn"]["up"]["kernel"])

    def train(checkpoint, name, section):
        caplog.clear()
        run = {"max_steps": 1, "seed": 2, "model_dir": str(tmp_path / name)}
        run["is_pretrained_checkpoint"] = True
        with caplog.at_level(logging.INFO):
            trained = wafer.train(
                config(sparsity=section, runconfig=run), checkpoint_path=str(checkpoint)
            )
        kernel = np.asarray(trained.params["layers_0"]["ffn"]["up"]["kernel"])
        lines = [r.message for r in caplog.records if r.message.startswith("sparsity: ")]
        return kernel, lines

    kernel, lines = train(sparse, "kept", STATIC)
    np.testing.assert_array_equal(kernel == 0, before == 0)
    assert lines == [
        f"sparsity: 6 weights keep their masks from {sparse} (75.0% pruned); they do not change"
    ]
    kernel, lines = train(dense, "new", {"algorithm": "static", "sparsity": 0.5})
    assert not ((before == 0) <= (kernel == 0)).all()
    assert len(lines) == 1
    assert f"{dense} has no masks for 6 weights; new masks prune 50.0% of them and set " in lines[0]
    assert "init_method: from_zeros keeps the zeros" in lines[0]
    kernel, lines = train(dense, "zeros", STATIC | {"init_method": "from_zeros"})
    np.testing.assert_array_equal(kernel == 0, before == 0)
    assert lines == [
        f"sparsity: {dense} has no masks for 6 weights; new masks prune 75.0% of them where the "
        "values were 0 already"
    ]


def origin(size, pruned, *, stored=True, lost=0, asked=None):
    return Origin(stored, size, pruned, lost, pruned if asked is None else asked)


def test_counts_of_the_lines_are_sums_over_the_weights():
    origins = {
        "a": origin(100, 50),
        "b": origin(300, 290),
        "c": origin(8, 4, stored=False, lost=3),
        "d": origin(8, 0, stored=False),  # starts dense
    }
    kept, new = mask_lines(origins, "runs/a", trains=True, dynamic=True)
    assert kept == "2 weights keep their masks from runs/a (85.0% pruned)"
    assert new.startswith(
        "runs/a has no masks for 1 weights; new masks prune 50.0% of them and set 3"
    )
    dense = {"d": origin(8, 0, stored=False)}
    assert list(mask_lines(dense, "runs/a", trains=True, dynamic=True)) == []


def test_another_level_is_told_once_and_not_for_what_rounding_or_a_budget_moves():
    spread = {str(i): origin(1000, 600 + 200 * i, asked=703) for i in range(2)}  # 1400 of 1406
    assert list(mask_lines(spread, "p", trains=True, dynamic=False)) == [
        "2 weights keep their masks from p (70.0% pruned); they do not change"
    ]
    other = {str(i): origin(1000, 703, asked=900) for i in range(21)}
    (line,) = mask_lines(other, "p", trains=True, dynamic=False)
    assert "21 weights keep their masks from p; 70.3% pruned, the section asks for 90.0%" in line
    (line,) = mask_lines(other, "p", trains=False, dynamic=False)
    assert line == "21 weights keep their masks from p (70.3% pruned)"


def test_a_level_that_the_run_does_not_reach_is_said(tmp_path, caplog):
    rigl = {"algorithm": "rigl", "schedule": [0.5, 0.9], "update": {"steps": [0, 1]}}
    run = {"max_steps": 1, "model_dir": str(tmp_path)}
    wafer.train(config(sparsity=rigl, runconfig=run))
    said = "sparsity: the level ends at 65.00%, not at the scheduled 90.00%: each of its 1 updates"
    assert said in caplog.text
