"""Numbers behind pictures of masks, by hand; that pictures show them."""

import numpy as np
import pytest

import wafer
from wafer.sparsity import pictures

FIRST = np.array([[1, 1, 0], [0, 1, 0]], bool)
SECOND = np.array([[1, 0, 1], [0, 1, 0]], bool)
THIRD = np.array([[0, 0, 1], [1, 1, 0]], bool)


def sequence():
    return [{"a/kernel": mask} for mask in (FIRST, SECOND, THIRD)]


def test_numbers_by_hand():
    assert pictures.levels(sequence()[0]) == {"a/kernel": 0.5}
    assert pictures.survivors(sequence()) == {"a/kernel": [1, 2 / 3, 1 / 3]}
    assert pictures.moved(sequence()) == {"a/kernel": [1 / 3, 1 / 3]}
    own = pictures.degrees(FIRST)
    assert own.incoming.tolist() == [1, 2, 0]
    assert own.outgoing.tolist() == [2, 1]
    gradient = np.array([[3.0, 4, 100], [100, 0, 100]])
    flow = pictures.gradient_flow({"a/kernel": gradient, "b": gradient}, sequence()[0])
    assert flow == {"a/kernel": pytest.approx(np.sqrt(25 / 3))}


def test_pictures_show_the_numbers():
    level, evolution, incoming, outgoing = pictures.draw(
        dict(zip((0, 5, 10), sequence(), strict=True))
    ).axes
    assert [bar.get_width() for bar in level.patches] == [0.5]
    (line,) = evolution.lines
    assert line.get_xydata().tolist() == [[0, 1], [5, 2 / 3], [10, 1 / 3]]
    for axes, high in ((incoming, 1.5), (outgoing, 2.5)):
        corners = axes.patches[0].get_xy()
        assert corners[:, 0].max() == high
        assert corners[:, 1].max() <= 1
    (axes,) = pictures.draw_flow({0: {"a/kernel": 2.0}, 7: {"a/kernel": 0.5}}).axes
    assert axes.lines[0].get_xydata().tolist() == [[0, 2], [7, 0.5]]
    assert axes.get_legend().get_texts()[0].get_text() == "a"


def test_masks_of_a_run(tmp_path):
    pytest.importorskip("sklearn", reason="the rows are scikit-learn's digits")
    raw = {
        "train_input": {"data_processor": "DigitsDataProcessor", "batch_size": 8},
        "model": {"name": "fc_mnist", "input_size": 64, "hidden_size": 8, "depth": 1},
        "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.5},
        "sparsity": {"algorithm": "rigl", "sparsity": 0.75, "update": {"freq": 1}}
        | {"drop_fraction": 0.5, "init_method": "random", "param_filter": "*kernel"},
        "runconfig": {"max_steps": 2, "checkpoint_steps": 2, "save_initial_checkpoint": True}
        | {"model_dir": str(tmp_path), "seed": 1},
    }
    first, last = map(pictures.masks, wafer.train(raw).checkpoints)
    assert set(pictures.levels(last).values()) == {0.75}
    for kept in pictures.survivors([first, last]).values():
        assert 0 < kept[1] < 1
    del raw["sparsity"]
    raw["runconfig"]["model_dir"] = str(tmp_path / "dense")
    with pytest.raises(ValueError, match="no weight is pruned; expected a sparse checkpoint"):
        pictures.masks(wafer.train(raw).checkpoints[-1])


def test_errors():
    with pytest.raises(ValueError, match="no masks; expected at least one"):
        pictures.survivors([])
    with pytest.raises(ValueError, match="masks 1: other parameters or shapes"):
        pictures.moved([{"a": FIRST}, {"b": FIRST}])
    with pytest.raises(ValueError, match="flows: empty"):
        pictures.draw_flow({})
