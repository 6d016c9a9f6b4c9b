"""The tokenizer that goes along with weights, and its ids in config.json."""

import json

import jax
import pytest
import tokenizers
from tokenizers import models as kinds, trainers

from wafer import models
from wafer.models.convert.tokenizer import (
    TextMarks,
    carry_tokenizer,
    read_marks,
    special_ids,
    text_folder,
    with_ids,
)
from wafer.models.errors import CheckpointError

SETTINGS = {"name": "gpt2", "vocab_size": 300, "hidden_size": 8, "num_hidden_layers": 1}
SETTINGS |= {"num_heads": 2, "filter_size": 16, "max_position_embeddings": 8}


def written(folder, special):
    tokenizer = tokenizers.Tokenizer(kinds.BPE())
    tokenizer.train_from_iterator(["abab"], trainers.BpeTrainer(special_tokens=special))
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_ids_are_those_that_the_files_state(tmp_path):
    ours = written(tmp_path / "ours", ["<pad>", "<|endoftext|>"])
    assert special_ids(ours) == {"bos_token_id": 1, "eos_token_id": 1}
    llama = written(tmp_path / "llama", ["<s>", "</s>", "<|eot|>"])
    assert special_ids(llama) == {}  # a name alone says nothing
    assert read_marks(llama) == TextMarks(None, ())
    named = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True}
    (llama / "tokenizer_config.json").write_text(json.dumps(named))
    assert special_ids(llama) == {"bos_token_id": 0, "eos_token_id": 1}
    (llama / "config.json").write_text(json.dumps({"eos_token_id": [1, 2], "model_type": "mpt"}))
    assert special_ids(llama) == {"eos_token_id": [1, 2]}
    assert read_marks(llama / "model.safetensors") == TextMarks(None, (1, 2), True, 0)
    (llama / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    assert read_marks(llama) == TextMarks(None, (2,), True, 0)  # as in transformers


def test_the_ids_of_llavas_text_model_stay_in_its_text_config(tmp_path):
    for name, ids in (("a", {}), ("b", {"eos_token_id": [2, 5], "pad_token_id": 9})):
        text = {"model_type": "llama", "vocab_size": 97, **ids}
        (tmp_path / name).mkdir()
        config = {"model_type": "llava", "pad_token_id": 3, "text_config": text}
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        expected = {"bos_token_id": 1, "eos_token_id": 2} | ids
        assert special_ids(tmp_path / name) == {"pad_token_id": 3, "text_config": expected}
    assert read_marks(tmp_path / "b") == TextMarks(1, (2, 5))
    plain = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 97}}
    written = with_ids(plain, special_ids(tmp_path / "b"))
    assert written["text_config"]["eos_token_id"] == [2, 5]
    assert (written["pad_token_id"], written["text_config"]["vocab_size"]) == (3, 97)


def test_a_config_without_ids_has_those_of_its_class(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 97}))
    assert special_ids(tmp_path) == {"bos_token_id": 1, "eos_token_id": 2}
    config.write_text(json.dumps({"model_type": "gpt2", "vocab_size": 97}))
    assert special_ids(tmp_path) == {}  # 50256 is no token of 97
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 97, "eos_token_id": None}))
    assert special_ids(tmp_path) == {"bos_token_id": 1}


MARKS = {"bos_token_id": 2, "eos_token_id": [0, 1], "pad_token_id": 3}


@pytest.mark.parametrize("in_generation", [{"eos_token_id": [1, 5], "max_length": 7}, None])
def test_marks_of_both_files_come_back(tmp_path, in_generation, command):
    model = models.build(SETTINGS)
    models.to_hf(model, model.init(jax.random.key(0)), tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text()) | MARKS
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    if in_generation:
        (tmp_path / "hf" / "generation_config.json").write_text(json.dumps(in_generation))
    hf, ours, again = (tmp_path / name for name in ("hf", "ours", "again"))
    fmt = ("convert", "--model", "gpt2", "--src-fmt")
    command(*fmt, "hf", "--tgt-fmt", "wafer", "--output-dir", ours, hf)
    ends = (1, 5) if in_generation else (0, 1)
    assert read_marks(tmp_path / "ours") == TextMarks(2, ends)
    command(*fmt, "wafer", "--tgt-fmt", "hf", "--output-dir", again, ours)
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == config
    path = tmp_path / "again" / "generation_config.json"
    assert (json.loads(path.read_text()) if path.exists() else None) == in_generation


