"""Params files from release to release: what our reader makes of them stays the same."""

import pytest
import yaml
from helpers.paths import ROOT
from helpers.runs import TINY, TINY_ROWS, write_yaml

from wafer.cli import main
from wafer.config import load_all, parse_config
from wafer.errors import ConfigError
from wafer.models import registry
from wafer.optim.sections import OPTIMIZERS
from wafer.vendor.keys import rows_of
from wafer.vendor.releases import convert_file
from wafer.vendor.runfile import read as translate
from wafer.vendor.trainer import upgrade

SIZES = {key: size for key, size in TINY.items() if key != "name"}
LINEAR = {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.1}
DECAY = {"scheduler": "Exponential", "decay_rate": 0.5}
DYNAMIC = {"max_gradient_norm": 1.0, "loss_scaling_factor": "dynamic"}
OLD = {
    "model": SIZES
    | {"use_rms_norm": True, "use_bfloat16": True}
    | {"mixed_precision": True, "precision_opt_level": 1},
    "optimizer": DYNAMIC
    | {"optimizer_type": "AdamW", "beta1": 0.8, "beta2": 0.95, "weight_decay_rate": 0.1}
    | {"learning_rate": [LINEAR | {"steps": 3}, DECAY | {"learning_rate": 0.1, "decay_steps": 4}]},
    "train_input": TINY_ROWS,
    "runconfig": {"max_steps": 9, "keep_checkpoint_max": 3, "is_pretrained_checkpoint": True}
    | {"experimental_api": True, "multireplica": False, "use_cs_grad_accum": True},
    "csconfig": {},
}


def test_a_file_of_18_in_the_words_of_22():
    file, dropped = convert_file(OLD, "gpt3", (1, 8), (2, 2))
    words = {"norm_type": "rmsnorm", "fp16_type": "bfloat16"}
    assert file["model"] == SIZES | {"mixed_precision": True} | words
    rates = file["optimizer"].pop("learning_rate")
    adamw = {"optimizer_type": "AdamW", "betas": [0.8, 0.95], "weight_decay": 0.1}
    assert file["optimizer"] == DYNAMIC | adamw
    decay = DECAY | {"total_iters": 4, "initial_learning_rate": 0.1}
    assert rates == [LINEAR | {"total_iters": 3}, decay]
    kept = {"max_steps": 9, "max_checkpoints": 3, "precision_opt_level": 1}
    assert file["runconfig"] == kept | {"load_checkpoint_states": "model,dataloader"}
    assert file["train_input"]["micro_batch_size"] == "auto"
    assert dropped == ["runconfig.experimental_api", "runconfig.multireplica", "csconfig"]
    assert OLD["model"]["use_rms_norm"]  # the caller's stays as it was


def test_since_23_a_file_is_one_trainer():
    file, _ = convert_file(OLD, "gpt3", (1, 8), (2, 9))
    assert list(file) == ["trainer"]
    init = file["trainer"]["init"]
    assert init["model"]["name"] == "gpt3"
    assert init["optimizer"] == {"AdamW": {"betas": [0.8, 0.95], "weight_decay": 0.1}}
    (schedule,) = init["schedulers"]
    entries = schedule["SequentialLR"]["schedulers"]
    assert [list(entry) for entry in entries] == [["LinearLR"], ["ExponentialLR"]]
    half = {"enabled": True, "fp16_type": "bfloat16", "precision_opt_level": 1}
    assert init["precision"] == half | DYNAMIC
    assert init["loop"] == {"max_steps": 9}
    assert {"KeepNCheckpoints": {"n": 3}} in init["callbacks"]
    train = file["trainer"]["fit"]["train_dataloader"]
    assert "micro_batch_size" not in train
    assert {"ScopedTrainFlags": {"csx.performance.micro_batch_size": "auto"}} in init["callbacks"]


