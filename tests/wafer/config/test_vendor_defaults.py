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
# Another value in form alone: a factor of 1, what the attention's type says, or a window's order
# where there is no window. The list only shrinks.
OTHER = {
    "gpt2": "sliding_window_every_other_decoder_layer_pattern",
    "gptj": "scale_qk_dot_by_d",
    "bert": "encoder_nonlinearity mlm_loss_weight",
    "t5": "",
}
ROWS = [
    (family, key, value, release)
    for family, keys in TABLE.items()
    for key, rows in keys.items()
    for value, *releases in rows
    for release in sorted(set(releases))
    if key not in SECTIONS[family]
]


def read(section, release):
    """What a model section means in a file of a release."""
    out = translate({"release": release, "model": section})
    assert not out.problems
    return registry.parse_config(out.sections["model"])


def test_the_table_has_every_family_and_release():
    assert TABLE.keys() == FAMILIES.keys() == OTHER.keys()
    lasts = {rows[-1][2] for rows in TABLE["gpt2"].values()}
    assert "2.10" in lasts


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_default_of_a_release_changes_nothing(family):
    differ = set()
    for _, key, value, release in (row for row in ROWS if row[0] == family):
        section = {"name": family, **SECTIONS[family]}
        plain, written = read(section, release), read(section | {key: value}, release)
        differ |= {key} if value is not None and plain != written else set()
    assert differ == set(OTHER[family].split())


@pytest.mark.parametrize("release", ["1.7", None])
def test_t5s_norm_first_was_negated_before_1_8(release):
    section = {"name": "t5", **SECTIONS["t5"], "use_pre_encoder_decoder_layer_norm": False}
    raw = {"model": section} if release is None else {"release": release, "model": section}
    assert registry.parse_config(translate(raw).sections["model"]).norm_first == (release == "1.7")


def test_another_value_is_refused_by_name():
    section = {"name": "gpt2", **TEXT, "use_sink_token": True, "rel_distance_mode": "ring"}
    problems = translate({"model": section}).problems
    assert {problem.path[1]: problem.message for problem in problems} == {
        "use_sink_token": "True: not computed here: write attention_sink_tokens",
        "rel_distance_mode": "'ring': not computed here: other than the default",
    }
