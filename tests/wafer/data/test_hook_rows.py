"""Rows of the vendor's preprocessing files, against those that its own code has written."""

import json
import re

import numpy as np
import pytest
from helpers.rows import rows_in
from helpers.vendor_data import (
    CHAT_KEYS,
    END,
    characters,
    chat_file,
    hook as hook_of,
    hook_file,
    run,
)

from wafer.errors import ConfigError, DataError

DOCUMENTS = [{"text": t} for t in ("abcdefgh", "ijklm", "nop", "qrstuvwxyzabcdef")]
PAIR = "prompt_completion_text_read_hook"
PAIR_KEYS = {"prompt_key": "p", "completion_key": "c"}


def pair_file(tmp_path, pairs, length=12, **dataset):
    """A file of (prompt, completion) pairs."""
    processing = {"max_seq_length": length, "read_hook_kwargs": PAIR_KEYS}
    records = [dict(zip("pc", pair, strict=True)) for pair in pairs]
    keys = {"mode": "finetuning", "processing": processing, "dataset": dataset}
    return hook_file(tmp_path, records, PAIR, **keys)


def made(path, tmp_path, **flags):
    run(path, **flags)
    return rows_in(tmp_path / "out").tolist()


def counted_loss(tmp_path):
    params = json.loads((tmp_path / "out" / "data_params.json").read_text())
    return params["post-process"].get("loss_valid_tokens")


def lm(inputs, labels, length=6):
    """A row whose every label counts, padded with 0."""
    pad = [0] * (length - len(inputs))
    return [inputs + pad, [1] * len(inputs) + pad, labels + pad]


OVERLAPPING = [
    lm([1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 7]),
    lm([7, 8, 0, 9, 10, 11], [8, 0, 9, 10, 11, 12]),
    lm([12, 13, 0, 14, 15, 16], [13, 0, 14, 15, 16, 0]),
    lm([0, 17, 18, 19, 20, 21], [17, 18, 19, 20, 21, 22]),
    lm([22, 23, 24, 25, 26, 1], [23, 24, 25, 26, 1, 2]),
]


@pytest.mark.parametrize(
    ("dataset", "rows"),
    [
        (
            {},
            [
                lm([1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 0]),
                lm([8, 9, 10, 11, 12, 13], [9, 10, 11, 12, 13, 0]),
                lm([15, 16, 17, 18, 19, 20], [16, 17, 18, 19, 20, 21]),
                lm([22, 23, 24, 25, 26, 1], [23, 24, 25, 26, 1, 0]),
                lm([3, 4, 5, 6], [4, 5, 6, 0]),
            ],
        ),
        (
            {"pack_sequences": False},
            [
                lm([1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 7]),
                lm([8], [0]),
                lm([9, 10, 11, 12, 13], [10, 11, 12, 13, 0]),
                lm([14, 15, 16], [15, 16, 0]),
            ],
        ),
        # texts encoded in pieces follow the older rule
        ({"split_text_to_tokenize": True, "chunk_len_to_split": 3}, OVERLAPPING),
    ],
)
def test_rows_of_release_2_10(tmp_path, dataset, rows):
    path = hook_file(tmp_path, DOCUMENTS, dataset=dataset)
    assert made(path, tmp_path, release="2.10")[: len(rows)] == rows
    assert ("pack_sequences" in dataset) or len(rows_in(tmp_path / "out")) == len(rows)


def test_the_default_keeps_every_token_and_ends_every_document(tmp_path):
    rows = np.array(made(hook_file(tmp_path, DOCUMENTS), tmp_path))
    # every 7 tokens of: a-h end i-m end nop end q-f end
    stream = [*range(1, 9), 0, *range(9, 14), 0, *range(14, 17), 0, *range(17, 27), *range(1, 7), 0]
    pieces = [stream[i : i + 7] for i in range(0, len(stream), 7)]
    want = [lm(piece[:-1], piece[1:]) for piece in pieces if len(piece) > 1]
    assert rows.tolist() == want


def test_rows_of_release_2_3_share_a_token_and_lose_the_rest(tmp_path):
    nested = {"read_hook_kwargs": {"data_keys": {"text_key": "text"}}}
    path = hook_file(tmp_path, DOCUMENTS, processing=nested)
    rest = lm([2, 3, 4, 5, 6], [3, 4, 5, 6, 0])
    assert made(path, tmp_path) == [*OVERLAPPING, rest]
    again = made(path, tmp_path, release="2.3", resume_from_checkpoint="false")
    assert again == OVERLAPPING


