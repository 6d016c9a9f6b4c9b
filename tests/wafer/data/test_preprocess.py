"""``wafer data preprocess``: exact rows, any number of processes, kill -9, errors."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from helpers.records import texts_of, write
from helpers.rows import rows_in, same_rows, settings, word_tokenizer
from tokenizers import Tokenizer

from wafer.cli import main
from wafer.data.preprocess import output, progress, records, run
from wafer.data.preprocess.convert import convert_dataset_to_hdf5
from wafer.data.preprocess.encode import detokenize_wikitext, fix_text
from wafer.data.preprocess.run import preprocess
from wafer.data.rowfiles.verify import verify_folder
from wafer.errors import ConfigError, DataError, SectionError
from wafer.vendor.preprocess.load import load_settings

WORDS = ["<|endoftext|>", "<sep>", *"abcdefgh"]  # ids 0, 1, 2..9
FIM = {"mode": "FIM", "fim_prefix_tok": "a", "fim_middle_tok": "b", "fim_suffix_tok": "c"}


@pytest.fixture
def vocabulary(tmp_path):
    return word_tokenizer(tmp_path / "words", WORDS, "h")


def pairs(tmp_path, vocabulary, records, **keys):
    """Rows of prompts and completions, or of conversations."""
    path = str(write(tmp_path / "in.jsonl", records))
    given = settings(tmp_path, vocabulary, input_dir=path, **{"mode": "Summarization"} | keys)
    preprocess(given)
    return rows_in(given.output_dir).tolist()


def test_language_model_rows_by_hand(tmp_path, vocabulary):
    report = preprocess(settings(tmp_path, vocabulary))
    # a b c | end d e end f g h a b end: cut every 4 tokens, sharing one
    assert rows_in(tmp_path / "out").tolist() == [
        [[2, 3, 4, 0], [1, 1, 1, 1], [3, 4, 0, 5]],
        [[5, 6, 0, 7], [1, 1, 1, 1], [6, 0, 7, 8]],
        [[8, 9, 2, 3], [1, 1, 1, 1], [9, 2, 3, 0]],
    ]
    params = json.loads((tmp_path / "out" / "data_params.json").read_text())
    assert params["n_examples"] == report.written.rows == 3
    assert params["features"] == ["input_ids", "attention_mask", "labels"]
    assert params["post-process"]["loss_valid_tokens"] == 12
    assert "3 rows in 1 file(s)" in str(report) == repr(report)  # as the last line of a cell


NAMES = ["../x", "/x", "a/b", "..", ".", "", "a\0b", "a\nb", "\x1b[31m", "x" * 201]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_files_lead_nowhere_else(tmp_path, vocabulary, name):
    with pytest.raises(ConfigError, match="output_name"):
        load_settings(None, {"output_name": name, "mode": "LMData"})
    with pytest.raises(ValueError, match=r"expected the name of a file|longer than 200 bytes"):
        convert_dataset_to_hdf5([{"input_ids": np.arange(3)}], tmp_path / "out", name)
    assert not (tmp_path / "out").exists()


def test_a_name_with_stars_replaces_its_own_files_alone(tmp_path, vocabulary):
    preprocess(settings(tmp_path, vocabulary))
    (tmp_path / "out" / "examples_00000.h5").rename(tmp_path / "out" / "other_00000.h5")
    preprocess(settings(tmp_path, vocabulary, output_name="*", resume_from_checkpoint=False))
    assert (tmp_path / "out" / "other_00000.h5").exists()


def test_packed_rows_by_hand(tmp_path, vocabulary):
    preprocess(settings(tmp_path, vocabulary, mode="LMData_VSL", max_seq_length=6, pad_id=9))
    first, second = rows_in(tmp_path / "out").tolist()
    assert first == [
        [2, 3, 4, 5, 6, 9],
        [1, 1, 1, 1, 1, 0],
        [3, 4, 0, 6, 0, 9],
        [2, 1, 0, 1, 0, 0],
        [0, 1, 2, 0, 1, 0],
    ]
    assert second == [
        [7, 8, 9, 2, 3, 9],
        [1, 1, 1, 1, 1, 0],
        [8, 9, 2, 3, 0, 9],
        [4, 3, 2, 1, 0, 0],
        [0, 1, 2, 3, 4, 0],
    ]


def test_prompt_and_completion_rows_by_hand(tmp_path, vocabulary):
    records = [{"prompt": "a b", "completion": "c"}] * 2
    rows = pairs(tmp_path, vocabulary, records, sep_token="<sep>", max_seq_length=6)
    assert rows == [[[2, 3, 1, 4, 0, 0], [0, 0, 1, 1, 0, 0], [3, 1, 4, 0, 0, 0]]] * 2


def test_packed_prompts_and_completions_by_hand(tmp_path, vocabulary):
    records = [{"prompt": "a b", "completion": "c d"}] * 2
    (row,) = pairs(tmp_path, vocabulary, records, mode="Summarization_VSL", max_seq_length=9)
    assert row == [
        [2, 3, 4, 5, 2, 3, 4, 5, 0],
        [0, 1, 1, 1, 0, 1, 1, 1, 0],
        [3, 4, 5, 0, 3, 4, 5, 0, 0],
        [3, 2, 1, 0, 3, 2, 1, 0, 0],
        [0, 1, 2, 3, 0, 1, 2, 3, 0],
    ]


_ROLES = ("system", "user", "assistant", "user", "assistant", "user")
CHAT = [{"role": r, "content": t} for r, t in zip(_ROLES, ["a", "b", "c d", *"efg"], strict=True)]


@pytest.mark.parametrize("turns", [CHAT, ["a b", "c d", "e", "f", "g"]])
def test_conversations_by_hand(tmp_path, vocabulary, turns):
    keys = {"multi_turn_key": "messages", "prompt_prefix": "g", "completion_prefix": "h"}
    keys |= {"eos_after_prompt": True, "pad_id": 1}
    made = lambda **more: pairs(tmp_path, vocabulary, [{"messages": turns}], **keys, **more)
    with pytest.raises(DataError, match=r"no row was made: .* longer than max_seq_length 12"):
        made(max_seq_length=12)
    # g a b end h | c d end | g e end h | f end: loss where the next token is an answer's or its end
    (row,) = made(max_seq_length=15, output_dir=str(tmp_path / "long"))
    assert row == [
        [8, 2, 3, 0, 9, 4, 5, 0, 8, 6, 0, 9, 7, 0, 1],
        [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0],
        [2, 3, 0, 9, 4, 5, 0, 8, 6, 0, 9, 7, 0, 1, 1],
    ]


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        (CHAT[2:], r"record 1: field 'messages' begins with the assistant's turn"),
        (CHAT[:2], r"record 1: field 'messages' has no turn of assistant, gpt, model"),
        ("hello", r"record 1: field 'messages' is str, expected a list of turns"),
        ([{"role": "poet", "content": "a"}], r"turn 1: 'role' is 'poet'; known: system, user"),
        ([{"role": "user", "text": "a"}], r"turn 1: expected a text, or an object .* 'content'"),
    ],
)
def test_a_wrong_conversation_names_file_and_turn(tmp_path, vocabulary, turns, message):
    with pytest.raises(DataError, match=message):
        pairs(tmp_path, vocabulary, [{"messages": turns}], multi_turn_key="messages")
    with pytest.raises(SectionError, match="multi_turn_key: names conversations, but mode LMData"):
        settings(tmp_path, vocabulary, multi_turn_key="messages")


def test_corpus_is_one_list_of_tokens(tmp_path, vocabulary):
    preprocess(settings(tmp_path, vocabulary, data_format="corpus", files_per_record=2))
    assert rows_in(tmp_path / "out").tolist() == [2, 3, 4, 0, 5, 6, 0, 7, 8, 9, 2, 3, 0]
    assert len(list((tmp_path / "out").glob("*.h5"))) == 2  # 8 and 5 tokens
    assert verify_folder(tmp_path / "out").problems == []


CORPUS = pathlib.Path(json.__file__).parent.parent


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Some of the standard library's sources as JSON lines, a function's worth a record."""
    texts = []
    for name in ("argparse.py", "ast.py", "inspect.py", "logging/__init__.py"):
        texts += (CORPUS / name).read_text().split("\n\n")
    path = tmp_path_factory.mktemp("library") / "in.jsonl"
    return write(path, [{"text": text} for text in texts if text.strip()])


