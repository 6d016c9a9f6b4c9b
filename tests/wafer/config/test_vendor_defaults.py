"""For a file of a release its defaults hold: to write one changes nothing.

tests/golden/vendor_defaults.json is the table; ``tests/helpers/vendor_defaults.py`` extracts it.
"""

import json

import pytest
from helpers.vendor_defaults import FAMILIES, FILE

from models import registry
from wafer.config.vendor.keys import translate

TABLE = json.loads(FILE.read_text())
TEXT = {"vocab_size": 64, "hidden_size": 8, "num_heads": 2, "num_hidden_layers": 2}
TEXT |= {"filter_size": 16, "max_position_embeddings": 16, "dropout_rate": 0.0}
GPTJ = {k: v for k, v in TEXT.items() if k != "dropout_rate"} | {"rotary_dim": 4}
T5 = {"src_vocab_size": 64, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_heads": 2}
SECTIONS = {"gpt2": TEXT, "gptj": GPTJ, "bert": TEXT, "t5": T5 | {"encoder_num_hidden_layers": 2}}
# Where a file that names no value gets another than the vendor's: the preset is Hugging Face's.
# The list only shrinks.
OTHER = {
    "gpt2": "attention_dropout_rate sliding_window_every_other_decoder_layer_pattern",
    "gptj": "attention_dropout_rate embedding_dropout_rate nonlinearity residual_dropout_rate "
    "scale_qk_dot_by_d share_embedding_weights use_bias_in_output use_ffn_bias "
    "use_ffn_bias_in_attention use_projection_bias_in_attention",
    "bert": "encoder_nonlinearity mlm_loss_weight",
    "t5": "layer_norm_epsilon lm_loss_weight mlm_loss_scaling use_pre_encoder_decoder_layer_norm",
}
ROWS = [
    (family, key, value, release)
    for family, keys in TABLE.items()
    for key, rows in keys.items()
    for value, *releases in rows
    for release in sorted(set(releases))
    if value is not None and key not in SECTIONS[family]
]


def read(section, release):
    """What a model section means in a file of a release; None where a key is not known."""
    out = translate({"release": release, "model": section})
    try:
        return None if out.problems else registry.parse_config(out.sections["model"])
    except ValueError:
        return None


def test_the_table_has_every_family_and_release():
    assert TABLE.keys() == FAMILIES.keys() == OTHER.keys()
    lasts = {rows[-1][2] for rows in TABLE["gpt2"].values()}
    assert "2.10" in lasts


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_default_of_a_release_changes_nothing(family):
    differ, compared = set(), 0
    for _, key, value, release in (row for row in ROWS if row[0] == family):
        section = {"name": family, **SECTIONS[family]}
        plain, written = read(section, release), read(section | {key: value}, release)
        assert plain is not None
        if written is not None:  # the others are refused by name
            compared += 1
            differ |= {key} if plain != written else set()
    assert differ == set(OTHER[family].split())
    assert compared >= 15
