"""Sparse-IFT: as many weights and FLOPs as the dense model, in a larger one."""

import pytest
import yaml
from helpers.runs import TINY_ROWS, write_yaml

import wafer.cli
from wafer import models, sparsity
from wafer.config.ift import transform
from wafer.errors import ConfigError
from wafer.experiment import Experiment
from wafer.models.counts import abstract_params, flops_per_token, parameter_count
from wafer.models.paths import named_leaves

SIZES = {"vocab_size": 50, "num_heads": 4}
GPT2 = SIZES | {"name": "gpt2", "hidden_size": 64, "num_hidden_layers": 2}
GPT2 |= {"filter_size": 256, "max_position_embeddings": 32}
MLP = {"name": "fc_mnist", "input_size": 20, "hidden_size": 30, "depth": 3}
T5 = SIZES | {"name": "t5", "hidden_size": 32, "attention_inner_dim": 32, "filter_size": 64}
T5 |= {"num_hidden_layers": 1, "decoder_num_hidden_layers": 1}
DPR = {"name": "dpr", "q_encoder": {}, "ctx_encoder": {}}


def sizes(section, sparse=None):
    """Weights of the matrices that are sparse, dense and left."""
    model = models.build(section["model"])
    shapes = abstract_params(model)
    chosen = sparsity.configure(sparse or section["sparsity"], aliases=model.alias, params=shapes)
    leaves = dict(named_leaves(shapes))
    total = sum(leaves[name].size for name in chosen.select(shapes))
    return total, total * (1 - section.get("sparsity", {"sparsity": 0})["sparsity"])


def test_wide_by_hand():
    """At 75 % every width doubles: four times the weights, of which a quarter is left."""
    new, dense, sparse = transform({"model": GPT2}, 0.75)
    widths = {key: new["model"][key] for key in ("hidden_size", "num_heads", "filter_size")}
    assert widths == {"hidden_size": 128, "num_heads": 8, "filter_size": 512}
    assert new["sparsity"] == {"algorithm": "static", "sparsity": 0.75}
    assert dense == flops_per_token(models.build(GPT2))
    # What is left over is the tied head's and attention's over positions, twice as wide.
    keys = models.build(GPT2).config.attended_keys(32)
    extra = 3 * (2 * 50 * 64 + 4 * 64 * keys)
    assert sparse - dense == pytest.approx(extra)


def test_factorized_and_doped_by_hand():
    """64 x 64: r = 4096 / (0.25 * 128) and 0.75 * 4096 / 128; 64 x 256: 204.8 up, 38.4 down."""
    new, dense, sparse = transform({"model": GPT2}, 0.75, "factorized")
    assert sparse == pytest.approx(dense)
    assert new["sparsity"]["param_filter"] == ["*/factor_*/kernel"]
    shapes = dict(named_leaves(abstract_params(models.build(new["model"]))))
    assert shapes["layers_0/attn/query/factor_in/kernel"].shape == (64, 128)
    assert shapes["layers_0/ffn/up/factor_out/kernel"].shape == (205, 256)
    assert "layers_0/attn/query/kernel" not in shapes
    new, dense, sparse = transform({"model": GPT2}, 0.75, "doped")
    assert sparse == pytest.approx(dense)
    ends = ["down", "key", "out", "query", "up", "value"]
    assert new["sparsity"]["param_filter"] == [f"*/{end}/kernel" for end in ends]
    shapes = dict(named_leaves(abstract_params(models.build(new["model"]))))
    assert shapes["layers_0/attn/query/factor_in/kernel"].shape == (64, 24)
    assert shapes["layers_0/ffn/down/factor_out/kernel"].shape == (38, 64)
    assert shapes["layers_0/attn/query/kernel"].shape == (64, 64)


@pytest.mark.parametrize("level", [0.3, 0.9])
@pytest.mark.parametrize(
    ("model", "family"),
    [
        *((GPT2, family) for family in ("wide", "parallel", "factorized", "doped")),
        *((T5, family) for family in ("wide", "factorized")),
        (MLP, "wide"),
    ],
)
def test_as_many_weights_are_left(model, family, level):
    new, dense, sparse = transform({"model": model}, level, family)
    total, left = sizes(new)
    assert new["sparsity"]["sparsity"] == pytest.approx(level, abs=0.1)
    if family in ("wide", "parallel"):
        before, _ = sizes({"model": model}, sparse=new["sparsity"])
        assert left == pytest.approx(before)
        assert total > before
    else:  # all weights together, whatever is sparse
        after, before = (parameter_count(models.build(m)) for m in (new["model"], model))
        assert after - total + left == pytest.approx(before)
    if family != "wide":
        assert sparse == pytest.approx(dense, rel=1e-9)


def test_key_heads_and_inner_widths_grow_along():
    model = GPT2 | {"attention_module": "multiquery_attention", "attention_inner_dim": 32}
    model |= {"extra_attention_params": {"num_kv_groups": 2}}
    cfg = models.build(transform({"model": model}, 0.75)[0]["model"]).config
    assert (cfg.num_heads, cfg.num_kv_heads, cfg.head_dim, cfg.hidden_size) == (8, 4, 8, 128)


def test_the_command_writes_a_run_file(tmp_path, capsys):
    rigl = {"algorithm": "rigl", "update": {"freq": 10}}
    run = {
        "runconfig": {"max_steps": 1},
        "train_input": TINY_ROWS,
        "model": GPT2,
        "sparsity": rigl,
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.01},
    }
    path, out = write_yaml(tmp_path / "dense.yaml", run), tmp_path / "wide.yaml"
    command = ["config", "ift", str(path), "--sparsity", "0.75"]
    assert wafer.cli.main([*command, "-o", str(out)]) == 0
    assert out.read_text().startswith("# Sparse-IFT, wide, 0.75, of dense.yaml: ")
    written = yaml.safe_load(out.read_text())
    assert written["sparsity"] == rigl | {"sparsity": 0.75}
    assert Experiment.from_config(written).model.config.hidden_size == 128
    assert wafer.cli.main([*command, "--family", "wild"]) == 1
    assert "did you mean 'wide'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "section", "level", "family", "says"),
    [
        (GPT2, None, 1.0, "wide", "above 0 and below 1"),
        (GPT2, None, 0, "wide", "above 0 and below 1"),
        (GPT2, None, float("nan"), "wide", "above 0 and below 1"),
        (GPT2, None, 1e-4, "wide", "raise it"),
        (GPT2, {"sparsity": 0.5}, 0.5, "wide", "sparsity.sparsity.*drop the key"),
        (GPT2, {"param_filter": "*"}, 0.5, "parallel", "param_filter.*drop the key"),
        (GPT2, 0.5, 0.5, "wide", "expected one group of keys"),
        (MLP, None, 0.5, "parallel", "'fc_mnist': no parallel form"),
        (MLP, None, 0.5, "doped", "'fc_mnist': no doped form"),
        (GPT2, {"param_filter": "*"}, 0.5, "doped", "param_filter.*drop the key"),
        (GPT2 | {"factors": {}}, None, 0.5, "wide", "model.factors: it has them"),
        (GPT2 | {"lora_params": {"r": 2}}, None, 0.5, "wide", "lora_params: adapters are"),
        (DPR, None, 0.5, "wide", "'dpr': no wide form; take a model of one part"),
    ],
)
def test_what_cannot_be_transformed_is_said(model, section, level, family, says):
    sections = {"model": model} | ({} if section is None else {"sparsity": section})
    with pytest.raises(ConfigError, match=says):
        transform(sections, level, family)