def trained(library, out, mode, **keys):
    given = {"mode": mode, "input_dir": str(library), "output_dir": str(out)}
    given |= {"tokenizer_type": "TrainBPE", "vocab_size": 400, "max_seq_length": 64}
    return load_settings(None, given | {"processes": 1, "display_pbar": False} | keys)


def test_rows_do_not_depend_on_the_number_of_processes(library, tmp_path):
    for processes in (1, 2):  # FIM rows are drawn, and made in the processes
        preprocess(trained(library, tmp_path / str(processes), "FIM", processes=processes))
    same_rows(tmp_path / "1", tmp_path / "2")
    tokenizer = Tokenizer.from_file(str(tmp_path / "1" / "tokenizer.json"))
    rows = rows_in(tmp_path / "1")
    marks = [tokenizer.token_to_id(f"<fim_{name}>") for name in ("prefix", "middle", "suffix")]
    counts = [(rows[:, 0] == mark).sum() for mark in marks]
    assert min(counts) > 0.5 * len(rows)
    texts = tokenizer.decode(rows[:, 0].reshape(-1).tolist(), skip_special_tokens=True)
    assert len(texts) > 0.9 * sum(map(len, texts_of([library])))  # what crossed a row's end is cut


def test_masked_and_t5_rows_keep_the_text(library, tmp_path):
    preprocess(trained(library, tmp_path / "mlm", "MLM", min_sequence_len=0))
    rows = rows_in(tmp_path / "mlm")
    params = json.loads((tmp_path / "mlm" / "data_params.json").read_text())
    tokenizer = Tokenizer.from_file(str(tmp_path / "mlm" / "tokenizer.json"))
    cls, sep = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    assert (rows[:, 0, 0] == cls).all()
    assert (rows[np.arange(len(rows)), 0, rows[:, 1].sum(axis=1) - 1] == sep).all()
    assert params["post-process"]["mask_id"] == tokenizer.token_to_id("[MASK]")
    body = rows[:, 0][rows[:, 1] == 1].tolist()
    want = "".join(texts_of([library]))
    assert tokenizer.decode(body, skip_special_tokens=True) == want

    preprocess(trained(library, tmp_path / "t5", "T5", tgt_max_sequence_length=32))
    source, target = rows_in(tmp_path / "t5", "data_0"), rows_in(tmp_path / "t5", "data_1")
    assert source.shape[1:] == (2, 64)
    assert target.shape[1:] == (3, 32)
    used = target[:, 1, 1:] == 1
    np.testing.assert_array_equal(target[:, 0, 1:][used], target[:, 2, :-1][used])
    assert verify_folder(tmp_path / "t5").problems == []


