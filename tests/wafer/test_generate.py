"""``wafer generate``: stops, streaming and prompts in batches, with a model of random weights."""

import io
import json
import re

import jax
import jax.numpy as jnp
import pytest
import tokenizers
from helpers.runs import TINY

import wafer
from wafer import models
from wafer.commands import generate as command
from wafer.commands.prompts import encode_prompts
from wafer.data.text.tokenizer import END_OF_TEXT
from wafer.errors import DataError
from wafer.models.convert.tokenizer import TextMarks
from wafer.models.user import model as own

LETTERS = "abcdefghijklmnopqrstuvwxyz .,"
MODEL = TINY | {"vocab_size": len(LETTERS) + 1, "hidden_size": 16, "filter_size": 32}
MODEL |= {"max_position_embeddings": 64, "initializer_range": 1.0}
OPTIONS = {"max_new_tokens": 30, "seed": 5, "num_samples": 1, "temperature": 1.0}


@pytest.fixture(scope="module")
def loaded():
    vocabulary = {END_OF_TEXT: 0} | {letter: i + 1 for i, letter in enumerate(LETTERS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, END_OF_TEXT))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = tokenizers.decoders.Fuse()
    model = models.build(MODEL)
    return command.Loaded(model, model.init(jax.random.key(0)), tokenizer, TextMarks(0, (0,)))


def texts(loaded, prompts, **options):
    return command.sample(loaded, prompts, **OPTIONS | options).texts


def test_a_text_ends_before_the_first_stop(loaded):
    (whole,) = texts(loaded, ["ab"])[0]
    assert len(whole) > 12
    stop = (whole[9:11], whole[6:8])
    cut = min(whole.index(s, 2) for s in stop)
    assert texts(loaded, ["ab"], stop=stop) == [[whole[:cut]]]
    assert texts(loaded, ["ab"], stop=["ABC"]) == [[whole]]
    with pytest.raises(ValueError, match="stop: expected text"):
        texts(loaded, ["ab"], stop=[""])


def test_a_prompt_beyond_the_positions_has_its_file_and_row(loaded, monkeypatch, tmp_path, cli):
    monkeypatch.setattr(command, "open_model", lambda *_: loaded)
    rows = [{"prompt": "a" * count} for count in (2, 2, 3, 70, 4)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = "--batch_size 3 --max_new_tokens 1 --num_samples 2"
    said = cli(f"generate --checkpoint_path x --input {tmp_path}/in.jsonl {options}", 1)
    assert "in.jsonl, row 4: the prompt has 70 tokens and the model 64 positions" in said


def test_a_text_that_fills_the_positions_says_so(loaded):
    asked = {"max_new_tokens": 200, "stop": []}
    filled = command.sample(loaded, ["ab"], **OPTIONS | asked | {"seed": 1})
    assert filled.tokens == 62
    line = "text ends at the model's 64 positions: 62 new tokens, of 200 asked for"
    assert filled.summary.splitlines()[1:] == [line]
    assert len(command.sample(loaded, ["ab"], **OPTIONS).summary.splitlines()) == 1
    stopped = command.sample(loaded, ["ab"], **OPTIONS | asked | {"stop": [filled.texts[0][0][20]]})
    assert len(stopped.summary.splitlines()) == 1


def test_a_model_that_writes_no_text_is_refused(monkeypatch, tmp_path):
    plain = own.plain(lambda key: {"t": jnp.eye(4)}, lambda p, tokens, key: p["t"][tokens])
    monkeypatch.setattr("wafer.commands.inputs.weights_folder", lambda path: tmp_path)
    monkeypatch.setattr("wafer.commands.inputs.stored_config", lambda *_: plain.config)
    with pytest.raises(ValueError, match=r"this model writes no text .*; expected a decoder"):
        command.open_model(tmp_path)


@pytest.mark.parametrize("stop", [(), (".", "never"), ("q", "zz")])
def test_pieces_that_are_shown_are_the_text(loaded, stop):
    pieces = []
    (whole,) = texts(loaded, ["ab"], stop=stop, emit=pieces.append)[0]
    assert "".join(pieces) == whole
    assert pieces[0] == "ab"
    assert len(pieces) > 2 or stop


def test_an_end_that_may_begin_a_stop_is_held_back():
    assert command._sure("some text\nUs", ["\nUser:"]) == "some text"
    assert command._sure("some text", ["\nUser:"]) == "some text"
    assert command._sure("caf\ufffd", []) == "caf"


def test_prompts_in_a_batch_are_prompts_alone(loaded):
    prompts = ["hello", "a", "what, now"]
    greedy = {"temperature": 0.0, "num_samples": 2}
    together = texts(loaded, prompts, **greedy)
    assert together == [texts(loaded, [prompt], **greedy)[0] for prompt in prompts]
    assert [[len(row)] for row in together] == [[2]] * 3


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--batch_size 0", "--batch_size: expected at least 1, got 0"),
        ("--stream --num_samples 2", "--stream writes one sample"),
        ("--draft nowhere", "give temperature 0"),
    ],
)
def test_flags_are_checked_before_the_model_is_read(flags, expected, cli):
    assert expected in cli(f"generate --checkpoint_path nowhere {flags}", 1)


