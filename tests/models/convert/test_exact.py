"""What we write computes there what it computed here, or is refused; DPR's two towers."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from helpers.batches import packed
from helpers.hf_parity import CHEAP, shaken

from wafer import models
from wafer.models.checkpoint.reader import open_params
from wafer.models.checkpoint.writer import write_params
from wafer.models.convert.api import config_to_hf
from wafer.models.convert.compare import diff_weights
from wafer.models.convert.files import open_tensors, read_config
from wafer.models.names import MODELS
from wafer.models.paths import map_named, named_leaves
from wafer.vendor.mdl.weights import write_weights

TINY = {"vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 1, "num_heads": 4}
TINY |= {"filter_size": 128, "max_position_embeddings": 16}
MUP = {"mup_base_hidden_size": 8, "mup_base_filter_size": 16, "embeddings_scale": 3.0}
MUP |= {"output_logits_alpha": 2.0}
GROUPED = {
    "attention_module": "multiquery_attention",
    "extra_attention_params": {"num_kv_groups": 2},
}
FORMS = {
    "mup tied": {"name": "gpt2", **MUP},
    "mup by hand": {
        "name": "starcoder",
        "scale_qk_dot_by_d": True,
        "output_logits_scale": 0.5,
        "embeddings_scale": 0.5,
    },
    "mup embedding norm": {"name": "bloom", **MUP},
    "mup untied, pairs, groups": {"name": "llama", **MUP, **GROUPED},
    "partial pairs": {"name": "gpt-neox"},
    "pairs, one group": {"name": "falcon-7b"},
    "pairs, a norm for each head": {"name": "qwen3", **GROUPED},
    "pairs, one norm for all heads": {"name": "olmo2", **GROUPED},
    "halves": {"name": "gptj", "rotary_interleaved": False, "rotary_dim": 4},
}
SLOW = {"mup tied", "mup by hand", "mup embedding norm", "pairs, one group", "partial pairs"}


def scores(model, params):
    batch = packed(np.random.default_rng(0).integers(0, 31, 8), [5, 3])
    return np.asarray(jax.jit(model.apply, compiler_options=CHEAP)(params, batch))


@pytest.mark.parametrize(
    "form", [pytest.param(f, marks=pytest.mark.slow) if f in SLOW else f for f in FORMS]
)
def test_scales_and_rotary_order_are_brought_into_hugging_faces_form(form, tmp_path):
    model = models.build(TINY | FORMS[form])
    params = shaken(model)
    models.to_hf(model, params, tmp_path)
    read, theirs = models.from_hf(tmp_path, name=FORMS[form]["name"])
    ours = scores(model, params)
    np.testing.assert_allclose(scores(read, theirs), ours, atol=1e-5 * np.abs(ours).max())
    assert read.config.embeddings_scale == 1.0
    assert read.config.logits_scale == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"name": "gpt2", "position_embedding_type": "rotary"},
            "position_embedding_type: 'rotary'",
        ),
        ({"name": "gpt2", "norm_type": "rmsnorm"}, "norm_type: 'rmsnorm' here, 'layernorm' there"),
        ({"name": "llama", "nonlinearity": "geglu"}, "nonlinearity: 'geglu' here"),
        ({"name": "mpt", "alibi_trainable_slopes": True}, "slopes in checkpoint: True here"),
        ({"name": "gpt2", "attention_sliding_window_length": 4}, "sliding_window_length: 4 here"),
        ({"name": "gpt3", "fixed_sparse_attention": {}}, "fixed_sparse_attention: .* None there"),
        ({"name": "gpt2", "attention_qk_norm_layer": "layernorm", **MUP}, "embeddings_scale: 3.0"),
        ({"name": "bert", "norm_first": True}, "norm_first: True here, False there"),
        ({"name": "mixtral"}, "moe: None here, MoeConfig"),
        ({"name": "t5", "attention_type": "scaled_dot_product"}, "attention scale: "),
        ({"name": "llama", "norm_outputs_only": True}, "norm_outputs_only: True here, False there"),
        ({"name": "qwen3", "attention_qk_norm_eps": 1e-3}, "qk_norm_eps: 0.001 here, 1e-06 there"),
        (
            {"name": "gemma3_text", "rope_theta_local": None, "embeddings_scale": 32**0.5},
            "rope_theta_local: None here, 1000000",
        ),
    ],
)
def test_what_hugging_face_cannot_compute_is_refused(settings, message, tmp_path):
    model, says = models.build(TINY | settings), f"this model:\n(.*\n)*.*{message}"
    with pytest.raises(ValueError, match=f"cannot compute {says}"):
        config_to_hf(model.config)
    with pytest.raises(ValueError, match=f"cannot compute {says}"):
        models.to_hf(model, {}, tmp_path)  # before any weight is looked at


def test_an_encoder_without_segments_is_written_with_zeros(tmp_path):
    """As the vendor's RoBERTa, and its BERT under disable_nsp."""
    model = models.build(TINY | {"name": "roberta", "num_segments": None})
    params = shaken(model)
    models.to_hf(model, params, tmp_path)
    read, theirs = models.from_hf(tmp_path)
    assert read.config.num_segments == 2
    batch = packed(np.arange(2, 10), [8])
    outs = [jax.tree.leaves(own.apply(p, batch)) for own, p in ((model, params), (read, theirs))]
    for one, other in zip(*outs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", [n for n, e in MODELS.items() if e.hf and e.family != "dpr"])
def test_every_convertible_name_has_an_exact_form(name):
    family = MODELS[name].family
    settings = TINY | {"name": name}
    if family == "vision":
        settings = {k: v for k, v in settings.items() if k not in {"vocab_size", "filter_size"}}
    if name in {"mixtral", "qwen3_moe"}:  # whose classes have experts always
        settings["moe"] = {"num_experts": 4}
    if family == "llava":
        sizes = {k: v for k, v in TINY.items() if k != "vocab_size"}
        settings = {"name": name, "image_model": sizes, "text_model": TINY}
    written = config_to_hf(models.build(settings).config)
    assert written["model_type"] == MODELS[name].hf


@pytest.mark.parametrize("width", [32, 48])  # of the tower: the text's, another
def test_llava_turns_the_pairs_of_its_text_model_alone(width, tmp_path):
    tower = {"name": "clip-vit", "hidden_size": width, "num_heads": 4, "filter_size": 64}
    tower |= {"num_hidden_layers": 1, "image_size": 8, "patch_size": 4}
    text = TINY | {"name": "llama", "rotary_interleaved": True}
    model = models.build({"name": "llava", "image_model": tower, "text_model": text})
    params = shaken(model)
    models.to_hf(model, params, tmp_path / "hf")
    other, read = models.from_hf(tmp_path / "hf")
    assert other.config.text_model.rotary_interleaved is False
    before, after = dict(named_leaves(params)), dict(named_leaves(read))
    halves = np.concatenate([8 * head + np.asarray([0, 2, 4, 6, 1, 3, 5, 7]) for head in range(4)])
    for name, leaf in before.items():
        rotary = name.startswith("layers_0/attn/") and ("query" in name or "key" in name)
        expected = np.asarray(leaf)[..., halves] if rotary else leaf
        np.testing.assert_array_equal(after[name], expected, name)


TOWER = {**TINY, "num_segments": 2, "dropout_rate": 0.0, "attention_dropout_rate": 0.0}
DPR = {"name": "dpr", "q_encoder": TOWER, "ctx_encoder": TOWER | {"num_hidden_layers": 2}}


def test_both_towers_of_dpr_convert_both_ways(tmp_path, command):
    model = models.build(DPR)
    params = shaken(model)
    theirs, ours, back = (tmp_path / name for name in ("theirs", "ours", "back"))
    models.to_hf(model, params, theirs)
    assert read_config(theirs / "ctx_encoder")["architectures"] == ["DPRContextEncoder"]
    names = list(open_tensors(theirs / "question_encoder"))
    assert all(name.startswith("question_encoder.bert_model.") for name in names)

    command(
        *("convert", "--model", "dpr", "--src-fmt", "hf", "--tgt-fmt", "wafer"),
        *("--output-dir", ours, theirs),
    )
    record, stored = open_params(ours)
    settings = record["config"]["model"]
    assert models.build(settings).config == model.config
    for name, leaf in named_leaves(params):
        np.testing.assert_array_equal(stored[name], leaf)
    command(
        *("convert", "--model", "dpr", "--src-fmt", "wafer", "--tgt-fmt", "hf"),
        *("--output-dir", back, ours),
    )
    for tower in ("question_encoder", "ctx_encoder"):
        assert diff_weights(theirs / tower, back / tower) == []

    single, own = models.from_hf(theirs / "question_encoder")
    assert single.config.name == "dpr-question-encoder"
    np.testing.assert_array_equal(
        own["layers_0"]["ffn"]["up"]["kernel"], params["question_layers_0"]["ffn"]["up"]["kernel"]
    )


def test_configs_convert_without_weights(tmp_path, command):
    fmt = ("--src-fmt", "wafer", "--tgt-fmt", "hf")
    params = tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump({"model": {"name": "gptj", **TINY}}))
    out = tmp_path / "out"
    command("convert-config", "--model", "gptj-headless", *fmt, "--output-dir", out, params)
    written = json.loads((out / "config.json").read_text())
    assert written["architectures"] == ["GPTJModel"]
    assert written["rotary_dim"] == 2
    fmt = ("--src-fmt", "hf", "--tgt-fmt", "wafer")
    command("convert-config", "--model", "gptj", *fmt, "--output-dir", out, out / "config.json")
    section = yaml.safe_load((out / "params_model.yaml").read_text())["model"]
    assert models.build(section).config.with_lm_head is False
    params.write_text(yaml.safe_dump({"model": DPR}))
    fmt = ("--src-fmt", "wafer", "--tgt-fmt", "hf")
    command("convert-config", "--model", "dpr", *fmt, "--output-dir", out / "two", params)
    assert (out / "two" / "ctx_encoder" / "config.json").exists()
    params.write_text("optimizer: {}")
    with pytest.raises(ValueError, match="expected a params YAML with a model section"):
        command("convert-config", "--model", "gptj", *fmt, "--output-dir", out, params)
    with pytest.raises(ValueError, match="only decoders have a -headless form"):
        command("convert", "--model", "bert-headless", *fmt, tmp_path)


