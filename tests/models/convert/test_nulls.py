"""null in config.json for every key of every class, as transformers computes it.

tests/golden/hf_nulls.json has what it computes; ``tests/helpers/hf_nulls.py`` records.
"""

import json

import jax
import numpy as np
import pytest
from helpers.batches import rows
from helpers.hf_nulls import CASES, FILE, IDS, SIZES, weight
from safetensors.numpy import save_file

from wafer import models
from wafer.models.convert import config_from_hf
from wafer.models.convert.api import config_to_hf, convert_table
from wafer.models.convert.engine import export_tensors
from wafer.models.counts import abstract_params
from wafer.models.paths import named_leaves

RECORDED = json.loads(FILE.read_text())
KEYS, LOGITS = RECORDED.pop("keys"), RECORDED.pop("logits")
# Our models need a number there, which transformers' do not read: refused.
NEEDED = {"max_position_embeddings", "router_aux_loss_coef", "seq_length", "max_seq_len"}
# Computed, where transformers ends in an error: no window, as many key/value heads as heads.
COMPUTED = {(kind, "sliding_window") for kind in ("gemma2", "gemma3_text")}
INTEGER = ("gemma2", "gemma3_text", "qwen3_moe", "starcoder2")
COMPUTED |= {(kind, "num_key_value_heads") for kind in INTEGER}
# The recorded texts are shorter than the default window.
COMPUTED |= {("mistral", "sliding_window")}


# Other than the class's default of key/value heads, which null is then not.
HEADS = {kind: {"num_attention_heads": 64} for kind in ("qwen2", "qwen3")}


def read(kind, **keys):
    """The section, or 'refused'."""
    try:
        return config_from_hf({"model_type": kind, **HEADS.get(kind, {}), **keys})
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
    assert sorted(RECORDED) == sorted(LOGITS) == ["4.57.6", "5.24.0"]


def logits(folder):
    """The first ones of the last id, as they are recorded."""
    model, params = models.from_hf(folder)
    return np.asarray(jax.jit(model.apply)(params, rows(IDS)))[-1, :8]


@pytest.mark.parametrize(
    ("kind", "i"), [(kind, i) for kind, cases in CASES.items() for i in range(len(cases))]
)
def test_a_null_computes_what_transformers_computes_and_is_written_back(tmp_path, kind, i):
    config = {"model_type": kind, **SIZES[kind][1], **CASES[kind][i]}
    del config["num_local_experts"]  # of Mixtral alone
    recorded = [release[kind][i] for release in LOGITS.values()]
    model = models.build(config_from_hf(config))
    leaves = dict(named_leaves(abstract_params(model)))
    names = export_tensors(model, convert_table(model.config), leaves)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(config))
    tensors = {each.name: weight(each.name, each.shape) for each in names}
    save_file(tensors, tmp_path / "theirs" / "model.safetensors")
    ours = logits(tmp_path / "theirs")
    if recorded[0] is None:  # Gemma 2 with "sliding_window": null, an error there; no window here
        recorded = [release[kind][-1] for release in LOGITS.values()]
        written = config_to_hf(model.config)
        assert (written["sliding_window"], set(written["layer_types"])) == (20, {"full_attention"})
    for theirs in recorded:
        np.testing.assert_allclose(ours, theirs, atol=3e-5)
    models.to_hf(*models.from_hf(tmp_path / "theirs"), tmp_path / "back")
    np.testing.assert_array_equal(logits(tmp_path / "back"), ours)


def test_the_recorded_cases_differ():
    """Only what has no window in one way or another agrees."""
    for release in LOGITS.values():
        for kind, alike in (("gemma2", [(4, 6)]), ("mistral", [(1, 2)])):
            found = [np.array(one) for one in release[kind] if one is not None]
            at = [i for i, one in enumerate(release[kind]) if one is not None]
            near = [
                (at[i], at[j]) for j in range(len(at)) for i in range(j)
                if np.abs(found[i] - found[j]).max() < 1e-3
            ]  # fmt: skip
            assert near == alike
