"""Chat templates of tokenizers: told of where they are not used; refusals name file and record."""

import json

import pytest
from helpers.vendor_data import hook_file, run
from tokenizers import Tokenizer, models as kinds, pre_tokenizers

from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.preprocess.run import preprocess
from wafer.data.registry import parse_input
from wafer.errors import DataError
from wafer.vendor.preprocess.load import load_settings

CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
KEYS = {
    "multi_turn_key": "m",
    "multi_turn_role_key": "role",
    "multi_turn_content_key": "content",
}
NOT_USED = "its chat template is not used here"
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def tokenizer(folder):
    folder.mkdir()
    words = {"</s>": 0, "<unk>": 1, "a": 2, "b": 3}
    built = Tokenizer(kinds.WordLevel(words, unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    built.save(str(folder / "tokenizer.json"))
    return folder


def keep_template(folder, form):
    if form == "file":
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    elif form is not None:
        value = TEMPLATE if form == "text" else [{"name": "default", "template": TEMPLATE}]
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))


@pytest.mark.parametrize("form", ["file", "text", "list", None])
@pytest.mark.parametrize("named", ["folder", "file"])
def test_preprocessing_tells_of_a_template_that_it_leaves_aside(tmp_path, caplog, form, named):
    folder = tokenizer(tmp_path / "tok")
    keep_template(folder, form)
    (tmp_path / "in.jsonl").write_text(json.dumps({"messages": CHAT}) + "\n")
    flags = {
        "mode": "Summarization",
        "multi_turn_key": "messages",
        "tokenizer_type": "HuggingFaceTokenizer",
        "huggingface_tokenizer": str(folder if named == "folder" else folder / "tokenizer.json"),
        "input_dir": str(tmp_path / "in.jsonl"),
        "output_dir": str(tmp_path / "out"),
        "max_seq_length": 4,
        "min_sequence_len": 1,
        "processes": 1,
    }
    preprocess(load_settings(None, flags))
    told = [message for message in caplog.messages if NOT_USED in message]
    assert len(told) == (form is not None)
    assert all(str(folder) in m and "`wafer data new chat`" in m for m in told)


@pytest.mark.parametrize("form", ["file", None])
def test_a_run_that_reads_conversations_tells_of_it(tmp_path, caplog, form):
    folder = tokenizer(tmp_path / "tok")
    keep_template(folder, form)
    (tmp_path / "train.jsonl").write_text(json.dumps({"messages": CHAT}) + "\n")
    section = {
        "data_processor": "PromptCompletionDataProcessor",
        "data_dir": str(tmp_path),
        "vocab_file": str(folder / "tokenizer.json"),
        "multi_turn_key": "messages",
        "eos_token": "</s>",
        "batch_size": 1,
        "max_sequence_length": 8,
    }
    build_dataset(parse_input(section), tmp_path, Context())
    assert (NOT_USED in caplog.text) == (form is not None)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (
            "{{ raise_exception('no system turn') if messages[0].content.endswith('bad') }}",
            "no system",
        ),
        (
            "{{ messages[0].content.nothing() if messages[0].content.endswith('bad') }}",
            "UndefinedError",
        ),
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_refusal_names_the_file_and_the_record(tmp_path, template, reason, processes):
    pytest.importorskip("jinja2")
    records = [
        {"m": [{"role": "user", "content": text}, {"role": "assistant", "content": "b"}]}
        for text in ("good", "bad", "bad")
    ]
    path = hook_file(
        tmp_path,
        records,
        "chat_read_hook",
        mode="finetuning",
        processing={"max_seq_length": 12, "read_hook_kwargs": KEYS},
        dataset={"chat_template": template + TEMPLATE},
    )
    with pytest.raises(DataError, match=rf"\.jsonl: record 2: .*chat_template: .*{reason}"):
        run(path, processes=str(processes))
    report = run(path, skip_bad_records="true", resume_from_checkpoint="false")
    assert (report.counts.records, report.counts.skipped) == (1, 2)
