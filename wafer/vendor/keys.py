"""Keys of the vendor's run files, release by release, that our sections do not have.

Two tables: keys of which some values change no result and others are refused by name (``KEYS``),
and other names of models (``NAMES``). ``translate`` applies them before the sections are checked.
The vendor's public source at each release tag is the reference.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from wafer.errors import Problem
from wafer.vendor.parts import PARTS
from wafer.vendor.rules import RULES

NOT_COMPUTED = "not computed here: "
_PARTS = ("train_input", "eval_input")


class Row(NamedTuple):
    """Keys of a section that share an explanation."""

    section: str  #: 'model', 'model.lora_params', 'optimizer', 'runconfig' or 'input' (both inputs)
    keys: str  #: separated by spaces
    releases: str  #: that knew them, 'first-last'
    why: str  #: they have no effect
    values: tuple[Any, ...] = ()  #: that have none; () is every value
    of: str = ""  #: regular expression over the model's name or the data processor; '' is all
    #: message for other values than these and null; '' leaves them to the section
    refused: str = ""


_OTHER = "other than the default"

# As if not given: dropped before defaults are set
NULLS = (
    Row(
        "model",
        "mlm_nonlinearity pooler_nonlinearity embeddings_scale mixed_precision fp16_type freeze "
        "num_relative_attention_buckets decoder_start_token_id num_segments encoder rotary_dim "
        "share_embedding_weights default_initializer embeddings_initializer "
        "position_embeddings_initializer segment_embeddings_initializer hidden_sizes",
        "1.6-2.10",
        "as if not given",
        (None,),
    ),
    Row("model", "extra_attention_params extra_ffn_params moe", "1.9-2.10", "says nothing", ({},)),
)

# Keys of the model with one value here, the vendor's default: (keys, releases, value, message)
_ONLY = (
    ("pooler_type", "2.2-2.10", "cls", _OTHER),
    ("z_loss_eps", "2.2-2.10", 0, _OTHER),
    ("use_ffn_bias_in_mlm use_output_bias_in_mlm use_biencoder", "1.6-2.10", True, _OTHER),
    ("scale_glu_initialization freeze_ffn_bias_in_glu", "1.9-2.10", False, _OTHER),
    ("mutual_information", "2.3-2.10", False, _OTHER),
    ("constant_pos_embedding extra_ffn_params rel_distance_extra_args", "1.6-2.10", None, _OTHER),
    ("cross_attention_layers", "2.5-2.10", [], _OTHER),
    ("num_extra_input_vocab_tokens", "2.5-2.10", 0, _OTHER),
    ("initializer_factor", "2.4-2.10", 1, _OTHER),
    ("rel_distance_mode", "2.4-2.10", "default", _OTHER),
    ("use_sink_token", "2.10-2.10", False, "write attention_sink_tokens"),
    ("lr_adjustment_groups", "2.4-2.10", None, "write optimizer.adjust_learning_rate"),
    (
        "attention_chunk_size attention_vertical_column_spacing attention_vertical_column_width "
        "attn_memory_chunk_size num_memory_tokens_per_chunk",
        "2.4-2.10",
        None,
        "attention in chunks or columns, and memory tokens; the nearest are windows and sinks "
        "(attention_sliding_window_length, attention_sink_tokens)",
    ),
)
KEYS = (
    *(
        Row("model", keys, releases, "the default", (value,), refused=message)
        for keys, releases, value, message in _ONLY
    ),
    Row("input", "mixed_precision fp16_type", "1.6-2.10", "the model's keys decide"),
    Row("input", "use_multiple_workers", "1.6-2.0", "one reader feeds all systems"),
    Row("input", "buckets", "1.6-1.8", "groups rows of like length; no padding is computed here"),
    Row(
        "input",
        "shuffle_buffer shuffle_buffer_size",
        "1.6-2.10",
        "the whole epoch is shuffled",
        of="^(?!HuggingFace)",
    ),
    Row("input", "num_examples", "2.3-2.3", "unused: num_samples counts", of="GptHDF5"),
    Row("input", "pad_token_id bos_token_id", "2.2-2.2", "unused: the rows have them", of="Llava"),
    Row("input", "dynamic_loss_weight", "1.6-1.6", "overwritten by model.mlm_loss_scaling"),
    Row(
        "input",
        "vocab_file do_lower masked_lm_prob max_predictions_per_seq whole_word_masking",
        "1.8-2.2",
        "unused: the rows are masked beforehand",
        of="BertCSVDataProcessor",
    ),
    Row(
        "model",
        "to_float16 boundary_casting precision_opt_level attention_kernel gradient_checkpointing "
        "compression",
        "1.6-2.10",
        "of the vendor's hardware",
    ),
    Row("model", "compute_eval_metrics tf_summary", "1.6-2.10", "metrics are always computed"),
    Row("model", "mask_padding_in_positional_embed", "1.8-2.10", "padding is not embedded"),
    Row("model", "use_vsl", "2.0-2.10", "use_vsl of the data decides"),
    Row("model", "attention_softmax_fp32", "1.8-2.10", "scores are always float32"),
    Row(
        "model",
        "use_position_embedding",
        "1.6-2.2",
        "position_embedding_type decides",
        (True,),
        refused="false means no positions; write position_embedding_type: null",
    ),
    Row("model", "weight_initialization_seed", "1.6-2.2", "runconfig.seed decides"),
    Row("model", "alibi_implementation", "2.0-2.2", "one value, two ways to compute it"),
    Row("model", "allow_multireplica", "1.6-1.9", "unused outside the pipeline"),
    Row("model", "fold_rope_consts", "2.4-2.4", "one value, two ways to compute it"),
    Row("model", "scale_by_layer_index", "2.1-2.1", "unused", (False,)),
    Row("model", "dtype use_cache pad_token_id embedding_pad_token_id", "1.7-2.10", "unused"),
    Row(
        "model",
        "add_pooling_layer is_mnli_dataset",
        "1.6-2.10",
        "follows head or data",
        of="^(bert|esm2|$)",
    ),
    Row("model", "selected_encoder", "2.2-2.10", "of the generation of embeddings", of="^dpr$"),
    Row("model", "disable_softmax", "1.9-2.10", "the default", (False,), "^fc_mnist$", _OTHER),
    Row("model", "use_bias", "1.9-2.10", "the default", (True,), "^fc_mnist$", _OTHER),
    Row("model", "tie_encoder_decoder", "1.6-2.10", "the vendor has no other value", (False,)),
    Row("model", "problem_type", "1.6-2.10", "the only value", ("single_label_classification",)),
    Row("model", "use_cls_bias", "1.6-2.10", "the vendor has no other value", (True,)),
    Row(
        "model",
        "start_token stop_sequences max_tokens temperature top_k top_p loop_dim",
        "2.2-2.10",
        "of generation, for which `wafer generate` has flags",
    ),
    Row("model", "pad_rope", "2.2-2.3", "one value, two ways to it"),
    Row("model", "use_experimental_flex_api", "2.5-2.10", "one value, two ways to it"),
    Row("model.lora_params", "fan_in_fan_out", "1.9-2.10", "kernels are always [in, out]"),
    Row("model.lora_params", "merge_weights", "1.9-2.10", "`wafer finalize --fold_lora` merges"),
    Row("optimizer", "epsilon", "1.6-1.9", "unused: the vendor reads eps"),
    Row(
        "optimizer",
        "use_bias_correction",
        "1.6-1.9",
        "unused: the correction is made",
        (True,),
        refused="the vendor reads correct_bias",
    ),
    Row(
        "optimizer",
        "correct_bias",
        "2.0-2.10",
        "the default",
        (True,),
        "(?i)^(?!adamw$)",
        "only AdamW goes without it",
    ),
    Row(
        "optimizer",
        "maximize",
        "1.6-2.10",
        "the default",
        (False,),
        "(?i)^(ASGD|Adadelta|Adagrad|Adamax)$",
        "these descend; only others climb",
    ),
    Row("optimizer", "ws_summary", "1.7-2.3", "log_summaries writes the norms"),
    Row("runconfig", "execute_crd_memory_gi compile_crd_memory_gi", "2.0-2.3", "", (-1,)),
    Row("runconfig", "log_step_count_steps save_checkpoint_steps", "1.7-1.7", "unused"),
)

# A model's name in the registry of releases 2.4 and later -> ours
NAMES: Mapping[str, str] = {
    "bert/classifier": "bert-sequence-classifier",
    "bert/extractive_summarization": "bert-summarization",
    "bert/token_classifier": "bert-token-classifier",
    "T5ForConditionalGeneration": "t5",
}


class Translated(NamedTuple):
    """Sections in today's words."""

    sections: dict[str, Any]  #: as ``parse_config`` reads them
    ignored: list[str]  #: dotted keys without effect, in the file's order
    problems: list[Problem]  #: refused keys
    renamed: dict[tuple[str | int, ...], tuple[str | int, ...]]  #: path here -> path in the file
    #: the file's, (major, minor), where its top-level key ``release`` says it
    release: tuple[int, int] | None = None


