"""``wafer data show``: which tokens of a row carry loss, and documents apart, by hand."""

import re

import h5py
import numpy as np
import pytest
from helpers.data_sets.sets import make_data
from helpers.runs import config, write_yaml
from rich.console import Console
from tokenizers import Tokenizer, decoders, models as kinds

from wafer.cli import main
from wafer.data.rowfiles.show import Passage, ShownRow, passages, runs
from wafer.data.text.tokenizer import train_bpe

WORDS = {"</s>": 0, "[PAD]": 1, **{letter: i for i, letter in enumerate("abcdefgh", 2)}}
A, B, C, D, E = 2, 3, 4, 5, 6


def words():
    tokenizer = Tokenizer(kinds.WordLevel(WORDS, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def told(values, **keys):
    """(name, [(kind, text)]) of each text, and what is left."""
    arrays = {name: np.array(value) for name, value in values.items()}
    texts, others = passages(ShownRow("x", arrays, **keys))
    short = {"no loss": "-", "loss": "+", "padding": "p", "image": "i"}
    line = lambda text: [f"{short[k]}{t or n}" for k, n, t in runs(text, words())]
    return [(text.name, line(text)) for text in texts], others


NEXT = {"input_ids": [A, B, C, D, 1, 1], "attention_mask": [0, 1, 1, 0, 0, 0]}
NEXT["labels"] = [B, C, D, E, 1, 1]


def test_next_tokens_carry_the_loss_of_their_labels():
    """The mask of position i weighs the token behind it; the row's end is no text."""
    assert told(NEXT) == ([("", ["-ab", "+cd", "p3"])], [])
    turned = NEXT | {"attention_mask": [1, 0, 0, 1, 1, 1]}
    ignored = NEXT | {"labels": [-100, C, D, -100, -100, -100]}
    assert told(turned, inverted=True) == told(ignored) == told(NEXT)


def test_documents_side_by_side_are_apart():
    row = {
        "input_ids": [A, B, 0, C, D, 1],
        "attention_mask": [1, 1, 1, 0, 1, 0],
        "labels": [B, C, 0, D, 0, 1],
        "attention_span": [2, 1, 0, 1, 0, 0],
        "position_ids": [0, 1, 2, 0, 1, 0],
    }
    one, two = ("document 1", ["-a", "+bc</s>"]), ("document 2", ["-cd", "+</s>"])
    assert told(row) == ([one, two, ("", ["p1"])], [])


def test_documents_that_go_on_across_rows_end_at_the_mark():
    row = {"input_ids": [A, 0, B], "attention_mask": [1, 1, 1], "labels": [0, B, C]}
    assert told(row) == ([("", ["-a", "+</s>bc"])], [])
    apart = ([("document 1", ["-a", "+</s>"]), ("document 2", ["+bc"])], [])
    assert told(row, eos_id=0) == apart


def test_both_answers_of_a_pair():
    row = {f"{side}_{n}": v for side in ("chosen", "rejected") for n, v in NEXT.items()}
    text = ["-ab", "+cd", "p3"]
    assert told(row) == ([("chosen", text), ("rejected", text)], [])


def test_hidden_tokens_are_those_to_predict():
    base = {"input_ids": [A, B, B, 1], "attention_mask": [1, 1, 1, 0], "token_type_ids": [0] * 4}
    expected = ([("", ["-a", "+c", "-b", "p1"])], ["token_type_ids"])
    assert told(base | {"labels": [-100, C, -100, -100]}) == expected
    stored = {"masked_lm_positions": [1, 0], "labels": [C, 0], "masked_lm_mask": [1, 0]}
    assert told(base | stored) == expected
    gathered = {"gather_positions": [1, 0], "gather_labels": [C, 0], "gather_weights": [1, 0]}
    assert told(base | gathered) == expected


def test_classes_of_tokens_are_no_text():
    row = {"input_ids": [A, B, C], "attention_mask": [1, 1, 1], "loss_mask": [0, 1, 0]}
    row["labels"] = [0, E, 0]
    assert told(row)[0] == [("", ["-a", "+b", "-c"])]


def test_source_and_target():
    row = {"input_ids": [A, B, 1], "attention_mask": [1, 1, 0]}
    row |= {"decoder_input_ids": [1, C, D, 1], "decoder_attention_mask": [1, 1, 1, 0]}
    row["labels"] = [C, D, 0, 1]
    assert told(row) == ([("", ["-ab", "p1"]), ("decoder", ["-[PAD]", "+cd</s>", "p1"])], [])


def test_images_in_a_text():
    row = {
        "text_input_ids": [A, 1, 1, B, 1],
        "loss_mask": [0, 0, 1, 1, 0],
        "labels": [1, 1, B, C, 1],
        "key_padding_mask": [0, 0, 0, 0, 1],
        "token_modality_idx": [0, 1, 1, 0, 0],
        "img_path": b"a.png",
    }
    assert told(row) == ([("text", ["-a", "i2", "+bc", "p1"])], ["img_path"])


def test_several_contexts_and_the_arrays_of_a_user():
    row = {"ctx_input_ids": [[A, 1], [B, C]], "ctx_attention_mask": [[1, 0], [1, 1]]}
    row["speed"] = np.ones((2, 2), np.float32)
    assert told(row) == ([("ctx 1", ["-a", "p1"]), ("ctx 2", ["-bc"])], ["speed"])


def test_characters_of_several_tokens_and_unknown_ids():
    tokenizer = train_bpe(["ab"], 257)
    ids = tokenizer.encode("aé日b").ids
    assert len(ids) == 7
    text = Passage("", np.array([*ids, 9999]), [*["no loss"] * 2, *["loss"] * 6])
    told = [(k, t) for k, _, t in runs(text, tokenizer)]
    assert told == [("no loss", "a"), ("loss", "é日b<9999>")]
    assert next(text for _, _, text in runs(text, None)) == "".join(f"{i} " for i in ids[:2])


@pytest.fixture
def folder(tmp_path):
    tokenizer = words()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    rows = np.array([[*NEXT.values()]] * 3, np.int32)
    rows[1, 0, 0] = -5
    for name in ("a.h5", "b.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            file["data"] = rows
    return tmp_path


def test_the_command_shows_rows_of_files_and_folders(folder, capsys):
    assert main(["data", "show", str(folder), "-n", "2", "--first", "2"]) == 0
    out = capsys.readouterr().out
    heads = re.findall(r"([ab]\.h5: row \d): 2 no loss, 2 loss, 3 padding", out)
    assert heads == ["a.h5: row 2", "b.h5: row 0"]
    assert "  no loss | ab\n  loss    | cd\n  padding | 3 tokens\n" in out
    assert "\x1b" not in out
    assert main(["data", "show", str(folder / "a.h5"), "-n", "2"]) == 0
    assert "cannot be trained on: input_ids[0] is -5" in capsys.readouterr().out
    assert main(["data", "show", str(folder / "a.h5"), "--first", "3"]) == 1
    assert "a.h5: no row 3" in capsys.readouterr().err
    (folder / "tokenizer.json").unlink()
    assert main(["data", "show", str(folder / "a.h5"), "-n", "1"]) == 0
    assert "  loss    | 4 5 " in capsys.readouterr().out


@pytest.mark.parametrize(("variables", "colored"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_color_is_for_terminals(folder, capsys, monkeypatch, variables, colored):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in ({"TERM": "xterm"} | variables).items():
        monkeypatch.setenv(name, value)
    terminal = lambda **keys: Console(**keys, force_terminal=True)
    monkeypatch.setattr("wafer.commands.show.Console", terminal)
    assert main(["data", "show", str(folder / "a.h5"), "-n", "1"]) == 0
    assert ("\x1b[32mcd" in capsys.readouterr().out) == colored


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        ("GptHDF5MapDataProcessor", "  loss    | "),
        ("BertHDF5DataProcessor", "  loss    | "),
        ("T5HDF5DataProcessor", "  decoder\n"),
        ("DpoHDF5DataProcessor", "  document 2\n"),
        ("DPRHDF5DataProcessor", "  context 1\n"),
        ("LlavaHDF5MapDataProcessor", "pixel_values"),
        ("BertCSVDataProcessor", "  loss    | "),
        ("PromptCompletionDataProcessor", "  loss    | "),
        ("BertTokenClassifierDataProcessor", "labels"),
        ("DigitsDataProcessor", "labels: "),
    ],
)
def test_what_a_run_reads(tmp_path, processor, expected, capsys):
    path = make_data(processor, tmp_path / "made", 0)
    assert main(["data", "show", str(path), "-n", "2"]) == 0
    out = capsys.readouterr().out
    assert expected in out
    assert out.count("example ") == 2
    for file in sorted((tmp_path / "made").rglob("*.h5"))[:1]:
        assert main(["data", "show", str(file), "-n", "1"]) == 0


def test_a_loader_of_ones_own(tmp_path, capsys, monkeypatch):
    one = "{'input_ids': [3, 4], 'attention_mask': [1, 1], 'labels': [4, 5]}"
    rows = f"[{{k: np.array([v, v], np.int32) for k, v in {one}.items()}}] * 4"
    (tmp_path / "own_rows.py").write_text(f"import numpy as np\nrows = lambda: {rows}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    own = {"data_processor": "own_rows:rows", "batch_size": 2, "task": "lm"}
    path = write_yaml(tmp_path / "params.yaml", config(eval_input=None) | {"train_input": own})
    assert main(["data", "show", str(path)]) == 1
    assert "trust_code" in capsys.readouterr().err
    assert main(["data", "show", str(path), "--trust_code", "-n", "1"]) == 0
    assert "  loss    | 4 5 " in capsys.readouterr().out
