"""``.mdl`` files of every release: all families there and back, bit by bit."""

import argparse
import itertools

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from helpers.mdl import read_weights
from helpers.paths import GOLDEN

from wafer import models, vsl
from wafer.commands.checkpoints.convert import add_arguments, read_section
from wafer.models.convert.api import from_hf, to_hf
from wafer.models.convert.standard import in_pairs
from wafer.models.paths import named_leaves
from wafer.models.registry import build
from wafer.vendor.mdl.file import MdlFile
from wafer.vendor.mdl.weights import write_weights

FOLDERS = [
    path
    for path in sorted((GOLDEN / "hf").iterdir())
    if not path.name.startswith(("dpr", "llava", "transformer"))
]


def same(left, right):
    left, right = dict(named_leaves(left)), dict(named_leaves(right))
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(right[name]), err_msg=name)


# Of a family whose tensors have the names and shapes of another case, the slow suite has the rest.
SLOW = {
    "bert_mlm",
    "bert_qa",
    "falcon_7b_mqa_parallel",
    "gpt_bigcode_mha",
    "gpt_neox_sequential",
    "llama1_mha",
    "llama2_gqa",
    "t5v11_flan_gatedgelu",
}


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(path, marks=[pytest.mark.slow] if path.name in SLOW else [], id=path.name)
        for path in FOLDERS
    ],
)
def test_every_family_through_mdl_and_hugging_face_and_back(tmp_path, folder):
    theirs, own = from_hf(folder)
    cfg, params = in_pairs(theirs.config, dict(named_leaves(own)))
    model = build(cfg)
    for release in ("cs-2.5", "cs-2.9"):
        path = tmp_path / f"{release}.mdl"
        write_weights(model, params, path, release)
        same(params, read_weights(path, model))
    to_hf(model, params, tmp_path / "hf")
    back, again = from_hf(tmp_path / "hf")
    write_weights(back, again, tmp_path / "back.mdl", "cs-2.9")
    with MdlFile(tmp_path / "back.mdl") as left, MdlFile(tmp_path / "cs-2.9.mdl") as right:
        assert list(left) == list(right)
        for name in left:
            np.testing.assert_array_equal(left[name], right[name], err_msg=name)


SIZES = {"hidden_size": 8, "num_heads": 2, "filter_size": 16, "num_hidden_layers": 1}
LLAMA = {"name": "llama", "vocab_size": 11, "max_position_embeddings": 8, **SIZES}


def command(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args([str(word) for word in words])
    return args.run(args)


def converted(source, target, weights, config, folder):
    fmt = ["--src-fmt", source, "--tgt-fmt", target, "--output-dir", folder]
    given = ["--config", config] if config else []
    assert command("convert", "--model", "llama", *fmt, *given, weights) == 0
    return folder


def test_the_command_between_all_three_formats_keeps_the_logits(tmp_path):
    model = models.build(LLAMA)
    params = model.init(jax.random.key(3))
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({"trainer": {"init": {"model": LLAMA}}}))
    first = tmp_path / "first.mdl"
    write_weights(model, params, first, "cs-2.5", step=7)
    ours = converted("cs-2.5", "wafer", first, config, tmp_path / "ours")
    there = converted("wafer", "cs-2.9", ours, None, tmp_path / "there")
    config = there / "params_model.yaml"
    hf = converted("cs-2.9", "hf", there / "ours_to_cs-2.9.mdl", config, tmp_path / "hf")
    again = converted("hf", "cs-2.9", hf, None, tmp_path / "again")
    last = next(again.glob("*.mdl"))
    back, arrays = from_hf(hf)
    same(params, read_weights(last, model))
    ids = jnp.arange(8)
    batch = models.Batch(ids, ids, jnp.ones(8), vsl.layout_from_lengths(jnp.asarray([5, 3]), 8))
    want = jax.jit(model.apply)(params, batch)
    got = jax.jit(back.apply)(arrays, batch)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-6)