def translate(raw: Mapping[str, Any]) -> Translated:
    """Apply the tables to the sections of a run file; ``raw`` is left as it is."""
    out = Translated({}, [], [], {}, _release(raw.get("release")))
    if "release" in raw and out.release is None:
        message = f"{raw['release']!r}: expected a release of the vendor's in quotes, such as '1.7'"
        out.problems.append(Problem(("release",), message))
    for name, value in raw.items():
        if name != "release":
            out.sections[name] = dict(value) if isinstance(value, Mapping) else value
    if isinstance(out.sections.get("model"), dict):
        _name(out, out.sections["model"])
        _apply(out, NULLS, "model", out.sections["model"], "model")
    for rule in RULES:
        rule(out)
    for name, section in out.sections.items():
        if isinstance(section, dict):
            _apply(out, KEYS, name, section, name)
    return out


def release_of(sections: Mapping[str, Any]) -> tuple[str, str]:
    """Return the release whose defaults the sections of a trainer have, and the key that shows it.

    The form came with 2.3; from 2.4 on, no release changed a default that a published trainer left
    out. So a trainer is of 2.3 where it has a key that 2.4 lacks, and else read by 2.4's defaults.

    Args:
        sections: of one trainer, as ``trainer_form.upgrade`` returns them.

    Returns:
        ('2.3', dotted key) or ('2.4', '').
    """
    for name, section in sections.items():
        for path, key in _paths(section, name):
            row = _row(KEYS, path, key, section)
            if row is not None and _release(row.releases.partition("-")[2]) == (2, 3):
                return "2.3", f"{path}.{key}"
    return "2.4", ""


