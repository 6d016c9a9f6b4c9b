"""Folders as they are published: other classes' tensors, heads of their own, several files."""

import json
import logging
import shutil

import jax
import numpy as np
import pytest
from helpers import hf_parity
from helpers.hf_parity import copied
from safetensors.numpy import load_file, save_file

from wafer import models
from wafer.models.convert.files import open_tensors, read_config

GOLDEN = hf_parity.KEPT


def _logits(folder, name):
    """Logits of a folder on the inputs that were recorded for a golden one."""
    model, params = models.from_hf(folder)
    inputs, _, _ = hf_parity.load(GOLDEN / name)[3]["full"]
    out = jax.jit(model.apply)(params, hf_parity.to_batch(model.config, inputs))
    return np.asarray(out["logits"] if isinstance(out, dict) else out)


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("bert_mlm", ["bert.pooler.dense.weight", "cls.seq_relationship.bias"]),
        ("bert_qa", ["cls.predictions.decoder.weight", "cls.predictions.bias"]),
        ("roberta_mlm", ["roberta.pooler.dense.bias", "classifier.out_proj.weight"]),
        ("dpr_reader", ["span_predictor.encoder.bert_model.pooler.dense.weight"]),
        ("gpt2_headless", ["lm_head.weight", "score.weight"]),
        ("gptj_headless", ["lm_head.weight", "lm_head.bias"]),
        ("llama2_gqa", ["v_head.summary.weight"]),
    ],
)
def test_tensors_of_other_classes_are_listed_and_left(name, left, tmp_path, caplog):
    zeros = dict.fromkeys(left, np.zeros((2, 3), np.float32))
    folder = copied(tmp_path, name, zeros)
    _, params = models.from_hf(folder)
    _, expected = models.from_hf(GOLDEN / name)
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    (said,) = caplog.messages
    assert said.startswith(f"{len(left)} tensors that ")
    assert all(tensor in said for tensor in left)


@pytest.mark.parametrize(
    ("name", "buffers"),
    [
        ("gpt3_untied_gelu_invlayer", ["transformer.h.0.attn.masked_bias", "h.1.attn.bias"]),
        ("gpt_neox", ["gpt_neox.layers.0.attention.rotary_emb.inv_freq"]),
        ("llama2_gqa", ["model.layers.0.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"]),
        ("falcon_7b_mqa_parallel", ["transformer.h.0.self_attention.maybe_rotary.inv_freq"]),
        ("llava", ["language_model.model.layers.0.self_attn.rotary_emb.inv_freq"]),
    ],
)
def test_buffers_are_left_without_a_word(name, buffers, tmp_path, caplog):
    models.from_hf(copied(tmp_path, name, dict.fromkeys(buffers, np.ones(2, np.float32))))
    assert not caplog.messages


@pytest.mark.parametrize(
    ("name", "table", "head"),
    [
        ("bert_mlm", "bert.embeddings.word_embeddings.weight", "cls.predictions"),
        ("roberta_mlm", "roberta.embeddings.word_embeddings.weight", "lm_head"),
    ],
)
def test_an_untied_head_is_read_and_written(name, table, head, tmp_path):
    source = open_tensors(GOLDEN / name)
    bias = np.linspace(-1, 1, len(source[table]), dtype=np.float32)
    own = {f"{head}.decoder.weight": 2 * source[table], f"{head}.decoder.bias": bias}
    folder = copied(tmp_path / "a", name, own, tie_word_embeddings=False)

    tied = _logits(GOLDEN / name, name) - source[f"{head}.bias"]
    np.testing.assert_allclose(_logits(folder, name), 2 * tied + bias, rtol=2e-5, atol=2e-5)

    models.to_hf(*models.from_hf(folder), tmp_path / "b")
    written = load_file(tmp_path / "b" / "model.safetensors")
    assert read_config(tmp_path / "b")["tie_word_embeddings"] is False
    np.testing.assert_array_equal(written[f"{head}.decoder.weight"], 2 * source[table])
    for reader in (f"{head}.decoder.bias", f"{head}.bias"):  # of transformers 5 and 4
        np.testing.assert_array_equal(written[reader], bias)


