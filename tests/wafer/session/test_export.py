"""``--export hf``: the folder of every family, its values and files, and transformers reads it."""

import argparse
import json

import h5py
import jax
import numpy as np
import pytest
import tokenizers
from helpers import hf_parity, remote_models
from helpers.hf_sections import REMOTE, SECTIONS, section

import wafer
from wafer import models
from wafer.commands.checkpoints.convert import add_arguments
from wafer.data.text.tokenizer import END_OF_TEXT, train_bpe
from wafer.models.convert.api import configs_to_hf
from wafer.models.convert.files import open_tensors, read_config
from wafer.models.families.decoder_config import DecoderConfig
from wafer.models.families.llava import LlavaConfig
from wafer.models.families.seq2seq_config import Seq2SeqConfig
from wafer.models.families.vision import VisionConfig
from wafer.models.names import MODELS

# Keys of config.json that mean something where they are null.
NULLS = {"rope_scaling", "alibi_scaling", "num_ln_in_parallel_attn", "sliding_window", "clip_qkv"}
NULLS |= {"softmax_scale", "bos_token_id", "eos_token_id", "pad_token_id"}
NULLS |= {"esmfold_config", "vocab_list", "use_bidirectional_attention"}
NULLS |= {"attn_logit_softcapping", "final_logit_softcapping"}
# Keys that transformers draws or computes: ESM's contacts are no part of the language model.
DRAWN = ("contact_head.regression", "rotary_embeddings.inv_freq")


def nulls(config):
    """Keys with null, also of sections."""
    inner = [nulls(value) for value in config.values() if isinstance(value, dict)]
    return {key for key, value in config.items() if value is None}.union(*inner)


def test_every_form_is_here():
    assert {MODELS[name].hf for name in SECTIONS} == {e.hf for e in MODELS.values() if e.hf}


@pytest.mark.parametrize("name", SECTIONS)
def test_no_number_of_a_config_is_null(name):
    for config in configs_to_hf(models.build(section(name)).config).values():
        assert nulls(config) <= NULLS
        rates = {key: rate for key, rate in config.items() if "pdrop" in key or "dropout" in key}
        rates.pop("token_dropout", None)  # ESM's, whether masked tokens are scaled for
        assert all(type(rate) in {int, float} for rate in rates.values())


def test_rates_are_those_that_the_run_trains_with():
    rates = {"dropout_rate": 0.2, "attention_dropout_rate": 0.3}
    expected = {
        "gpt2": {"embd_pdrop": 0.2, "resid_pdrop": 0.2, "attn_pdrop": 0.3},
        "gpt-neox": {"hidden_dropout": 0.2, "attention_dropout": 0.3},
        "bert": {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3},
        "llama": {"attention_dropout": 0.3},
    }
    for name, values in expected.items():
        config = configs_to_hf(models.build(section(name) | rates).config)[""]
        assert {key: config[key] for key in values} == values
    general = models.build(section("bert") | {"dropout_rate": 0.2}).config
    assert configs_to_hf(general)[""]["attention_probs_dropout_prob"] == 0.2


def tokenizer_in(folder):
    """A tokenizer whose mark of ends is not called as ours is."""
    tokenizer = train_bpe(["def f(x): return x"], 300)
    text = tokenizer.to_str().replace(END_OF_TEXT, "<done>")
    (folder / "tokenizer.json").write_text(text)


def rows(folder, marks):
    """Rows of preprocessing: an HDF5 folder with its tokenizer and description."""
    folder.mkdir()
    tokenizer_in(folder)
    data = np.random.default_rng(0).integers(0, 300, (4, 3, 16)).astype(np.int32)
    data[:, 1] = 1
    with h5py.File(folder / "rows.h5", "w") as file:
        file["data"] = data
        file.attrs["n_examples"] = 4
    described = {"n_examples": 4, "features": ["input_ids", "attention_mask", "labels"]}
    (folder / "data_params.json").write_text(json.dumps(described | {"post-process": marks}))
    return {"data_processor": "GptHDF5DataProcessor", "data_dir": str(folder), "batch_size": 2}


def exported(tmp_path, name, data=None, *, sparse=False):
    """Train for two steps and export; the folder. A part of other models is as it was drawn."""
    model = models.build(section(name))
    if not model.config.tasks:
        models.to_hf(model, model.init(jax.random.key(0)), tmp_path / "hf")
        return tmp_path / "hf"
    drawn = {"data_processor": "RandomDataProcessor", "num_examples": 4, "batch_size": 2}
    drawn |= {"task": model.config.tasks[0], "max_sequence_length": 16}
    run = {"max_steps": 2, "checkpoint_steps": 2, "export": "hf", "seed": 1, "log_steps": 1}
    wafer.train(
        {
            "train_input": data or drawn,
            "model": section(name),
            "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.01},
            **({"sparsity": {"algorithm": "static", "sparsity": 0.5}} if sparse else {}),
            "runconfig": run | {"model_dir": str(tmp_path / "run")},
        }
    )
    return tmp_path / "run" / "hf" / "2"