def test_and_back_again_for_all_that_has_a_word_there():
    newer, _ = convert_file(OLD, "gpt3", (1, 8), (2, 1))
    back, dropped = convert_file(newer, "gpt3", (2, 1), (1, 9))
    assert dropped == []
    for key in ("use_rms_norm", "use_bfloat16", "precision_opt_level"):
        assert back["model"][key] == OLD["model"][key]
    assert back["runconfig"]["keep_checkpoint_max"] == 3
    assert back["runconfig"]["is_pretrained_checkpoint"] is True
    adamw = {"beta1": 0.8, "beta2": 0.95, "weight_decay_rate": 0.1}
    assert adamw.items() <= back["optimizer"].items()
    assert back["optimizer"]["learning_rate"][0]["steps"] == 3


@pytest.mark.parametrize(
    ("name", "source", "model", "says"),
    [  # what a file of 1.7 leaves out means the same to T5 and BERT
        ("bert", (1, 7), {"hidden_size": 8}, {"hidden_size": 8}),
        ("gpt2", (1, 7), {"hidden_size": 8}, {"hidden_size": 8, "loss_scaling": "batch_size"}),
        ("t5", (1, 7), {"hidden_size": 8}, {"hidden_size": 8}),
        ("gptj", (1, 9), {"use_biasless_norm": True}, {"norm_type": "biasless-layernorm"}),
    ],
)
def test_what_a_family_says_otherwise(name, source, model, says):
    assert convert_file({"model": model}, name, source, (2, 2))[0] == {"model": says}


def test_mup_by_widths_since_23():
    normal = lambda std: {"name": "normal", "std": std}
    sizes = {"hidden_size": 512, "filter_size": 2048, "num_hidden_layers": 2}
    model = sizes | {"output_logits_scale": 0.5, "initializer": normal(0.1)}
    model |= {"output_layer_initializer": normal(0.1)}
    optimizer = {"optimizer_type": "AdamW", "adjust_learning_rate": {"decoder_kernel": 0.25}}
    file, _ = convert_file({"model": model, "optimizer": optimizer}, "gpt2", (2, 2), (2, 4))
    init = file["trainer"]["init"]
    assert init["model"] == sizes | {
        "name": "gpt2",
        "initializer": normal(0.2),  # x sqrt(4)
        "output_layer_initializer": normal(0.4),  # and x sqrt(2 * 2 layers)
        "mup_base_hidden_size": 128,
        "mup_base_filter_size": 512,
        "output_logits_alpha": 2.0,
    }
    assert init["optimizer"] == {"AdamW": {}}
    with pytest.raises(ConfigError, match=r"model\.mup_base_hidden_size: releases before 2\.3"):
        convert_file(file, "gpt2", (2, 4), (2, 2))


def test_sparsity_of_20_and_of_18():
    section = {"type": "set", "sparsity": 0.5, "schedule": 10, "drop_fraction": 0.3}
    section |= {"param_name_patterns": ".*ffn.*weight"}
    file, _ = convert_file({"model": {}, "sparsity": section}, "gpt2", (2, 0), (2, 2))
    assert file["sparsity"]["algorithm"] == "set"
    assert file["sparsity"]["param_filter"] == "*ffn*weight"
    old = {"model": {}, "sparsity": {"sparsity": 0.5, "seed": 1}}
    with pytest.raises(ConfigError, match=r"sparsity: the section of 1\.8 and 1\.9 prunes while"):
        convert_file(old, "gpt2", (1, 8), (2, 2))


def meaning(sections):
    """What our reader makes of a file, without what a trainer says on the command line."""
    out = parse_config(sections).to_dict()
    out["runconfig"] = {k: v for k, v in out["runconfig"].items() if k != "mode"}
    data = out["train_input"]
    if isinstance(data["micro_batch_size"], int):  # a trainer's flag bounds it
        data["micro_batch_size"] = {"explore": {"max": data["micro_batch_size"]}}
    for key in ("learning_rate", "weight_decay"):  # LinearLR is Linear
        for entry in out["optimizer"][key]:
            entry["scheduler"] = entry["scheduler"].removesuffix("LR").removesuffix("WD")
    return out