def test_vsl_rows_of_release_2_10(tmp_path):
    records = [{"text": t} for t in ("abc", "defgh", "ij", "klmnopqrstuvwxyz", "ab")]
    sizes = {"max_seq_length": 12}
    path = hook_file(tmp_path, records, processing=sizes, dataset={"use_vsl": True})
    rows = made(path, tmp_path, release="2.10")
    # 13 tokens of k..z alone, then next fit: defgh and abc; xyz and ij; ab
    assert rows[0][0] == list(range(11, 23))
    assert rows[1] == [
        [4, 5, 6, 7, 8, 0, 1, 2, 3, 0, 0, 0],
        [1] * 9 + [0] * 3,
        [5, 6, 7, 8, 0, 1, 2, 3, 0, 0, 0, 0],
        [5, 4, 3, 2, 1, 0, 2, 1, 0, 0, 0, 0],
        [0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 0, 0],
    ]
    assert rows[2][0][:9] == [24, 25, 26, 0, 9, 10, 0, 1, 2]


def test_vsl_rows_of_release_2_3_do_not_predict_across_documents(tmp_path):
    sizes = {"max_seq_length": 8, "read_hook_kwargs": {"data_keys": {"text_key": "text"}}}
    records = [{"text": "abc"}, {"text": "de"}]
    path = hook_file(tmp_path, records, processing=sizes, dataset={"use_vsl": True})
    (row,) = made(path, tmp_path)
    assert row == [
        [1, 2, 3, 0, 4, 5, 0, 0],
        [1, 1, 1, 0, 1, 1, 0, 0],
        [2, 3, 0, 4, 5, 0, 0, 0],
        [3, 2, 1, 0, 1, 0, 0, 0],
        [0, 1, 2, 3, 0, 1, 0, 0],
    ]


@pytest.mark.parametrize(
    ("separator", "inputs", "mask"),
    [("|", [1, 2, 33, 3, 4, 5], [0, 0, 1, 1, 1, 1]), (None, [1, 2, 3, 4, 5], [0, 1, 1, 1, 1])],
)
def test_rows_of_a_prompt_and_a_completion(tmp_path, separator, inputs, mask):
    pairs = ("ab", "cde"), ("", "a"), ("abcdef", "ghijkl")
    report = run(pair_file(tmp_path, pairs, sep_token=separator))
    pad = [0] * (12 - len(inputs))
    want = [inputs + pad, mask + pad, [*inputs[1:], 0, *pad]]
    assert rows_in(tmp_path / "out")[0].tolist() == want
    after = report.params["post-process"]
    assert (after["total_raw_docs"], after["raw_docs_skipped"]) == (3, 1)  # the empty prompt
    assert "1 records left out: nothing to train on" in str(report)
    assert after["discarded_files"] == 1  # 13 tokens and more do not fit


def test_a_long_completion_loses_its_end_and_a_prompt_most_of_it(tmp_path):
    cut = {"prompt_truncation_mode": "keep_start", "max_turn_length": 2}
    path = pair_file(tmp_path, [("fghijkl", "mnopqrs")], sep_token="|", truncate_to_msl=cut)
    assert made(path, tmp_path)[0][:2] == [
        [6, 7, 8, 33, 13, 14, 15, 16, 17, 18, 19, 0],
        [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0],
    ]


def test_chat_rows_carry_loss_on_the_assistants_turns(tmp_path):
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}>{{ m.content }}{% else %}<{{ m.content }}"
        "{{ eos_token }}{% endif %}{% endfor %}"
    )
    turns = [("user", "ab"), ("assistant", "c"), ("user", "d"), ("assistant", "ef")]
    record = {"m": [{"role": r, "content": t} for r, t in turns]}
    path = chat_file(tmp_path, [record], template)
    assert made(path, tmp_path)[0][:2] == [
        [29, 1, 2, 30, 3, 0, 29, 4, 30, 5, 6, 0],
        [0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0],
    ]


def test_vsl_rows_of_prompts_and_completions(tmp_path):
    path = pair_file(tmp_path, [("ab", "cde"), ("xy", "z")], sep_token="|", use_vsl=True)
    (row,) = made(path, tmp_path)
    assert row == [
        [1, 2, 33, 3, 4, 5, 0, 24, 25, 33, 26, 0],
        [0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 0],
        [2, 33, 3, 4, 5, 0, 24, 25, 33, 26, 0, 0],
        [6, 5, 4, 3, 2, 1, 0, 3, 2, 1, 0, 0],
        [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 0],
    ]