def _paths(section: Any, path: str) -> Iterator[tuple[str, str]]:
    """List the keys of a section and of the parts of a model: (path of the section, key)."""
    for key, value in section.items() if isinstance(section, dict) else ():
        yield path, key
        if key in PARTS:
            yield from ((path, inner) for _, inner in _paths(value, path))


def _name(out: Translated, model: dict[str, Any]) -> None:
    if "name" not in model and "model_name" in model:  # before release 2.4
        model["name"] = model.pop("model_name")
        out.renamed["model", "name"] = ("model", "model_name")
    if isinstance(model.get("name"), str):
        model["name"] = NAMES.get(model["name"], model["name"])


def _release(value: Any) -> tuple[int, int] | None:
    found = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)*", value) if isinstance(value, str) else None
    return None if found is None else (int(found[1]), int(found[2]))


def _apply(
    out: Translated, rows: tuple[Row, ...], place: str, section: dict[str, Any], *path: str
) -> None:
    """Drop the keys of the rows, and refuse their other values; also in sections below."""
    for key in list(section):
        inner = "model" if place == "model" and key in PARTS else f"{place}.{key}"
        if isinstance(section[key], dict) and any(row.section == inner for row in KEYS):
            section[key] = dict(section[key])
            _apply(out, rows, inner, section[key], *path, key)
        row, value = _row(rows, place, key, section), section[key]
        if row is None:
            continue
        kind = isinstance(value, bool)  # true is not 1
        same = any(value == known and isinstance(known, bool) == kind for known in row.values)
        if same or not row.values or (row.refused and value is None):
            out.ignored.append(".".join((*path, key)))
        elif row.refused:
            message = f"{value!r}: {NOT_COMPUTED}{row.refused}"
            out.problems.append(Problem((*path, key), message))
        else:
            continue
        del section[key]


def _row(rows: tuple[Row, ...], name: str, key: str, section: Mapping[str, Any]) -> Row | None:
    """Find the row of a key, by its section's model, processor or optimizer."""
    place = "input" if name in _PARTS else name
    chooser = {"model": "name", "optimizer": "optimizer_type"}.get(name, "data_processor")
    kind = str(section.get(chooser, ""))
    own = (row for row in rows if row.section == place and key in row.keys.split())
    return next((row for row in own if re.search(row.of, kind)), None)
