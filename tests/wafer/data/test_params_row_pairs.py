"""The vendor's HDF5 rows of several sequences: DPO's pairs, DPR's questions with contexts."""

import json
import math

import h5py
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from helpers.runs import config, losses

from wafer import models, vsl
from wafer.cli import main
from wafer.config import parse_config
from wafer.data.batching.batches import host_batch, to_batch
from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.readers.row_pairs import REFERENCE
from wafer.data.rowfiles.folders import shuffle_folder
from wafer.errors import DataError
from wafer.models.base import Batch
from wafer.models.families.preference import DpoConfig, preference_aux

S = 6
# ids, loss mask, labels: a prompt of two tokens and an answer; the vendor's mask is one longer.
CHOSEN = [[3, 4, 5, 6, 0, 0], [0, 1, 1, 1, 0, 0], [0, 5, 6, 0, 0, 0]]
REJECTED = [[3, 4, 7, 0, 0, 0], [0, 1, 1, 0, 0, 0], [0, 7, 0, 0, 0, 0]]


def write_pairs(folder, count=4):
    folder.mkdir()
    with h5py.File(folder / "a.h5", "w") as file:
        file["data"] = np.tile(np.array([*CHOSEN, *REJECTED], "i4"), (count, 1, 1))
    return folder


def section(name, folder, **keys):
    own = {"data_processor": name, "data_dir": str(folder), "batch_size": 2, **keys}
    cfg = parse_config(config() | {"train_input": own, "model": config()["model"] | {"dpo": {}}})
    return cfg.train_input


def batch_of(dataset, count=1):
    rows = [dataset.source[i] for i in range(count)]
    if dataset.transform is not None:
        rows = [dataset.transform(row, np.random.default_rng(0)) for row in rows]
    stacked = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    return to_batch({k: jnp.asarray(v[0, 0]) for k, v in host_batch(stacked).items()})


def test_both_answers_of_a_pair_lie_side_by_side(tmp_path):
    folder = write_pairs(tmp_path / "rows")
    np.save(folder / REFERENCE, np.arange(8.0, dtype="f4").reshape(4, 2))
    context = Context(vocab_size=32)
    dataset = build_dataset(section("DpoHDF5DataProcessor", folder), tmp_path, context)
    row = dataset.source[3]
    assert row["input_ids"].tolist() == [3, 4, 5, 6, 0, 0, 3, 4, 7, 0, 0, 0]
    assert row["loss_mask"].tolist() == [0, 1, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0]
    assert row["labels"].tolist() == [0, 5, 6, 0, 0, 0, 0, 7, 0, 0, 0, 0]
    assert row["reference_logps"].tolist() == [6.0, 7.0]
    batch = batch_of(dataset)
    assert batch.layout.positions.tolist() == [0, 1, 2, 3, 0, 0, 0, 1, 2, 0, 0, 0]
    assert batch.layout.segments.tolist() == [0, 0, 0, 0, -1, -1, 1, 1, 1, -1, -1, -1]


def test_pairs_need_the_references_numbers_and_ids_of_the_vocabulary(tmp_path):
    folder = write_pairs(tmp_path / "rows")
    own = section("DpoHDF5DataProcessor", folder)
    with pytest.raises(DataError, match=f"{REFERENCE}: no such file; `wafer score .*rows` writes"):
        build_dataset(own, tmp_path)
    np.save(folder / REFERENCE, np.zeros((3, 2), "f4"))
    with pytest.raises(DataError, match=r"float32\[3, 2\]; expected finite float32 \[4, 2\]"):
        build_dataset(own, tmp_path)
    np.save(folder / REFERENCE, np.zeros((4, 2), "f4"))
    small = build_dataset(own, tmp_path, Context(vocab_size=6))
    with pytest.raises(DataError, match=r"row 0: chosen_input_ids\[3\] is 6; expected ids"):
        small.source[0]
    free = models.registry.parse_config(config()["model"] | {"dpo": {"reference_free": True}})
    (folder / REFERENCE).unlink()
    row = build_dataset(own, tmp_path, Context.of(free, training=True)).source[0]
    assert "reference_logps" not in row


def test_rows_of_another_kind_are_named(tmp_path):
    folder = write_pairs(tmp_path / "rows")
    with pytest.raises(DataError, match="rows have no questions_input_ids"):
        build_dataset(section("DPRHDF5DataProcessor", folder), tmp_path)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("kind", ["sigmoid", "hinge", "ipo", "dpop"])
def test_losses_of_pairs_are_the_vendors(kind, free):
    """DPOLoss of release 2.10 in NumPy; ``ipo`` takes means over tokens."""
    if free and kind == "dpop":
        pytest.skip("dpop has a reference")
    rng = np.random.default_rng(5)
    weights = np.array([[[0, 1, 1], [1, 1, 1]], [[1, 0, 0], [1, 1, 0]]], np.float64)
    logits, labels = rng.normal(size=(12, 7)), rng.integers(0, 7, 12)
    reference = rng.normal(size=(2, 2)) - 3
    spans, places = (jnp.tile(jnp.array(row), (2, 2)) for row in ([2, 1, 0], [0, 1, 2]))
    layout = vsl.layout_from_spans(spans, places, jnp.ones((2, 6), bool))
    flat = jnp.asarray(weights.reshape(-1))
    extras = {"reference_logps": jnp.asarray(reference)}
    batch = Batch(jnp.zeros(12, int), jnp.asarray(labels), flat, layout, extras)
    cfg = DpoConfig(beta=0.3, loss_type=kind, reference_free=free, dpop_penalty_weight=2.0)
    aux = preference_aux(cfg, jnp.asarray(logits), batch)

    nll = np.log(np.exp(logits).sum(-1)) - logits[np.arange(12), labels]
    divide = weights.sum(-1) if kind == "ipo" else 1.0
    policy = -(nll.reshape(2, 2, 3) * weights).sum(-1) / divide
    ref = 0.0 * reference if free else reference / divide
    ratio = (policy[:, 0] - policy[:, 1]) - (ref[:, 0] - ref[:, 1])
    log_sigmoid = lambda x: -np.log1p(np.exp(-x))
    if kind == "dpop":
        ratio = ratio - 2.0 * np.maximum(ref[:, 0] - policy[:, 0], 0)
    other = {"hinge": np.maximum(1 - 0.3 * ratio, 0), "ipo": (ratio - 1 / 0.6) ** 2}
    expected = other.get(kind, -log_sigmoid(0.3 * ratio))
    assert float(aux.loss_sum / aux.weight) == pytest.approx(expected.mean(), rel=1e-5)


