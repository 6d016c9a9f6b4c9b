"""Every configuration class of transformers that we take: its defaults, its other spellings.

tests/golden/hf_classes.json has them of two releases; ``tests/helpers/hf_classes.py`` records.
"""

import json

import pytest
from helpers.hf_classes import FILE

from wafer.models.convert import config_from_hf
from wafer.models.convert.tables.class_defaults import HARMLESS

RELEASES = json.loads(FILE.read_text())
CASES = [(release, kind) for release in RELEASES for kind in RELEASES[release]]
REMOTE = {"btlm", "crystalcoder", "jais"}  # their classes lie beside the published weights
# Other values that fit to the rest of a class's defaults, and what must change with them.
OTHER = {"hidden_size": 640, "head_dim": 32, "num_attention_heads": 4, "num_hidden_layers": 3}
BESIDE = {("marian", "num_attention_heads"): {"decoder_attention_heads": 4}}
# transformers 5 reads the whole's, 4 its text part's: we read the part's first, which decides both.
PARTLY = {("llava", "tie_word_embeddings")}


def test_every_model_type_has_its_class():
    assert len(RELEASES) == 2
    for kinds in RELEASES.values():
        assert kinds.keys() == HARMLESS.keys() - REMOTE


@pytest.mark.parametrize(("release", "kind"), CASES)
def test_a_configuration_with_every_default_is_one_that_names_none(release, kind):
    whole = RELEASES[release][kind]["defaults"]
    assert whole["model_type"] == kind
    assert config_from_hf(whole) == config_from_hf({"model_type": kind})
    for key in whole.keys() - {"model_type"}:  # and so is each of them alone
        if (kind, key) in PARTLY:
            continue
        one = config_from_hf({"model_type": kind, key: whole[key]})
        assert one == config_from_hf({"model_type": kind}), key


@pytest.mark.parametrize(("release", "kind"), CASES)
def test_other_spellings_mean_the_same(release, kind):
    for other, key in RELEASES[release][kind]["other"].items():
        if {other, key} & HARMLESS[kind]:
            continue
        base = {"model_type": kind, **BESIDE.get((kind, other), {})}
        one, two = (config_from_hf(base | {name: OTHER.get(other, 7)}) for name in (other, key))
        assert one == two, other
        assert one != config_from_hf({"model_type": kind}), other


@pytest.mark.parametrize("kind", sorted(HARMLESS))
def test_a_key_that_no_class_has_is_an_error(kind):
    with pytest.raises(ValueError, match=r"made_up: 1, a key that .* does not have here"):
        config_from_hf({"model_type": kind, "made_up": 1})
    with pytest.raises(ValueError, match="do_sampler: 1, a key that") as caught:
        config_from_hf({"model_type": kind, "do_sampler": 1})
    assert "'do_sample'" not in str(caught.value)  # which no model reads
    assert "; it has " in str(caught.value)


@pytest.mark.parametrize(
    ("key", "hint"), [("n_heads", "did you mean 'n_head'?"), ("width", "it has .*n_embd, n_head")]
)
def test_a_key_beside_those_of_its_model(key, hint):
    with pytest.raises(ValueError, match=rf"{key}: 1, a key that gpt2 does not have here; {hint}"):
        config_from_hf({"model_type": "gpt2", key: 1})
