"""Keys of the vendor's releases: without effect, renamed, refused by name, handed on; LLaVA's."""

import logging

import pytest

from wafer import models
from wafer.config import parse_config
from wafer.data.registry import DATA_PROCESSORS
from wafer.errors import ConfigError
from wafer.optim.sections import OPTIMIZERS
from wafer.vendor.keys import table
from wafer.vendor.runfile import read as translate

SIZES = {"hidden_size": 8, "num_heads": 2, "num_hidden_layers": 1, "filter_size": 16}
MODEL = {"name": "gpt2", "vocab_size": 64, "max_position_embeddings": 8, **SIZES}
ROWS = {"data_processor": "GptHDF5DataProcessor", "data_dir": "there", "batch_size": 2}
OPTIMIZER = {"optimizer_type": "SGD", "learning_rate": 1e-3}


def file(**sections):
    own = {"model": MODEL, "train_input": ROWS, "optimizer": OPTIMIZER}
    return own | {"runconfig": {"max_steps": 1}} | sections


def problems(raw):
    with pytest.raises(ConfigError) as error:
        parse_config(raw)
    return {".".join(map(str, p.path)): p.message for p in error.value.problems}


def test_keys_without_effect_are_dropped_and_logged(caplog):
    unread = {"use_position_embedding": True, "allow_multireplica": False}
    raw = file(
        model=MODEL | unread | {"lora_params": {"r": 1, "merge_weights": True}},
        train_input=ROWS | {"mixed_precision": True, "shuffle_buffer": 16384},
        optimizer=OPTIMIZER | {"epsilon": 1e-8, "ws_summary": True},
        predict_input=None,
    )
    with caplog.at_level(logging.WARNING):
        cfg = parse_config(raw)
    assert cfg.model == MODEL | {"lora_params": {"r": 1}}
    (line,) = (r.getMessage() for r in caplog.records if "no effect" in r.getMessage())
    keys = ["predict_input", "model.use_position_embedding", "optimizer.epsilon"]
    assert all(key in line for key in [*keys, "model.lora_params.merge_weights"])


def test_keys_of_the_data_that_nothing_reads_are_listed():
    keys = {"drop_last": False, "pad_last": True, "sort_files": True}
    cfg = parse_config(file(train_input=ROWS | keys))
    assert cfg.no_effect == tuple(f"train_input.{k}" for k in ("sort_files", *list(keys)[:2]))


def test_selected_gradients_of_the_model_are_the_optimizers():
    cfg = parse_config(file(model=MODEL | {"selective_grad": {"param_filter": "*fc*"}}))
    assert "selective_grad" not in cfg.model
    assert [entry.param_filter for entry in cfg.optimizer.selective_grad] == [("*fc*",)]
    wrong = problems(file(model=MODEL | {"selective_grad": {"init_method": "all"}}))
    assert wrong == {"model.selective_grad.0.init_method": "'all': expected 'outlier'"}


ROWS_OF_KEYS = [row for rows in table().rows.values() for row in rows]


@pytest.mark.parametrize("row", ROWS_OF_KEYS, ids=lambda row: f"{row.section}-{row.keys[0]}")
def test_a_row_is_of_releases(row):
    for releases in filter(None, (row.known, row.releases)):
        first, last = ([int(n) for n in part.split(".")] for part in releases.split("-"))
        assert [1, 6] <= first <= last <= [2, 10]
    if row.action in ("rename", "pair", "gone"):
        assert row.since is None or (1, 6) < row.since < (2, 10)


def test_no_row_hides_a_key_that_a_section_has():
    """A key is either read or without effect; rows with values or a processor may share one."""
    classes = {"optimizer": OPTIMIZERS.values(), "input": DATA_PROCESSORS.values()}
    for row in ROWS_OF_KEYS:
        if row.action in ("drop", "refuse") and not row.values and not row.of:
            for cls in classes.get(row.section, ()):
                assert not set(row.keys) & set(cls.model_fields), (row, cls)


def test_a_value_that_would_change_the_result_is_refused_by_name():
    unbiased, adam = OPTIMIZER | {"correct_bias": False}, {"optimizer_type": "Adam"}
    raw = file(model=MODEL | {"use_position_embedding": False}, optimizer=unbiased)
    said = problems(raw)
    assert all("not computed here: " in message for message in said.values())
    assert "write position_embedding_type: null" in said["model.use_position_embedding"]
    assert "only AdamW" in said["optimizer.correct_bias"]
    adamw = parse_config(file(optimizer=unbiased | {"optimizer_type": "AdamW"}))
    assert not adamw.optimizer.correct_bias
    parse_config(file(optimizer=OPTIMIZER | adam | {"correct_bias": True}))


def test_names_of_the_registry_are_ours():
    names = ("bert/classifier", "bert/token_classifier", "bert/extractive_summarization")
    ours = [translate({"model": {"name": name}}).sections["model"]["name"] for name in names]
    assert ours == ["bert-sequence-classifier", "bert-token-classifier", "bert-summarization"]


