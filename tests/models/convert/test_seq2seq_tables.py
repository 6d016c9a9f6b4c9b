"""T5 and Marian: the names of the shared embedding, and the forms of T5's head."""

import json
import shutil

import numpy as np
import pytest
from helpers import hf_parity
from helpers.paths import GOLDEN
from safetensors.numpy import load_file, save_file

from wafer import models
from wafer.models.convert.files import open_tensors
from wafer.models.paths import named_leaves

T5 = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
MARIAN = tuple(f"model.{name}" for name in T5)
HEAD = "lm_head.weight"
CASES = [("t5_relu_tied", name, T5[0]) for name in (*T5, HEAD)]
CASES += [("transformer_base_postln_sinusoidal", name, MARIAN[0]) for name in (*MARIAN, HEAD)]


def saved(folder, source, tensors, **config):
    """A folder with other tensors and keys."""
    shutil.copytree(source, folder)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    content = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(("case", "name", "shared"), CASES)
def test_one_name_of_the_shared_embedding_is_enough(case, name, shared, tmp_path):
    source = GOLDEN / "hf" / case
    tensors = load_file(source / "model.safetensors")
    table = tensors.pop(shared)
    tensors = {key: value for key, value in tensors.items() if "embed_tokens" not in key}
    tensors.pop(HEAD, None)
    folder = saved(tmp_path / "alias", source, tensors | {name: table})
    model, params = models.from_hf(folder)
    expected, values = models.from_hf(source)
    assert model.config == expected.config
    for (path, leaf), (other, value) in zip(
        named_leaves(params), named_leaves(values), strict=True
    ):
        assert path == other
        np.testing.assert_array_equal(leaf, value)


def test_two_names_with_other_values_are_refused(tmp_path):
    source = GOLDEN / "hf" / "t5_relu_tied"
    tensors = load_file(source / "model.safetensors")
    table = tensors.pop(T5[0])
    folder = saved(tmp_path / "two", source, tensors | {T5[1]: table, T5[2]: table + 1})
    with pytest.raises(ValueError, match=r"decoder\.embed_tokens\.weight differs from encoder"):
        models.from_hf(folder)


def test_a_t5_that_transformers_5_saved_goes_back(tmp_path):
    """It ties always, and has the key scale_decoder_outputs: here tied, and not scaled."""
    source = GOLDEN / "hf" / "t5v11_flan_gatedgelu"
    tensors = load_file(source / "model.safetensors")
    del tensors[HEAD]
    model, params = models.from_hf(saved(tmp_path / "v5", source, tensors))
    assert (model.config.share_embedding_weights, model.config.scale_logits) == (True, False)
    models.to_hf(model, params, tmp_path / "back", dtype=tensors[T5[0]].dtype)
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (written["scale_decoder_outputs"], written["tie_word_embeddings"]) == (False, False)
    np.testing.assert_array_equal(open_tensors(tmp_path / "back")[HEAD], tensors[T5[0]])
    again, other = models.from_hf(tmp_path / "back")
    assert again.config == model.config
    for (name, leaf), (_, value) in zip(named_leaves(params), named_leaves(other), strict=True):
        np.testing.assert_array_equal(leaf, value, name)


def test_a_scaled_head_of_its_own_is_refused(tmp_path):
    """transformers 5 scales it, 4 puts the embedding in its place."""
    source = GOLDEN / "hf" / "t5v11_flan_gatedgelu"
    tensors = load_file(source / "model.safetensors")
    folder = saved(tmp_path / "scaled", source, tensors, scale_decoder_outputs=True)
    with pytest.raises(ValueError, match=r"lm_head\.weight differs .* write scale_decoder_outputs"):
        models.from_hf(folder)


def test_a_head_of_its_own_is_written_as_it_is(tmp_path):
    """Of a run file: ``scale_logits`` scales a shared head alone."""
    sizes = {
        "vocab_size": 31,
        "hidden_size": 16,
        "attention_inner_dim": 16,
        "filter_size": 32,
        "num_heads": 2,
    }
    sizes |= {"num_hidden_layers": 1, "share_embedding_weights": False}
    model = models.build({"name": "t5", **sizes})
    assert model.config.scale_logits
    params = hf_parity.shaken(model)
    models.to_hf(model, params, tmp_path / "hf")
    again, other = models.from_hf(tmp_path / "hf")
    assert not again.config.scale_logits
    np.testing.assert_array_equal(other["lm_head"]["kernel"], params["lm_head"]["kernel"])
