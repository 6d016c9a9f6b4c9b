"""Optimizer states of ``.mdl`` files: one that its own software wrote, and the ways back."""

import argparse
import lzma
import math

import jax
import numpy as np
import pytest
from helpers.paths import GOLDEN
from helpers.runs import TINY, TINY_ROWS

import wafer
from wafer import models
from wafer.commands.checkpoints.convert import add_arguments
from wafer.experiment import Experiment
from wafer.models.checkpoint.moments import field_of
from wafer.models.errors import CheckpointError
from wafer.models.paths import named_leaves
from wafer.optim.groups import make_groups
from wafer.optim.sections import parse_optimizer
from wafer.vendor.mdl.file import MdlFile
from wafer.vendor.mdl.optimizer import (
    KEYS,
    OptimizerState,
    finished_steps,
    groupings,
    load_mdl,
    read_state,
)
from wafer.vendor.mdl.sections import training_sections
from wafer.vendor.mdl.weights import numbered_tensors, write_weights
from wafer.vendor.tensors import in_order_of_registration

ADAMW = {"optimizer_type": "AdamW", "learning_rate": 0.01, "weight_decay": 0.1}
MOMENTUM = {"momentum": 0.9}


def sections(tmp_path, optimizer=ADAMW, **runconfig):
    run = {"max_steps": 6, "checkpoint_steps": 1, "model_dir": str(tmp_path / "run"), "seed": 1}
    return {
        "model": TINY,
        "optimizer": optimizer,
        "train_input": TINY_ROWS,
        "runconfig": run | runconfig,
    }


@pytest.fixture
def theirs(tmp_path):
    """A file of the vendor's release 2.10, and the arrays it was written from."""
    packed = (GOLDEN / "vendor" / "adamw-2.10.mdl.xz").read_bytes()
    path = tmp_path / "theirs.mdl"
    path.write_bytes(lzma.decompress(packed))
    return path, dict(np.load(GOLDEN / "vendor" / "adamw-2.10.npz"))


def test_weights_and_moments_of_the_vendors_own_file(tmp_path, theirs):
    path, want = theirs
    experiment = Experiment.from_config(sections(tmp_path))
    tree = load_mdl(path, experiment, True)
    alias = experiment.model.alias
    shapes = {name: leaf.shape for name, leaf in named_leaves(tree["params"])}
    compared = 0
    for name, leaf in named_leaves({**tree["params"], "opt": tree["opt_state"]}):
        _, field, owner = field_of(name.removeprefix("opt/"), shapes)
        if not owner:
            continue
        key = f"{alias(owner)}|{KEYS['AdamW'][field]}" if name.startswith("opt/") else alias(name)
        expected = want[key].T if owner.endswith("kernel") else want[key]
        np.testing.assert_array_equal(leaf, expected, err_msg=name)
        compared += 1
    assert compared == 3 * 20
    assert tree["step"] == 5
    counters = [leaf for name, leaf in named_leaves(tree["opt_state"]) if name.endswith("step")]
    assert [int(leaf) for leaf in counters] == [5, 5, 5]


def test_a_run_goes_on_at_the_files_step_or_begins_with_its_weights_alone(tmp_path, theirs):
    path, _ = theirs
    wafer.train(sections(tmp_path), checkpoint_path=str(path))
    assert wafer.load(tmp_path / "run")[2]["step"] == 6
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir() if p.name.isdigit()] == [
        "6"
    ]
    anew = sections(tmp_path, model_dir=str(tmp_path / "anew"), max_steps=1)
    wafer.train(anew, checkpoint_path=str(path), load_checkpoint_states="model")
    assert wafer.load(tmp_path / "anew")[2]["step"] == 1


def test_the_order_of_registration_is_the_files_own(theirs):
    with MdlFile(theirs[0]) as file:
        listed = [key.removeprefix("model.") for key in file.model_keys]
        first = list(numbered_tensors(models.build(TINY), file))
    assert in_order_of_registration(listed) == listed
    assert first == [key for key in listed if key in first]
    assert len(first) == 20


