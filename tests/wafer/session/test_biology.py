"""EBERT and protein classification in the trainer: what they learn, what is refused before work."""

import functools

import jax
import numpy as np
import optax
import pytest
import yaml
from helpers.biology_data import dna, ebert, proteins
from helpers.finetune_data import MODEL, write_lines
from helpers.hf_parity import CHEAP
from helpers.runs import arrays, metrics

from wafer import models
from wafer.cli import main
from wafer.commands.run import run
from wafer.config import parse_config
from wafer.data.batching.batches import host_batch, to_batch
from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.registry import parse_input

SYNTHETIC = {
    "data_processor": "EbertSyntheticDataProcessor",
    "kmer_size": 2,
    "max_sequence_length": 32,
    "num_examples": 256,
    "state_length": 2,
    "signal": 1.0,
    "batch_size": 16,
}


@functools.cache
def losses(hidden):
    """Mean loss of ten batches at the start and at the end, with states or with hidden ones."""
    model = models.build(ebert(2, epigenetic_vocab_size=8))
    tx = optax.adam(1e-2)

    @functools.partial(jax.jit, compiler_options=CHEAP)
    def step(params, state, batch):
        (loss, _), grads = jax.value_and_grad(model.loss, has_aux=True)(params, batch)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    section = parse_input(SYNTHETIC | {"mask_epigenetic": hidden})
    data = build_dataset(section, "unused", Context.of(model.config, training=True))
    loader = data.loader(16, num_epochs=None)
    params = model.init(jax.random.key(0))
    state, seen = tx.init(params), []
    for _ in range(80):
        batch = to_batch({k: v[0, 0] for k, v in host_batch(next(loader)).items()})
        params, state, loss = step(params, state, batch)
        seen.append(float(loss))
    loader.close()
    return np.mean(seen[:10]), np.mean(seen[-10:])


@pytest.mark.slow
def test_loss_falls_on_synthetic_sequences():
    first, last = losses(False)
    assert last < 0.2 * first


@pytest.mark.slow
def test_the_epigenetic_channel_carries_information():
    """A state determines its token; without the state eight are as likely, ln 8 = 2.08."""
    assert losses(False)[1] < 0.5
    assert 1.7 < losses(True)[1] < 2.4


def settings(folder, train, evaluate, model, steps, **runconfig):
    return {
        "train_input": train | {"shuffle": True, "batch_size": 8},
        "eval_input": evaluate | {"batch_size": 8},
        "model": model,
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.003},
        "runconfig": {
            "mode": "train_and_eval",
            "max_steps": steps,
            "eval_frequency": steps,
            "checkpoint_steps": steps,
            "seed": 1,
            "model_dir": str(folder / "run"),
        }
        | runconfig,
    }


def homology(folder, steps=60, **model):
    proteins(folder)
    data = {"data_processor": "RemoteHomologyDataProcessor", "data_dir": str(folder)}
    data |= {"max_sequence_length": 16}
    model = MODEL | {"name": "bert-sequence-classifier", "vocab_size": 33} | model
    return settings(folder, data, data, model, steps)


@pytest.mark.parametrize("stripped", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_folds_are_learned_and_scored_by_accuracy(stripped, tmp_path):
    assert run(parse_config(homology(tmp_path, enable_vts=stripped))) == 0
    first, last = metrics(tmp_path / "run", "eval")
    assert last["eval/accuracy"] >= 0.95
    assert last["loss"] < 0.5 * first["loss"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"enable_vts": True}},
        {"runconfig": {"num_csx": 2}},
        {"train_input": {"micro_batch_size": 2}, "eval_input": {"micro_batch_size": 2}},
        {"runconfig": {"execution_strategy": "weight_streaming"}},
        {"runconfig": {"execution_strategy": "pipelined"}},
    ],
    ids=["stripped", "two systems", "micro-batches", "streamed", "pipelined"],
)
def test_ways_of_computing_do_not_change_the_result(changes, tmp_path):
    every = []
    for name, keys in (("whole", {}), ("other", changes)):
        folder = tmp_path / name
        folder.mkdir()
        cfg = settings(folder, SYNTHETIC, SYNTHETIC, ebert(2, epigenetic_vocab_size=8), 3)
        for part, values in keys.items():
            cfg[part] = cfg[part] | values
        assert run(parse_config(cfg)) == 0
        step = folder / "run" / "checkpoints" / "3"
        every.append((metrics(folder / "run", "eval")[-1], arrays(step)))
    (whole, a), (other, b) = every
    assert set(whole) == {
        *("step", "time", "loss", "eval/accuracy_masked_lm"),
        "eval/mlm_perplexity",
    }
    for tag in set(whole) - {"time"}:
        assert whole[tag] == pytest.approx(other[tag], rel=1e-4), tag
    assert "params/embed/epigenetic/embedding" in a
    for name in a:
        if name.startswith("params/"):
            np.testing.assert_allclose(a[name], b[name], atol=3e-5, err_msg=name)


