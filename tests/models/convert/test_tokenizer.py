"""The tokenizer that goes along with weights, and its ids in config.json."""

import json

import jax
import tokenizers
from tokenizers import models as kinds, trainers

import models
from models.convert.tokenizer import carry_tokenizer, special_ids

SETTINGS = {
    "name": "gpt2",
    "vocab_size": 300,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_heads": 2,
    "filter_size": 16,
    "max_position_embeddings": 8,
}


def written(folder, special):
    tokenizer = tokenizers.Tokenizer(kinds.BPE())
    tokenizer.train_from_iterator(["abab"], trainers.BpeTrainer(special_tokens=special))
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_ids_are_the_tokenizers_own(tmp_path):
    gpt = written(tmp_path / "gpt", ["<pad>", "<|endoftext|>"])
    assert special_ids(gpt / "tokenizer.json") == {"bos_token_id": 1, "eos_token_id": 1}
    llama = written(tmp_path / "llama", ["<s>", "</s>", "<|endoftext|>"])
    assert special_ids(llama / "tokenizer.json") == {"bos_token_id": 0, "eos_token_id": 1}
    assert special_ids(written(tmp_path / "none", []) / "tokenizer.json") == {}


def test_a_folder_for_hugging_face_has_them(tmp_path):
    source = written(tmp_path / "run", ["<pad>", "<|endoftext|>"])
    model = models.build(SETTINGS)
    models.to_hf(model, model.init(jax.random.key(0)), tmp_path / "hf")
    before = json.loads((tmp_path / "hf" / "config.json").read_text())
    carry_tokenizer(source, tmp_path / "hf")
    after = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert after == before | {"bos_token_id": 1, "eos_token_id": 1}
    assert (tmp_path / "hf" / "tokenizer.json").is_file()
