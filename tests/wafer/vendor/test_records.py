"""Checkpoints of before the table of names: their records have keys as the run file had them."""

import jax
import numpy as np
import pytest

import wafer
from wafer import models
from wafer.models.checkpoint.writer import write_checkpoint

SIZES = {"num_hidden_layers": 1, "num_heads": 2, "max_position_embeddings": 16, "vocab_size": 32}
BERT = SIZES | {"name": "bert", "hidden_size": 16, "filter_size": 32}
T5 = {"name": "t5", "num_heads": 2, "decoder_num_hidden_layers": 1, "tgt_vocab_size": 32}
CASES = [
    (
        BERT | {"encoder_nonlinearity": "relu", "use_bfloat16": True},
        BERT | {"nonlinearity": "relu", "fp16_type": "bfloat16"},
    ),
    (
        T5 | {"d_model": 16, "d_kv": 4, "encoder_num_hidden_layers": 1, "src_vocab_size": 32},
        T5
        | {"hidden_size": 16, "attention_inner_dim": 8, "num_hidden_layers": 1, "vocab_size": 32},
    ),
]


@pytest.mark.parametrize(("kept", "section"), CASES, ids=["bert", "t5"])
def test_a_record_is_read_in_todays_names(kept, section, tmp_path):
    model = models.build(section)
    params = model.init(jax.random.key(0))
    write_checkpoint(tmp_path / "1", {"params": params}, {"step": 1, "config": {"model": kept}})
    loaded, arrays, *_ = wafer.load(str(tmp_path / "1"))
    assert loaded.config == model.config
    jax.tree.map(np.testing.assert_array_equal, arrays, params)


def test_seeded_masks_of_a_record(tmp_path):
    config = {"model": BERT, "sparsity": {"sparsity": 0.5, "seed": 3, "init_method": "topk"}}
    params = models.build(BERT).init(jax.random.key(0))
    write_checkpoint(tmp_path / "1", {"params": params}, {"step": 1, "config": config})
    assert wafer.load(str(tmp_path / "1"))[0].config == models.build(BERT).config