def test_options_of_the_preference_loss():
    cfg = models.registry.parse_config(config(model={"dropout_rate": 0.2, "dpo": {}})["model"])
    assert cfg.dropout("residual") == 0  # disable_dropout is the vendor's default
    assert not cfg.uses_dropout
    kept = config(model={"dropout_rate": 0.2, "dpo": {"disable_dropout": False}})["model"]
    assert models.registry.parse_config(kept).uses_dropout
    with pytest.raises(ValueError, match="label_smoothing: loss_type ipo has none"):
        DpoConfig(loss_type="ipo", label_smoothing=0.1)
    with pytest.raises(ValueError, match="reference_free: loss_type dpop compares"):
        DpoConfig(loss_type="dpop", reference_free=True)


def test_a_folder_of_pairs_is_scored_and_trained_on(tmp_path, capsys):
    folder = write_pairs(tmp_path / "rows")
    run = {"max_steps": 1, "checkpoint_steps": 1}
    plain = config(train_input={"num_examples": 8}, runconfig=run, eval_input=None)
    own = {"data_processor": "DpoHDF5DataProcessor", "data_dir": str(folder), "batch_size": 2}
    dpo = plain | {"train_input": own, "model": plain["model"] | {"dpo": {}}}
    dpo |= {"runconfig": plain["runconfig"] | {"max_steps": 4}}
    for name, cfg in (("plain", plain), ("dpo", dpo)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(cfg))
    run = ["run", "--mode", "train", "--params"]
    assert main([*run, str(tmp_path / "plain.yaml"), "--model_dir", str(tmp_path / "plain")]) == 0
    given = ["--params", str(tmp_path / "dpo.yaml"), "--checkpoint_path", str(tmp_path / "plain")]
    assert main(["score", *given, "--input", str(folder)]) == 0
    assert f"{folder / REFERENCE}: 4 pairs scored" in capsys.readouterr().out
    start = ["--checkpoint_path", str(tmp_path / "plain" / "checkpoints" / "1")]
    out = ["--model_dir", str(tmp_path / "dpo"), "--load_checkpoint_states", "model"]
    assert main([*run, str(tmp_path / "dpo.yaml"), *out, *start]) == 0
    curve = losses(tmp_path / "dpo")
    assert curve[0] == pytest.approx(math.log(2), abs=1e-5)  # it is its own reference
    assert curve[-1] < curve[0]
    assert main(["score", *given, "--input", str(folder), "--output", "x"]) == 1
    assert "output: a folder's numbers are written into it" in capsys.readouterr().err


def write_questions(folder, contexts=3):
    folder.mkdir()
    names = ("input_ids", "attention_mask", "token_type_ids")
    with h5py.File(folder / "a.h5", "w") as file:
        question = np.array([[2, 5, 3, 0], [1, 1, 1, 0], [0, 0, 0, 0]], "i4")
        file["data_0"] = np.stack([question, question + np.array([[0], [0], [1]])])
        ids = np.arange(contexts * 5).reshape(contexts, 5) + 1
        mask = np.tile([1, 1, 1, 1, 0], (contexts, 1))
        context = np.stack([ids, mask, ids % 2]).astype("i4")
        file["data_1"] = np.stack([context, context])
    params = {"n_examples": 2, "data_0_features": [f"questions_{name}" for name in names]}
    params["data_1_features"] = [f"ctx_{name}" for name in names]
    (folder / "data_params.json").write_text(json.dumps(params))
    return folder


def test_a_question_has_its_contexts_and_segments(tmp_path):
    folder = write_questions(tmp_path / "rows")
    cfg = section("DPRHDF5DataProcessor", folder)
    dataset = build_dataset(cfg, tmp_path, Context(vocab_size=32))
    assert dataset.summary == "HDF5: 2 questions with 3 contexts each"
    batch = batch_of(dataset, 2)
    assert batch.tokens.tolist() == [2, 5, 3, 0] * 2
    assert batch.layout.lengths.tolist() == [3, 3]
    assert batch.extras["segment_ids"].tolist() == [0] * 4 + [1] * 4
    assert batch.extras["context_tokens"].tolist() == [*range(1, 16)] * 2
    assert batch.extras["context_layout"].lengths.tolist() == [4] * 6
    assert batch.extras["context_segment_ids"].tolist() == [x % 2 for x in range(1, 16)] * 2
    small = build_dataset(cfg, tmp_path, Context(vocab_size=9))
    with pytest.raises(DataError, match=r"row 0: ctx_input_ids\[8\] is 9; expected ids"):
        small.source[0]

    # what our writer makes of them is read again
    assert shuffle_folder(folder, tmp_path / "other", seed=3) == 2
    source = build_dataset(section("DPRHDF5DataProcessor", tmp_path / "other"), tmp_path).source
    assert source[0]["ctx_input_ids"].shape == (3, 5)
