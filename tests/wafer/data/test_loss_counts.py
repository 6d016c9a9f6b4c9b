"""How many positions carry loss, as ``wafer data preprocess`` counts them."""

import pytest
from helpers.records import write
from helpers.rows import rows_in

from wafer.data.preprocess.run import preprocess
from wafer.vendor.preprocess.load import load_settings


@pytest.mark.parametrize("mode", ["LMData", "MLM", "T5"])
def test_what_carries_loss_is_counted(tmp_path, mode):
    """Next tokens and a decoder's; those of a masked model are drawn when rows are read."""
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.jsonl", [{"text": "the cat sat on the mat " * 20}] * 8)
    keys = {"mode": mode, "input_dir": str(tmp_path / "in"), "output_dir": str(tmp_path / "out")}
    keys |= {"tokenizer_type": "TrainBPE", "vocab_size": 400, "max_seq_length": 64, "processes": 1}
    keys |= {"tgt_max_sequence_length": 32} if mode == "T5" else {}
    report = preprocess(load_settings(None, keys | {"min_sequence_len": 0, "display_pbar": False}))
    count = report.params["post-process"].get("loss_valid_tokens")
    if mode == "MLM":
        assert count is None
        assert "those that carry loss are drawn at every reading" in str(report)
    else:
        rows = rows_in(tmp_path / "out", "data_1" if mode == "T5" else "data")
        assert count == rows[:, 1].sum() > 0
        assert f"{count:,} carry loss" in str(report)