def test_names_before_21_and_a_mask_and_second_names_alone(tmp_path):
    model = models.build({"name": "gpt2", "vocab_size": 11, "max_position_embeddings": 8, **SIZES})
    params = dict(named_leaves(model.init(jax.random.key(3))))
    write_weights(model, params, tmp_path / "a.mdl", "cs-2.5")
    moved = {
        "model.model.embedding_layer.position_embeddings.embed.weight": (
            "model.embedding_layer.position_embeddings.weight"
        ),
        "model.model.ln_f.weight": "model.transformer_decoder.norm.weight",
    }
    up = "model.model.transformer_decoder.layers.0.ffn.ffn.0.linear_layer.weight"
    mask = np.ones((16, 8), bool)
    mask[3, 5] = False
    with MdlFile(tmp_path / "a.mdl") as file, h5py.File(tmp_path / "b.mdl", "w") as old:
        for name in file:
            if "transformer_decoder.norm" not in name:
                old[moved.get(name, name)] = file[name]
        old[f"{up}_mask"] = mask
    got = read_weights(tmp_path / "b.mdl", model)
    dense = np.asarray(params["layers_0/ffn/up/kernel"])
    same(params | {"layers_0/ffn/up/kernel": np.where(mask.T, dense, np.nan)}, got)


def test_what_is_not_written_and_what_does_not_fit_is_said(tmp_path):
    model = models.build(LLAMA)
    params = model.init(jax.random.key(3))
    with pytest.raises(ValueError, match=r"cs-2\.2: releases before 2\.5 load files with a pickle"):
        write_weights(model, params, tmp_path / "a.mdl", "cs-2.2")
    write_weights(model, params, tmp_path / "a.mdl", "cs-2.5")
    other = models.build(LLAMA | {"vocab_size": 12})
    with pytest.raises(ValueError, match=r"word_embeddings\.weight: shape \(11, 8\), expected"):
        read_weights(tmp_path / "a.mdl", other)
    fmt = ("--src-fmt", "cs-2.5", "--tgt-fmt", "wafer")
    with pytest.raises(ValueError, match=r"--config: a \.mdl does not tell its model"):
        command("convert", "--model", "llama", *fmt, tmp_path / "a.mdl")


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n"
    for old, new in itertools.pairwise("abcdefghij")
)  # ten thousand million values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "line ., column .: not valid YAML"),
        ("a: !!bool maybe", "line 1, column 4: not valid YAML: 'maybe' is no bool"),
        ("- 1", "expected a params YAML"),
        ("model: 3", "expected a params YAML"),
        ("model: {}\nmodel: {}", r"model: duplicate key \(lines 1 and 2\); keep one"),
        (BOMB, "line 1, column .*: not valid YAML: more than 100,000 values"),
    ],
)
def test_a_params_yaml_that_cannot_be_read_is_one_error(tmp_path, text, message):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"params\.yaml: {message}.*\Z"):
        read_section(path)