def test_dpo_rows(tmp_path):
    record = {"prompt": "ab", "chosen": "cd", "rejected": "e"}
    sizes = {"max_seq_length": 12, "max_prompt_length": 4}
    sizes["read_hook_kwargs"] = {f"{name}_key": name for name in record}
    path = hook_file(tmp_path, [record], "dpo_read_hook", mode="dpo", processing=sizes)
    row = made(path, tmp_path)[0]
    assert row[0] == [1, 14, 20, 28, 3, 4, 30, 33, 9, 13, 34, 5]
    assert row[1] == [0] * 3 + [1] * 9
    assert row[2] == [0, 0, 0, 3, 4, 30, 33, 9, 13, 34, 5, 0]
    assert row[3][:6] == [1, 14, 20, 28, 5, 30]
    assert counted_loss(tmp_path) == sum(row[1]) + sum(row[4])  # of both answers
    run(path, release="2.4", output_dir=str(tmp_path / "older"))
    # no BOS: the end mark begins a prompt, and each answer ends with one; answers of S - 4 tokens
    assert rows_in(tmp_path / "older")[0, 0].tolist() == row[0]
    run(path, release="2.4", max_seq_length=80, output_dir=str(tmp_path / "long"))
    ids = rows_in(tmp_path / "long")[0, 0].tolist()
    used = ids[: max(i for i, token in enumerate(ids) if token) + 2]
    assert (used[0], used[-1]) == (0, 0)


def nlg_file(folder, context, completion):
    record = {"context": context, "completion": completion}
    keys = {f"{name}_key": name for name in record}
    sizes = {"max_seq_length": 8, "read_hook_kwargs": keys}
    return hook_file(folder, [record], "nlg_read_hook", mode="nlg", processing=sizes)


@pytest.mark.parametrize("side", ["context", "completion"])
@pytest.mark.parametrize("wrong", ["12", None, [1.5], [-1], [1 << 32], [4, 35], [True, False]])
def test_nlg_rows_of_something_else_are_refused_with_an_example(tmp_path, side, wrong):
    what = re.escape(f"the {side} is '{wrong}'; expected token ids ")
    with pytest.raises(DataError, match=f"a.jsonl: record 1: .*{what}.* of 35, as in .*464"):
        run(nlg_file(tmp_path, **{"context": [1], "completion": [4], side: wrong}))


def test_nlg_rows_of_token_ids(tmp_path):
    assert made(nlg_file(tmp_path, [1, 2, 3], [4, 5, 34]), tmp_path) == [
        [[1, 2, 3, 4, 5, 0, 0, 0], [0, 0, 1, 1, 1, 0, 0, 0], [2, 3, 4, 5, 34, 0, 0, 0]]
    ]


