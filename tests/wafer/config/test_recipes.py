"""The recipes of models/configs/recipes, shrunk, through the command line; and their arithmetic."""

import json
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from helpers.recipes import RECIPES, shrink
from helpers.runs import config, losses, write_yaml

from wafer import models
from wafer.cli import main
from wafer.config import parse_config
from wafer.data.batching.objectives import conversation
from wafer.data.readers.text.preferences import LOGP_KEYS, pair_row
from wafer.data.text.tokenizer import train_bpe
from wafer.experiment import Experiment
from wafer.models.base import Batch
from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.families.preference import DpoConfig, preference_aux
from wafer.models.paths import named_leaves
from wafer.vsl import padded_layout

SOURCE = '''
def f{0}(x):
    """Return x plus {0}."""
    return x + {0}
'''


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    (folder / "m.py").write_text("".join(SOURCE.format(i) for i in range(60)))
    return folder


def run(path, folder, *flags):
    flags = ["run", "-p", str(path), "-m", "train", "-o", str(folder), *flags]
    assert main(flags) == 0


def params(folder, step=4):
    tree = load_checkpoint(folder / "checkpoints" / str(step))[0]
    return dict(named_leaves(tree["params"]))


KERNEL = "layers_0/ffn/up/kernel"


@pytest.mark.slow
def test_sparse_pretraining_dense_finetuning_and_lora(tmp_path, source):
    sparse, dense, lora = (tmp_path / name for name in ("sparse", "dense", "lora"))
    run(shrink("sparse_pretrain", tmp_path, source), sparse)
    assert np.isnan(params(sparse)[KERNEL]).mean() == pytest.approx(0.75, abs=0.01)
    final = sparse / "finalized"
    assert main(["finalize", "-i", str(sparse / "checkpoints/4"), "-o", str(final)]) == 0

    run(shrink("dense_finetune", tmp_path, source), dense, "--checkpoint_path", str(final))
    grown = params(dense)[KERNEL]
    assert (grown != 0).mean() > 0.95  # the pruned weights are back
    assert losses(dense)[0] == pytest.approx(losses(sparse)[-1], abs=0.2)

    run(shrink("lora", tmp_path, source), lora, "--checkpoint_path", str(final))
    frozen, base = params(lora), dict(named_leaves(load_checkpoint(final)[0]["params"]))
    np.testing.assert_array_equal(frozen[KERNEL], base[KERNEL])
    folded = tmp_path / "folded"
    flags = ["finalize", "--fold_lora", "-i", str(lora / "checkpoints/4"), "-o", str(folded)]
    assert main(flags) == 0
    merged = dict(named_leaves(load_checkpoint(folded)[0]["params"]))
    assert merged.keys() == base.keys()
    assert not np.array_equal(merged[KERNEL], base[KERNEL])
    np.testing.assert_array_equal(merged["norm_f/scale"], base["norm_f/scale"])


@pytest.mark.slow
def test_gptj_goes_on_and_is_fine_tuned(tmp_path, source):
    base = tmp_path / "gptj_pretrain"
    run(shrink("gptj_pretrain", tmp_path, source, model={"rotary_dim": 4}), base)
    start = str(base / "checkpoints/4")
    for name in ("gptj_continued", "gptj_finetune"):
        folder = tmp_path / name
        path = shrink(name, tmp_path, source, model={"rotary_dim": 4})
        run(path, folder, "--checkpoint_path", start)
        words = [(place / "tokenizer.json").read_text() for place in (base, folder)]
        assert words[0] == words[1]  # the run looked beside the checkpoint
        assert losses(folder)[0] == pytest.approx(losses(base)[-1], abs=0.3)
        start = str(folder / "checkpoints/4")


@pytest.mark.slow
def test_iterative_magnitude_pruning(tmp_path, source):
    """Each level keeps what was pruned and adds the smallest of the rest."""
    before = None
    for step, level in ((4, 0.3), (8, 0.5), (12, 0.8)):
        section = yaml.safe_load((RECIPES / "iterative_pruning.yaml").read_text())["sparsity"]
        section["sparsity"] = level
        path = shrink("iterative_pruning", tmp_path, source, sparsity=section)
        run(path, tmp_path / "run", "--max_steps", str(step))
        kernel = params(tmp_path / "run", step)[KERNEL]
        pruned = np.isnan(kernel)
        assert pruned.mean() == pytest.approx(level, abs=0.005)
        if before is not None:
            assert (pruned | ~before).all()
        before = pruned


