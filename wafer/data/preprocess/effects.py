"""Which keys of preprocessing count in which mode; a run logs those that do not."""

from typing import Any

from wafer.data.preprocess.settings import Settings

# Keys -> keys with the values of which they need one; no value stands for any but none
_NEEDS = {
    "training_objective": "mode=pretraining",
    "use_vsl semantic_loss_weight semantic_drop_mask": "mode=pretraining|finetuning",
    "pack_sequences": "mode=pretraining training_objective=none|fim|dynamic_mlm|t5 use_vsl=False "
    "data_format=sample",
    "fold_long_doc": "mode=pretraining use_vsl=True",
    "split_text_to_tokenize": "mode=pretraining training_objective=none|fim",
    "chunk_len_to_split remove_bos_in_chunks": "mode=pretraining split_text_to_tokenize=True",
    "short_seq_prob": "mode=pretraining training_objective=none|nsp use_vsl=False "
    "data_format=sample",
    "min_sequence_len": "mode=pretraining|finetuning "
    "training_objective=none|fim|bert_pretraining|dynamic_mlm|nsp|t5",
    "inverted_mask": "mode=pretraining|finetuning|nlg training_objective=none",
    "end_of_turn_token sep_token prompt_prefix completion_prefix eos_after_prompt": (
        "mode=finetuning"
    ),
    "chat_template": "mode=finetuning|dpo",
    "max_prompt_length response_delimiter": "mode=dpo",
    "shuffle_seed": "shuffle=True",
    "ftfy_normalizer": "use_ftfy=True",
    "mlm_fraction mlm_with_gather ignore_index excluded_tokens": "training_objective=mlm",
    "fim_rate spm_rate fim_prefix_tok fim_middle_tok fim_suffix_tok": "training_objective=fim",
    "tgt_max_sequence_length extra_ids noise_density mean_noise_span_length": (
        "training_objective=t5"
    ),
    "image_dir image_token num_patches max_num_img semantic_attention_mask": "is_multimodal=True",
    "register_special_image_token use_single_image_token": "is_multimodal=True",
    "vocab_file": "tokenizer_type=GPT2Tokenizer|BertTokenizer",
    "encoder_file": "tokenizer_type=GPT2Tokenizer|NeoXTokenizer",
    "huggingface_tokenizer": "tokenizer_type=HuggingFaceTokenizer",
    "vocab_size": "tokenizer_type=TrainBPE",
    "do_lower": "tokenizer_type=BertTokenizer",
}
_ANY_OF = {  # keys, one of which they need
    "truncate_to_msl": "mode=finetuning training_objective=bert_pretraining",
    "split_seed": "data_splits context_splits",
}


def unused_keys(settings: Settings) -> list[str]:
    """Lines about the keys that a file or a flag gives and that change nothing in its mode."""
    unmet = [
        (key, need)
        for keys, needs in _NEEDS.items()
        for key in keys.split()
        for need in needs.split()
        if not _met(settings, need)
    ]
    for key, needs in _ANY_OF.items():
        if not any(_met(settings, need) for need in needs.split()):
            unmet.append((key, needs.replace(" ", " or ")))
    lines = [
        f"{key}: no effect here: it needs {need.replace('=', ' ').replace('|', ' or ')}"
        for key, need in unmet
        if key in settings.model_fields_set
    ]
    random = settings.training_objective in ("mlm", "fim", "nsp", "t5")
    drawn = random or settings.short_seq_prob or settings.split
    if "seed" in settings.model_fields_set and not drawn:
        lines.append("seed: no effect here: nothing is drawn at random")
    return lines


def _met(settings: Settings, need: str) -> bool:
    key, _, values = need.partition("=")
    value: Any = getattr(settings, key)
    shown = "none" if value is None else str(value)
    return shown in values.split("|") if values else value is not None
