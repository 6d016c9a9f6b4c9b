"""Which keys of a preprocessing file count in which mode; a run logs those that do not."""

from typing import Any

from wafer.data.preprocess.settings import Settings
from wafer.data.vendor.hooks import idle_arguments
from wafer.data.vendor.settings import AnySettings, HookSettings
from wafer.models.sections import Section

Need = tuple[str, tuple[Any, ...]]  # a key, and the values of which it must have one; () is any
_PRETRAINING: Need = ("mode", ("pretraining",))
_TUNING: Need = ("mode", ("finetuning",))
_REGIONS: Need = ("mode", ("pretraining", "finetuning"))
_IMAGES: Need = ("is_multimodal", (True,))
_MASKED: Need = ("training_objective", ("mlm",))
_MIDDLE: Need = ("training_objective", ("fim",))
_NEXT: Need = ("training_objective", (None, "fim"))
_SPLIT: Need = ("split_text_to_tokenize", (True,))
_CLEAN: Need = ("use_ftfy", (True,))

# Keys, separated by spaces -> what they need
_HOOKED: dict[str, tuple[Need, ...]] = {
    "training_objective": (_PRETRAINING,),
    "use_vsl semantic_loss_weight semantic_drop_mask": (_REGIONS,),
    "pack_sequences": (_PRETRAINING, _NEXT, ("use_vsl", (False,))),
    "split_text_to_tokenize": (_PRETRAINING, _NEXT),
    "chunk_len_to_split remove_bos_in_chunks": (_PRETRAINING, _SPLIT),
    "short_seq_prob": (_PRETRAINING, ("training_objective", (None,)), ("use_vsl", (False,))),
    "min_sequence_len": (_REGIONS, ("training_objective", (None, "fim", "bert_pretraining"))),
    "inverted_mask": (
        ("mode", ("pretraining", "finetuning", "nlg")),
        ("training_objective", (None,)),
    ),
    "end_of_turn_token sep_token": (_TUNING,),
    "chat_template": (("mode", ("finetuning", "dpo")),),
    "max_prompt_length response_delimiter": (("mode", ("dpo",)),),
    "tokenizer_params": (("custom_tokenizer", ()),),
    "shuffle_seed": (("shuffle", (True,)),),
    "ftfy_normalizer": (_CLEAN,),
    "mlm_fraction mlm_with_gather ignore_index excluded_tokens": (_MASKED,),
    "fim_rate spm_rate fim_prefix_tok fim_middle_tok fim_suffix_tok": (_MIDDLE,),
    "image_dir image_token num_patches max_num_img semantic_attention_mask": (_IMAGES,),
    "register_special_image_token use_single_image_token": (_IMAGES,),
}
_PAIRS: Need = ("mode", ("Summarization", "Summarization_VSL"))
_TEXTS: Need = ("mode", ("LMData", "LMData_VSL", "FIM", "MLM", "MLM_NSP", "T5"))
_T5: Need = ("mode", ("T5",))
_FIM: Need = ("mode", ("FIM",))
_TURNS: Need = ("multi_turn_key", ())

_FLAT: dict[str, tuple[Need, ...]] = {
    "pack_sequences": (("mode", ("LMData", "FIM", "MLM", "T5")), ("data_format", ("sample",))),
    "fold_long_doc": (("mode", ("LMData_VSL",)),),
    "short_seq_prob": (("mode", ("LMData", "MLM_NSP")), ("data_format", ("sample",))),
    "jsonl_key": (_TEXTS,),
    "prompt_key completion_key": (_PAIRS, ("multi_turn_key", (None,))),
    "multi_turn_content_key multi_turn_role_key": (_TURNS,),
    "context_separator": (("contexts_key", ()),),
    "sep_token prompt_prefix completion_prefix eos_after_prompt": (_PAIRS,),
    "tgt_max_sequence_length extra_ids noise_density mean_noise_span_length": (_T5,),
    "fim_rate spm_rate fim_prefix_tok fim_middle_tok fim_suffix_tok": (_FIM,),
    "vocab_file": (("tokenizer_type", ("GPT2Tokenizer", "BertTokenizer")),),
    "encoder_file": (("tokenizer_type", ("GPT2Tokenizer", "NeoXTokenizer")),),
    "huggingface_tokenizer": (("tokenizer_type", ("HuggingFaceTokenizer",)),),
    "vocab_size": (("tokenizer_type", ("TrainBPE",)),),
    "do_lower": (("tokenizer_type", ("BertTokenizer",)),),
    "ftfy_normalizer": (_CLEAN,),
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
_READ = {  # key -> those of its keys that count
    "truncate_to_msl": ("prompt_truncation_mode", "max_turn_length"),
    "tokenizer_params": ("encoder_file", "vocab_file", "pretrained_model_name_or_path"),
}


def unused_keys(settings: AnySettings) -> list[str]:
    """Lines about the keys that a file or a flag gives and that change nothing in its mode."""
    flat = isinstance(settings, Settings)
    lines = [
        f"{key}: no effect here: it needs {_shown(need)}"
        for keys, needs in (_FLAT if flat else _HOOKED).items()
        for key in keys.split()
        if key in settings.model_fields_set
        for need in needs
        if not _met(settings, need)
    ]
    lines += [
        f"{key}: no effect here: it needs {told}"
        for key, (told, needs) in _ANY_OF.items()
        if key in settings.model_fields_set and not any(_met(settings, need) for need in needs)
    ]
    kinds = {getattr(settings, "training_objective", None), settings.mode}
    kinds &= {"mlm", "fim", "FIM", "MLM_NSP", "T5"}
    drawn = settings.short_seq_prob or settings.split or kinds
    if "seed" in settings.model_fields_set and not drawn:
        lines.append("seed: no effect here: nothing is drawn at random")
    for key, known in _READ.items():
        given = getattr(settings, key, None)
        inner = given.model_fields_set - set(known) if isinstance(given, Section) else set()
        known_keys = ", ".join(known)
        lines += [f"{key}.{name}: no effect: the keys are {known_keys}" for name in sorted(inner)]
    if isinstance(settings, HookSettings):
        keys, release = settings.read_hook_kwargs, settings.rules.release
        idle = idle_arguments(settings.read_hook, keys, release)
        lines += [f"read_hook_kwargs.{key}: no effect: the hook does not read it" for key in idle]
    if flat:
        ignored = [key for key in Settings.no_effect if key in settings.model_fields_set]
        lines += [f"{key}: no effect here, nor on the vendor's rows" for key in ignored]
    return lines


def _met(settings: AnySettings, need: Need) -> bool:
    key, values = need
    value = getattr(settings, key)
    return value in values if values else value is not None


def _shown(need: Need) -> str:
    key, values = need
    shown = " or ".join("none" if value is None else str(value) for value in values)
    return f"{key} {shown}" if values else key
