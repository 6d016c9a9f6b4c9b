"""T5 and Marian: the names of the shared embedding, and the forms of T5's head."""

import jax
import numpy as np
import pytest
from helpers.hf_parity import KEPT, copied, shaken

from wafer import models
from wafer.models.convert.files import open_tensors, read_config

T5 = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
MARIAN = tuple(f"model.{name}" for name in T5)
HEAD = "lm_head.weight"
CASES = [("t5_relu_tied", name, T5[0]) for name in (*T5, HEAD)]
CASES += [("transformer_base_postln_sinusoidal", name, MARIAN[0]) for name in (*MARIAN, HEAD)]


@pytest.mark.parametrize(("case", "name", "shared"), CASES)
def test_one_name_of_the_shared_embedding_is_enough(case, name, shared, tmp_path):
    tensors = open_tensors(KEPT / case)
    others = [key for key in tensors if key in (shared, HEAD) or "embed_tokens" in key]
    model, params = models.from_hf(copied(tmp_path, case, {name: tensors[shared]}, others))
    expected, values = models.from_hf(KEPT / case)
    assert model.config == expected.config
    jax.tree.map(np.testing.assert_array_equal, params, values)


def test_two_names_with_other_values_are_refused(tmp_path):
    table = open_tensors(KEPT / "t5_relu_tied")[T5[0]]
    folder = copied(tmp_path, "t5_relu_tied", {T5[1]: table, T5[2]: table + 1}, T5[:1])
    with pytest.raises(ValueError, match=r"decoder\.embed_tokens\.weight differs from encoder"):
        models.from_hf(folder)


def test_a_t5_that_transformers_5_saved_goes_back(tmp_path):
    """It ties always, and has the key scale_decoder_outputs: here tied, and not scaled."""
    table = open_tensors(KEPT / "t5v11_flan_gatedgelu")[T5[0]]
    folder = copied(tmp_path / "v5", "t5v11_flan_gatedgelu", drop=[HEAD])
    model, params = models.from_hf(folder)
    assert (model.config.share_embedding_weights, model.config.scale_logits) == (True, False)
    models.to_hf(model, params, tmp_path / "back", dtype=table.dtype)
    written = read_config(tmp_path / "back")
    assert (written["scale_decoder_outputs"], written["tie_word_embeddings"]) == (False, False)
    np.testing.assert_array_equal(open_tensors(tmp_path / "back")[HEAD], table)
    again, other = models.from_hf(tmp_path / "back")
    assert again.config == model.config
    jax.tree.map(np.testing.assert_array_equal, params, other)


def test_a_scaled_head_of_its_own_is_refused(tmp_path):
    """transformers 5 scales it, 4 puts the embedding in its place."""
    folder = copied(tmp_path, "t5v11_flan_gatedgelu", scale_decoder_outputs=True)
    with pytest.raises(ValueError, match=r"lm_head\.weight differs .* write scale_decoder_outputs"):
        models.from_hf(folder)


def test_a_head_of_its_own_is_written_as_it_is(tmp_path):
    """Of a run file: ``scale_logits`` scales a shared head alone."""
    sizes = {"vocab_size": 31, "hidden_size": 16, "attention_inner_dim": 16, "filter_size": 32}
    sizes |= {"num_heads": 2, "num_hidden_layers": 1, "share_embedding_weights": False}
    model = models.build({"name": "t5", **sizes})
    assert model.config.scale_logits
    params = shaken(model)
    models.to_hf(model, params, tmp_path / "hf")
    again, other = models.from_hf(tmp_path / "hf")
    assert not again.config.scale_logits
    np.testing.assert_array_equal(other["lm_head"]["kernel"], params["lm_head"]["kernel"])
