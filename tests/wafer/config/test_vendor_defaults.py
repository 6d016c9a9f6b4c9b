"""For a file of a release its defaults hold: to write one changes nothing.

tests/golden/vendor_defaults.json is the table; ``tests/helpers/vendor_defaults.py`` extracts it.
"""

import json

import pytest
from helpers.vendor_defaults import FAMILIES, FILE

from wafer.data.registry import DATA_PROCESSORS
from wafer.models import registry
from wafer.models.errors import SectionError
from wafer.optim.schedule_sections import SCHEDULERS
from wafer.optim.sections import OPTIMIZERS
from wafer.vendor.keys import code_of, spellings
from wafer.vendor.runfile import read as translate

TABLES = json.loads(FILE.read_text())
TABLE = TABLES["defaults"]
HALF = {"mixed_precision": True}
STACK = {"hidden_size": 16, "num_heads": 2, "num_hidden_layers": 2, "filter_size": 16}
TEXT = HALF | STACK | {"vocab_size": 64, "max_position_embeddings": 16, "dropout_rate": 0.0}
GPTJ = {k: v for k, v in TEXT.items() if k != "dropout_rate"} | {"rotary_dim": 4}
T5 = HALF | {"src_vocab_size": 64, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_heads": 2}
T5 |= {"encoder_num_hidden_layers": 2}
CLIP = {"prepend_cls_token": True, "use_post_embed_layer_norm": True, "use_embed_proj_bias": False}
PROJECTOR = {"name": "FeedForwardNetwork", "input_unit": 16, "layers_units": [16, 16]}
PROJECTOR |= {"layers_activation": ["gelu", None], "use_bias": True}
PARTS = {"image_model": STACK | CLIP, "text_model": TEXT | {"name": "llama"}}
LLAVA = HALF | PARTS | {"projector": {"image_model": PROJECTOR}}
# family -> sizes; where its keys are, if not in the model section itself
SECTIONS = {
    "bert": TEXT,
    "bert-q&a": TEXT,
    "bert-sequence-classifier": TEXT,
    "bert-summarization": TEXT,
    "bert-token-classifier": TEXT,
    "dpo": TEXT | {"name": "gpt2", "dpo": {}},
    "dpr": HALF | {"q_encoder": TEXT, "ctx_encoder": TEXT},
    "esm2": TEXT,
    "fc_mnist": {"hidden_size": 8, "depth": 1, "activation_fn": "relu"},
    "gpt2": TEXT,
    "gptj": GPTJ,
    "llava": LLAVA,
    "t5": T5,
    "vision": LLAVA,
}
WITHIN = {"dpo": "dpo", "vision": "image_model"}
# Another value in form alone: a factor of 1, what the attention's type says, or a window's order
# where there is no window; what is refused by name though it says the default. The list shrinks.
_FORM = "lr_adjustment_groups mlm_loss_weight"
OTHER = {
    "bert": _FORM,
    "bert-q&a": "",
    "bert-sequence-classifier": _FORM,
    "bert-summarization": _FORM,
    "bert-token-classifier": f"include_padding_in_loss {_FORM}",
    "dpo": "compute_eval_metrics",  # beside the section dpo
    "dpr": "",
    "esm2": _FORM,
    "fc_mnist": "",
    "gpt2": "embd_pdrop sliding_window_every_other_decoder_layer_pattern",
    "gptj": "",
    "llava": "",
    "t5": "",
    "vision": "embedding_dropout_rate",
}
NAMES = {name: rows[-1][0] for name, rows in TABLES["names"].items()}


def read(section, release):
    """What a model section means in a file of a release; the problems where it is refused."""
    out = translate({"release": release, "model": section})
    try:
        return out.problems or registry.parse_config(out.sections["model"])
    except SectionError as error:
        return error.problems


def written(family, section, key, value):
    """The section with one more key, where the family has it."""
    where = WITHIN.get(family, "q_encoder" if family == "dpr" and key in TABLE["bert"] else "")
    inner = section.get(where, {})
    if key in ("name", *section, *inner):
        return None
    return section | ({where: inner | {key: value}} if where else {key: value})


def test_the_table_has_every_family_and_release():
    assert TABLE.keys() == FAMILIES.keys() == OTHER.keys() == SECTIONS.keys()
    for family in ("gpt2", "gptj", "bert", "t5"):
        assert "2.10" in {rows[-1][2] for rows in TABLE[family].values()}
    assert len(NAMES) == 14
    assert all(code_of(name) == code for name, code in NAMES.items())


@pytest.mark.parametrize("name", sorted({*FAMILIES, *NAMES}))
def test_the_default_of_a_release_changes_nothing(name):
    family = NAMES.get(name, name)
    section = {"name": name} | SECTIONS[family]
    if name == "vision":
        section["name"] = "llava"
    plain, differ = {}, set()
    for key, rows in TABLE[family].items():
        for value, *releases in rows:
            for release in sorted(set(releases)):
                if (longer := written(family, section, key, value)) is None:
                    continue
                if release not in plain:
                    plain[release] = read(section, release)
                differ |= {key} if read(longer, release) != plain[release] else set()
    assert differ == set(OTHER[family].split())


def test_the_default_of_an_optimizer_or_schedule_changes_nothing():
    differ = set()
    for name, keys in TABLES["optimizers"].items():
        schedule = name.removesuffix("LR")
        cls = OPTIMIZERS.get(name) or SCHEDULERS.get(schedule)
        if cls is None:
            continue  # a base class, or the sparsity of 1.6
        section = {"optimizer_type": name} if name in OPTIMIZERS else {"scheduler": schedule}
        for key, rows in keys.items():
            field = cls.model_fields.get(key)
            for value, _, _ in rows:
                dropped = translate({"optimizer": section | {key: value}}).ignored
                default = tuple(value) if isinstance(value, list) else value
                same = field and default == field.get_default(call_default_factory=True)
                differ |= set() if dropped or same else {(name.removesuffix("LR"), key)}
    # lr is learning_rate here, which has no default
    unread = {"lr", "disable_lr_steps_reset"}
    # true beside a learning rate is an error there; null: forever
    known = {("Adafactor", "relative_step"), ("Constant", "decay_steps")}
    assert {row for row in differ if row[1] not in unread} == known


# Defaults of data that change no result (workers, a repeated pass, null for false), and an order,
# which no two stacks share; synthetic rows are others.
_UNREAD = "num_workers prefetch_factor persistent_workers use_worker_cache sort_files pad_last"
_UNREAD += " repeat whole_word_masking data_transforms shuffle_seed"


def test_the_default_of_a_data_processor_changes_nothing():
    differ, seen = set(), set()
    for name in TABLES["processors"].keys() & DATA_PROCESSORS.keys():
        cls = DATA_PROCESSORS[name]
        for key, rows in TABLES["processors"][name].items():
            ours, _ = spellings("train_input", name).get(key, (key, False))
            field = cls.model_fields.get(ours)
            if field is None or field.is_required() or key in _UNREAD.split():
                continue
            default = field.get_default(call_default_factory=True)
            for value, *releases in rows:
                for release in releases:
                    raw = {"release": release, "train_input": {"data_processor": name}}
                    read_as = translate(raw).sections["train_input"].get(ours, default)
                    seen.add(name)
                    differ |= set() if read_as == value else {(name, key, release)}
    assert len(seen) > 12
    assert {row[:2] for row in differ if row[0] != "SyntheticDataProcessor"} == set()


def test_a_llama_of_a_release_is_gpt2_until_it_says_otherwise():
    section = {"name": "llama"} | STACK
    hugging_face = registry.parse_config(translate({"model": section}).sections["model"])
    vendor = read(section, "2.4")
    assert (hugging_face.norm_type, vendor.norm_type) == ("rmsnorm", "layernorm")
    assert (hugging_face.rotary_features, vendor.position_embedding_type) == (8, "learned")
    assert read(section | {"position_embedding_type": "rotary"}, "2.4").rotary_features == 2


def test_the_pooler_follows_the_encoders_nonlinearity():
    section = {"name": "bert", "encoder_nonlinearity": "relu"} | STACK
    assert read(section, "2.4").pooler_nonlinearity == "relu"
    assert read(section | {"pooler_nonlinearity": None}, "2.4").mlm_nonlinearity == "relu"
    assert read(section | {"pooler_nonlinearity": "tanh"}, "2.4").pooler_nonlinearity == "tanh"
    assert registry.parse_config({"name": "bert"} | STACK).pooler_nonlinearity == "tanh"


def test_segments_are_those_of_next_sentences():
    section = {"name": "bert"} | STACK
    assert read(section, "1.9").num_segments == 2
    assert read(section | {"disable_nsp": True}, "1.9").num_segments is None


def test_one_encoder_is_both_towers():
    out = read({"name": "dpr", "encoder": TEXT, "use_biencoder": True}, "2.4")
    assert out.q_encoder.hidden_size == out.ctx_encoder.hidden_size == 16
    (problem,) = read({"name": "dpr", "encoder": TEXT, "use_biencoder": False}, "2.4")
    assert "not computed here" in problem.message


def test_a_tower_other_than_clips_is_refused_where_the_file_leaves_it_out():
    parts = LLAVA | {"image_model": STACK}
    assert not translate({"model": {"name": "llava"} | parts}).problems
    paths = {problem.path[-1] for problem in read({"name": "llava"} | parts, "2.4")}
    assert paths == {"use_post_embed_layer_norm", "use_embed_proj_bias"}


def test_another_value_is_refused_by_name():
    section = {"name": "gpt2", **TEXT, "use_sink_token": True, "rel_distance_mode": "ring"}
    problems = translate({"model": section}).problems
    assert {problem.path[1]: problem.message for problem in problems} == {
        "use_sink_token": "True: not computed here: write attention_sink_tokens",
        "rel_distance_mode": "'ring': not computed here: other than the default",
    }


def test_a_rate_that_the_vendor_overwrites_is_dropped():
    rates = {"embedding_dropout_rate": 0.5, "dropout_rate": 0.1}
    bert = {"name": "bert"} | STACK | rates
    towers = {"name": "dpr", "q_encoder": STACK | rates, "ctx_encoder": STACK}
    out = translate({"release": "2.4", "model": bert})
    assert out.ignored == ["model.embedding_dropout_rate"]
    assert read(bert, "2.4").dropout("embedding") == 0.1
    assert read(bert, "2.3").dropout("embedding") == 0.5
    assert read(towers, "2.5").q_encoder.dropout("embedding") == 0.1
    assert towers["q_encoder"] == STACK | rates
