"""A run that begins from a Hugging Face folder or a vendor's file."""

import json
from typing import Any

import h5py
import jax
import numpy as np
import pytest
from helpers.paths import GOLDEN
from helpers.runs import TINY, TINY_ROWS

import wafer
from wafer import models
from wafer.errors import CheckpointError, ConfigError
from wafer.models.checkpoint.layout import PARAMS
from wafer.models.registry import settings_of
from wafer.session.foreign import load_hf
from wafer.vendor.mdl.weights import write_weights

SECTIONS = {
    "train_input": TINY_ROWS,
    "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.0},
}


SPARSITY = [{"algorithm": "static", "sparsity": 0.5, "param_filter": "*ffn*up*kernel"}]
UP = "transformer_decoder.layers.0.ffn.ffn.0.linear_layer.weight"


@pytest.fixture
def folder(tmp_path):
    model = models.build(TINY)
    params = model.init(jax.random.key(7))
    models.to_hf(model, params, tmp_path / "hf")
    return tmp_path / "hf", dict(models.named_leaves(params))


def sections(tmp_path, **model):
    run = {"max_steps": 1, "checkpoint_steps": 1, "model_dir": str(tmp_path / "run"), "seed": 1}
    return SECTIONS | {"runconfig": run, "model": TINY | model}


def test_trains_on_from_the_folder_and_then_from_its_own_checkpoint(tmp_path, folder):
    path, want = folder
    wafer.train(sections(tmp_path), checkpoint_path=str(path))
    _, params, record = wafer.load(tmp_path / "run")
    assert record["step"] == 1
    assert record["tokenizer"] is None
    for name, leaf in models.named_leaves(params):
        np.testing.assert_array_equal(leaf, want[name], err_msg=name)
    wafer.train(sections(tmp_path), checkpoint_path=str(path), max_steps=2)
    assert wafer.load(tmp_path / "run")[2]["step"] == 2


def test_rotary_halves_of_a_folder_become_the_pairs_of_the_run_file(tmp_path):
    """As `wafer config new --model llama` has them; what is computed stays what it was."""
    rotary = {"position_embedding_type": "rotary", "name": "llama", "norm_type": "rmsnorm"}
    model = models.build(TINY | rotary)
    assert model.config.rotary_interleaved
    params = model.init(jax.random.key(7))
    models.to_hf(model, params, tmp_path / "hf")
    halves, stored = models.from_hf(tmp_path / "hf")
    assert not halves.config.rotary_interleaved
    wafer.train(sections(tmp_path, **rotary), checkpoint_path=str(tmp_path / "hf"))
    want, kept = dict(models.named_leaves(params)), dict(models.named_leaves(stored))
    for name, leaf in models.named_leaves(wafer.load(tmp_path / "run")[1]):
        np.testing.assert_array_equal(leaf, want[name], err_msg=name)
    moved = {name for name, leaf in want.items() if not np.array_equal(leaf, kept[name])}
    assert moved == {f"layers_0/attn/{part}/kernel" for part in ("query", "key")}


@pytest.fixture
def mdl(tmp_path):
    """The same model as the vendor writes it; half of one matrix is pruned."""
    import hdf5plugin  # noqa: F401  its compression

    model = models.build(TINY)
    params = model.init(jax.random.key(7))
    path = tmp_path / "theirs.mdl"
    write_weights(model, params, path, "cs-2.5", step=3)
    with h5py.File(path, "r+") as file:
        weight: Any = file[f"model.model.{UP}"]
        assert weight.shape == (16, 8)
        weight[:, ::2] = np.nan
    want = dict(models.named_leaves(params))
    want["layers_0/ffn/up/kernel"] = want["layers_0/ffn/up/kernel"].at[::2].set(0)
    return path, want


def test_a_sparse_mdl_is_trained_on_with_its_own_pattern(tmp_path, mdl):
    path, want = mdl
    wafer.train(sections(tmp_path) | {"sparsity": SPARSITY}, checkpoint_path=str(path))
    for name, leaf in models.named_leaves(wafer.load(tmp_path / "run")[1]):
        np.testing.assert_array_equal(leaf, want[name], err_msg=name)


def test_a_sparse_mdl_needs_a_sparsity_section(tmp_path, mdl):
    with pytest.raises(CheckpointError, match=r"theirs.mdl.*ffn/up/kernel"):
        wafer.train(sections(tmp_path), checkpoint_path=str(mdl[0]))


def test_a_finalized_mdl_is_a_checkpoint_that_our_models_load(tmp_path, mdl):
    path, want = mdl
    (tmp_path / "params.yaml").write_text(json.dumps({"model": TINY}))  # JSON is YAML
    report = wafer.finalize(path, tmp_path / "dense", tmp_path / "params.yaml")
    assert [(t.name, t.pruned) for t in report.sparse] == [("layers_0/ffn/up/kernel", 64)]
    for name, leaf in models.named_leaves(wafer.load(tmp_path / "dense")[1]):
        np.testing.assert_array_equal(leaf, want[name], err_msg=name)
    with pytest.raises(ValueError, match=r"a model is named to make a checkpoint of a \.mdl alone"):
        wafer.finalize(tmp_path / "dense", tmp_path / "again", tmp_path / "params.yaml")


