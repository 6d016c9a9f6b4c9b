"""A data set for every processor, four by ``wafer data make``: validation, lengths, training."""

import numpy as np
import pytest
import yaml
from helpers.data_sets.files import write_files
from helpers.data_sets.sets import DATA_SETS, make_data, run_file
from helpers.data_sets.text import VOCAB, masked_lm
from helpers.paths import ROOT
from helpers.runs import metrics

from wafer.cli import main
from wafer.commands.run import run
from wafer.config import parse_config
from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.batching.lengths import sequence_lengths
from wafer.data.make import DATA_SETS as MADE
from wafer.data.registry import DATA_PROCESSORS
from wafer.experiment import Experiment

IMAGES = {"MNISTDataProcessor", "DigitsDataProcessor"}
SEQUENCES = [name for name in DATA_SETS if name not in IMAGES]
MIXED = [name for name, cls in DATA_PROCESSORS.items() if "mixture" in cls.model_fields]
HEAVY = {"PyStdlibDataProcessor", "DigitsDataProcessor"}  # tokenizer; scikit-learn
SLOW = lambda name: [pytest.mark.slow] if name in HEAVY else []


def combinations(names):
    """Processors without a mixture, and with one where they take it."""
    both = [(name, mixture) for mixture in (False, True) for name in names]
    return [pytest.param(n, m, marks=SLOW(n)) for n, m in both if not m or n in MIXED]


def test_every_processor_has_a_set_and_a_line_on_the_page():
    assert DATA_SETS.keys() == DATA_PROCESSORS.keys()
    page = (ROOT / "docs" / "guides" / "vendor-data.md").read_text()
    missing = [name for name in DATA_SETS if f"`{name}`" not in page]
    assert not missing


@pytest.mark.parametrize("name", [pytest.param(n, marks=SLOW(n)) for n in DATA_SETS])
def test_what_is_made_is_opened_by_validation(name, tmp_path, capsys):
    folder = tmp_path / "made"
    if name in MADE:
        assert main(["data", "make", name, str(folder)]) == 0
        assert str(folder / "params.yaml") in capsys.readouterr().out
    else:
        make_data(name, folder)
    words = ["run", "CPU", "--params", str(folder / "params.yaml"), "--mode", "train"]
    assert main([*words, "--validate_only"]) == 0
    said = capsys.readouterr().out
    assert "The configuration is valid" in said
    named = {"data_dir", "src_data_dir"} & run_file(name, folder)["train_input"].keys()
    assert ("of them are sound" in said) == bool(named)


def test_an_unknown_processor_and_another_seed(tmp_path, capsys):
    assert main(["data", "make", "GptHDF5DataProcesor", str(tmp_path)]) == 1
    assert "did you mean 'GptHDF5DataProcessor'" in capsys.readouterr().err
    assert main(["data", "make", "DPRJsonDataProcessor", str(tmp_path)]) == 1
    assert f"made: {', '.join(MADE)}" in capsys.readouterr().err
    made = lambda i, seed: make_data("SST2DataProcessor", tmp_path / str(i), seed)
    one, two, three = (made(i, s).with_name("train.tsv") for i, s in enumerate((0, 0, 1)))
    assert one.read_text() == two.read_text() != three.read_text()


def edited(path, **changes):
    cfg = yaml.safe_load(path.read_text())
    for section, keys in changes.items():
        for part in ("train_input", "eval_input") if section == "data" else (section,):
            cfg[part] = cfg[part] | keys
    path.write_text(yaml.safe_dump(cfg))
    return ["run", "CPU", "--params", str(path), "--mode", "train", "--validate_only"]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("T5DynamicDataProcessor", {"data": {"extra_ids": 200}}, "200 sentinels, but the model's"),
        ("BertCSVDataProcessor", {"model": {"vocab_size": 10}}, "below the vocabulary of 10"),
        ("GptHDF5DataProcessor", {"model": {"vocab_size": 10}}, "rows.h5"),
        ("SST2DataProcessor", {"model": {"vocab_size": 10}}, "vocab"),
    ],
)
def test_validation_compares_vocabularies(name, changes, message, tmp_path, capsys):
    assert main(edited(make_data(name, tmp_path), **changes)) == 1
    assert message in capsys.readouterr().err