def command(library, out, tokenizer, processes):
    keys = {"input_dir": library, "output_dir": out, "tokenizer_type": "HuggingFaceTokenizer"}
    keys |= {"huggingface_tokenizer": tokenizer, "max_seq_length": 64, "files_per_record": 100}
    keys |= {"processes": processes, "display_pbar": "false"}
    flags = [part for key, value in keys.items() for part in (f"--{key}", str(value))]
    return [sys.executable, "-m", "wafer", "data", "preprocess", "LMData_VSL", *flags]


@pytest.mark.slow
def test_a_killed_run_goes_on_and_leaves_no_process_behind(library, tmp_path, caplog):
    preprocess(trained(library, tmp_path / "words", "LMData"))
    words = tmp_path / "words"
    big = tmp_path / "big.jsonl"
    big.write_bytes(library.read_bytes() * 5)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main(command(big, whole, words, 1)[3:]) == 0
    run = subprocess.Popen(command(big, killed, words, 2), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (killed / ".preprocess.npz").exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    workers = children(run.pid)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    assert not (killed / "data_params.json").exists()
    written_at = {path.name: path.stat().st_mtime_ns for path in killed.glob("*.h5")}
    caplog.set_level("INFO", logger="wafer")
    assert main(command(big, killed, words, 1)[3:]) == 0
    assert "Going on after" in caplog.text
    same_rows(whole, killed)
    first = killed / "examples_00000.h5"
    assert written_at[first.name] == first.stat().st_mtime_ns  # not made a second time
    one, two = (json.loads((f / "data_params.json").read_text()) for f in (whole, killed))
    assert one["post-process"] == two["post-process"]
    assert workers
    wait_gone(workers)


def children(pid):
    """Processes whose parent is ``pid``."""
    pids = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            pids.append(int(stat.parent.name))
    return pids


def wait_gone(pids):
    deadline = time.monotonic() + 300  # a hang: it is done in some seconds
    while any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, f"{pids} outlive their parent"
        time.sleep(0.05)


def test_other_settings_do_not_continue_a_run_nor_overwrite_rows(library, tmp_path, monkeypatch):
    def fail(*args):
        raise KeyboardInterrupt

    def made(out="out", **keys):
        preprocess(trained(library, tmp_path / out, "LMData", files_per_record=100, **keys))

    with monkeypatch.context() as patch:
        patch.setattr(output, "write_json", fail)  # interrupted just before it is complete
        with pytest.raises(KeyboardInterrupt):
            made()
    with pytest.raises(DataError, match="other settings"):
        made(max_seq_length=32)
    made()
    with pytest.raises(DataError, match="complete dataset already"):
        made()
    made(resume_from_checkpoint=False)
    with pytest.raises(DataError, match="holds no unfinished run"):
        made("new", resume_from_checkpoint=True)


VENDOR = """
setup: {input_dir: "./in/", output_dir: "./out/", processes: 1,
    dataset_processor: "SummarizationPreprocessor"}
processing: {tokenizer_type: "NeoXTokenizer", encoder_file: "encoder.json", eos_id: 0, pad_id: 0,
    max_seq_length: 2048, short_seq_prob: 0.0, output_name: "examples", files_per_record: 50000,
    write_in_batch: True, write_remainder: True, resume_from_checkpoint: False,
    display_pbar: True, seed: 0}
dataset: {use_ftfy: True, ftfy_normalizer: "NFC", wikitext_detokenize: False, sep_token: null,
    prompt_key: "source", completion_key: "target"}
"""


def test_the_vendors_yaml_is_read_and_flags_win(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(VENDOR)
    got = load_settings(path, {"max_seq_length": "512", "use_ftfy": "false", "seed": None})
    assert (got.mode, got.columns.names) == ("finetuning", ("source", "target"))
    assert (got.max_seq_length, got.use_ftfy, got.input_dir) == (512, False, ("./in/",))
    path.write_text(VENDOR.replace("prompt_key", "promt_key"))
    with pytest.raises(ConfigError, match=r"p\.yaml.*promt_key.*did you mean 'prompt_key'"):
        load_settings(path, {})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mode": "LMData_VSL", "data_format": "corpus"}, "needs rows"),
        ({"tokenizer_type": "TrainBPE"}, "vocab_size: missing"),
        ({"tokenizer_type": None}, "tokenizer_type: missing, .*; it is one of 'GPT2To.*'TrainBPE'"),
        ({"huggingface_tokenizer": "org/name"}, "names on the Hugging Face hub are not fetched"),
        ({"eos_id": 99}, "eos_id: 99 is outside the vocabulary of 10"),
        ({"mode": "FIM"}, "fim_prefix_tok: the tokenizer has no token '<fim_prefix>'"),
        (FIM | {"fim_suffix_tok": "x"}, "fim_suffix_tok: the tokenizer has no token 'x'"),
        (FIM | {"fim_suffix_tok": "a"}, "fim_suffix_tok: 'a' is fim_prefix_tok, too"),
        (FIM | {"fim_middle_tok": WORDS[0]}, "fim_middle_tok: .* is the end mark, too"),
        (FIM | {"fim_middle_tok": "h", "pad_id": 9}, "fim_middle_tok: 'h' is padding, too"),
        ({"mode": "T5", "max_seq_length": 512, "tgt_max_sequence_length": 9}, "too short"),
        ({"input_dir": "nowhere.jsonl"}, "no such input: nowhere"),
        ({"min_sequence_len": 50, "max_seq_length": 64}, "no row was made"),
    ],
)
def test_errors_come_before_long_work(tmp_path, vocabulary, keys, message):
    with pytest.raises((SectionError, DataError, ConfigError), match=message):
        preprocess(settings(tmp_path, vocabulary, **keys))