OURS = ("execution_strategy", "fabric")  # keys that the vendor never had
FILES = sorted((ROOT / "models" / "configs").glob("*/*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_run_file_as_a_trainer_means_the_same(path):
    raw = yaml.safe_load(path.read_text())
    name = raw["model"]["name"]
    file, dropped = convert_file(raw, name, (2, 2), (2, 9))
    assert dropped == [f"runconfig.{key}" for key in OURS if key in raw["runconfig"]]
    there, left, _ = upgrade(file["trainer"])
    assert left == []
    ours, theirs = meaning(raw), meaning(there)
    for key in OURS:
        ours["runconfig"].pop(key, None)
        theirs["runconfig"].pop(key, None)
    precision = {"mixed_precision": False, "fp16_type": "float16"}  # what 2.2 takes without a word
    for part in ("", "image_model", "text_model"):  # what defaults of 2.2 mean is said at 2.9
        pair = (one["model"] for one in (ours, theirs))
        own, written = (model.get(part, {}) if part else model for model in pair)
        for key in written.keys() - own.keys() - precision.keys():
            assert key.endswith(("dropout_rate", "nonlinearity")), (key, written[key])
            del written[key]
    assert precision | theirs["model"] == precision | ours["model"]
    assert {**theirs, "model": None} == {**ours, "model": None}


@pytest.mark.parametrize(("release", "scaling"), [((1, 8), "batch_size"), ((1, 9), None)])
def test_a_weight_of_the_loss_means_what_it_did(release, scaling):
    """1.7 and 1.8: sum / rows x weight; since 1.9 the weight has no effect."""
    file, dropped = convert_file({"model": {"loss_weight": 0.5}}, "gpt2", release)
    expected = {"loss_weight": 0.5, "loss_scaling": scaling} if scaling else {}
    assert file["model"] == {"name": "gpt2"} | expected
    assert dropped == ([] if scaling else ["model.loss_weight"])


def test_a_params_file_needs_no_form_of_hugging_face(tmp_path):
    path = write_yaml(tmp_path / "params.yaml", {"model": {"hidden_size": 8}})
    words = ["convert", "convert-config", "--model", "bert-summarization", "--src-fmt", "cs-2.0"]
    words += ["--tgt-fmt", "wafer", "--output-dir", str(tmp_path / "new"), str(path)]
    assert main(words) == 0
    written = yaml.safe_load((tmp_path / "new" / "params_to_wafer.yaml").read_text())
    assert written["model"]["name"] == "bert-summarization"
    assert translate(written).sections["model"]["embedding_dropout_rate"] == 0.1  # since 2.2


def test_a_params_file_of_a_user_s_model_is_rewritten_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_to_convert.py").write_text("def build(hidden=8):\n    ...\n")
    path, name = tmp_path / "params.yaml", "mine_to_convert:build"
    model = {"name": name, "hidden": 32}
    path.write_text(yaml.safe_dump({"model": model, "runconfig": {"max_steps": 3}}))
    words = ["--model", name, "--src-fmt", "cs-2.2", "--tgt-fmt"]
    config = ["convert", "convert-config", *words, "cs-2.5", "-o", str(tmp_path), str(path)]
    assert main(config) == 0
    trainer = tmp_path / "params_to_cs-2.5.yaml"
    assert yaml.safe_load(trainer.read_text())["trainer"]["init"]["model"] == model
    capsys.readouterr()
    for verb in ("convert", "convert-config"):
        assert main(["convert", verb, *words, "hf", str(path)]) == 1
        message = "mine_to_convert registers no model family 'build'; expected one that calls"
        assert message in capsys.readouterr().err
    words[1] = "gpt-j"
    assert main(["convert", "convert", *words, "hf", str(path)]) == 1
    error = capsys.readouterr().err
    assert "'gpt-j' does not convert; expected a name of `wafer convert list`, or module:" in error
    assert "did you mean 'gptj'?" in error


def test_the_command_writes_the_whole_file_and_says_what_has_no_place(tmp_path, capsys):
    path = write_yaml(tmp_path / "params.yaml", OLD)
    words = ["convert", "convert-config", "--model", "gpt3", "--src-fmt", "cs-1.8"]
    words += ["--tgt-fmt", "cs-2.9", "--output-dir", str(tmp_path / "new"), str(path)]
    assert main(words) == 0
    out, err = capsys.readouterr()
    written = tmp_path / "new" / "params_to_cs-2.9.yaml"
    assert out == f"{written}: gpt3, cs-1.8 to cs-2.9, config alone\n"
    assert "no place in cs-2.9: runconfig.experimental_api" in err
    (cfg,) = load_all(tmp_path / "new" / "params_to_cs-2.9.yaml", {"model_dir": str(tmp_path)})
    assert cfg.optimizer.betas == (0.8, 0.95)
    path.write_text("runconfig: {}")
    assert main(words) != 0
    assert "expected a params YAML with a model section" in capsys.readouterr().err


STACK = {"hidden_size": 16, "num_heads": 2, "num_hidden_layers": 2, "filter_size": 16}
T5 = {"src_vocab_size": 64, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_heads": 2}
RATES = {"vocab_size": 64, "max_position_embeddings": 16, "dropout_rate": 0.2, **STACK}
PARTS = {
    "bert": RATES | {"encoder_nonlinearity": "relu", "disable_nsp": True},
    "bert-sequence-classifier": RATES,
    "bert-summarization": RATES,
    "bert-token-classifier": RATES,
    "dpr": {"q_encoder": RATES, "ctx_encoder": RATES},
    "esm2": RATES,
    "gpt2": RATES,
    "gptj": {"rotary_dim": 4, **RATES},
    "llama": RATES,
    "llava": {"image_model": STACK, "text_model": RATES},
    "mixtral": RATES | {"moe": {"num_experts": 4}},
    "t5": T5 | {"encoder_num_hidden_layers": 2},
}


def resolved(value):
    """A configuration in which keys that follow others have their values."""
    if not isinstance(value, dict):
        return value
    out = {key: resolved(item) for key, item in value.items()}
    for part in ("residual", "embedding", "attention"):
        if "dropout_rate" in out and out.get(key := f"{part}_dropout_rate") is None:
            out[key] = out["dropout_rate"]
    return {key: item for key, item in out.items() if item is not None and item is not False}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("source", [(1, 7), (2, 0), (2, 2), (2, 3)])
def test_defaults_that_changed_are_written_out(name, source):
    """A converted section means what the file meant, by the defaults of either release."""
    section = {"name": name} | PARTS[name]

    def read(model, release):
        out = translate({"model": model, "release": "{}.{}".format(*release)})
        assert not out.problems
        return resolved(registry.parse_config(out.sections["model"]).to_dict())

    then = read(section, source)
    for target in ((2, 2), (2, 4), (2, 10)):
        if source < target:
            file, _ = convert_file({"model": section}, name, source, target)
            assert read(file["model"], target) == then


def test_the_rate_of_attention_was_dropout_rate_until_23():
    file, _ = convert_file({"model": dict(RATES)}, "gpt2", (2, 3), (2, 4))
    assert file["model"]["attention_dropout_rate"] == 0.2
    experts = {"model": RATES | {"moe": {"num_experts": 4}}}
    moe = convert_file(experts, "mixtral", (2, 3), (2, 4))[0]["model"]["moe"]
    assert moe == {"num_experts": 4, "top_k": 1, "load_balancing_loss_coef": 0.01}


def test_the_order_of_rows_was_random_until_23():
    rows = {"data_processor": "BertCSVDataProcessor", "data_dir": "there"}
    file, _ = convert_file({"model": {}, "train_input": rows}, "bert", (2, 0), (2, 4))
    assert file["trainer"]["fit"]["train_dataloader"]["shuffle"] is True
    rows = {"data_processor": "T5HDF5DataProcessor", "data_dir": "there"}
    file, _ = convert_file({"model": {}, "train_input": rows}, "t5", (2, 2), (2, 4))
    assert file["trainer"]["fit"]["train_dataloader"]["use_vsl"] is False


RENAMED = [row for row in rows_of("model", "rename") if row.since and "." not in row.says]


@pytest.mark.parametrize("row", RENAMED, ids=lambda row: row.keys[0])
def test_each_renamed_key_has_its_older_name_in_older_files(row):
    """A row names the release of a spelling; files of either side say the same."""
    (old,), (name,) = row.keys, row.of or ("gpt2",)
    value, older = (row.map[True], True) if row.map else (False, False)
    before = (row.since[0] - (row.since[1] == 0), (row.since[1] or 10) - 1)
    back = convert_file({"model": {row.says: value}}, name, row.since, before)[0]["model"]
    assert back[old] == older
    assert (row.says in back) == (row.says == old)
    assert convert_file({"model": back}, name, before, row.since)[0]["model"][row.says] == value


def read_model(**keys):
    out = translate({"model": keys})
    return out.problems or registry.parse_config(out.sections["model"])


def test_a_flag_of_an_older_release_takes_true_and_false_alone():
    llama = {"name": "llama", **SIZES}
    assert read_model(**llama).norm_type == "rmsnorm"
    assert read_model(**llama, use_rms_norm=False).norm_type == "layernorm"
    assert read_model(**llama, use_rms_norm=None).norm_type == "rmsnorm"
    assert read_model(**llama, use_bfloat16=True).fp16_type == "bfloat16"
    biasless = read_model(**SIZES, name="gptj", rotary_dim=2, use_biasless_norm=True)
    assert biasless.norm_type == "biasless-layernorm"
    labels = {"name": "bert-sequence-classifier", **SIZES, "num_classes": 3, "num_labels": 4}
    both = llama | {"use_rms_norm": True, "norm_type": "layernorm"}
    t5 = {"name": "t5", "d_model": 16, "d_kv": 3, "d_ff": 8, "num_heads": 4, "src_vocab_size": 11}
    cfg = read_model(**t5, encoder_num_hidden_layers=1)
    sizes = (cfg.hidden_size, cfg.head_dim, cfg.num_hidden_layers, cfg.decoder_layers)
    assert sizes == (16, 3, 1, 1)
    for section, key, says in (
        (llama | {"use_rms_norm": "yes"}, "use_rms_norm", "'yes': expected true or false"),
        (both, "use_rms_norm", "is another spelling of 'norm_type', which is 'layernorm'"),
        (labels, "num_classes", "is another spelling of 'num_labels'"),
        (t5 | {"hidden_size": 8}, "d_model", "another spelling of 'hidden_size', which is 8"),
        (t5 | {"num_heads": {"a": 1}}, "d_kv", "expected integers"),
        (t5 | {"d_kv": [3]}, "d_kv", "expected integers"),
        (t5 | {"num_heads": None}, "d_kv", "expected integers"),
    ):
        (problem,) = read_model(**section)
        assert problem.path == ("model", key)
        assert says in problem.message


def test_an_optimizer_of_release_1_means_the_same():
    older = {"optimizer_type": "adamw", "beta1": 0.8, "beta2": 0.9, "weight_decay_rate": 0.1}
    out = translate({"optimizer": older}).sections["optimizer"]
    assert out == {"optimizer_type": "adamw", "betas": [0.8, 0.9], "weight_decay": 0.1}
    half = translate({"optimizer": {"optimizer_type": "Adafactor", "eps2": 0.1}}).sections
    assert half["optimizer"]["eps"] == [1e-30, 0.1]


@pytest.mark.parametrize("name", [*OPTIMIZERS])
def test_the_defaults_of_a_pair_are_its_optimizers(name):
    """A pair of which a file has one half takes the other from the class."""
    for row in rows_of("optimizer", "pair"):
        if row.is_of((name,)):
            field = OPTIMIZERS[name].model_fields[row.says]
            assert field.default == row.values