def test_a_finished_folder_is_never_mixed_with_new_weights(tmp_path):
    model = models.build(TINY | {"name": "gpt2"})
    params = model.init(jax.random.key(0))
    models.to_hf(model, params, tmp_path / "a")
    with pytest.raises(FileExistsError, match=r"holds model\.safetensors already"):
        models.to_hf(model, params, tmp_path / "a", max_shard_bytes=10_000)
    broken = {**params, "norm_f": {"scale": np.zeros(3)}, "extra": np.zeros(1)}
    with pytest.raises(ValueError, match="3 parameters do not fit") as error:
        models.to_hf(model, broken, tmp_path / "b")
    for part in (
        "missing norm_f/bias (32,)",
        "unknown extra",
        "norm_f/scale: shape (3,), expected",
    ):
        assert part in str(error.value)
    assert not (tmp_path / "b").exists()


def test_half_precision_stays_half_precision_and_mixed_files_stay_aligned(tmp_path):
    model = models.build(TINY | {"name": "gpt2"})
    params = model.init(jax.random.key(0))
    params["wide"] = params.pop("norm_f")

    def narrow(name, leaf):
        return leaf if name.startswith("wide") else leaf.astype(jnp.bfloat16)

    params = map_named(narrow, params)
    params["norm_f"] = params.pop("wide")
    models.to_hf(model, params, tmp_path, max_shard_bytes=20_000)
    back = models.from_hf(tmp_path, dtype=None)[1]
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    for name, leaf in named_leaves(params):
        got = dict(named_leaves(back))[name]
        assert got.dtype == leaf.dtype
        np.testing.assert_array_equal(np.asarray(leaf), got)