def test_folders_of_rows_inside_the_input_are_no_texts(tmp_path, vocabulary):
    """A second run, with other rows, would take data_params.json and tokenizer.json for texts."""
    texts = tmp_path / "texts"
    texts.mkdir()
    path = write(texts / "a.jsonl", [{"text": "a b c d e f"}])
    for name in ("rows/one", "rows/two"):
        own = settings(tmp_path, vocabulary, input_dir=str(texts), output_dir=str(texts / name))
        assert preprocess(own).counts.records == 1
        assert records.find_inputs([str(texts)], None, output=str(texts / name)) == [path]
    (texts / "rows" / "two" / "data_params.json").unlink()  # as after a kill
    assert records.find_inputs([str(texts)], None, output=str(texts / "rows" / "two")) == [path]


def test_the_input_folder_is_not_the_output_folder(tmp_path, vocabulary):
    texts = tmp_path / "texts"
    texts.mkdir()
    write(texts / "a.jsonl", [{"text": "a b c d e f"}])
    own = settings(tmp_path, vocabulary, input_dir=str(texts), output_dir=str(texts / "."))
    with pytest.raises(DataError, match="is the input folder, so the next run would read"):
        preprocess(own)
    assert [path.name for path in texts.iterdir()] == ["a.jsonl"]