def test_problems_name_the_key_that_the_file_has():
    policy = {**MODEL, "vocab_size": 0}
    raw = file(model={"name": "dpo", "policy_model": policy, "dpo": {"reference_free": False}})
    assert "model.policy_model.vocab_size" in problems(raw)


def test_halves_of_the_data_are_those_of_the_section():
    processor = {"data_processor": "SST2DataProcessor", "is_training": False}
    (problem,) = translate({"train_input": processor}).problems
    assert problem.path == ("train_input", "is_training")
    out = translate({"eval_input": processor})
    assert out.ignored == ["eval_input.is_training"]


def test_fc_mnist_reads_mnist_without_a_processor():
    out = translate({"model": {"name": "fc_mnist"}, "train_input": {"split": "train"}})
    assert out.sections["train_input"] == {"data_processor": "MNISTDataProcessor"}


def test_of_two_lengths_of_a_schedule_steps_wins():
    both = {"scheduler": "Linear", "steps": 34, "decay_steps": 262, "alpha": 0.1}
    rate = translate({"optimizer": {"learning_rate": [both]}}).sections["optimizer"]
    assert rate["learning_rate"] == [{"scheduler": "Linear", "total_iters": 34}]


def test_positions_follow_the_data_where_the_model_does_not_say():
    train = {"src_max_sequence_length": 5, "tgt_max_sequence_length": 7}
    model = translate({"model": {"name": "t5"}, "train_input": train}).sections["model"]
    assert model["src_max_position_embeddings"] == 5
    assert model["tgt_max_position_embeddings"] == 7
    given = {"name": "bert", "max_position_embeddings": 9}
    out = translate({"model": given, "train_input": {"max_sequence_length": 5}})
    assert out.sections["model"] == given


def test_the_data_take_over_what_the_model_says():
    sums = {"data_processor": "BertSumCSVDataProcessor"}
    model = {"name": "bert/extractive_summarization", "vocab_file": "v.txt"}
    out = translate({"model": model, "train_input": sums})
    assert out.sections["train_input"]["vocab_file"] == "v.txt"
    assert "vocab_file" not in out.sections["model"]


def test_the_scale_by_masked_tokens_replaces_the_weight():
    rows = {"data_processor": "BertCSVDataProcessor", "dynamic_mlm_scale": True}
    out = translate({"model": {"name": "bert", "mlm_loss_weight": 0.02}, "train_input": rows})
    assert out.sections["model"]["mlm_loss_scaling"] == "num_masked"
    assert "mlm_loss_weight" not in out.sections["model"]


@pytest.mark.parametrize(
    ("release", "value", "norm_first"),
    [("1.7", True, False), ("1.7.1", False, True), ("1.8", True, True), ("2.10", False, False)],
)
def test_the_release_decides_what_a_negated_key_means(release, value, norm_first):
    model = {"name": "transformer", "d_model": 8, "use_pre_encoder_decoder_layer_norm": value}
    out = translate({"release": release, "model": model})
    assert not out.problems
    assert out.sections["model"]["norm_first"] is norm_first
    assert "release" not in out.sections


# Keys whose meaning changed between releases, with all their values beside other keys.
CHANGED = [
    *(({"name": n, "d_model": 8}, "use_pre_encoder_decoder_layer_norm", v)
      for n in ("transformer", "t5", "ul2") for v in (True, False)),
    *(({"name": n, **k}, "loss_weight", v)
      for n in ("gpt2", "llama") for v in (0.5, 1, 1.0, "1")
      for k in ({}, {"loss_scaling": "num_tokens"})),
]  # fmt: skip


@pytest.mark.parametrize(("model", "key", "value"), CHANGED)
def test_a_key_whose_meaning_changed_asks_for_its_release(model, key, value):
    """With it, the sections are read again as they are, which a run does without a release."""
    (problem,) = translate({"model": model | {key: value}}).problems
    assert problem.path == ("model", key)
    assert "release" in problem.message
    for release in ("1.6", "1.8", "1.9", "2.10"):
        out = translate({"release": release, "model": model | {key: value}})
        again = translate(out.sections)
        assert not out.problems + again.problems
        assert again.sections == out.sections


def test_a_number_is_no_release():
    (problem,) = translate({"release": 2.1}).problems
    assert problem.path == ("release",)


@pytest.mark.parametrize(("first", "refused"), [(True, False), (False, True)])
def test_both_names_of_the_order_of_norms_agree(first, refused):
    model = {"name": "t5", "norm_first": first, "use_pre_encoder_decoder_layer_norm": True}
    assert bool(translate({"release": "2.0", "model": model}).problems) is refused


