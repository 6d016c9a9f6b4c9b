"""Which keys of preprocessing count in which mode; a run logs those that do not."""

from typing import Any

from wafer.data.preprocess.settings import Settings

Need = tuple[str, tuple[Any, ...]]  # a key, and the values of which it must have one; () is any
_PRETRAINING: Need = ("mode", ("pretraining",))
_TUNING: Need = ("mode", ("finetuning",))
_REGIONS: Need = ("mode", ("pretraining", "finetuning"))
_IMAGES: Need = ("is_multimodal", (True,))
_MASKED: Need = ("training_objective", ("mlm",))
_MIDDLE: Need = ("training_objective", ("fim",))
_NEXT: Need = ("training_objective", (None, "fim"))
_SPANS: Need = ("training_objective", ("t5",))
_SAMPLE: Need = ("data_format", ("sample",))
_ROWS: Need = ("use_vsl", (False,))

# Keys, separated by spaces -> what they need
_NEEDS: dict[str, tuple[Need, ...]] = {
    "training_objective": (_PRETRAINING,),
    "use_vsl semantic_loss_weight semantic_drop_mask": (_REGIONS,),
    "pack_sequences": (
        _PRETRAINING,
        ("training_objective", (None, "fim", "dynamic_mlm", "t5")),
        _ROWS,
        _SAMPLE,
    ),
    "fold_long_doc": (_PRETRAINING, ("use_vsl", (True,))),
    "split_text_to_tokenize": (_PRETRAINING, _NEXT),
    "chunk_len_to_split remove_bos_in_chunks": (
        _PRETRAINING,
        ("split_text_to_tokenize", (True,)),
    ),
    "short_seq_prob": (_PRETRAINING, ("training_objective", (None, "nsp")), _ROWS, _SAMPLE),
    "min_sequence_len": (
        _REGIONS,
        ("training_objective", (None, "fim", "bert_pretraining", "dynamic_mlm", "nsp", "t5")),
    ),
    "inverted_mask": (
        ("mode", ("pretraining", "finetuning", "nlg")),
        ("training_objective", (None,)),
    ),
    "end_of_turn_token sep_token prompt_prefix completion_prefix eos_after_prompt": (_TUNING,),
    "chat_template": (("mode", ("finetuning", "dpo")),),
    "max_prompt_length response_delimiter": (("mode", ("dpo",)),),
    "shuffle_seed": (("shuffle", (True,)),),
    "ftfy_normalizer": (("use_ftfy", (True,)),),
    "mlm_fraction mlm_with_gather ignore_index excluded_tokens": (_MASKED,),
    "fim_rate spm_rate fim_prefix_tok fim_middle_tok fim_suffix_tok": (_MIDDLE,),
    "tgt_max_sequence_length extra_ids noise_density mean_noise_span_length": (_SPANS,),
    "image_dir image_token num_patches max_num_img semantic_attention_mask": (_IMAGES,),
    "register_special_image_token use_single_image_token": (_IMAGES,),
    "vocab_file": (("tokenizer_type", ("GPT2Tokenizer", "BertTokenizer")),),
    "encoder_file": (("tokenizer_type", ("GPT2Tokenizer", "NeoXTokenizer")),),
    "huggingface_tokenizer": (("tokenizer_type", ("HuggingFaceTokenizer",)),),
    "vocab_size": (("tokenizer_type", ("TrainBPE",)),),
    "do_lower": (("tokenizer_type", ("BertTokenizer",)),),
}
_ANY_OF: dict[str, tuple[str, tuple[Need, ...]]] = {
    "truncate_to_msl": (
        "mode finetuning or training_objective bert_pretraining",
        (_TUNING, ("training_objective", ("bert_pretraining",))),
    ),
    "split_seed": (
        "data_splits or context_splits",
        (("data_splits", ()), ("context_splits", ())),
    ),
}


def unused_keys(settings: Settings) -> list[str]:
    """Lines about the keys that a file or a flag gives and that change nothing in its mode."""
    given = settings.model_fields_set
    lines = [
        f"{key}: no effect here: it needs {_shown(need)}"
        for keys, needs in _NEEDS.items()
        for key in keys.split()
        if key in given
        for need in needs
        if not _met(settings, need)
    ]
    lines += [
        f"{key}: no effect here: it needs {told}"
        for key, (told, needs) in _ANY_OF.items()
        if key in given and not any(_met(settings, need) for need in needs)
    ]
    random = settings.training_objective in ("mlm", "fim", "nsp", "t5")
    if "seed" in given and not (random or settings.short_seq_prob or settings.split):
        lines.append("seed: no effect here: nothing is drawn at random")
    return lines


def _met(settings: Settings, need: Need) -> bool:
    key, values = need
    value = getattr(settings, key)
    return value in values if values else value is not None


def _shown(need: Need) -> str:
    key, values = need
    shown = " or ".join("none" if value is None else str(value) for value in values)
    return f"{key} {shown}" if values else key