@pytest.fixture
def validated(tmp_path, capsys):
    def check(cfg):
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(cfg))
        code = main(["run", "--params", str(tmp_path / "params.yaml"), "--validate_only"])
        said = capsys.readouterr()
        return code, said.out if code == 0 else said.err

    return check


def genome(folder, **model):
    data = {"data_processor": "EbertFastaDataProcessor", "data_dir": str(folder)}
    data |= {"state_dir": str(folder), "kmer_size": 1, "max_sequence_length": 8}
    return settings(folder, data, data, ebert(1, **model), 1)


def test_validation_reads_dna_and_its_states(validated, tmp_path):
    code, said = validated(genome(tmp_path / "absent"))
    assert code == 0
    assert "absent is not there" in said
    dna(tmp_path)
    code, said = validated(genome(tmp_path))
    assert code == 0
    assert "train_input: 6 examples; 6 of them are sound, ids up to 8" in said
    write_lines(tmp_path / "lung.bed", ["chr1 0 10 2", "chr2 1 5 7"])
    code, said = validated(genome(tmp_path))
    assert code == 1
    assert "lung.bed, line 2: state 7 is outside the 3 states" in " ".join(said.split())


def test_validation_reads_proteins_and_their_labels(validated, tmp_path):
    cfg = homology(tmp_path)
    code, said = validated(cfg)
    assert code == 0
    assert "eval_input: 24 examples; 24 of them are sound" in said
    cfg["model"]["num_labels"] = 3
    write_lines(tmp_path / "valid.fasta", [">p0", "MKV", "M8V"])
    code, said = validated(cfg)
    assert code == 1
    assert "valid.fasta, line 3: '8' at column 2 is no letter of amino acids" in " ".join(
        said.split()
    )


@pytest.mark.parametrize(
    ("part", "keys", "message"),
    [
        ("model", {"vocab_size": 8}, "9 token ids, but model.vocab_size is 8; make them equal"),
        ("model", {"name": "bert", "epigenetic_vocab_size": None}, "'epigenetic_mlm'"),
        ("model", {"epigenetic_vocab_size": 0}, "epigenetic_vocab_size"),
        ("train_input", {"kmer_size": 2}, "21 token ids, but model.vocab_size is 9"),
    ],
)
def test_data_and_models_that_do_not_go_together(part, keys, message, validated, tmp_path):
    cfg = genome(tmp_path / "absent")
    cfg[part] = cfg[part] | keys
    code, said = validated(cfg)
    assert code == 1
    assert message in " ".join(said.split())


def test_rows_without_states_are_not_for_ebert(validated, tmp_path):
    cfg = genome(tmp_path / "absent")
    cfg["train_input"] = {"data_processor": "BertHDF5DataProcessor", "data_dir": "rows"}
    cfg["train_input"]["batch_size"] = 8
    code, said = validated(cfg)
    assert code == 1
    assert "rows are for 'mlm'" in " ".join(said.split())
    assert "EbertHDF5DataProcessor" in said


def test_a_model_too_small_for_the_letters_is_refused(validated, tmp_path):
    code, said = validated(homology(tmp_path, vocab_size=30))
    assert code == 1
    assert "33 token ids, but model.vocab_size is 30" in " ".join(said.split())


def test_keys_are_listed_with_their_meaning(capsys):
    for section, key in (
        ("ebert", "epigenetic_vocab_size"),
        ("EbertFastaDataProcessor", "state_dir"),
        ("EbertHDF5DataProcessor", "mask_epigenetic"),
        ("EbertSyntheticDataProcessor", "signal"),
        ("RemoteHomologyDataProcessor", "label_vocab_file"),
    ):
        assert main(["config", "keys", section]) == 0
        (line,) = (x for x in capsys.readouterr().out.splitlines() if x.split()[:1] == [key])
        assert len(line.split()) > 5, line
