"""null in config.json for every key of every class, as transformers computes it.

tests/golden/hf_nulls.json has what it computes; ``tests/helpers/hf_nulls.py`` records.
"""

import json

import pytest
from helpers.hf_nulls import FILE

from models.convert import config_from_hf

RECORDED = json.loads(FILE.read_text())
KEYS = RECORDED.pop("keys")
# Our models need a number there, which transformers' do not read: refused.
NEEDED = {"max_position_embeddings", "router_aux_loss_coef", "seq_length", "max_seq_len"}
# Computed, where transformers ends in an error: no window, as many key/value heads as heads.
COMPUTED = {("gemma2", "sliding_window"), ("gemma2", "num_key_value_heads")}
# The recorded texts are shorter than the default window.
COMPUTED |= {("mistral", "sliding_window")}


def read(kind, **keys):
    """The section, or 'refused'."""
    try:
        return config_from_hf({"model_type": kind, **keys})
    except ValueError:
        return "refused"


@pytest.mark.parametrize("kind", sorted(KEYS))
def test_null_means_what_it_means_in_transformers(kind):
    absent, refused, own = read(kind), [], []
    for key in KEYS[kind]:
        ours = read(kind, **{key: None})
        meanings = {release[kind][key] for release in RECORDED.values()} - {"error"}
        allowed = []
        if (kind, key) in COMPUTED:
            meanings = {"other"}
        if not meanings:
            allowed = [absent, "refused"]  # training and ids alone read some of these keys
            refused += [key] if ours == "refused" else []
        if "absent" in meanings:
            allowed += [absent, "refused"] if key in NEEDED or len(meanings) > 1 else [absent]
        if "false" in meanings:
            allowed.append(read(kind, **{key: False}))
        if allowed:
            assert ours in allowed, key
        else:
            assert ours != absent, key
            own.append(key)
    assert len(refused) > 3, "sizes and names"
    assert set(own) <= {
        *("attn_logit_softcapping", "final_logit_softcapping", "num_key_value_heads"),
        *("position_embedding_type", "sliding_window"),
    }


def test_both_major_versions_are_recorded():
    assert sorted(RECORDED) == ["4.57.6", "5.24.0"]