def test_an_untied_marian_head_is_read_and_written(tmp_path):
    name = "transformer_base_postln_sinusoidal"
    source = open_tensors(GOLDEN / name)
    own = {"lm_head.weight": 3 * source["model.shared.weight"]}
    folder = copied(tmp_path / "a", name, own, tie_word_embeddings=False)
    bias = source["final_logits_bias"]
    tied = _logits(GOLDEN / name, name) - bias
    np.testing.assert_allclose(_logits(folder, name), 3 * tied + bias, rtol=2e-5, atol=2e-5)

    models.to_hf(*models.from_hf(folder), tmp_path / "b")
    written = load_file(tmp_path / "b" / "model.safetensors")
    shared = written["model.shared.weight"]
    for side in ("encoder", "decoder"):  # transformers 5 ties nothing then
        np.testing.assert_array_equal(written[f"model.{side}.embed_tokens.weight"], shared)
    other = {"model.encoder.embed_tokens.weight": shared + 1}
    with pytest.raises(ValueError, match=r"encoder\.embed_tokens\.weight differs from model\.sha"):
        models.from_hf(copied(tmp_path / "c", name, other))


def test_a_head_unlike_its_embedding_is_not_tied_whatever_the_config_says(tmp_path, caplog):
    name = "gpt3_untied_gelu_invlayer"
    folder = copied(tmp_path, name, tie_word_embeddings=True)
    model, params = models.from_hf(folder)
    assert not model.config.share_embedding_weights
    assert "its head differs from its embedding" in caplog.text
    _, expected = models.from_hf(GOLDEN / name)
    jax.tree.map(np.testing.assert_array_equal, params, expected)


def test_a_tied_table_may_lie_under_the_name_of_its_head(tmp_path):
    table = open_tensors(GOLDEN / "mpt_clip_scale")["transformer.wte.weight"]
    head = {"lm_head.weight": table}
    folder = copied(tmp_path, "mpt_clip_scale", head, drop=["transformer.wte.weight"])
    params = models.from_hf(folder)[1]
    np.testing.assert_array_equal(params["embed"]["token"]["embedding"], table)


def test_safetensors_come_before_bin_and_the_other_file_is_named(tmp_path, caplog):
    (tmp_path / "pytorch_model.bin").write_bytes(b"older")  # reading it would fail
    save_file({"a": np.zeros(2, np.float32)}, tmp_path / "model-1.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    with caplog.at_level(logging.WARNING):
        assert list(open_tensors(tmp_path)) == ["a"]
    assert caplog.messages == [
        f"{tmp_path}: model.safetensors.index.json is read, not pytorch_model.bin"
    ]
    shutil.copy(tmp_path / "model-1.safetensors", tmp_path / "model.safetensors")
    open_tensors(tmp_path)
    assert "model.safetensors is read, not model.safetensors.index.json, p" in caplog.messages[1]


def test_a_tie_is_a_part_of_the_head_alone(tmp_path):
    """An encoder without a head that scores tokens has nothing to tie."""
    sizes = {"vocab_size": 31, "hidden_size": 8, "num_heads": 2, "num_hidden_layers": 1}
    untied = {"share_embedding_weights": False, "filter_size": 16, **sizes}
    model = models.build({"name": "bert-sequence-classifier", **untied})
    models.to_hf(model, model.init(jax.random.key(0)), tmp_path)
    assert models.from_hf(tmp_path)[0].config.head == "classification"
    model = models.build({"name": "bert", "head": "mlm", "disable_nsp": True, **untied})
    assert {s.name: s.params for s in model.stages}["head"][-1] == "lm_head"