def test_masked_rows_are_drawn_as_the_vendor_draws(tmp_path):
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

    names = ["<cls>", "<pad>", "<eos>", "<unk>", "<mask>", *"abcdefghijklmnop"]
    ids = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    ends = [("<cls>", 0), ("<eos>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing("<cls> $A <eos>", None, ends)
    folder = characters(
        tmp_path / "characters",
        config={f"{kind}_token": f"<{kind}>" for kind in ("cls", "pad", "eos", "unk", "mask")},
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    sizes, mlm = {"max_seq_length": 12}, {"training_objective": "mlm"}
    path = hook_file(tmp_path, [{"text": "abcdefgh"}], processing=sizes, dataset=mlm)
    assert made(path, tmp_path) == [[[0, 5, 6, 7, 8, 9, 10, 4, 12, 2, 1, 1], [1] * 10 + [0, 0]]]
    labels = rows_in(tmp_path / "out", "labels")[0, 0].tolist()
    assert labels == [-100] * 7 + [11] + [-100] * 4
    assert counted_loss(tmp_path) == 1
    assert made(path, tmp_path, mlm_with_gather="true", resume_from_checkpoint="false")
    assert counted_loss(tmp_path) == 1


def test_bert_rows_are_cut_without_overlap(tmp_path):
    characters(tmp_path / "characters", bos=END)
    bert = {"training_objective": "bert_pretraining"}
    path = hook_file(tmp_path, [{"text": "abcdefgh"}], dataset=bert)
    assert made(path, tmp_path) == [
        [[0, 1, 2, 3, 4, 5], [1] * 6, [0] * 6],
        [[6, 7, 8, 0, 0, 0], [1, 1, 1, 0, 0, 0], [0] * 6],
    ]
    assert counted_loss(tmp_path) is None  # drawn at every reading


def test_a_hook_of_the_users_own_and_the_vendors_counts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kwargs = {"read_hook_kwargs": {"text_key": "text"}}
    (tmp_path / "myhooks.py").write_text(
        "def upper(example, text_key, **_):\n"
        "    return [{'content': [{'text': example[text_key].lower()}]}]\n"
    )
    records = [{"text": "ABC"}, {"text": ""}]
    path = hook_file(tmp_path, records, "myhooks:upper", processing=kwargs)
    report = run(path)
    assert rows_in(tmp_path / "out").tolist() == [lm([1, 2, 3], [2, 3, 0])]
    params = report.params
    assert params["setup"]["mode"] == "pretraining"
    assert params["processing"]["vocab_size"] == 35
    after = params["post-process"]
    counted = {"raw_chars_count": 3, "raw_bytes_count": 3, "num_tokens": 6, "num_pad_tokens": 3}
    counted |= {"non_pad_tokens": 3, "loss_valid_tokens": 3, "num_masked_tokens": 3}
    counted |= {"processed_files": 1, "successful_files": 1, "discarded_files": 0}
    assert {key: after[key] for key in counted} == counted


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"read_hook": "nowhere:hook"}, "read_hook: nowhere:hook cannot be imported"),
        ({"read_hook": "hooks:text_read"}, "did you mean 'text_read_hook'"),
        ({"token_generator": "a:B"}, "token_generator: the vendor's generator classes"),
        ({"read_hook_kwargs": {"key": "text"}}, "names no column"),
        ({"release": "2.2"}, "no release with such files; known: 2.3"),
        ({"huggingface_tokenizer": "org/name"}, "`hf download org/name --include"),
        ({"custom_tokenizer": "gpt2tokenizer"}, "exactly one of custom_tokenizer"),
        ({"shufle": 1}, "shufle: unknown key; did you mean 'shuffle'"),
    ],
)
def test_errors_come_before_the_work(tmp_path, keys, message):
    path = hook_file(tmp_path, [{"text": "abc"}], processing=keys)
    with pytest.raises((ConfigError, DataError), match=message):
        run(path)


def test_a_record_that_fails_stops_the_run_or_is_left_out(tmp_path):
    path = hook_file(tmp_path, [{"text": "abc"}, {"text": None}, {"text": "de"}])
    with pytest.raises(DataError, match=r"AttributeError: .*; the record is .*None"):
        run(path)
    report = run(path, skip_bad_records="true", resume_from_checkpoint="false")
    assert (report.counts.records, report.counts.skipped) == (2, 1)


def test_hooks_of_other_forms():
    text = (
        "<|start_header_id|>user<|end_header_id|>\n\n hi <|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nho<|eot_id|>"
    )
    hook = hook_of("hooks:llama3_1_chat_formatted_data_hook", {"chat_key": "c"})
    turns = [(t["type"], t["content"][0]["text"]) for t in hook({"c": text})]
    assert turns == [("user", "hi"), ("assistant", "ho")]
    raw = hook_of("hooks:text_read_hook", {"text_key": "t"}, (2, 3))({"t": " a "})
    assert raw == [{"content": [{"text": " a "}]}]
    keys = {"chosen_key": "c", "rejected_key": "r"}
    example = {"c": "Human: a Assistant: b", "r": "Human: a Assistant: c"}
    texts = [t["content"][0]["text"] for t in hook_of("hooks:dpo_read_hook", keys)(example)]
    assert texts == ["Human: a Assistant:", " b", " c"]
    odd = {"m": [{"role": "user", "content": "a"}]}
    assert hook_of("hooks:chat_read_hook", CHAT_KEYS)(odd) == []


def test_the_loss_of_an_inverted_mask_is_counted(tmp_path):
    path = hook_file(tmp_path, DOCUMENTS)
    rows = np.array(made(path, tmp_path))
    plain = counted_loss(tmp_path)
    assert plain == rows[:, 1].sum()
    again = {"inverted_mask": "true", "resume_from_checkpoint": "false"}
    inverted = np.array(made(path, tmp_path, **again))
    assert counted_loss(tmp_path) == plain == (inverted[:, 1] == 0).sum()