def test_a_mdl_of_another_model_is_refused(tmp_path, mdl):
    with pytest.raises(CheckpointError, match=r"theirs.mdl: 3 tensors do not fit model 'gpt2'"):
        wafer.train(sections(tmp_path, filter_size=32), checkpoint_path=str(mdl[0]))
    (tmp_path / "no.mdl").write_bytes(b"text")
    with pytest.raises(CheckpointError, match=r"no.mdl is no readable .mdl"):
        wafer.train(sections(tmp_path), checkpoint_path=str(tmp_path / "no.mdl"))
    with pytest.raises(CheckpointError, match=r"other.mdl: no such file; .* has: no.mdl"):
        wafer.train(sections(tmp_path), checkpoint_path=str(tmp_path / "other.mdl"))


def test_load_reads_the_folder(folder):
    path, want = folder
    model, params, record = wafer.load(path)
    assert model.config.hidden_size == 8
    assert record["config"]["model"]["name"] == "gpt2"
    for name, leaf in models.named_leaves(params):
        np.testing.assert_array_equal(leaf, want[name], err_msg=name)


@pytest.mark.parametrize(
    ("head", "lacking", "left"),
    [
        ("classification", {"classifier"}, "cls.seq_relationship.weight"),
        ("token_classification", {"classifier"}, "bert.pooler.dense.weight"),
        ("mlm", set(), "cls.seq_relationship.weight"),
    ],
)
def test_a_run_begins_with_what_its_heads_have_in_common_with_the_file(head, lacking, left, caplog):
    path = GOLDEN / "hf" / "bert_pretraining"
    theirs, stored = models.from_hf(path)
    model = models.build(settings_of(theirs.config) | {"head": head})
    tree, _ = load_hf(path, model)
    needed = models.build(model.config).init(jax.random.key(0))
    assert needed.keys() - tree[PARAMS].keys() == lacking
    assert tree[PARAMS].keys() <= stored.keys()  # the pooler's, too, where the head has one
    jax.tree.map(np.testing.assert_array_equal, tree[PARAMS], {k: stored[k] for k in tree[PARAMS]})
    assert left in caplog.text


def test_a_model_that_computes_something_else_is_named(tmp_path, folder):
    with pytest.raises(CheckpointError, match=r"layer_norm_epsilon: 0\.1 here, 1e-05 there"):
        wafer.train(sections(tmp_path, layer_norm_epsilon=0.1), checkpoint_path=str(folder[0]))


def test_a_sparse_run_ends_with_a_folder_that_hugging_face_reads(tmp_path):
    small = sections(tmp_path)
    sparse = {"algorithm": "static", "sparsity": 0.5, "param_filter": "*ffn*kernel"}
    run = small["runconfig"] | {"export": "hf"}
    wafer.train(small | {"runconfig": run, "sparsity": [sparse]})
    exported = wafer.load(tmp_path / "run/hf/1")[1]
    stored = dict(models.named_leaves(wafer.load(tmp_path / "run")[1]))
    for name, leaf in models.named_leaves(exported):
        np.testing.assert_array_equal(leaf, stored[name], err_msg=name)
    pruned = np.asarray(stored["layers_0/ffn/up/kernel"]) == 0
    assert pruned.mean() == 0.5


@pytest.mark.parametrize("sparse", [False, True])
def test_weights_of_a_diverged_run_are_not_exported(tmp_path, sparse):
    """No checkpoint is written, whose writer would refuse them before."""
    small = sections(tmp_path)
    run = small["runconfig"] | {"export": "hf", "checkpoint_steps": 0}
    wild = {"optimizer_type": "SGD", "learning_rate": 1e30, "weight_decay": 1e15}
    rule = {"algorithm": "static", "sparsity": 0.5, "param_filter": "*ffn*kernel"}
    section = {"sparsity": [rule]} if sparse else {}
    with pytest.raises(CheckpointError, match=r"weights \S+ are no numbers .*inf at \["):
        wafer.train(small | {"runconfig": run, "optimizer": wild} | section)
    assert not [*(tmp_path / "run").rglob("*.safetensors")]


def test_a_model_without_that_form_is_refused_before_work(tmp_path):
    small = sections(tmp_path)
    model = {"name": "fc_mnist", "input_size": 4, "hidden_size": 4, "depth": 1, "num_classes": 2}
    data = {"data_processor": "DigitsDataProcessor", "batch_size": 2}
    run = small["runconfig"] | {"export": "hf"}
    with pytest.raises(
        ConfigError, match=r"runconfig\.export: fc_mnist: Hugging Face has no format"
    ):
        wafer.train(small | {"runconfig": run, "model": model, "train_input": data})
    adapters = small["model"] | {"lora_params": {"r": 2, "target_modules": ["ffn/up"]}}
    with pytest.raises(ConfigError, match=r"runconfig\.export: .*: model\.lora_params .*fold_lora"):
        wafer.train(small | {"runconfig": run, "model": adapters})
