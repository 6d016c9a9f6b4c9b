"""What the files of a tokenizer say: chat templates, and the token after an answer."""

import json

import pytest
from helpers.rows import settings, word_tokenizer
from helpers.vendor_data import chat_file, run

from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.preprocess.run import preprocess
from wafer.data.readers.text.preferences import read_pairs
from wafer.data.registry import parse_input
from wafer.errors import DataError

CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
NOT_USED = "its chat template is not used here"
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def tokenizer(folder, form):
    """A tokenizer with a chat template in one of its files."""
    word_tokenizer(folder, ["</s>", "<unk>", "a", "b"], "<unk>")
    if form == "file":
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    elif form is not None:
        value = TEMPLATE if form == "text" else [{"name": "default", "template": TEMPLATE}]
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    return folder


@pytest.mark.parametrize("form", ["file", "text", "list", None])
@pytest.mark.parametrize("named", ["folder", "file"])
def test_preprocessing_tells_of_a_template_that_it_leaves_aside(tmp_path, caplog, form, named):
    folder = tokenizer(tmp_path / "tok", form)
    (tmp_path / "in.jsonl").write_text(json.dumps({"messages": CHAT}) + "\n")
    name = folder if named == "folder" else folder / "tokenizer.json"
    keys = {"mode": "Summarization", "multi_turn_key": "messages", "min_sequence_len": 1}
    preprocess(settings(tmp_path, name, **keys))
    told = [message for message in caplog.messages if NOT_USED in message]
    assert len(told) == (form is not None)
    assert all(str(folder) in m and "`wafer data new chat`" in m for m in told)


@pytest.mark.parametrize("form", ["file", None])
def test_a_run_that_reads_conversations_tells_of_it(tmp_path, caplog, form):
    folder = tokenizer(tmp_path / "tok", form)
    (tmp_path / "train.jsonl").write_text(json.dumps({"messages": CHAT}) + "\n")
    section = {"data_processor": "PromptCompletionDataProcessor", "data_dir": str(tmp_path)}
    section |= {"vocab_file": str(folder / "tokenizer.json"), "multi_turn_key": "messages"}
    section |= {"eos_token": "</s>", "batch_size": 1, "max_sequence_length": 8}
    build_dataset(parse_input(section), tmp_path, Context())
    assert (NOT_USED in caplog.text) == (form is not None)


WHERE = "if messages[0].content.endswith('bad')"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("raise_exception('no system turn')", "no system"),
        ("messages[0].content.nothing()", "UndefinedError"),
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_refusal_names_the_file_and_the_record(tmp_path, call, reason, processes):
    pytest.importorskip("jinja2")
    records = [
        {"m": [{"role": "user", "content": text}, {"role": "assistant", "content": "b"}]}
        for text in ("good", "bad", "bad")
    ]
    path = chat_file(tmp_path, records, f"{{{{ {call} {WHERE} }}}}{TEMPLATE}")
    with pytest.raises(DataError, match=rf"\.jsonl: record 2: .*chat_template: .*{reason}"):
        run(path, processes=str(processes))
    report = run(path, skip_bad_records="true", resume_from_checkpoint="false")
    assert (report.counts.records, report.counts.skipped) == (1, 2)


WORDS = ["<unk>", "<s>", "</s>", "who", "anna", "bob", "<end>"]
PAIR = {"prompt": "who", "chosen": "anna", "rejected": "bob", "completion": "anna"}
PAIR |= {"source": "who", "target": "anna"}
NAMED = {"eos_token": {"content": "</s>"}, "bos_token": "<s>"}


def section(folder, processor, words=WORDS, **keys):
    """A section whose vocabulary has a folder of its own."""
    word_tokenizer(folder, words, "<unk>")
    (folder / "train.jsonl").write_text(json.dumps(PAIR) + "\n")
    values = {"data_processor": processor, "data_dir": str(folder), "batch_size": 1}
    values |= {"vocab_file": str(folder / "tokenizer.json"), "max_sequence_length": 8}
    return parse_input(values | keys)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_ids.json", "config.json"])
def test_answers_end_as_the_files_of_the_tokenizer_say(tmp_path, name):
    ids = {"eos_token_id": [2, 6], "bos_token_id": 1}
    (tmp_path / name).write_text(json.dumps(NAMED if name == "tokenizer_config.json" else ids))
    dpo = section(tmp_path, "PreferenceDataProcessor")
    (pair,), _ = read_pairs(dpo, [tmp_path / "train.jsonl"], None)
    assert [answer[2].tolist()[-1] for answer in pair.answers] == [2, 2]
    prompts = section(tmp_path, "PromptCompletionDataProcessor")
    row = build_dataset(prompts, tmp_path, Context(training=True)).source[0]
    assert row["labels"].tolist()[-1] == 2


def test_a_named_token_and_a_default_that_is_there_win(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(NAMED))
    both = [*WORDS, "<|endoftext|>"]
    for words, keys, end in ((both, {}, 7), (WORDS, {"eos_token": "<end>"}, 6)):
        dpo = section(tmp_path, "PreferenceDataProcessor", words, **keys)
        (pair,), _ = read_pairs(dpo, [tmp_path / "train.jsonl"], None)
        assert pair.answers[0][2].tolist()[-1] == end


def test_a_token_that_no_file_names_is_an_error(tmp_path):
    for keys in ({}, {"eos_token": "<eot>"}):
        dpo = section(tmp_path, "PreferenceDataProcessor", **keys)
        with pytest.raises(DataError, match="no token <"):
            read_pairs(dpo, [tmp_path / "train.jsonl"], None)