@pytest.mark.slow
def test_mixture_of_experts(tmp_path, source):
    path = shrink("mixture_of_experts", tmp_path, source)
    run(path, tmp_path / "run", "--max_steps", "12")
    curve = losses(tmp_path / "run")
    assert curve[-1] < curve[0]
    model = models.build(yaml.safe_load(path.read_text())["model"])
    names = dict(named_leaves(model.init(jax.random.key(0)))).keys()
    assert {f"layers_0/moe/experts_{i}/up/kernel" for i in range(4)} <= names


def test_mup_divides_the_rate_of_each_kernel_by_how_much_wider_it_is():
    model = {"hidden_size": 32, "filter_size": 128, "mup_base_hidden_size": 8}
    model |= {"mup_base_filter_size": 64, "nonlinearity": "swiglu"}
    optimizer = {"optimizer_type": "SGD", "learning_rate": 1.0}
    experiment = Experiment.from_config(parse_config(config(model=model, optimizer=optimizer)))
    ones = jax.tree.map(lambda s: jnp.ones(s.shape), experiment.shapes)
    updates, _ = experiment.tx.update(ones, experiment.tx.init(ones), ones)
    rate = {name: -float(np.unique(u).item()) for name, u in named_leaves(updates)}
    assert rate["layers_0/attn/query/kernel"] == rate["layers_0/attn/out/kernel"] == 0.25
    assert rate["layers_0/ffn/up/kernel"] == rate["layers_0/ffn/gate/kernel"] == 0.25
    assert rate["layers_0/ffn/down/kernel"] == 0.5
    assert rate["embed/token/embedding"] == rate["layers_0/ffn/up/bias"] == 1.0
    # What the file says wins.
    optimizer["adjust_learning_rate"] = {"decoder_attention": 0.125}
    experiment = Experiment.from_config(parse_config(config(model=model, optimizer=optimizer)))
    updates, _ = experiment.tx.update(ones, experiment.tx.init(ones), ones)
    assert float(updates["layers_0"]["attn"]["query"]["kernel"][0, 0]) == -0.125


def moved(width, mup):
    """RMS change of the logits after three Adam steps at one learning rate."""
    model = {"hidden_size": width, "filter_size": 4 * width, "num_heads": 2}
    model |= {"initializer_range": 0.3}
    if mup:
        model |= {"mup_base_hidden_size": 16, "mup_base_filter_size": 64}
    optimizer = {"optimizer_type": "AdamW", "learning_rate": 0.01, "correct_bias": True}
    experiment = Experiment.from_config(parse_config(config(model=model, optimizer=optimizer)))
    weights = experiment.model.init(jax.random.key(0))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 32, 64), jnp.int32)
    layout = padded_layout(jnp.full(4, 16, jnp.int32), 16)
    batch = Batch(tokens, jnp.roll(tokens, -1), jnp.ones(64), layout)
    logits = jax.jit(lambda p: experiment.model.apply(p, batch))
    before, state = logits(weights), experiment.tx.init(weights)

    @jax.jit
    def step(p, state):
        grads = jax.grad(lambda p: experiment.model.loss(p, batch)[0])(p)
        updates, state = experiment.tx.update(grads, state, p)
        return jax.tree.map(jnp.add, p, updates), state

    for _ in range(3):
        weights, state = step(weights, state)
    return float(jnp.sqrt(jnp.mean((logits(weights) - before) ** 2)))


@pytest.mark.slow
def test_mup_keeps_a_steps_effect_while_the_model_widens():
    """The coordinate check: twice as wide, the same change; without muP twice as much."""
    grown = {mup: moved(256, mup) / moved(128, mup) for mup in (True, False)}
    assert grown[True] == pytest.approx(1, abs=0.15)
    assert grown[False] == pytest.approx(2, abs=0.15)