def test_a_folder_for_hugging_face_has_them(tmp_path):
    source = written(tmp_path / "run", ["<pad>", "<|endoftext|>"])
    model = models.build(SETTINGS)
    models.to_hf(model, model.init(jax.random.key(0)), tmp_path / "hf")
    before = json.loads((tmp_path / "hf" / "config.json").read_text())
    models.to_hf(model, model.init(jax.random.key(0)), tmp_path / "text", text_from=source)
    after = json.loads((tmp_path / "text" / "config.json").read_text())
    assert after == before | {"bos_token_id": 1, "eos_token_id": 1}
    assert before["eos_token_id"] is None  # not the 50256 of the published model
    assert (tmp_path / "text" / "tokenizer.json").is_file()
    assert not (tmp_path / "text" / "special_ids.json").exists()


def test_files_that_a_folder_has_are_never_changed(tmp_path):
    source = written(tmp_path / "run", ["<pad>", "<|endoftext|>"])
    target = tmp_path / "there"
    target.mkdir()
    before = {"config.json": '{"eos_token_id": 7}', "tokenizer_config.json": "{}"}
    for name, text in before.items():
        (target / name).write_text(text)
    carry_tokenizer(source, target)
    assert {name: (target / name).read_text() for name in before} == before
    assert read_marks(target) == TextMarks(1, (1,))
    model = models.build(SETTINGS)
    with pytest.raises(FileExistsError, match=r"there: holds config\.json already"):
        models.to_hf(model, model.init(jax.random.key(0)), target)
    assert (target / "config.json").read_text() == before["config.json"]


WRONG_IDS = ["12", [3.9], [3, "4"], True, [True], 97, 9999999, 1.7, 1.0, [[1]], -1, [-1], {"a": 1}]


@pytest.mark.parametrize("value", WRONG_IDS, ids=repr)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "special_ids.json"])
def test_a_special_id_that_is_none_is_refused_by_file_and_key(tmp_path, name, value):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": 97}')
    for key in ("eos_token_id", "bos_token_id"):
        content = {"model_type": "llama", "vocab_size": 97, key: value}
        (tmp_path / name).write_text(json.dumps(content))
        for read in (read_marks, text_folder, lambda path: carry_tokenizer(path, path / "out")):
            with pytest.raises(CheckpointError) as error:
                read(tmp_path)
            said = str(error.value)
            assert said.startswith(f"{tmp_path / name}: {key}: {value!r}; expected the id of a")
            assert said.endswith("whole numbers from 0 to 96")
        assert not (tmp_path / "out").exists()


def test_special_ids_at_the_edges(tmp_path):
    """-1 pads nothing; ids of transformers' classes are none of a small vocabulary."""
    content = {"model_type": "gpt2", "vocab_size": 97, "eos_token_id": [0, 96], "pad_token_id": -1}
    (tmp_path / "config.json").write_text(json.dumps(content | {"bos_token_id": 50256}))
    assert special_ids(tmp_path) == {"eos_token_id": [0, 96], "pad_token_id": -1}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 50256}')
    assert read_marks(tmp_path) == TextMarks(None, (0, 96))
    assert read_marks(tmp_path, 50257) == TextMarks(50256, (50256,))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 96}')
    with pytest.raises(CheckpointError, match=r"eos_token_id: .*whole numbers from 0 to 49$"):
        read_marks(tmp_path, 50)  # the model's


@pytest.mark.parametrize("value", [["a"], {"content": ["b"]}, {}, 3, True], ids=repr)
def test_a_token_of_another_type_is_refused_by_file_and_key(tmp_path, value):
    source = written(tmp_path / "run", ["<pad>", "<|endoftext|>"])
    path = next(source.parent.rglob("tokenizer.json")).with_name("tokenizer_config.json")
    path.write_text(json.dumps({"bos_token": value}))
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: bos_token: .*; expected"):
        read_marks(path.parent)
    path.write_text('{"add_bos_token": "no"}')
    with pytest.raises(CheckpointError, match=r"add_bos_token: 'no'; expected true, false or"):
        read_marks(path.parent)


def test_added_tokens_have_the_ids_that_their_texts_get(tmp_path):
    """A token of the vocabulary keeps its id there; the library reads over that of the file."""
    built = tokenizers.Tokenizer(kinds.WordLevel({"a": 0, "b": 1, "c": 5}, "a"))
    built.add_special_tokens(["<s>", "b"])
    path = tmp_path / "tokenizer.json"
    built.save(str(path))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "b"}')
    assert special_ids(tmp_path) == {"bos_token_id": 3, "eos_token_id": 1}
    content = json.loads(path.read_text())
    for text, wrong in (("b", {"id": 2}), ("b", {"id": "1"}), ("b", {"content": 1})):
        tokens = [t | wrong if t["content"] == text else t for t in content["added_tokens"]]
        path.write_text(json.dumps(content | {"added_tokens": tokens}))
        for read in (special_ids, read_marks):
            with pytest.raises(CheckpointError, match=r"tokenizer\.json: added_tokens: .*expected"):
                read(tmp_path)
    path.write_text(json.dumps(content | {"added_tokens": 3}))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: added_tokens: 3; expected"):
        special_ids(tmp_path)
