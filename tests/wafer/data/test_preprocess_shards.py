"""``wafer data preprocess --shard I/N`` and ``wafer data merge``: rows of one process's run."""

import json
import shutil

import pyarrow
import pytest
from helpers.records import write
from helpers.rows import rows_in, settings, word_tokenizer
from helpers.vendor_data import HOOKS
from pyarrow import parquet

from wafer.cli import main
from wafer.data.preprocess.merge import merge_shards
from wafer.data.preprocess.parts import preprocess_all
from wafer.data.preprocess.shares import cut, find_shard
from wafer.errors import ConfigError, DataError
from wafer.vendor.preprocess.load import load_settings

HOOK = {  # keys of a file with a read hook
    "read_hook": HOOKS + "text_read_hook",
    "read_hook_kwargs": {"text_key": "text"},
    "use_ftfy": False,
    "processes": 1,
    "max_seq_length": 4,
    "min_sequence_len": 0,
    "display_pbar": False,
}
WORDS = ["<|endoftext|>", "<sep>", *"abcdefgh"]  # ids 0, 1, 2..9


@pytest.fixture
def given(tmp_path):
    """Settings of a run over two files of lines, one packed, and a table of three row groups."""
    vocabulary = word_tokenizer(tmp_path / "words", WORDS, "h")
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, name in enumerate(("a.jsonl", "b.jsonl.gz", "c.parquet")):
        texts = ["abcdefgh"[i % 8 :] * (number + 1) for i in range(6)]
        write(folder / name, [{"text": " ".join(text)} for text in texts])

    def make(output, **keys):
        places = {"input_dir": str(folder), "output_dir": str(tmp_path / output)}
        if "mode" not in keys or keys["mode"] != "pretraining":
            keys = {"mode": "LMData", "files_per_record": 3} | keys
            return settings(tmp_path, vocabulary, **places | keys)
        keys = HOOK | places | {"huggingface_tokenizer": str(vocabulary)} | keys
        path = tmp_path / "file.yaml"
        path.write_text(json.dumps(keys))
        return load_settings(path, {})

    return make


def merge(folder):
    return merge_shards(str(folder))