def test_the_preference_loss_by_hand():
    """Two pairs, one token each: p(chosen) 1/2 against a reference of 1/4, and a filling row."""
    logits = jnp.log(jnp.asarray([[0.5, 0.5], [0.8, 0.2]] * 2 + [[0.5, 0.5]] * 2))
    labels = jnp.asarray([0, 1, 0, 1, 0, 0])
    weights = jnp.asarray([1.0, 1, 1, 1, 0, 0])
    layout = padded_layout(jnp.asarray([2, 2, 0]), 2)
    reference = jnp.log(jnp.asarray([[0.25, 0.2], [0.5, 0.8], [1, 1]]))
    batch = Batch(labels, labels, weights, layout, {"reference_logps": reference})
    aux = preference_aux(DpoConfig(beta=2.0), logits, batch)
    margins = [math.log(0.5 / 0.25), math.log(0.8 / 0.2)]  # the second's rejected answer fell
    want = sum(-math.log(1 / (1 + math.exp(-2 * m))) for m in margins)
    assert float(aux.loss_sum) == pytest.approx(want, rel=1e-5)
    assert float(aux.weight) == 2
    assert float(aux.metrics["accuracy_sum"]) == 2
    assert float(aux.metrics["margin_sum"]) == pytest.approx(sum(margins), rel=1e-5)
    # With labels that may be wrong, the loss of a sure margin no longer vanishes.
    smooth = preference_aux(DpoConfig(beta=2.0, label_smoothing=0.25), logits, batch)
    flipped = sum(-math.log(1 / (1 + math.exp(2 * m))) for m in margins)
    assert float(smooth.loss_sum) == pytest.approx(0.75 * want + 0.25 * flipped, rel=1e-5)


def test_answers_of_a_row_do_not_see_each_other():
    made = lambda answer: conversation([([5, 6], answer)], eos_id=1, pad_id=1)
    row = pair_row([made([7]), made([8, 9])], 6)
    assert row["input_ids"].tolist() == [5, 6, 7, 1, 0, 0, 5, 6, 8, 9, 1, 0]
    assert row["labels"].tolist()[:3] == [6, 7, 1]
    assert row["loss_mask"].tolist() == [0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0]
    assert row["position_ids"].tolist() == [0, 1, 2, 3, 0, 0, 0, 1, 2, 3, 4, 0]
    assert row["attention_span"].tolist() == [3, 2, 1, 0, 0, 0, 4, 3, 2, 1, 0, 0]


@pytest.mark.slow
def test_dpo_from_pairs_to_a_model_that_prefers(tmp_path, capsys):
    """Score with the untrained model, train, and the chosen answers win."""
    data = tmp_path / "data"
    data.mkdir()
    pairs = [{"prompt": f"def f{i}", "chosen": "(x): ok", "rejected": "no!"} for i in range(16)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(p) + "\n" for p in pairs))
    train_bpe(["def f(x): ok"], 300).save(str(data / "tokenizer.json"))
    section = {"data_dir": str(data), "vocab_file": str(data / "tokenizer.json")}
    section |= {"max_sequence_length": 32, "batch_size": 4}
    fast = {"learning_rate": 0.01}
    changes = {"train_input": section, "eval_input": section, "optimizer": fast}
    path = shrink("dpo", tmp_path, tmp_path, **changes)
    cfg = yaml.safe_load(path.read_text())

    # The reference: a language model of the same shape, barely trained.
    plain = {k: v for k, v in cfg["model"].items() if k != "dpo"}
    synthetic = {"data_processor": "SyntheticDataProcessor", "vocab_size": 300}
    synthetic |= {"max_sequence_length": 16, "num_examples": 8, "batch_size": 2}
    sft = config(model=plain, train_input=synthetic, eval_input=None)
    sft["model"], sft["train_input"] = plain, synthetic
    sft["runconfig"] |= {"max_steps": 1, "checkpoint_steps": 1}
    reference = write_yaml(tmp_path / "sft.yaml", sft)
    run(reference, tmp_path / "sft")

    flags = ["--params", str(path), "--checkpoint_path", str(tmp_path / "sft")]
    raw, scored = str(tmp_path / "pairs.jsonl"), str(data / "train.jsonl")
    assert main(["score", *flags, "-i", raw, "-o", scored]) == 0
    assert "16 pairs scored" in capsys.readouterr().out
    rows = [json.loads(line) for line in pathlib.Path(scored).read_text().splitlines()]
    assert all(row[key] < 0 for row in rows for key in LOGP_KEYS)

    start = ["--checkpoint_path", str(tmp_path / "sft" / "checkpoints" / "1")]
    run(path, tmp_path / "dpo", *start, "--max_steps", "12")
    curve = losses(tmp_path / "dpo")
    assert curve[0] == pytest.approx(math.log(2), abs=1e-5)  # it is its own reference
    assert curve[-1] < 0.9 * curve[0]
    assert "layers_0/ffn/up/kernel" in params(tmp_path / "dpo", 12)

    rows[3].pop(LOGP_KEYS[0])
    pathlib.Path(scored).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["run", "-p", str(path), "-m", "train", "-o", str(tmp_path / "x"), *start]) == 1
    message = capsys.readouterr().err
    assert "train.jsonl, row 4" in message
    assert "wafer score" in message
