"""Texts that transformers makes from the same folder; files that follow weights to another one."""

import json
import shutil

import jax
import pytest
from helpers.paths import GOLDEN
from tokenizers import Tokenizer, models as kinds, pre_tokenizers, processors

import wafer
from wafer import models
from wafer.models.checkpoint.writer import write_params
from wafer.models.convert.tokenizer import IDS, TextMarks, read_marks
from wafer.models.counts import abstract_params
from wafer.models.paths import named_leaves
from wafer.models.registry import settings_of

PROMPT = "t5 t17 t80 t33 t9"
# transformers 5.24: greedy, 10 tokens, tokenizer(PROMPT) with and without a post-processor.
TEXTS = {
    ("llama2_gqa", True): "t42 t42 t42 t42 t80 t22 t80 t58 t80 t80",
    ("llama2_gqa", False): "t72 t25 t39 t42 t80 t22 t87 t84 t66 t89",
    ("gpt3_untied_gelu_invlayer", True): "t30 t30 t30 t30 t30 t34 t30 t30 t30 t30",
    ("gpt3_untied_gelu_invlayer", False): "t30 t30 t30 t30 t30 t30 t34 t30 t30 t30",
}


def _tokenizer(*, bos):
    """Words t0 ... t96; saved with truncation and padding, which are not for prompts."""
    words = {1: "<s>", 2: "</s>"}
    vocabulary = {words.get(i, f"t{i}"): i for i in range(97)}
    tokenizer = Tokenizer(kinds.WordLevel(vocabulary, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos:
        marks = [("<s>", 1)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=marks
        )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=20, pad_id=7, pad_token="t7")
    return tokenizer


@pytest.mark.parametrize(
    ("name", "bos"),
    [pytest.param(*case, marks=[] if case[1] else pytest.mark.slow) for case in TEXTS],
)
def test_a_folder_gives_the_text_that_transformers_gives(tmp_path, name, bos):
    folder = shutil.copytree(GOLDEN / "hf" / name, tmp_path / name)
    _tokenizer(bos=bos).save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config | ids))
    (text,) = wafer.generate(folder, PROMPT, max_new_tokens=10, temperature=0)
    assert text.split() == [*PROMPT.split(), *TEXTS[name, bos].split()]


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of ours inside a folder with a tokenizer and ids of special tokens."""
    sizes = {"vocab_size": 97, "hidden_size": 8, "num_heads": 2, "num_hidden_layers": 1}
    model = models.build({"name": "gpt2", **sizes, "max_position_embeddings": 8})
    params = dict(named_leaves(model.init(jax.random.key(0))))
    names = [name for name, _ in named_leaves(abstract_params(model))]
    run = tmp_path / "run"
    write_params(run / "checkpoints" / "3", settings_of(model.config), names, params.items())
    _tokenizer(bos=False).save(str(run / "tokenizer.json"))
    (run / IDS).write_text(json.dumps({"bos_token_id": 1, "eos_token_id": [2, 5]}))
    return run / "checkpoints" / "3"


def test_special_ids_and_tokenizer_follow_the_weights_out_of_their_folder(checkpoint, tmp_path):
    marks = TextMarks(1, (2, 5))
    assert read_marks(checkpoint) == marks
    wafer.finalize(checkpoint, tmp_path / "elsewhere" / "dense")
    assert read_marks(tmp_path / "elsewhere" / "dense") == marks
    wafer.prune(tmp_path / "pruned", 0.5, method="magnitude", checkpoint=checkpoint)
    assert read_marks(tmp_path / "pruned") == marks
    for folder in ("elsewhere/dense", "pruned"):
        assert (tmp_path / folder / "tokenizer.json").is_file()
        (text,) = wafer.generate(tmp_path / folder, "t5", max_new_tokens=2, temperature=0)
        assert text.startswith("t5")