def test_the_model_of_the_command_is_that_of_the_source(tmp_path, capsys, command):
    """For every format of the source; names of one model_type are one family."""
    section = TINY | {"name": "gpt2"}
    model = models.build(section)
    leaves = named_leaves(model.init(jax.random.key(0)))
    write_params(tmp_path / "ours", section, [name for name, _ in leaves], leaves)
    params, mdl = tmp_path / "params.yaml", tmp_path / "a.mdl"
    params.write_text(yaml.safe_dump({"model": section}))
    write_weights(model, dict(leaves), mdl, "cs-2.5")

    def fails(verb, name, source, target, *words):
        fmt = ("--model", name, "--src-fmt", source, "--tgt-fmt", target)
        with pytest.raises(ValueError, match=rf"'gpt2' \(--model {name}\).*Give --model gpt2$"):
            command(verb, *fmt, "--output-dir", tmp_path / "out", *words)
        assert not (tmp_path / "out").exists()

    fails("convert", "llama", "wafer", "hf", tmp_path / "ours")
    fails("convert", "bert", "wafer", "cs-2.5", tmp_path / "ours")
    fails("convert", "llama", "cs-2.5", "hf", "--config", params, mdl)
    for source, target in (("wafer", "hf"), ("cs-2.2", "wafer"), ("cs-2.2", "cs-2.9")):
        fails("convert-config", "llama", source, target, params)
    for out, source, target, *words in (
        ("0", "wafer", "hf", tmp_path / "ours"),
        ("1", "hf", "wafer", tmp_path / "0"),
        ("2", "hf", "wafer", tmp_path / "0" / "model.safetensors"),
        ("3", "cs-2.5", "wafer", "--config", params, mdl),
    ):
        fmt = ("--src-fmt", source, "--tgt-fmt", target, "--output-dir", tmp_path / out)
        command("convert", *fmt, *words)
        assert f": gpt2, {source} to {target}, " in capsys.readouterr().out
    for source in ("wafer", "cs-2.2"):
        fmt = ("--src-fmt", source, "--tgt-fmt", "hf", "--output-dir", tmp_path / source)
        command("convert-config", *fmt, params)
        assert read_config(tmp_path / source)["model_type"] == "gpt2"
    params.write_text(yaml.safe_dump({"model": TINY}))
    for source in ("wafer", "cs-2.2"):
        with pytest.raises(ValueError, match=r"params\.yaml: names no model; give --model, a name"):
            command("convert-config", "--src-fmt", source, "--tgt-fmt", "hf", params)
    fmt = ("--src-fmt", "wafer", "--tgt-fmt", "hf", "--output-dir", tmp_path / "twin")
    command("convert", "--model", "gpt3", *fmt, tmp_path / "ours")
    assert read_config(tmp_path / "twin")["model_type"] == "gpt2"