def test_a_roberta_csv_of_tokens_alone(tmp_path, capsys):
    """The vendor's mlm_only files: one column, no pairs."""
    path = make_data("BertCSVDynamicMaskDataProcessor", tmp_path)
    write_files(tmp_path, masked_lm(np.random.default_rng(0), 12, nsp=False))
    assert (tmp_path / "part-1.csv").read_text().splitlines()[0] == "tokens"
    words = edited(path, data={"disable_nsp": True}, model={"name": "roberta"})
    assert main(words) == 0
    assert "12 examples; 12 of them are sound" in capsys.readouterr().out
    experiment = Experiment.from_config(parse_config(yaml.safe_load(path.read_text())))
    example = experiment.dataset("train", tmp_path).example(0)
    # [CLS] anna lives in paris [SEP] anna saw a film [SEP]: 15 % of eight words
    assert (int(example["attention_mask"].sum()), int(example["gather_weights"].sum())) == (11, 1)
    first = example["gather_labels"][0]
    assert VOCAB[first] in ["anna", "lives", "in", "paris", "saw", "a", "film"]
    assert main(edited(path, data={"disable_nsp": False}, model={"name": "bert"})) == 1
    assert "segment_ids" in capsys.readouterr().err


def mixed(section, folders):
    """A section whose rows come from several folders."""
    parts = [{"data_dir": str(folder), "weight": i + 1.0} for i, folder in enumerate(folders)]
    return {key: value for key, value in section.items() if key != "data_dir"} | {"mixture": parts}


@pytest.mark.parametrize(("name", "mixture"), combinations(SEQUENCES))
def test_lengths_are_those_after_the_transform(name, mixture, tmp_path):
    cfg = run_file(name, tmp_path / "0")
    for seed in range(1 + mixture):
        make_data(name, tmp_path / str(seed), seed)
    if mixture:
        cfg["train_input"] = mixed(cfg["train_input"], [tmp_path / "0", tmp_path / "1"])
    experiment = Experiment.from_config(parse_config(cfg))
    context = Context.of(experiment.model.config, training=True)
    data = build_dataset(experiment.cfg.train_input, tmp_path, context)
    lengths = sequence_lengths(data, most=16)
    assert len(lengths) >= min(16, len(data.source))
    assert (lengths >= 1).all()
    assert (lengths <= data.row_length).all()
    example, again = data.example(0), data.example(0)
    for key, value in example.items():
        np.testing.assert_array_equal(value, again[key])
    if "attention_mask" in example and "position_ids" not in example:
        mask = np.atleast_2d(example["attention_mask"])
        assert lengths[: len(mask)].tolist() == [int(np.flatnonzero(row).max()) + 1 for row in mask]


def losses(cfg, folder, steps, **model):
    """Train on a run file; returns the loss of each step."""
    cfg = cfg | {"model": cfg["model"] | model}
    own = {"model_dir": str(folder), "max_steps": steps, "checkpoint_steps": 2, "mode": "train"}
    cfg["runconfig"] = cfg["runconfig"] | own | {"log_steps": 1, "eval_frequency": None}
    assert run(parse_config(cfg)) == 0
    return [row["loss"] for row in metrics(folder) if "loss" in row]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mixture"), combinations(SEQUENCES))
def test_stripped_padding_changes_no_loss_and_a_run_continues(name, mixture, tmp_path):
    folders = [tmp_path / f"data_{seed}" for seed in range(1 + mixture)]
    for seed, folder in enumerate(folders):
        make_data(name, folder, seed)
    cfg = run_file(name, folders[0])
    if mixture:
        cfg["train_input"] = mixed(cfg["train_input"], folders)
    padded = losses(cfg, tmp_path / "padded", 2, enable_vts=False)
    stripped = losses(cfg, tmp_path / "stripped", 2, enable_vts=True)
    np.testing.assert_allclose(stripped, padded, rtol=2e-4)
    whole = losses(cfg, tmp_path / "whole", 4, enable_vts=True)
    rest = losses(cfg, tmp_path / "stripped", 4, enable_vts=True)
    assert len(rest) == 4
    np.testing.assert_allclose(rest, whole, rtol=1e-6)
