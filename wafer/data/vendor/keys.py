"""The vendor's keys: those without effect here, those refused, those of ``data_params.json``."""

import math
from collections.abc import Sequence
from typing import Any

from wafer.data.preprocess.encode import ReadCounts
from wafer.data.preprocess.progress import OutputCounts
from wafer.data.preprocess.vocabulary import RowVocabulary
from wafer.data.vendor.settings import HookSettings

GROUPS = ("setup", "processing", "dataset")
_IDLE = {  # why they change nothing here -> keys
    "has no effect there either": "write_in_batch max_chunk_size drop_input loss_mask_weight",
    "files_per_record is the size of a file here": "write_chunk_size",
    "one batch for each process is in memory": "fraction_of_RAM_alloted",
    "skip_bad_records leaves out bad records here": "UNSAFE_skip_jsonl_decoding_errors",
    "long documents are cut from release 2.4 on": "fold_long_doc",
    "rows are int32": "position_ids_dtype input_ids_dtype input_mask_dtype",
    "the roles are user and assistant": "user_role assistant_role",
    "custom_tokenizer or huggingface_tokenizer names the tokenizer": "tokenizer_type",
    "stands under tokenizer_params": "vocab_file encoder_file",
    "parts are made without copies of the texts": "data_splits_dir",
    "one machine reads all of the input": "num_nodes rank",
    "processes of one machine do the work": "slurm",
    "nothing is downloaded": "auth_token",
    "stands under read_hook_kwargs": "data_keys",
    "fim_suffix_tok names the mark": "fim_suffix_tok_id",
    "a chat_template does it": "eos_after_prompt prompt_prefix completion_prefix",
    "read_hook_kwargs names the columns": (
        "jsonl_key prompt_key completion_key multi_turn_key multi_turn_content_key "
        "multi_turn_role_key"
    ),
    "mode names the rows": "module dataset_processor",
    "is for rows of images": "system_prompt_style",
}
NO_EFFECT = {key: why for why, keys in _IDLE.items() for key in keys.split()}
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
