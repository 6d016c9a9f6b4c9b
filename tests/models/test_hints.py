"""What an error says of the nearest name: near, and right."""

import pytest

from wafer.models.errors import did_you_mean, did_you_mean_model
from wafer.models.names import MODELS

SLIPS = {"gptt2": "gpt2", "GPT-2": "gpt2", "lama": "llama", "mixtarl": "mixtral"}
SLIPS |= {"Falcom": "falcon"}
SLIPS |= {"gpt_j": "gptj", "bret": "bert", "roberat": "roberta"}
OTHERS = {"gpt": "gpt2", "gemma3": "gemma2", "llama4": "llama", "olmo": "olmo2", "phi4": "phi3"}
STRANGERS = ["mamba", "deberta", "cohere", "bart", "starling", "ministral", "rwkv"]
STRANGERS += ["albert", "electra", "granite", "xglm", "jamba", "xlm", "1", ""]


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_of_a_models_name(name):
    plain = lambda text: text.replace("-", "")
    hint = did_you_mean_model(name, {*MODELS, *SLIPS.values()})
    assert plain(hint) == f"; did you mean {plain(SLIPS[name])!r}?"


@pytest.mark.parametrize("name", OTHERS)
def test_another_number_is_another_model(name):
    hint = did_you_mean_model(name, MODELS)
    assert repr(OTHERS[name]) in hint
    assert "another model" in hint or "other models" in hint


@pytest.mark.parametrize("name", STRANGERS)
def test_no_hint_for_a_model_that_is_not_here(name):
    assert did_you_mean_model(name, MODELS) == ""


def test_numbers_of_a_key_count():
    keys = ["beta1", "beta2", "max_steps", "num_heads"]
    assert did_you_mean("max_stesp", keys) == "; did you mean 'max_steps'?"
    assert did_you_mean("num_head", keys) == "; did you mean 'num_heads'?"
    assert did_you_mean("beta3", keys) == ""