@pytest.mark.parametrize(
    ("release", "model", "scaling"),
    [
        ("1.7", {}, "batch_size"),
        ("1.7", {"loss_weight": 0.5}, "batch_size"),
        ("1.8", {"loss_weight": 0.5}, "batch_size"),
        ("1.8", {}, None),
        ("1.9", {"loss_weight": 0.5}, None),
        ("1.8", {"loss_weight": 1.0}, None),
        ("2.10", {"loss_weight": 1.0, "loss_scaling": "num_tokens"}, "num_tokens"),
    ],
)
def test_the_release_decides_what_a_weight_without_scaling_means(release, model, scaling):
    """1.6 to 1.7: sum / rows x weight always; 1.8: where a weight is given; 1.9: no weight."""
    out = translate({"release": release, "model": {"name": "gpt2", **model}})
    assert not out.problems
    assert out.sections["model"].get("loss_scaling") == scaling
    assert (out.ignored == ["model.loss_weight"]) == (release == "1.9")


@pytest.mark.parametrize("name", ["BertCSVDataProcessor", "BertCSVDynamicMaskDataProcessor"])
def test_rows_of_roberta_have_no_next_sentences(name):
    """The vendor's mlm_only CSV; its processors ask the model, whose name says it."""
    data = {"data_processor": name, "data_dir": "x"}
    out = translate({"model": {"name": "roberta"}, "train_input": data}).sections
    assert out["train_input"]["disable_nsp"] is True
    out = translate({"model": {"name": "bert"}, "train_input": data}).sections
    assert "disable_nsp" not in out["train_input"]


TOWER = {"name": "ViTModel", "hidden_size": 8, "num_heads": 2, "num_hidden_layers": 2}
TOWER |= {"filter_size": 8, "image_size": [8, 8], "patch_size": [4, 4], "prepend_cls_token": True}
TEXT = {"name": "LlamaModel", "vocab_size": 16, "hidden_size": 12, "num_heads": 2}
TEXT |= {"num_hidden_layers": 1, "filter_size": 8, "embd_pdrop": 0.0, "rotary_dim": 6}
LAYERS = {"name": "FeedForwardNetwork", "input_unit": 8, "layers_units": [12, 12]}
LAYERS |= {"layers_activation": ["relu", None], "use_bias": True}
LLAVA = {"name": "llava", "image_model": TOWER, "text_model": TEXT, "image_start_idx": 1}
LLAVA |= {"projector": {"image_model": LAYERS}, "loss_scaling": "batch_size", "loss_weight": 0.5}
IMAGE_ROWS = {"data_processor": "LlavaHDF5MapDataProcessor"}


def translated(model, **keys):
    out = translate({"model": {**model, **keys}, "train_input": dict(IMAGE_ROWS)})
    return out, out.sections["model"]


def test_the_vendors_llava_is_ours():
    out, section = translated(LLAVA, mixed_precision=True, fp16_type="bfloat16")
    assert not out.problems
    assert out.sections["train_input"]["image_start_idx"] == 1
    cfg = models.build(section).config
    assert cfg.projector_nonlinearity == "relu"
    assert (cfg.image_model.image_size, cfg.image_model.patches) == (8, 4)
    assert (cfg.text_model.loss_scaling, cfg.text_model.loss_weight) == ("batch_size", 0.5)
    assert cfg.text_model.dtype == cfg.image_model.dtype == "bfloat16"


PARTS = {"image_model": TOWER, "projector.image_model": LAYERS, "projector": {}}


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("image_model", "prepend_cls_token", False),
        ("image_model", "image_size", [8, 4]),
        ("projector.image_model", "layers_units", [12]),
        ("projector.image_model", "use_bias", False),
        ("projector", "text_model", LAYERS),
    ],
)
def test_another_tower_or_projector_is_refused_by_name(part, key, value):
    outer, _, inner = part.partition(".")
    changed = PARTS[part] | {key: value}
    out, _ = translated(LLAVA, **{outer: {inner: changed} if inner else changed})
    (problem,) = out.problems
    assert ".".join(problem.path) == f"model.{part}" + (f".{key}" if part != "projector" else "")
    assert "not computed here: " in problem.message


def test_both_towers_of_dpr_compute_in_the_models_precision():
    tower = {"vocab_size": 16, "hidden_size": 8, "num_heads": 2, "num_hidden_layers": 1}
    model = {"name": "dpr", "q_encoder": tower, "ctx_encoder": tower, "mixed_precision": True}
    _, section = translated(model, use_bfloat16=True)
    assert models.build(section).config.q_encoder.dtype == "bfloat16"


@pytest.mark.parametrize(
    "model",
    [
        LLAVA,
        {"name": "t5", "src_vocab_size": 9, "extra_ids": 3, "d_model": 8, "d_kv": 4, "d_ff": 8},
        {"name": "transformer", "d_model": 8, "norm_first": False},
        {"name": "dpo", "policy_model": TEXT | {"name": "llama"}, "dpo": {"reference_free": False}},
        {"name": "bert/token_classifier", "label_vocab_file": "x", "mixed_precision": True},
    ],
    ids=lambda model: model["name"],
)
def test_what_was_translated_stays_as_it_is(model):
    """A run keeps its sections; they are read again when it goes on."""
    once = translate({"model": model, "train_input": dict(IMAGE_ROWS)}).sections
    again = translate(once)
    assert again.sections == once
    assert not again.problems
