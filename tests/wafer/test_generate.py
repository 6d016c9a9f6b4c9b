"""``wafer generate``: stops, streaming and prompts in batches, with a model of random weights."""

import jax
import pytest
import tokenizers

import models
from wafer.cli import main
from wafer.commands import generate as command
from wafer.data.text.tokenizer import END_OF_TEXT
from wafer.errors import DataError

LETTERS = "abcdefghijklmnopqrstuvwxyz .,"
MODEL = {
    "name": "gpt2",
    "vocab_size": len(LETTERS) + 1,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_heads": 2,
    "filter_size": 32,
    "max_position_embeddings": 64,
    "initializer_range": 1.0,
}
OPTIONS = {"max_new_tokens": 30, "seed": 5, "num_samples": 1, "temperature": 1.0}


@pytest.fixture(scope="module")
def loaded():
    vocabulary = {END_OF_TEXT: 0} | {letter: i + 1 for i, letter in enumerate(LETTERS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, END_OF_TEXT))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = tokenizers.decoders.Fuse()
    model = models.build(MODEL)
    return command.Loaded(model, model.init(jax.random.key(0)), tokenizer)


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
        (["--batch_size", "0"], "--batch_size: expected at least 1, got 0"),
        (["--stream", "--num_samples", "2"], "--stream writes one sample"),
        (["--draft", "nowhere"], "give temperature 0"),
    ],
)
def test_flags_are_checked_before_the_model_is_read(flags, expected, capsys):
    assert main(["generate", "--checkpoint_path", "nowhere", *flags]) == 1
    assert expected in capsys.readouterr().err


def test_a_draft_gives_the_same_text_and_says_how_good_it_was(loaded):
    greedy = {"temperature": 0.0}
    alone = command.sample(loaded, ["hello", "a"], **OPTIONS | greedy)
    drafted = command.sample(loaded._replace(draft=loaded), ["hello", "a"], **OPTIONS | greedy)
    assert drafted.texts == alone.texts
    assert drafted.tokens == alone.tokens
    assert "100% of the draft's guesses accepted" in drafted.summary


def renamed(loaded, *, own_mark=False, **names):
    """The same model with a tokenizer that calls some of its tokens otherwise."""
    vocabulary = loaded.tokenizer.get_vocab()
    vocabulary = {names.get(f"t{i}", token): i for token, i in vocabulary.items()}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "a"))
    tokenizer.pre_tokenizer = loaded.tokenizer.pre_tokenizer
    tokenizer.decoder = loaded.tokenizer.decoder
    if own_mark:
        begin, end = ("<s>", len(LETTERS)), ("</s>", 0)
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[begin, end]
        )
    return loaded._replace(tokenizer=tokenizer)


def test_a_tokenizer_of_others_says_how_texts_begin_and_end(loaded):
    """Hugging Face's often have no <|endoftext|>; some set their marks themselves."""
    both = {"t0": "</s>", f"t{len(LETTERS)}": "<s>"}
    once, twice = (
        texts(renamed(loaded, own_mark=own, **both), ["ab"], top_k=1) for own in (False, True)
    )
    assert once == twice
    assert once[0][0].startswith("ab")
    assert "</s>" not in once[0][0]
    one = {"t0": "<|endoftext|>"}
    assert texts(renamed(loaded, **one), ["ab"], top_k=1) == texts(loaded, ["ab"], top_k=1)
    with pytest.raises(DataError, match="no token that ends texts"):
        texts(renamed(loaded, t0="?"), ["ab"])
    with pytest.raises(ValueError, match="prompt: expected text, got b'ab'"):
        texts(loaded, [b"ab"])