def test_encoders_and_encoder_decoders_register_in_another_order():
    encoder = "bert_encoder.transformer_encoder.layers.0."
    bert = [
        "bert_encoder.embedding_layer.word_embeddings.weight",
        "bert_encoder.embedding_layer.position_embeddings.embed.weight",
        "bert_encoder.embedding_layer.segment_embeddings.weight",
        "bert_encoder.embed_ln_f.weight",
        f"{encoder}self_attn.proj_q_dense_layer.weight",
        f"{encoder}self_attn.proj_output_dense_layer.bias",
        f"{encoder}ffn.ffn.0.linear_layer.weight",
        f"{encoder}norm1.weight",
        f"{encoder}norm2.bias",
        "bert_encoder.pooler.pooler.ffn.0.linear_layer.weight",
        "bert_cls_head.classifier.ffn.0.linear_layer.weight",
        "bert_mlm_head.mlm_transform.ffn.ffn.0.linear_layer.weight",
        "bert_mlm_head.mlm_transform.ln.weight",
        "bert_mlm_head.classifier.ffn.0.linear_layer.bias",
    ]
    t5 = [
        "encoder_embeddings.word_embeddings.weight",
        "decoder_embeddings.word_embeddings.weight",
        "encoder.layers.0.ffn.ffn.0.linear_layer.weight",
        "encoder.layers.0.norm1.weight",
        "encoder.norm.weight",
        "decoder.layers.0.norm1.weight",
        "decoder.layers.0.norm3.weight",
        "decoder.layers.0.multihead_attn.proj_q_dense_layer.weight",
        "decoder.layers.0.norm2.weight",
        "decoder.layers.0.ffn.ffn.0.linear_layer.weight",
        "decoder.layers.10.norm1.weight",
        "lm_head.weight",
    ]
    for names in (bert, t5):
        assert in_order_of_registration(sorted(names)) == names