@pytest.mark.slow
def test_a_draft_gives_the_same_text_and_says_how_good_it_was(loaded):
    greedy = {"temperature": 0.0}
    alone = command.sample(loaded, ["hello", "a"], **OPTIONS | greedy)
    drafted = command.sample(loaded._replace(draft=loaded), ["hello", "a"], **OPTIONS | greedy)
    assert drafted.texts == alone.texts
    assert drafted.tokens == alone.tokens
    assert "100% of the draft's guesses accepted" in drafted.summary


LAST = len(LETTERS)  # the id of "."
MARKS = TextMarks(LAST, (0,))


def with_rule(loaded, rule):
    """The same model; its tokenizer puts marks around texts: "<s> $A </s>"."""
    vocabulary = {"</s>": 0, "<s>": LAST}
    vocabulary |= {token: i for token, i in loaded.tokenizer.get_vocab().items() if 0 < i < LAST}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "a"))
    tokenizer.pre_tokenizer = loaded.tokenizer.pre_tokenizer
    tokenizer.decoder = loaded.tokenizer.decoder
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if rule:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=rule, special_tokens=[("<s>", LAST), ("</s>", 0)]
        )
    return loaded._replace(tokenizer=tokenizer, marks=MARKS)


@pytest.mark.parametrize(
    ("rule", "settings", "flag", "expected"),
    [
        (None, None, None, [1, 2]),
        (None, True, None, [LAST, 1, 2]),
        (None, None, True, [LAST, 1, 2]),
        (None, True, False, [1, 2]),
        ("<s> $A", None, None, [LAST, 1, 2]),
        ("<s> $A", True, None, [LAST, 1, 2]),  # once
        ("<s> $A", None, True, [LAST, 1, 2]),
        ("<s> $A", None, False, [1, 2]),
        ("<s> $A </s>", None, None, [LAST, 1, 2]),  # the text is to go on
        ("$A </s>", None, None, [1, 2]),
    ],
)
def test_prompts_begin_by_the_rule_of_the_tokenizer(loaded, rule, settings, flag, expected):
    tokenizer = with_rule(loaded, rule).tokenizer
    marks = MARKS._replace(adds_begin=settings)
    assert encode_prompts(tokenizer, ["ab"], marks, add_bos=flag) == [expected]


def test_a_mark_in_the_text_and_in_the_rule_is_one_mark(loaded):
    tokenizer = with_rule(loaded, "<s> $A").tokenizer
    assert encode_prompts(tokenizer, ["<s>ab"], MARKS) == [[LAST, 1, 2]]


def test_an_encoder_reads_the_end_that_its_tokenizer_adds(loaded):
    tokenizer = with_rule(loaded, "$A </s>").tokenizer
    assert encode_prompts(tokenizer, ["ab"], MARKS, whole=True) == [[1, 2, 0]]


