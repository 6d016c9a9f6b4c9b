"""Preprocessing files of the vendor: data, tokenizers, parts, order, older forms, templates."""

import json
import pathlib

import numpy as np
import pytest
import yaml
from helpers.records import write
from helpers.rows import rows_in
from helpers.runs import config, write_yaml
from helpers.vendor_data import IDS, characters, hook_file, run

from wafer.cli import main
from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.preprocess.parts import preprocess_all
from wafer.data.preprocess.settings import Settings
from wafer.data.sections.rows import GptHDF5MapDataProcessor
from wafer.data.text.tokenizer import train_bpe
from wafer.errors import ConfigError, DataError
from wafer.models.convert.tokenizer import special_ids
from wafer.models.sections import parse
from wafer.vendor.preprocess.keys import NO_EFFECT, REFUSED, HookKeys
from wafer.vendor.preprocess.load import load_settings
from wafer.vendor.preprocess.templates import preprocessing_file, template_names

LETTERS = [{"text": chr(97 + i % 26) + 3 * chr(97 + i // 26)} for i in range(60)]


def texts_in(folder):
    """Letters of the rows, one text a row."""
    return ["".join(chr(96 + i) for i in row[0] if i) for row in rows_in(folder)]


def made_of(path):
    return list(preprocess_all(load_settings(path, {"display_pbar": "false"})))


def huggingface(tmp_path, source, split=None, **keys):
    data = {"type": "huggingface", "source": str(source)} | ({"split": split} if split else {})
    return hook_file(tmp_path, None, data=data | keys)


def test_a_huggingface_source_is_a_folder_by_its_split(tmp_path, monkeypatch):
    hub = tmp_path / "set"
    hub.mkdir()
    write(hub / "train-00000.jsonl", [{"text": "abc"}])
    write(hub / "validation.parquet", [{"text": "xyz"}])
    for split, text in ((None, "abc"), ("train", "abc"), ("validation", "xyz")):
        path = huggingface(tmp_path, hub, split)
        run(path, output_dir=str(tmp_path / f"out{split}"))
        assert texts_in(tmp_path / f"out{split}") == [text]
    with pytest.raises(ConfigError, match=r"no file of .* is named so; it has: train-00000.jsonl"):
        run(huggingface(tmp_path, hub, "test"))
    with pytest.raises(ConfigError, match="slices and sums are not read"):
        run(huggingface(tmp_path, hub, "train[:5]"))
    cached = tmp_path / "home" / "hub" / "datasets--org--name" / "snapshots" / "1"
    cached.mkdir(parents=True)
    write(cached / "data.jsonl", [{"text": "def"}])
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    run(huggingface(tmp_path, "org/name"), output_dir=str(tmp_path / "cached"))
    assert texts_in(tmp_path / "cached") == ["def"]
    with pytest.raises(ConfigError, match="hf download --repo-type dataset org/other --local-dir"):
        run(huggingface(tmp_path, "org/other"))


def test_a_dataset_that_save_to_disk_wrote(tmp_path):
    for split, text in (("train", "abc"), ("test", "xyz")):
        folder = tmp_path / "saved" / split
        folder.mkdir(parents=True)
        write(folder / "data.arrow", [{"text": text}])
        state = {"_data_files": [{"filename": "data.arrow"}]}
        (folder / "state.json").write_text(json.dumps(state))
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    run(huggingface(tmp_path, tmp_path / "saved", "test"))
    assert texts_in(tmp_path / "out") == ["xyz"]
    with pytest.raises(ConfigError, match=r"'dev': .* has no such split"):
        run(huggingface(tmp_path, tmp_path / "saved", "dev"))


def test_the_command_takes_the_file_and_the_release(tmp_path, capsys):
    path = hook_file(tmp_path, [{"text": "abcdefg"}])
    command = ["data", "preprocess", "--config", str(path), "--display_pbar", "false"]
    assert main([*command, "--release", "2.10"]) == 0
    assert "1 rows in 1 file(s)" in capsys.readouterr().out
    assert rows_in(tmp_path / "out")[0, 2].tolist() == [2, 3, 4, 5, 6, 0]  # g is lost
    assert main([*command, "--output_dir", str(tmp_path / "kept")]) == 0
    assert rows_in(tmp_path / "kept")[0, 2].tolist() == [2, 3, 4, 5, 6, 7]
    assert json.loads((tmp_path / "kept" / "data_params.json").read_text())["release"] == "2.10"
    assert load_settings(path, {"compression": "none"}).compression == "none"


def test_the_tokenizers_settings_go_with_the_rows_to_the_run(tmp_path):
    path = hook_file(tmp_path, [{"text": "abcdefg"}], dataset={"chat_template": "{{ messages }}"})
    folder = pathlib.Path(load_settings(path, {}).huggingface_tokenizer)
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"bos_token": "|"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    run(path)
    keys = {"data_processor": "GptHDF5MapDataProcessor", "data_dir": str(tmp_path / "out")}
    section = GptHDF5MapDataProcessor.model_validate(keys | {"batch_size": 1})
    (tmp_path / "run").mkdir()
    build_dataset(section, tmp_path / "run", Context())
    kept = tmp_path / "run" / "tokenizer_config.json"
    assert json.loads(kept.read_text()) == config
    assert (tmp_path / "run" / "chat_template.jinja").read_text() == "{{ messages }}"
    ids = {"bos_token_id": 33, "pad_token_id": 0, "eos_token_id": 0}
    assert special_ids(tmp_path / "run") == ids
    run(path, resume_from_checkpoint="false", chat_template="")
    assert not (tmp_path / "out" / "chat_template.jinja").exists()


def test_a_local_folder_of_every_kind_of_file(tmp_path):
    path = hook_file(tmp_path, None, dataset={"pack_sequences": False})
    folder = tmp_path / "texts"
    write(folder / "a.jsonl.gz", [{"text": "abc"}])
    write(folder / "b.parquet", [{"text": "def"}, {"text": "gh"}])
    (folder / "c.txt").write_text("ijk\n\nlm\r\n")
    (folder / "d.fasta").write_text(">one\nno\npq\n>two\nrs\n")
    run(path)
    assert texts_in(tmp_path / "out") == ["abc", "def", "gh", "ijk", "lm", "nopq", "rs"]
    run(path, release="2.5", output_dir=str(tmp_path / "old"))
    assert len(rows_in(tmp_path / "old")) == 6  # a text file is one document


def test_rows_are_the_same_for_any_number_of_processes(tmp_path):
    chunks = {"read_chunk_size": 1}
    path = hook_file(tmp_path, LETTERS, processing=chunks, dataset={"use_vsl": True})
    run(path)
    run(path, processes=2, output_dir=str(tmp_path / "two"))
    np.testing.assert_array_equal(rows_in(tmp_path / "out"), rows_in(tmp_path / "two"))


def test_a_text_longer_than_a_chunk_stays_one_document(tmp_path):
    text = ("ab. cd ef\n\n" * 300)[:-2]
    processing = {"read_chunk_size": 1, "max_seq_length": 99}
    path = hook_file(tmp_path, [{"text": text}], processing=processing)

    def written(name, **flags):
        """The letters, with / for the end mark."""
        run(path, output_dir=str(tmp_path / name), **flags)
        letters = {number: letter for letter, number in IDS.items()} | {0: "/"}
        rows = rows_in(tmp_path / name)
        ids = [i for row in rows for i in (row[0, 0], *row[2, row[1] > 0])]
        return "".join(letters[i] for i in ids)

    assert written("ours") == f"{text}/"
    assert written("vendor", release="2.10").count("/") > 3


def test_a_long_text_is_cut_between_tokens_where_no_word_ends_before_a_blank(tmp_path):
    text = ("12345, 67890. " * 150).strip()
    processing = {"read_chunk_size": 1, "max_seq_length": 2000}
    path = hook_file(tmp_path, [{"text": text}], processing=processing)
    tokenizer = train_bpe([text], 290)
    tokenizer.save(f"{load_settings(path, {}).huggingface_tokenizer}/tokenizer.json")
    run(path)
    (row,) = rows_in(tmp_path / "out")
    assert row[0, row[1] > 0].tolist() == tokenizer.encode(text).ids
    assert row[1].sum() < len(text) / 2


def test_shuffled_rows_are_the_same_rows(tmp_path):
    dataset = {"pack_sequences": False}
    path = hook_file(tmp_path, LETTERS, dataset=dataset, processing={"shuffle": True})
    (summary,) = made_of(path)
    assert summary.folder == tmp_path / "out"
    texts = texts_in(tmp_path / "out")
    want = [record["text"] for record in LETTERS]
    assert texts != want
    assert sorted(texts) == sorted(want)
    assert not (tmp_path / "out" / ".in_order").exists()


def test_every_document_is_in_one_split_and_one_length(tmp_path):
    contexts = {"MSL_List": ["8", "0.0625K"], "split_fractions": ["1/2", 0.5]}
    splits = {"train": {"split_fraction": 0.8}, "val": {"split_fraction": 0.2}}
    both = {"data_splits": splits, "context_splits": contexts}
    made = made_of(hook_file(tmp_path, LETTERS, dataset={"pack_sequences": False}, **both))
    folders = [str(one.folder.relative_to(tmp_path / "out")) for one in made]
    assert folders == [f"{a}/msl_{b}" for a in ("train", "val") for b in ("8", "0.0625K")]
    assert sum(one.counts.records for one in made) == len(LETTERS)
    assert [one.params["max_sequence_length"] for one in made] == [8, 64, 8, 64]
    for one, other in ((0, 1), (0, 2), (1, 3)):
        assert not set(texts_in(made[one].folder)) & set(texts_in(made[other].folder))


@pytest.mark.parametrize(
    ("lengths", "shares", "says"),
    [
        (["8"], [1, 2], "expected one number above 0 for each"),
        (["x"], [1], "expected a length such as 2048 or 2K"),
    ],
)
def test_wrong_context_splits(tmp_path, lengths, shares, says):
    contexts = {"MSL_List": lengths, "split_fractions": shares}
    with pytest.raises(ConfigError, match=says):
        made_of(hook_file(tmp_path, LETTERS, context_splits=contexts))


@pytest.mark.parametrize("processes", [1, 2])
def test_token_limit_ends_with_the_record_that_reaches_it(tmp_path, processes, caplog):
    """Rows of 6 tokens without packing: 4 of them reach 19."""
    records = [{"text": t} for t in ("abc", "abcdefghij", "xyz", "bcd")]  # 1, 2, 1, 1 rows
    path = hook_file(tmp_path, records, dataset={"pack_sequences": False})
    run(path, token_limit=13, processes=processes)
    assert texts_in(tmp_path / "out") == ["abc", "abcdef", "hij"]
    run(path, token_limit=60, output_dir=str(tmp_path / "all"))
    assert len(rows_in(tmp_path / "all")) == 5
    assert "token_limit: the input has fewer tokens (5 rows)" in caplog.text
    run(path, token_limit="false", output_dir=str(tmp_path / "none"))
    assert len(rows_in(tmp_path / "none")) == 5


def test_folders_of_the_source_as_runs_of_their_own(tmp_path):
    source = tmp_path / "texts"
    for name, text in (("x", "abc"), ("y", "def"), ("z", "ghi")):
        (source / name).mkdir(parents=True)
        write(source / name / "a.jsonl", [{"text": text}])
    data = {"type": "local", "source": str(source)}
    path = hook_file(tmp_path, None, data=data | {"subsets": ["x", "z"]})
    assert [one.folder.name for one in made_of(path)] == ["x", "z"]
    assert texts_in(tmp_path / "out" / "z") == ["ghi"]
    every, out = data | {"top_level_as_subsets": True}, str(tmp_path / "all")
    assert len(made_of(hook_file(tmp_path, None, data=every, output_dir=out))) == 3
    with pytest.raises(ConfigError, match="has no folder w"):
        load_settings(hook_file(tmp_path, None, data=data | {"subsets": ["w"]}), {})


def test_keys_without_effect_are_named(tmp_path, caplog):
    data = {"type": "local", "source": str(tmp_path / "texts"), "revision": "main"}
    processing = {"fim_rate": 0.5, "mlm_fraction": 0.2, "seed": 3, "write_in_batch": True}
    dataset = {"training_objective": "fim", "truncate_to_msl": {"truncation_mode": "keep_end"}}
    with caplog.at_level("INFO"):
        keys = {"data": data, "processing": processing, "dataset": dataset}
        load_settings(hook_file(tmp_path, [], **keys), {})
    assert caplog.messages == [
        "data.revision: no effect here: nothing is downloaded",
        "write_in_batch: no effect here: has no effect there either",
        "Rows of release 2.10 without its losses of text (release: 2.10 has those, too)",
        "truncate_to_msl.truncation_mode: no effect: the keys are prompt_truncation_mode, "
        "max_turn_length",
        "mlm_fraction: no effect here: it needs training_objective mlm",
        "truncate_to_msl: no effect here: it needs mode finetuning or training_objective "
        "bert_pretraining",
    ]


def test_a_tokenizers_own_files_name_its_marks(tmp_path):
    extra = ("<s>", "<eot>", "<pad>")
    config = {"eos_token": {"content": "<eot>"}, "pad_token": "<pad>", "bos_token": "<s>"}
    characters(tmp_path / "characters", bos="<s>", extra=extra, config=config)
    report = run(hook_file(tmp_path, [{"text": "abc"}]))
    s, eot, pad = range(len(IDS), len(IDS) + 3)
    assert rows_in(tmp_path / "out")[0, 0].tolist() == [s, 1, 2, 3, pad, pad]
    assert rows_in(tmp_path / "out")[0, 2].tolist() == [1, 2, 3, eot, pad, pad]
    assert report.params["processing"]["pad_id"] == pad
    path = hook_file(tmp_path, [{"text": "abc"}], processing={"eos_id": 0})
    run(path, output_dir=str(tmp_path / "given"))
    assert rows_in(tmp_path / "given")[0, 2].tolist() == [1, 2, 3, 0, 0, 0]


def test_the_vendors_names_of_tokenizers(tmp_path):
    folder = characters(tmp_path / "characters")
    name = "cerebras.modelzoo.x.CustomLlama3Tokenizer:CustomLlama3Tokenizer"
    params = {"pretrained_model_name_or_path": str(folder), "token": "secret"}
    kinds = {name: params, "neoxtokenizer": {"encoder_file": str(folder / "tokenizer.json")}}
    for i, (kind, files) in enumerate(kinds.items()):
        path = hook_file(tmp_path, [{"text": "abc"}])
        content = yaml.safe_load(path.read_text())
        del content["processing"]["huggingface_tokenizer"]
        content["processing"] |= {"custom_tokenizer": kind, "tokenizer_params": files}
        run(write_yaml(path, content), output_dir=str(tmp_path / f"out{i}"))
        assert texts_in(tmp_path / f"out{i}") == ["abc"]


@pytest.mark.parametrize(
    ("mode", "hook", "objective"),
    [
        ("LMData", "plain_text", None),
        ("LMData_VSL", "plain_text", None),
        ("Summarization", "plain_prompt_completion", None),
        ("FIM", "plain_text", "fim"),
        ("MLM", "plain_text", "dynamic_mlm"),
        ("MLM_NSP", "plain_text", "nsp"),
        ("T5", "plain_text", "t5"),
    ],
)
def test_an_older_mode_is_a_read_hook(mode, hook, objective):
    keys = {"mode": mode, "input_dir": "texts", "tokenizer_type": "TrainBPE", "vocab_size": 300}
    got = load_settings(None, keys | {"jsonl_key": "body", "prompt_key": "ask"})
    assert (got.read_hook, got.training_objective) == (hook, objective)
    assert got.use_vsl is mode.endswith("_VSL")
    pairs = {"prompt_key": "ask", "completion_key": "completion"}
    assert got.read_hook_kwargs == (pairs if got.mode == "finetuning" else {"text_key": "body"})


def test_objectives_of_older_modes_need_their_rows(tmp_path):
    path = hook_file(tmp_path, [], dataset={"training_objective": "t5"})
    with pytest.raises(ConfigError, match="training_objective: 't5': expected one of mlm, fim"):
        load_settings(path, {})


def test_an_older_file_of_token_ids(tmp_path):
    write(tmp_path / "a.jsonl", [{"context": [1, 2], "completion": [3, 4]}])
    folder = characters(tmp_path / "characters")
    setup = {"input_dir": str(tmp_path / "a.jsonl"), "output_dir": str(tmp_path / "out")}
    setup |= {"dataset_processor": "NLGPreprocessor", "processes": 1}
    processing = {"tokenizer_type": "NeoXTokenizer", "max_seq_length": 4}
    processing |= {"encoder_file": str(folder / "tokenizer.json"), "write_in_batch": True}
    run(write_yaml(tmp_path / "old.yaml", {"setup": setup, "processing": processing}))
    assert rows_in(tmp_path / "out").tolist() == [[[1, 2, 3, 0], [0, 1, 1, 0], [2, 3, 4, 0]]]


def test_files_with_fim_marks_move_middles(tmp_path, caplog):
    marks = {f"fim_{part}_tok": f"<{part}>" for part in ("prefix", "middle", "suffix")}
    characters(tmp_path / "characters", extra=marks.values())
    rates, sizes = {"fim_rate": 1.0, "spm_rate": 0.0}, {"max_seq_length": 24}
    records = [{"text": "abcdefghijklmnop"}]
    path = hook_file(tmp_path, records, processing=sizes, dataset=marks | rates)
    with caplog.at_level("INFO"):
        run(path)
    assert "training_objective: fim, which fim_rate means" in caplog.text
    row = rows_in(tmp_path / "out")[0, 0].tolist()
    first = len(IDS)
    assert [i for i in row if i >= first] == [first, first + 2, first + 1]  # prefix suffix middle
    assert sorted(i for i in row if 0 < i < first) == list(range(1, 17))


def test_every_key_has_one_meaning():
    """Keys that change nothing, keys that are refused and keys of another name are three sets."""
    sets = [set(NO_EFFECT), set(REFUSED), set(HookKeys.model_fields)]
    assert not sets[0] & sets[1] | sets[0] & sets[2] | sets[1] & sets[2]


@pytest.mark.parametrize("name", template_names())
def test_every_template_is_a_file_that_is_read(name, tmp_path, monkeypatch):
    from wafer.vendor.preprocess.load import load_settings

    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    path = tmp_path / "file.yaml"
    path.write_text(preprocessing_file(name))
    settings = load_settings(path, {})
    assert parse(Settings, settings.model_dump()) == settings


def test_a_template_makes_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    characters(tmp_path / "tokenizer")
    (tmp_path / "texts").mkdir()
    write(tmp_path / "texts" / "a.jsonl", [{"text": "abcdefghijkl"}])
    assert main(["data", "new"]) == 0
    assert "pretraining_vsl  texts side by side" in capsys.readouterr().out
    assert main(["data", "new", "pretraining", "-o", "files"]) == 0
    command = ["data", "preprocess", "-p", "files/pretraining.yaml"]
    assert main([*command, "--processes", "1", "--max_seq_length", "16"]) == 0
    assert rows_in(tmp_path / "rows")[0, 0, :13].tolist() == [*range(1, 13), 0]
    assert main(["data", "new", "pretraining", "-o", "files"]) == 1
    assert "File exists" in capsys.readouterr().err
    with pytest.raises(DataError, match="no such template; did you mean 'mlm'"):
        preprocessing_file("mlmm")


def test_data_is_read_without_the_model(tmp_path, capsys):
    path = write_yaml(tmp_path / "p.yaml", config(runconfig={"model_dir": str(tmp_path / "m")}))
    assert main(["data", "benchmark", "-p", str(path), "--num_epochs", "2"]) == 0
    train, evaluation = capsys.readouterr().out.splitlines()
    assert train.startswith("train_input: 12 batches in ")  # twice 24 rows in batches of 4
    assert evaluation.startswith("eval_input: 12 batches in ")