def test_numbers_of_a_params_yaml_are_those_of_a_run_file(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("model: {name: gpt2, layer_norm_epsilon: 1e-5}")
    assert read_section(path) == {"name": "gpt2", "layer_norm_epsilon": 0.00001}


ENCODER = {
    "bert.embeddings.word_embeddings.weight": (11, 8),
    "bert.embeddings.position_embeddings.weight": (8, 8),
    "bert.embeddings.token_type_embeddings.weight": (2, 8),
    "bert.embeddings.position_ids": (1, 8),
    **{f"bert.embeddings.LayerNorm.{part}": (8,) for part in ("gamma", "beta")},
    **{
        f"bert.encoder.layer.0.{name}.{part}": shape[: 2 if part == "weight" else 1]
        for name, shape in {
            "attention.self.query": (8, 8),
            "attention.self.key": (8, 8),
            "attention.self.value": (8, 8),
            "attention.output.dense": (8, 8),
            "intermediate.dense": (16, 8),
            "output.dense": (8, 16),
        }.items()
        for part in ("weight", "bias")
    },
    **{
        f"bert.encoder.layer.0.{name}.LayerNorm.{part}": (8,)
        for name in ("attention.output", "output")
        for part in ("weight", "bias")
    },
    "bert.pooler.dense.weight": (8, 8),
    "bert.pooler.dense.bias": (8,),
    "cls.predictions.transform.dense.weight": (8, 8),
    "cls.predictions.transform.dense.bias": (8,),
    "cls.predictions.transform.LayerNorm.weight": (8,),
    "cls.predictions.transform.LayerNorm.bias": (8,),
    "cls.predictions.decoder.bias": (11,),
    "cls.predictions.bias": (11,),
    "cls.seq_relationship.weight": (2, 8),
    "cls.seq_relationship.bias": (2,),
}
_STACKS = {"encoder": 1, "decoder": 2}  # which layer of a block is its feed-forward network
SEQ2SEQ = {
    **{f"{stack}_token_embedding.weight": (11, 8) for stack in _STACKS},
    **{f"{stack}.final_layer_norm.weight": (8,) for stack in _STACKS},
    **{
        f"{stack}.block.{block}.layer.0.SelfAttention.{name}.weight": shape
        for stack in _STACKS
        for block in (0, 1)
        for name, shape in {
            "relative_attention_bias": (32, 2),
            **dict.fromkeys("qkvo", (8, 8)),
        }.items()
    },
    **{
        f"decoder.block.{block}.layer.1.EncDecAttention.{name}.weight": (8, 8)
        for block in (0, 1)
        for name in "qkvo"
    },
    **{
        f"{stack}.block.{block}.layer.{ffn}.DenseReluDense.{name}.weight": shape
        for stack, ffn in _STACKS.items()
        for block in (0, 1)
        for name, shape in {"wi_0": (16, 8), "wi_1": (16, 8), "wo": (8, 16)}.items()
    },
    **{
        f"{stack}.block.{block}.layer.{place}.layer_norm.weight": (8,)
        for stack, ffn in _STACKS.items()
        for block in (0, 1)
        for place in range(ffn + 1)
    },
    "lm_head.weight": (11, 8),
}
T5 = {
    "name": "t5",
    "vocab_size": 11,
    "hidden_size": 8,
    "attention_inner_dim": 8,
    "filter_size": 16,
    "num_heads": 2,
    "num_hidden_layers": 2,
    "decoder_num_hidden_layers": 2,
    "nonlinearity": "geglu",
    "share_embedding_weights": False,
    "share_encoder_decoder_embedding": False,
}
BERT = {"name": "bert", "vocab_size": 11, "max_position_embeddings": 8, **SIZES}


@pytest.mark.parametrize(
    ("section", "names", "pairs"),
    [
        (
            BERT,
            ENCODER,
            {
                "layers_0/ffn/up/kernel": "bert.encoder.layer.0.intermediate.dense.weight",
                "embed/norm/scale": "bert.embeddings.LayerNorm.gamma",
                "layers_0/norm1/bias": "bert.encoder.layer.0.attention.output.LayerNorm.bias",
                "nsp/kernel": "cls.seq_relationship.weight",
            },
        ),
        (
            T5,
            SEQ2SEQ,
            {
                "encoder_layers_1/ffn/gate/kernel": (
                    "encoder.block.1.layer.1.DenseReluDense.wi_0.weight"
                ),
                "decoder_layers_1/ffn/up/kernel": (
                    "decoder.block.1.layer.2.DenseReluDense.wi_1.weight"
                ),
                "decoder_layers_0/norm_cross/scale": "decoder.block.0.layer.1.layer_norm.weight",
                "decoder_layers_0/cross/out/kernel": (
                    "decoder.block.0.layer.1.EncDecAttention.o.weight"
                ),
            },
        ),
    ],
    ids=["bert", "t5"],
)
def test_names_of_release_16(tmp_path, section, names, pairs):
    rng = np.random.default_rng(0)
    stored = {name: rng.random(shape, np.float32) for name, shape in names.items()}
    with h5py.File(tmp_path / "a.mdl", "w") as file:
        for name, value in stored.items():
            file[f"model.{name}"] = value
    model = models.build(section)
    own = read_weights(tmp_path / "a.mdl", model)
    assert own.keys() == dict(named_leaves(model.init(jax.random.key(0)))).keys()
    for name, theirs in pairs.items():
        value = stored[theirs].T if name.endswith("kernel") else stored[theirs]
        np.testing.assert_array_equal(own[name], value, err_msg=name)