def test_an_empty_prompt_is_the_mark_that_begins_or_ends_texts(loaded):
    tokenizer = with_rule(loaded, None).tokenizer
    assert encode_prompts(tokenizer, [""], MARKS) == [[LAST]]
    assert encode_prompts(tokenizer, [""], TextMarks(None, (0, 3))) == [[0]]
    with pytest.raises(DataError, match="'' has no tokens"):
        encode_prompts(tokenizer, [""], TextMarks(None, ()))
    with pytest.raises(DataError, match="add_bos: no token is known"):
        encode_prompts(tokenizer, ["a"], TextMarks(None, (0,)), add_bos=True)
    with pytest.raises(ValueError, match="prompt: expected text, got b'ab'"):
        encode_prompts(tokenizer, [b"ab"], MARKS)


@pytest.mark.slow
def test_generation_stops_at_any_of_the_ends(loaded):
    greedy = {"temperature": 0.0}
    (free,) = texts(loaded._replace(marks=TextMarks(None, ())), ["ab"], **greedy)[0]
    third = LETTERS.index(free[4]) + 1
    first = free.index(free[4], 2)
    for ends in ((LAST + 5, third), (third,)):
        marked = loaded._replace(marks=TextMarks(None, ends))
        assert texts(marked, ["ab"], **greedy) == [[free[:first]]]
        drafted = marked._replace(draft=marked)
        assert texts(drafted, ["ab"], **greedy) == [[free[:first]]]


def test_the_summary_says_how_prompts_begin_and_texts_end(loaded):
    said = command.sample(with_rule(loaded, "<s> $A"), ["ab"], **OPTIONS).summary
    assert said.endswith("prompts begin with '<s>', texts end at '</s>'")
    said = command.sample(loaded._replace(marks=TextMarks(None, ())), ["ab"], **OPTIONS).summary
    assert said.endswith("no token before prompts, texts end at no known token; give eos_token_id "
                         "in config.json")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("temperature", -1.0, "expected 0 or more, got -1.0"),
        ("temperature", -1e-4, "expected 0 or more, got -0.0001"),
        ("temperature", float("nan"), "expected 0 or more, got nan"),
        ("top_k", 0, "expected at least 1, got 0"),
        ("top_k", -3, "expected at least 1, got -3"),
        ("top_p", 0.0, "expected above 0 and at most 1, got 0.0"),
        ("min_p", -0.1, "expected from 0 to 1, got -0.1"),
        ("repetition_penalty", float("nan"), "expected above 0, got nan"),
        ("max_new_tokens", 0, "expected 1 to 2147483647, got 0"),
        ("num_samples", 0, "expected 1 to 2147483647, got 0"),
        ("seed", 2**63, "expected -9223372036854775808 to 9223372036854775807, got"),
    ],
)
def test_numbers_out_of_range_are_refused_before_the_model_is_read(name, value, expected, cli):
    with pytest.raises(ValueError, match=re.escape(f"{name}: {expected}")):
        wafer.generate("nowhere", "a", **{name: value})
    said = cli(f"generate --checkpoint_path nowhere --{name}={value}", 1)
    assert f"{name}: {expected}" in said


@pytest.mark.parametrize(
    ("option", "prompts", "stop"), [("prompt", ["a", "b\udcff"], []), ("stop", ["a"], ["\udcff"])]
)
def test_text_that_is_not_utf_8_is_named(loaded, option, prompts, stop):
    """A shell's byte ff arrives as a lone surrogate; the tokenizer ends in an error of its own."""
    with pytest.raises(ValueError, match=rf"{option}: .*udcff' is not UTF-8; expected text in"):
        texts(loaded, prompts, stop=stop)


def test_a_typed_prompt_that_is_not_utf_8_is_named(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n\xff\n"), encoding="utf-8"))
    with pytest.raises(ValueError, match="prompt: not UTF-8"):
        [*command._asked()]