def test_wikitext_marks_and_spaces_are_undone():
    text = " = Title = \n The 3 @.@ 5 km @-@ long road , ( so called ) , costs 1 @,@ 000 . "
    want = " = Title = \n The 3.5 km-long road, (so called), costs 1,000. "
    assert detokenize_wikitext(text).split() == want.split()


@pytest.mark.parametrize("tag", ["", "<b>"])
def test_texts_are_mended_as_ftfy_does(tag):
    ftfy = pytest.importorskip("ftfy")
    lines = [*map(chr, range(256)), "Ã©t&eacute; &amp; \u2019", "a\r\nb\rc\u2028d", "ﬁ ｅ e\u0301"]
    starts = range(0, len(lines), 20)
    texts = ["\n".join([*lines[i : i + 7], tag, *lines[i:]]) for i in starts]
    for text in [*texts, "", "\n", "a\r", "a &lt; b", f"x\n{tag}\n&amp;"]:
        assert fix_text(text, "NFC") == ftfy.fix_text(text, normalization="NFC")
        assert fix_text(text, None) == ftfy.fix_text(text, normalization=None)


def test_any_dataset_of_features_becomes_the_vendors_files(tmp_path):
    examples = [{"input_ids": [i, i + 1], "labels": [i + 1, 0]} for i in range(5)]
    paths = convert_dataset_to_hdf5(examples, tmp_path, samples_per_file=2, batch_size=3)
    assert [path.name for path in paths] == [f"dataset-partition-{i}.h5" for i in (1, 2, 3)]
    want = [[e["input_ids"], e["labels"]] for e in examples]
    assert np.concatenate([h5py.File(path)["data"][:] for path in paths]).tolist() == want
    params = json.loads((tmp_path / "data_params.json").read_text())
    assert (params["features"], params["n_examples"]) == (["input_ids", "labels"], 5)

    two = [{"a": [1, 2], "b": [3]}] * 3
    (path,) = convert_dataset_to_hdf5(two, tmp_path / "two")
    with h5py.File(path) as file:
        assert [file[name].shape for name in ("data_0", "data_1")] == [(3, 1, 2), (3, 1, 1)]
    uneven = [{"a": [1, 2]}, {"a": [1, 2, 3]}]
    with pytest.raises(DataError, match=r"examples from 1 on: feature 'a' has shape \(3,\)"):
        convert_dataset_to_hdf5(uneven, tmp_path / "x", batch_size=1)
    with pytest.raises(DataError, match="no example"):
        convert_dataset_to_hdf5([], tmp_path / "y")


CORPUS_FORM = {"data_format": "corpus"}


class _Killed(BaseException):
    pass


@pytest.mark.parametrize(
    "keys",
    [{}, *(pytest.param(k, marks=pytest.mark.slow) for k in ({"mode": "LMData_VSL"}, CORPUS_FORM))],
)
def test_a_run_that_ends_after_a_file_goes_on_in_a_batch(tmp_path, vocabulary, monkeypatch, keys):
    keys |= {"input_dir": str(write(tmp_path / "x.jsonl", [{"text": "a b c d e f g"}] * 12))}
    monkeypatch.setattr(run, "_PIECE", 100)  # two or three rows at once
    out = lambda place: keys | {"output_dir": str(tmp_path / place), "files_per_record": 2}
    preprocess(settings(tmp_path, vocabulary, **out("whole")))
    files = len(list((tmp_path / "whole").glob("*.h5")))
    assert files > 4
    monkeypatch.setattr(records, "_BATCH_RECORDS", 5)
    saved = progress.save

    def save_and_end(*arguments):
        saved(*arguments)
        raise _Killed

    for _ in range(files):
        monkeypatch.setattr(progress, "save", save_and_end)
        try:
            preprocess(settings(tmp_path, vocabulary, **out("cut")))
        except _Killed:
            assert not list((tmp_path / "cut").glob(".*.partial-*"))
    monkeypatch.setattr(progress, "save", saved)
    if not (tmp_path / "cut" / "data_params.json").exists():
        preprocess(settings(tmp_path, vocabulary, **out("cut")))
    same_rows(tmp_path / "whole", tmp_path / "cut")
    params = (tmp_path / p / "data_params.json" for p in ("whole", "cut"))
    one, two = (json.loads(path.read_text()) for path in params)
    assert one["post-process"] == two["post-process"]
