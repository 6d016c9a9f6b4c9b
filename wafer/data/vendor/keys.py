"""The vendor's keys: those without effect here, those refused, those of ``data_params.json``."""

import math
from collections.abc import Sequence
from typing import Any

from wafer.data.preprocess.progress import OutputCounts, ReadCounts
from wafer.data.preprocess.vocabulary import RowVocabulary
from wafer.data.vendor.settings import HookSettings

__all__ = ["GROUPS", "NO_EFFECT", "REFUSED", "vendor_params"]

GROUPS = ("setup", "processing", "dataset")
NO_EFFECT = {
    "write_in_batch": "has no effect there either",
    "write_chunk_size": "files_per_record is the size of a file here",
    "max_chunk_size": "has no effect there either",
    "fraction_of_RAM_alloted": "one batch for each process is in memory",
    "UNSAFE_skip_jsonl_decoding_errors": "skip_bad_records leaves out bad records here",
    "fold_long_doc": "long documents are cut from release 2.4 on",
    "position_ids_dtype": "rows are int32",
    "input_ids_dtype": "rows are int32",
    "input_mask_dtype": "rows are int32",
    "user_role": "the roles are user and assistant",
    "assistant_role": "the roles are user and assistant",
    "tokenizer_type": "custom_tokenizer or huggingface_tokenizer names the tokenizer",
    "vocab_file": "stands under tokenizer_params",
    "encoder_file": "stands under tokenizer_params",
    "data_splits_dir": "parts are made without copies of the texts",
    "num_nodes": "one machine reads all of the input",
    "rank": "one machine reads all of the input",
    "slurm": "processes of one machine do the work",
    "auth_token": "nothing is downloaded",
    "drop_input": "has no effect there either",
    "loss_mask_weight": "has no effect there either",
    "data_keys": "stands under read_hook_kwargs",
    "fim_suffix_tok_id": "fim_suffix_tok names the mark",
    "eos_after_prompt": "a chat_template does it",
    "prompt_prefix": "a chat_template does it",
    "completion_prefix": "a chat_template does it",
    "jsonl_key": "read_hook_kwargs names the columns",
    "prompt_key": "read_hook_kwargs names the columns",
    "completion_key": "read_hook_kwargs names the columns",
    "multi_turn_key": "read_hook_kwargs names the columns",
    "multi_turn_content_key": "read_hook_kwargs names the columns",
    "multi_turn_role_key": "read_hook_kwargs names the columns",
    "module": "mode names the rows",
    "dataset_processor": "mode names the rows",
    "system_prompt_style": "is for rows of images",
}
"""Key -> why it changes nothing here."""
REFUSED = {
    "token_generator": "the vendor's generator classes cannot be run here; write a read_hook, or "
    "make the rows with wafer.data.preprocess.convert.convert_dataset_to_hdf5",
}
"""Key -> why it is refused and what to use."""


def vendor_params(
    settings: HookSettings,
    written: OutputCounts,
    counts: ReadCounts,
    ids: RowVocabulary,
    features: Sequence[str],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the top-level keys, and those of ``post-process``.

    Args:
        settings: the run's.
        written: sums over the rows.
        counts: sums over the records.
        ids: of the end mark and of padding.
        features: of a row.
    """
    groups: dict[str, Any] = {name: dict(settings.given.get(name) or {}) for name in GROUPS}
    groups["processing"] |= {"eos_id": ids.eos_id, "pad_id": ids.pad_id, "vocab_size": ids.size}
    read = counts.records - counts.empty
    rows = max(written.rows, 1)
    after: dict[str, Any] = {
        "processed_files": read,
        "discarded_files": counts.discarded,
        "successful_files": read - counts.discarded,
        "n_examples": written.rows,
        "raw_chars_count": counts.characters,
        "raw_bytes_count": counts.raw_bytes,
        "normalized_chars_count": counts.clean_characters,
        "normalized_bytes_count": counts.clean_bytes,
        "average_chars_per_sequence": math.ceil(counts.characters / rows),
        "average_bytes_per_sequence": math.ceil(counts.raw_bytes / rows),
        "num_tokens": written.slots,
        "num_pad_tokens": written.pads,
        "non_pad_tokens": written.plain,
        "loss_valid_tokens": written.loss,
        "num_masked_tokens": written.slots - written.loss,
    }
    if settings.mode == "finetuning":
        after |= {"total_raw_docs": counts.records, "raw_docs_skipped": counts.empty}
    if settings.vsl:
        after["num_sequences_before_packing"] = counts.sequences
        after["vsl_packing_factor"] = counts.sequences / rows
    major, minor = settings.rules.release
    return groups | {"features": list(features), "release": f"{major}.{minor}"}, after