def convert(*args):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parsed = parser.parse_args(["convert", *map(str, args)])
    return parsed.run(parsed)


def test_a_run_and_convert_write_the_same_folder(tmp_path):
    folder = exported(tmp_path, "gpt2", rows(tmp_path / "rows", {"eos_id": 0}))
    step = tmp_path / "run" / "checkpoints" / "2"
    fmt = ("--model", "gpt2", "--src-fmt", "wafer", "--tgt-fmt", "hf", "--output-dir")
    convert(*fmt, tmp_path / "converted", step)
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    names.add("manifest.json")
    for path in (folder, tmp_path / "converted"):
        assert {file.name for file in path.iterdir()} == names
        for name in names:
            assert (path / name).read_bytes() == (folder / name).read_bytes(), name
    config = json.loads((folder / "config.json").read_text())
    marks = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
    assert {key: config[key] for key in marks} == marks
    rates = {"embd_pdrop": 0.1, "resid_pdrop": 0.1, "attn_pdrop": 0.1}
    assert {key: config[key] for key in rates} == rates
    text = json.loads((folder / "tokenizer_config.json").read_text())
    assert text["eos_token"] == "<done>"
    assert text["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert text["model_max_length"] == 16
    inside = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert inside.token_to_id("<done>") == 0


@pytest.mark.slow  # two steps each
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("name", sorted(SECTIONS.keys() - REMOTE))
def test_transformers_loads_a_run_of_every_family(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    sparse = MODELS[name].family == "decoder"
    folder = exported(tmp_path, name, sparse=sparse)
    for path in {file.parent for file in folder.rglob("config.json")}:
        config = json.loads((path / "config.json").read_text())
        cls = getattr(transformers, config["architectures"][0])
        theirs, loading = cls.from_pretrained(path, output_loading_info=True, dtype=torch.float32)
        assert all(any(part in key for part in DRAWN) for key in loading["missing_keys"]), loading
        assert not loading["mismatched_keys"], loading
        assert not loading["unexpected_keys"], loading
        ours = models.from_hf(path)
        compare(ours, theirs.eval(), config["model_type"])
        if sparse:  # pruned weights are 0 in both
            kernel = ours[1]["layers_0"]["attn"]["out"]["kernel"]
            assert np.count_nonzero(kernel) == kernel.size // 2


def compare(ours, theirs, kind):
    """Outputs of both, and of decoders greedy tokens, too."""
    import torch

    model, params = ours
    inputs = inputs_of(model.config)
    with torch.no_grad():
        outputs = theirs(**{name: torch.as_tensor(value) for name, value in inputs.items()})
    expected = {name: outputs[name].numpy() for name in hf_parity.OUTPUTS if name in outputs}
    batch = hf_parity.to_batch(model.config, inputs)
    errors = hf_parity.compare_outputs(hf_parity.our_outputs(model, params, batch), expected, None)
    assert errors, kind
    assert max(errors.values()) < 5e-6, errors
    if isinstance(model.config, DecoderConfig):
        ids = inputs["input_ids"]
        longer = theirs.generate(torch.as_tensor(ids), max_new_tokens=4, do_sample=False)
        assert models.generate(model, params, ids, 4).tolist() == longer[:, 12:].tolist()


def inputs_of(cfg):
    """One row of every input that a model reads."""
    # 0 and RoBERTa's 1 are padding: DPR hides it, RoBERTa counts no position for it.
    ids = 2 + np.arange(12)[None] * 7 % 290
    pixels = np.linspace(-1, 1, 3 * 8 * 8, dtype=np.float32).reshape(1, 3, 8, 8)
    if isinstance(cfg, VisionConfig):
        return {"pixel_values": pixels}
    if isinstance(cfg, LlavaConfig):
        ids[:, 3:7] = cfg.image_token_index  # four patches
        return {"input_ids": ids, "pixel_values": pixels}
    if isinstance(cfg, Seq2SeqConfig):
        return {"input_ids": ids, "decoder_input_ids": ids[:, ::-1].copy()}
    return {"input_ids": ids}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in sorted(REMOTE)])
def test_families_with_code_of_their_own_compute_what_it_computes(tmp_path, name):
    folder = exported(tmp_path, name)
    config, tensors = read_config(folder), open_tensors(folder)
    ids = inputs_of(None)["input_ids"]
    model, params = models.from_hf(folder)
    ours = model.apply(params, hf_parity.to_batch(model.config, {"input_ids": ids}))
    theirs = remote_models.logits(config, {name: tensors[name] for name in tensors}, ids[0])
    assert hf_parity.relative(ours, theirs) < 5e-6
