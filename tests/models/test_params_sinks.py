"""Attention to sink tokens outside the sliding window (StreamingLLM), and rows that hold them."""

import h5py
import jax
import numpy as np
import pytest
from helpers.batches import rows
from helpers.runs import config

from wafer import models
from wafer.config import parse_config
from wafer.data.batching.batches import feature_shapes
from wafer.data.batching.dataset import build_dataset
from wafer.errors import ConfigError, DataError

S, WINDOW, SINKS = 10, 3, 2
LLAMA = {"name": "llama", "vocab_size": 16, "hidden_size": 8, "num_heads": 2, "filter_size": 8}
LLAMA |= {"num_hidden_layers": 1, "max_position_embeddings": S}
LLAMA |= {"attention_sliding_window_length": WINDOW, "attention_sink_tokens": SINKS}


def logits(model, params, tokens):
    return model.apply(params, rows(tokens))


def test_a_query_sees_its_window_and_the_sinks():
    """The vendor's mask: q >= k and (q - k < window or k < sinks)."""
    model = models.build(LLAMA)
    params = model.init(jax.random.key(0))
    tokens = np.arange(1, S + 1)
    base = logits(model, params, tokens)
    seen = np.zeros((S, S), bool)
    for k in range(S):
        changed = tokens.copy()
        changed[k] = 15
        seen[:, k] = np.abs(logits(model, params, changed) - base).max(-1) > 1e-7
    q, k = np.arange(S)[:, None], np.arange(S)
    assert (seen == ((q >= k) & ((q - k < WINDOW) | (k < SINKS)))).all()


@pytest.mark.slow
def test_generation_sees_the_sinks_too():
    model = models.build(LLAMA | {"num_hidden_layers": 2})
    params = model.init(jax.random.key(0))
    prompt = [3, 7, 2, 9, 4]
    new = models.generate(model, params, prompt, 4)[0].tolist()
    whole = logits(model, params, np.array(prompt + new))
    assert new == whole[len(prompt) - 1 : -1].argmax(axis=-1).tolist()


def test_rows_get_sink_tokens(tmp_path):
    """AddSinkTokensTransform of release 2.4: ids and labels get the sink's id, the mask 0."""
    row = [[5, 6, 7, 8], [1, 1, 1, 0], [6, 7, 8, 9]]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"] = np.array([row], "i4")
    own = {"data_processor": "GptHDF5MapDataProcessor", "data_dir": str(tmp_path), "batch_size": 1}

    def read(*transforms, **keys):
        named = [{"name": "add_sink_tokens", **transform} for transform in transforms]
        section = own | {"data_transforms": named, "max_sequence_length": 4} | keys
        return parse_config(config() | {"train_input": section})

    cfg = read({"sink_token_id": 3, "num_sink_tokens": 2})
    data = build_dataset(cfg.train_input, tmp_path)
    assert data.row_length == 6
    transform = data.transform
    assert transform is not None
    got = transform(data.source[0], np.random.default_rng(0))
    assert got["input_ids"].tolist() == [3, 3, 5, 6, 7, 8]
    assert got["labels"].tolist() == [3, 3, 6, 7, 8, 9]
    assert got["attention_mask"].tolist() == [0, 0, 1, 1, 1, 0]
    shapes = feature_shapes(cfg.train_input, models.build(cfg.model).config, (1,))
    assert shapes["input_ids"].shape == (1, 6)

    cut = {"truncate_to_original_length": True, "sink_token_start_pos": 1}
    data = build_dataset(read(cut, cut).train_input, tmp_path)
    assert data.row_length == 4
    assert data.transform(data.source[0], np.random.default_rng(0))["input_ids"].tolist() == [
        5,
        0,
        0,
        6,
    ]
    far = build_dataset(read({"sink_token_start_pos": 9}).train_input, tmp_path)
    with pytest.raises(DataError, match="sink_token_start_pos 9 is beyond rows of 4 tokens"):
        far.transform(far.source[0], np.random.default_rng(0))
    with pytest.raises(ConfigError, match="data_transforms: rows of several documents"):
        read({}, use_vsl=True)
    with pytest.raises(ConfigError, match="add_pose_shift: not computed here"):
        read({"name": "add_pose_shift"})