OPTIMIZERS = {
    "SGD": MOMENTUM,
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adamax": {},
    "RAdam": {},
    "Lamb": {},
    "Lion": {},
    "Adagrad": {},
    "Adadelta": {},
    "RMSprop": MOMENTUM,
    "Rprop": {},
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_there_and_back_bit_by_bit(tmp_path, kind):
    optimizer = {"optimizer_type": kind, "learning_rate": 0.01, **OPTIMIZERS[kind]}
    experiment = Experiment.from_config(sections(tmp_path, optimizer))
    model, shapes = experiment.model, experiment.shapes
    rng = np.random.default_rng(0)
    template = jax.eval_shape(experiment.tx.init, shapes)

    def drawn(leaf):
        if np.issubdtype(leaf.dtype, np.integer):
            return np.full(leaf.shape, 7, leaf.dtype)
        return (
            np.zeros(leaf.shape, leaf.dtype)
            if leaf.ndim == 1 and leaf.shape == (1,)
            else (rng.random(leaf.shape, np.float32))
        )

    state = jax.tree.map(drawn, template)
    params = jax.tree.map(lambda leaf: rng.random(leaf.shape, np.float32), shapes)
    record = {"config": {"optimizer": experiment.cfg.optimizer.to_dict()}, "step": 7}
    tree = {"params": params, "opt_state": state}
    sections_ = training_sections(model, record, tree, "cs-2.9")
    path = tmp_path / "a.mdl"
    write_weights(model, params, path, "cs-2.9", step=7, training=sections_)
    back = load_mdl(path, experiment, True)["opt_state"]
    want = dict(named_leaves(state))
    for name, leaf in named_leaves(back):
        np.testing.assert_array_equal(leaf, want[name], err_msg=name)
    assert len(want) == len(named_leaves(back))


def command(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["convert", "--model", "gpt2", *map(str, words)])
    assert args.run(args) == 0


def test_the_command_carries_the_state_between_releases_and_from_our_checkpoints(
    tmp_path, theirs, capsys
):
    path, _ = theirs
    config = tmp_path / "params.yaml"
    config.write_text(f"model: {TINY}".replace("'", ""))
    fmt = ("--src-fmt", "cs-2.10", "--tgt-fmt", "cs-2.5", "--config", config)
    command(*fmt, "--output-dir", tmp_path / "older", path)
    with MdlFile(path) as left, MdlFile(tmp_path / "older" / "theirs_to_cs-2.5.mdl") as right:
        names = [n for n in left.entries("optimizer.") if "weight_decay" not in n]
        assert [n for n in right.entries("optimizer.") if "weight_decay" not in n] == names
        for name in names:
            if name in set(left):
                np.testing.assert_array_equal(left[name], right[name], err_msg=name)
            else:
                assert left.scalar(name) == right.scalar(name), name
        assert right.scalar("schedulers.0.last_epoch") == 5
    wafer.train(sections(tmp_path, max_steps=2))
    fmt = ("--src-fmt", "wafer", "--tgt-fmt", "cs-2.9", "--output-dir", tmp_path / "newer")
    command(*fmt, tmp_path / "run" / "checkpoints" / "2")
    with MdlFile(tmp_path / "newer" / "2_to_cs-2.9.mdl") as file:
        assert math.isclose(file.scalar("optimizer.state.0.beta2_power"), 0.999**3, rel_tol=1e-6)
        assert file.scalar("optimizer.param_groups.0.weight_decay") == 0.1
        assert file.scalar("optimizer.param_groups.1.weight_decay") == 0.0
    assert "weights alone" not in capsys.readouterr().err
    tagged = ADAMW | {"adjust_learning_rate": {"embedding": 0.5}}
    wafer.train(sections(tmp_path, tagged, max_steps=1, model_dir=str(tmp_path / "tagged")))
    fmt = ("--src-fmt", "wafer", "--tgt-fmt", "cs-2.9", "--output-dir", tmp_path / "tagged_cs")
    command(*fmt, tmp_path / "tagged" / "checkpoints" / "1")
    assert "weights alone are written: groups of optimizer.adjust_learning_rate" in (
        capsys.readouterr().err
    )


def test_groups_by_tag_decay_and_rate_in_the_vendors_order():
    section = parse_optimizer(
        ADAMW
        | {
            "adjust_learning_rate": {"embedding": 0.5},
            "params": [{"params": "*norm_f*", "tag": "last"}],
        }
    )
    groups = make_groups(section, alias=models.build(TINY).alias)
    names = ["embed/token/embedding", "norm_f/scale", "layers_0/up/kernel", "layers_0/up/bias"]
    first, *_ = groupings(section, groups)
    assert first(names) == [
        ["embed/token/embedding"],
        ["layers_0/up/kernel"],
        ["layers_0/up/bias"],
        ["norm_f/scale"],
    ]


def test_steps_by_the_power_of_the_second_rate():
    section = parse_optimizer(ADAMW)
    state = OptimizerState({}, {"beta2_power": 0.999**6}, 0, {}, 8)
    assert finished_steps(state, section) == 5  # three of eight were skipped
    assert finished_steps(state._replace(scalars={}), section) == 8
    many = state._replace(scalars={"beta2_power": 0.999**5004}, step=5000)
    assert finished_steps(many, section) == 5000  # within rounding


def test_a_state_that_does_not_fit_is_one_error(tmp_path, theirs):
    path, _ = theirs
    adagrad = {"optimizer_type": "Adagrad", "learning_rate": 0.01}
    with pytest.raises(CheckpointError, match=r"Adagrad needs 'sum' of .*has exp_avg, exp_avg_sq"):
        wafer.train(sections(tmp_path, adagrad), checkpoint_path=str(path))
    adafactor = {"optimizer_type": "Adafactor", "learning_rate": 0.01}
    with pytest.raises(CheckpointError, match=r"Adafactor cannot take its optimizer state over"):
        wafer.train(sections(tmp_path, adafactor), checkpoint_path=str(path))
    model = models.build(TINY)
    crossed = [lambda n: [[n[1], n[0], *n[2:8]], list(n[8:])]]
    with MdlFile(path) as file:
        with pytest.raises(CheckpointError, match=r"groups of \[8, 12\] parameters; .* \[3, 17\]"):
            read_state(file, model, [lambda n: [list(n[:3]), list(n[3:])]])
        wrong = r"state\.0\.exp_avg has shape \(16, 8\); .*\(8, 8\)"
        with pytest.raises(CheckpointError, match=wrong):
            read_state(file, model, crossed)
