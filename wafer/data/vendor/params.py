"""What the vendor's tool writes into ``data_params.json``, by its names."""

import math
from collections.abc import Sequence
from typing import Any

from wafer.data.preprocess.progress import Counts, Written
from wafer.data.preprocess.vocabulary import Vocabulary
from wafer.data.vendor.keys import GROUPS
from wafer.data.vendor.settings import HookSettings

__all__ = ["vendor_params"]


def vendor_params(
    settings: HookSettings,
    written: Written,
    counts: Counts,
    ids: Vocabulary,
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
