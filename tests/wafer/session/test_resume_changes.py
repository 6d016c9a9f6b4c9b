"""A resumed run says what its file changed, and does what it says."""

import numpy as np
import pytest
import yaml
from helpers.runs import config

from wafer.cli import main
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.paths import named_leaves
from wafer.session.config_diff import changes


def test_changes_name_key_old_and_new_value():
    then = {"sparsity": {"sparsity": 0.8, "freq": 2}, "optimizer": {"betas": [0.9, 0.95]}, "x": 1}
    now = {"sparsity": {"sparsity": 0.9}, "optimizer": {"betas": (0.9, 0.95)}, "x": 2}
    assert changes(then, now) == [
        "sparsity.sparsity: 0.8 then, 0.9 now",
        "sparsity.freq: 2 then, nothing now",
    ]
    assert changes({"sparsity": None}, {"sparsity": 0.5}) == ["sparsity: nothing then, 0.5 now"]
    many = {"model": {f"k{i}": i for i in range(12)}}
    assert changes(many, {"model": {}})[-2:] == ["model.k7: 7 then, nothing now", "... and 4 more"]


def level(folder, step):
    tree, _ = load_checkpoint(folder / "checkpoints" / str(step))
    weights = dict(named_leaves(tree["params"]))
    return float(np.isnan(np.asarray(weights["layers_0/ffn/up/kernel"])).mean())


@pytest.mark.slow
def test_a_changed_sparsity_is_said_and_comes_with_the_next_update(tmp_path, capsys):
    """3 steps at 50 %, then 75 % asked for: the update of step 4 begins to bring it."""

    def run(sparsity, steps, *flags):
        section = {"algorithm": "rigl", "sparsity": sparsity, "update": {"freq": 4}}
        section |= {"drop_fraction": 0.3}
        path = tmp_path / "params.yaml"
        runconfig = {"max_steps": steps, "checkpoint_steps": 1}
        path.write_text(yaml.safe_dump(config(sparsity=section, runconfig=runconfig)))
        folder = str(tmp_path / "run")
        assert main(["run", "-p", str(path), "-m", "train", "-o", folder, *flags]) == 0
        return capsys.readouterr().out

    assert "Changed since" not in run(0.5, 2)
    assert "Changed since" not in run(0.5, 3)
    out = run(0.75, 4)
    assert "sparsity.sparsity: 0.5 then, 0.75 now" in out
    assert "stay so until the algorithm's next updates" in " ".join(out.split())
    assert out.count("Will apply sparsity") == 1
    assert level(tmp_path / "run", 3) == pytest.approx(0.5, abs=0.01)
    # An update drops its share of the kept weights (0.3 of them) and grows none above the target.
    assert level(tmp_path / "run", 4) == pytest.approx(1 - 0.5 * 0.7, abs=0.02)
