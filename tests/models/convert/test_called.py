"""Exported folders, called as users call them: ``model(**tokenizer(text))``, ``generate``."""

import json

import numpy as np
import pytest
from helpers import hf_calls, hf_parity
from helpers.hf_sections import REMOTE, SECTIONS, section

from wafer import models
from wafer.data.text.tokenizer import train_bpe
from wafer.models.families.seq2seq_config import Seq2SeqConfig

NAMES = [name for name in SECTIONS if name != "clip-vit"]  # which reads no text
NO_CAPS = {"final_logit_softcapping": None, "attention_logit_softcapping": None}
MORE = {"gemma2": NO_CAPS, "mistral": {"attention_sliding_window_length": None}}
SEGMENTS = {"bert", "bert-sequence-classifier", "bert-token-classifier", "bert-q&a", "dpr"}


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory):
    """A tokenizer with its end mark, which pads, too."""
    folder = tmp_path_factory.mktemp("text")
    train_bpe(["def f(x): return x"], 300).save(str(folder / "tokenizer.json"))
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    (folder / "special_ids.json").write_text(json.dumps(ids))
    return folder


def export(name, target, text_folder, **keys):
    """Write a model whose every parameter shows; the folders that hold a config.json."""
    model = models.build(section(name) | keys)
    models.to_hf(model, hf_parity.shaken(model), target, text_from=text_folder)
    return sorted(path.parent for path in target.rglob("config.json"))


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "dpr", "dpr-reader", "t5"])
def test_a_tokenizer_names_the_inputs_that_the_model_takes(name, tmp_path, text_folder):
    folders = export(name, tmp_path / "hf", text_folder)
    names = ["input_ids", "token_type_ids", "attention_mask"]
    for folder in folders:
        content = json.loads((folder / "tokenizer_config.json").read_text())
        taken = names if name in SEGMENTS else ["input_ids", "attention_mask"]
        assert content["model_input_names"] == taken


def test_a_tokenizers_own_settings_stay_beside_the_inputs(tmp_path, text_folder):
    """Of a BERT's tokenizer, which GPT-2 is trained with."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "tokenizer.json").write_bytes((text_folder / "tokenizer.json").read_bytes())
    given = {"tokenizer_class": "BertTokenizer", "pad_token": "<|endoftext|>", "padding_side": "l"}
    for names in ({}, {"model_input_names": ["token_type_ids", "attention_mask", "input_ids"]}):
        (source / "tokenizer_config.json").write_text(json.dumps(given | names))
        target = tmp_path / f"hf{len(names)}"
        export("gpt2", target, source)
        content = json.loads((target / "tokenizer_config.json").read_text())
        taken = content.pop("model_input_names")
        assert content == given
        assert sorted(taken) == ["attention_mask", "input_ids"]


@pytest.mark.slow  # every family, in each transformers
@pytest.mark.parametrize("python", hf_calls.pythons() or [None])
def test_a_call_as_users_call_it_gives_our_outputs(python, tmp_path, text_folder):
    if python is None:
        pytest.skip("no Python with transformers")
    folders = {}
    for name in NAMES:
        if name not in REMOTE:
            folders |= dict.fromkeys(map(str, export(name, tmp_path / name, text_folder)), name)
    for name, keys in MORE.items():  # null in config.json
        more = export(name, tmp_path / f"{name}-null", text_folder, **keys)
        folders |= dict.fromkeys(map(str, more), name)
    rows = hf_calls.called(python, folders)
    worst = {}
    for folder, calls in rows.items():
        model, params = models.from_hf(folder)
        inputs = {key[3:]: value for key, value in calls.items() if key.startswith("in_")}
        assert ("token_type_ids" in inputs) == (folders[folder] in SEGMENTS), folder
        batch = hf_parity.to_batch(model.config, inputs)
        ours = hf_parity.our_outputs(model, params, batch)
        seq2seq = isinstance(model.config, Seq2SeqConfig)  # whose outputs have no padding
        mask = np.ones_like(inputs["input_ids"]) if seq2seq else inputs["attention_mask"]
        theirs = {name: zeroed(calls[name], mask) for name in hf_parity.OUTPUTS if name in calls}
        errors = hf_parity.compare_outputs(ours, theirs, mask)
        assert errors, folder
        worst |= {f"{folders[folder]}: {name}": error for name, error in errors.items()}
        if "generated" in calls:
            ids = inputs["input_ids"][:1]
            tokens = models.generate(model, params, ids, hf_calls.NEW, end_id=0)[0].tolist()
            assert tokens[: len(calls["generated"])] == calls["generated"].tolist(), folder
    assert {name: error for name, error in worst.items() if error > 5e-6} == {}


def zeroed(output, mask):
    """An output of each token with zeros at padding; others as they are."""
    per_token = output.shape[:2] == mask.shape
    return output * mask.reshape(mask.shape + (1,) * (output.ndim - 2)) if per_token else output