def content(folder):
    """Path -> bytes of every file."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}


def test_a_list_is_cut_into_parts_of_equal_size_that_are_not_empty():
    assert cut([1] * 8, [1] * 4) == [2, 4, 6]
    assert cut([10, 1, 1], [1, 1, 1]) == [1, 2]
    assert cut([0, 0, 0], [1, 1, 1]) == [1, 2]
    assert cut([1, 1, 10], [1, 1, 1]) == [1, 2]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"mode": "LMData_VSL"},
        {"mode": "FIM", "fim_prefix_tok": "a", "fim_middle_tok": "b", "fim_suffix_tok": "c"},
    ],
    ids=["text", "vsl", "fim"],
)
def test_shards_in_any_order_are_the_run_with_all_shards(tmp_path, given, keys, capsys):
    (whole,) = preprocess_all(given("out", shards=3, **keys))
    first = content(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    made = {}
    for index in (2, 0, 1):
        (summary,) = preprocess_all(given("out", shard=f"{index}/3", **keys))
        made[index] = rows_in(summary.folder).tolist()
        assert not list(preprocess_all(given("out", shard=f"{index}/3", **keys)))  # complete
    assert main(["data", "merge", str(tmp_path / "out")]) == 0
    assert repr(whole) in capsys.readouterr().out
    assert content(tmp_path / "out") == first
    assert main(["data", "merge", str(tmp_path / "out")]) == 0
    assert content(tmp_path / "out") == first
    assert rows_in(tmp_path / "out").tolist() == made[0] + made[1] + made[2]
    assert whole.written.rows == sum(map(len, made.values()))


def test_no_record_is_lost_or_read_twice(given):
    """Unpacked rows of all shards are those of one run: the input is cut between records."""
    keys = {"mode": "pretraining", "pack_sequences": False, "max_seq_length": 40}
    (whole,) = preprocess_all(given("whole", **keys))
    (parts,) = preprocess_all(given("parts", shards=5, **keys))
    assert rows_in(parts.folder).tolist() == rows_in(whole.folder).tolist()
    assert parts.counts._replace(rows=0) == whole.counts._replace(rows=0)
    assert parts.params["post-process"] | {"files": 0} == whole.params["post-process"] | {
        "files": 0
    }


def test_a_table_is_cut_between_row_groups(tmp_path, given):
    path = tmp_path / "t.parquet"
    table = pyarrow.table({"text": [f"{'abcdefgh'[i]} " * 4 for i in range(8)]})
    parquet.write_table(table, path, row_group_size=2)
    keys = {"input_dir": str(path), "pack_sequences": False}
    one = [
        next(preprocess_all(given("o", shard=f"{i}/4", **keys))).counts.records for i in range(4)
    ]
    assert one == [2, 2, 2, 2]
    with pytest.raises(DataError, match=r"4 piece\(s\); expected 5 or more"):
        list(preprocess_all(given("p", shard="0/5", **keys)))


def test_splits_by_documents_go_with_shards(tmp_path, given):
    parts = {"a": {"split_fraction": 0.5}, "b": {"split_fraction": 0.5}}
    keys = {"mode": "pretraining", "pack_sequences": False, "data_splits": parts}
    for index in range(5):  # some have no document of a split
        list(preprocess_all(given("out", shard=f"{index}/5", **keys)))
    assert main(["data", "merge", str(tmp_path / "out")]) == 0
    list(preprocess_all(given("whole", **keys)))
    for name in "ab":
        rows = [rows_in(tmp_path / run / name).tolist() for run in ("out", "whole")]
        assert rows[0] == rows[1]


def test_splits_that_a_killed_run_ended_are_kept(tmp_path, given):
    parts = {"a": {"split_fraction": 0.5}, "b": {"split_fraction": 0.5}}
    keys = {"mode": "pretraining", "pack_sequences": False, "data_splits": parts}
    interrupted = preprocess_all(given("out", **keys))
    first = next(interrupted)
    interrupted.close()
    before = content(first.folder)
    (second,) = preprocess_all(given("out", **keys))
    assert content(first.folder) == before
    for done in preprocess_all(given("whole", **keys)):
        other = {"a": first, "b": second}[done.folder.name]
        assert rows_in(done.folder).tolist() == rows_in(other.folder).tolist()
    with pytest.raises(DataError, match="holds a complete dataset already"):
        list(preprocess_all(given("out", **keys)))


def test_missing_doubled_and_foreign_shards_are_named_and_nothing_moves(tmp_path, given):
    for index in (0, 2):
        list(preprocess_all(given("out", shard=f"{index}/3")))
    folder = tmp_path / "out" / "shards"
    before = content(folder)
    wrong = [
        ("", "", r"missing or unfinished: 1; expected one of each from 0 to 2.*--shard I/3"),
        ("00000_of_00003", "00001_of_00003", "unfinished: 1; doubled: 00000_of_00003, 00001_of"),
        ("00002_of_00003", "copy", "doubled: 00002_of_00003, copy"),
    ]
    for source, target, message in wrong:
        if target:
            shutil.copytree(folder / source, folder / target)
        with pytest.raises(DataError, match=message):
            merge(tmp_path / "out")
        if target:
            shutil.rmtree(folder / target)
        assert content(folder) == before
    with pytest.raises(DataError, match="no shard of 4"):
        list(preprocess_all(given("out", shard="0/4")))


@pytest.mark.parametrize(
    ("keys", "message"),
    [({"min_sequence_len": 3}, "min_sequence_len differs"), ({"seed": 7}, "seed differs")],
)
def test_shards_of_other_settings_or_inputs_do_not_merge(tmp_path, given, keys, message):
    list(preprocess_all(given("out", shard="0/2")))
    list(preprocess_all(given("out", shard="1/2", **keys)))
    with pytest.raises(DataError, match=rf"00001_of_00002: its {message}"):
        merge(tmp_path / "out")
    again = given("out", shard="1/2", resume_from_checkpoint=False)
    (tmp_path / "texts" / "a.jsonl").write_text('{"text": "a b c d e f"}\n' * 9)
    list(preprocess_all(again))
    with pytest.raises(DataError, match="its input differs"):
        merge(tmp_path / "out")


def test_inputs_and_tokenizers_of_shards_may_lie_on_other_disks(tmp_path, given):
    list(preprocess_all(given("out", shards=2)))
    first = given("parts", shard="0/2")
    list(preprocess_all(first))
    for name in ("texts", "words"):
        source = tmp_path / name
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, tmp_path / f"{name} 2")
    copies = {"input_dir": (str(tmp_path / "texts 2"),)}
    copies["huggingface_tokenizer"] = str(tmp_path / "words 2")
    list(preprocess_all(given("parts", shard="1/2").model_copy(update=copies)))
    merge(tmp_path / "parts")
    assert rows_in(tmp_path / "parts").tolist() == rows_in(tmp_path / "out").tolist()


def test_a_complete_shard_of_other_inputs_or_settings_is_not_taken_for_this_one(tmp_path, given):
    """What the message says to do makes it again; so does what the merge says of a lost file."""
    list(preprocess_all(given("out", shard="0/2")))
    with (tmp_path / "texts" / "a.jsonl").open("a") as file:
        file.write('{"text": "a b c d e f"}\n')
    with pytest.raises(DataError, match=r"other input files.*--resume_from_checkpoint false"):
        list(preprocess_all(given("out", shard="0/2")))
    with pytest.raises(DataError, match=r"other settings.*--resume_from_checkpoint false"):
        list(preprocess_all(given("out", shard="0/2", min_sequence_len=3)))
    for index in range(2):
        list(preprocess_all(given("out", shard=f"{index}/2", resume_from_checkpoint=False)))
    next((tmp_path / "out" / "shards" / "00001_of_00002").glob("*.h5")).unlink()
    with pytest.raises(DataError, match=r"no such file.*--resume_from_checkpoint false"):
        merge(tmp_path / "out")
    list(preprocess_all(given("out", shard="1/2", resume_from_checkpoint=False)))
    merge(tmp_path / "out")


@pytest.mark.parametrize("moves", [0, 2, 5])
def test_a_killed_merge_continues(tmp_path, given, monkeypatch, moves):
    for index in range(3):
        list(preprocess_all(given("out", shard=f"{index}/3")))
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    (summary,) = merge(tmp_path / "out")
    assert summary.written.files > 5
    names = []
    rename = type(tmp_path).rename

    def killed(path, target):
        names.append(path)
        if len(names) > moves:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(type(tmp_path), "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        merge(tmp_path / "copy")
    monkeypatch.undo()
    assert not list(preprocess_all(given("copy", shard="0/3")))  # complete, though moved
    merge(tmp_path / "copy")
    assert rows_in(tmp_path / "copy").tolist() == rows_in(tmp_path / "out").tolist()
    with pytest.raises(DataError, match="complete dataset"):
        list(preprocess_all(given("copy", shard="0/3")))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"shard": "3/3"}, "'3/3': expected I/N with I from 0"),
        ({"shard": "1"}, "expected I/N"),
        ({"shard": "1/2", "shards": 3}, "3, but shard is 1/2"),
        ({"shard": "0/2", "split": "0.5,0.5"}, "split.*wafer data merge OUT"),
        ({"shards": 2, "token_limit": 9, "mode": "pretraining"}, "token_limit.*whole input"),
        ({"shards": 2, "tokenizer_type": "TrainBPE", "vocab_size": 300}, "First, without shards"),
        ({"shards": 2, "output_dir": "texts/rows"}, "inside the input folder"),
        ({"shard": "slurm"}, "SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT are not set"),
    ],
)
def test_wrong_keys_are_told_before_work(tmp_path, given, keys, message, monkeypatch):
    for name in ("ID", "COUNT", "MIN"):
        monkeypatch.delenv(f"SLURM_ARRAY_TASK_{name}", raising=False)
    if "output_dir" in keys:
        keys = keys | {"output_dir": str(tmp_path / keys["output_dir"])}
    with pytest.raises((ConfigError, DataError), match=message):
        list(preprocess_all(given("out", **keys)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("task", "shards", "found"),
    [
        ({"ID": "3", "COUNT": "8", "MIN": "0"}, None, "3/8"),
        ({"ID": "3", "COUNT": "2", "MIN": "3"}, 8, "3/8"),  # tasks that are repeated
        ({"ID": "3", "COUNT": "8", "MIN": "1"}, None, "begins at 1.*--array=0-7"),
        ({"ID": "8", "COUNT": "8", "MIN": "0"}, None, "'8/8': expected"),
    ],
)
def test_an_array_of_slurm_names_the_shard(given, monkeypatch, task, shards, found):
    for name, value in task.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    wanted = given("out", shard="slurm", shards=shards)
    if "/8" in found and "expected" not in found:
        assert str(find_shard(wanted)) == found
        return
    with pytest.raises(ConfigError, match=found):
        find_shard(wanted)


def test_a_merged_folder_says_what_it_is_of(tmp_path, given):
    list(preprocess_all(given("out", shards=2)))
    params = json.loads((tmp_path / "out" / "data_params.json").read_text())
    assert params["settings"]["shards"] == 2
    assert params["settings"]["shard"] is None
    assert "shard" not in params
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    assert not (tmp_path / "out" / "shards").exists()
