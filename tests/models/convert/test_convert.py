"""Conversion: every trap that cost somebody a day, the files, the errors, the commands."""

import json
import pickle
import struct
import zipfile

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from helpers import hf_parity
from safetensors.numpy import save_file

from wafer import models
from wafer.models.checkpoint.reader import open_params
from wafer.models.checkpoint.writer import write_params
from wafer.models.convert import config_from_hf, config_to_hf
from wafer.models.convert.api import convert_table
from wafer.models.convert.codecs import PATCHES, Fused, fused_order
from wafer.models.convert.compare import diff_weights
from wafer.models.convert.engine import import_tensors
from wafer.models.convert.files import open_tensors, read_config
from wafer.models.layers.attention import _falcon_bias
from wafer.models.paths import named_leaves
from wafer.models.registry import build, parse_config, settings_of

GOLDEN = hf_parity.KEPT


def leaves(params):
    return dict(named_leaves(params))


def assert_same_params(a, b):
    a, b = leaves(a), leaves(b)
    assert a.keys() == b.keys()
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name], err_msg=name)


def test_falcon_alibi_is_rounded_to_bfloat16_and_scaled_with_the_scores():
    cfg = parse_config(
        {"name": "falcon", "hidden_size": 48, "num_heads": 6, "num_hidden_layers": 1}
        | {"attention_module": "aiayn_attention", "extra_attention_params": None}
        | {"position_embedding_type": "alibi", "alibi_style": "falcon"}
    )
    bias = _falcon_bias(cfg)(jnp.zeros(1, jnp.int32), jnp.asarray([7]))

    slope = np.asarray(2.0**-1.0, ml_dtypes.bfloat16)  # the 5th of 6 slopes: 2^(-4/4 * 1)
    exact = float(np.asarray(slope * ml_dtypes.bfloat16(7), np.float32)) * 8**-0.5
    assert float(bias[4, 0, 0]) == pytest.approx(exact, rel=1e-7)
    third = np.asarray(2.0**-6, ml_dtypes.bfloat16)
    assert float(bias[2, 0, 0]) == pytest.approx(float(third) * 7 * 8**-0.5, rel=1e-2)


@pytest.mark.parametrize(
    ("config", "scaled"),
    [
        ({"tie_word_embeddings": True}, True),
        ({}, True),
        ({"tie_word_embeddings": False}, False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, False),
    ],
)
def test_t5_scales_logits_by_either_key_and_unties_by_weights(config, scaled):
    foreign = read_config(GOLDEN / "t5_relu_tied")
    foreign.pop("scale_decoder_outputs")
    foreign.pop("tie_word_embeddings")
    settings = config_from_hf(foreign | config)
    assert settings["scale_logits"] is scaled

    for case, tied in (("t5_relu_tied", True), ("t5v11_flan_gatedgelu", False)):
        model, _ = models.from_hf(GOLDEN / case)
        assert model.config.share_embedding_weights is tied


def test_a_part_without_a_dropout_rate_of_its_own_is_written_with_the_general_one():
    section = {"name": "gpt2", "vocab_size": 8, "hidden_size": 8, "num_heads": 2}
    section |= {"num_hidden_layers": 1, "filter_size": 32, "max_position_embeddings": 4}
    cfg = models.build(section | {"dropout_rate": 0.2, "attention_dropout_rate": 0.3}).config
    foreign = config_to_hf(cfg)
    rates = [foreign[key] for key in ("embd_pdrop", "resid_pdrop", "attn_pdrop")]
    assert rates == [0.2, 0.2, 0.3]  # transformers refuses null


@pytest.mark.parametrize(
    "name", [n for n, p in hf_parity.cases().items() if (p / "config_legacy.json").exists()]
)
def test_v4_and_v5_configs_read_alike_and_both_are_written(name):
    folder = hf_parity.cases()[name]
    new = build(config_from_hf(read_config(folder))).config
    old = build(config_from_hf(read_config(folder / "config_legacy.json"))).config
    assert old == new.model_copy(update={"share_embedding_weights": old.share_embedding_weights})

    written = config_to_hf(new)
    if "rope_parameters" in written:
        v4 = {k: v for k, v in written.items() if k != "rope_parameters"}
        v5 = {k: v for k, v in written.items() if k not in {"rope_theta", "rope_scaling"}}
        v5 = {k: v for k, v in v5.items() if k not in {"rotary_pct", "rotary_emb_base"}}
        assert build(config_from_hf(v4)).config == build(config_from_hf(v5)).config == new
    assert written["dtype"] == written["torch_dtype"]


@pytest.mark.parametrize("spelling", ["v5 saved", "v4 files", "v5 memory"])
def test_llava_reads_all_three_spellings(spelling, tmp_path):
    folder = GOLDEN / "llava"
    model, expected = models.from_hf(folder, dtype=None)
    source = open_tensors(folder)

    def rename(name):
        if spelling == "v4 files":
            return name.replace("vision_tower.", "vision_tower.vision_model.")
        if spelling == "v5 memory":
            name = name.replace("language_model.model.", "language_model.")
            head = name.removeprefix("language_model.")
            return head if head.startswith("lm_head") else f"model.{name}"
        return name

    tensors = {rename(n): np.array(source[n]) for n in source}
    save_file(tensors, tmp_path / "model.safetensors")
    read, params = models.from_hf(tmp_path, config=folder, dtype=None)
    assert read.config == model.config
    assert_same_params(params, expected)


def test_fused_layouts_by_hand():
    # two heads of size one, so that each number is one head's q, k or v
    np.testing.assert_array_equal(fused_order("concat", 2, 2, 1), [0, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(fused_order("per_head", 2, 2, 1), [0, 3, 1, 4, 2, 5])
    # four queries over two kv heads: [q q k v | q q k v]
    np.testing.assert_array_equal(fused_order("grouped", 4, 2, 1), [0, 1, 4, 5, 2, 6, 3, 7])
    # one kv head: all queries, then k, v (Falcon 7b)
    np.testing.assert_array_equal(fused_order("grouped", 2, 1, 1), [0, 1, 2, 3])
    # CodeGen: four blocks of q, v, k
    np.testing.assert_array_equal(
        fused_order("codegen", 4, 4, 1), [0, 3, 6, 9, 2, 5, 8, 11, 1, 4, 7, 10]
    )


def test_fused_weights_invert():
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(16, 5)).astype(np.float32)
    codec = Fused("grouped", 4, 2, transposed=True)
    parts = codec.to_ours(weight, [(5, 8), (5, 4), (5, 4)])
    np.testing.assert_array_equal(codec.to_foreign(parts), weight)
    np.testing.assert_array_equal(parts[1][:, 0], weight[4])  # first key follows two queries of 2


def test_patches_flatten_channel_first():
    weight = np.arange(2 * 3 * 2 * 2, dtype=np.float32).reshape(2, 3, 2, 2)
    (ours,) = PATCHES.to_ours(weight, [(12, 2)])
    np.testing.assert_array_equal(ours[:, 1], np.arange(12, 24))
    np.testing.assert_array_equal(PATCHES.to_foreign([ours]), weight)


def test_gated_t5_activations():
    for name, act in (("t5v11_flan_gatedgelu", "geglu_new"), ("ul2_gatedsilu", "swiglu")):
        assert build(config_from_hf(read_config(GOLDEN / name))).config.nonlinearity == act


def test_a_stored_sinusoid_table_is_not_trusted(tmp_path):
    name = "transformer_base_postln_sinusoidal"
    model, expected = models.from_hf(GOLDEN / name)
    table = {"model.encoder.embed_positions.weight": np.ones((32, 32), np.float16)}
    assert_same_params(models.from_hf(hf_parity.copied(tmp_path, name, table))[1], expected)
    assert model.config.position_embedding_type == "fixed"


def test_every_fault_of_a_file_is_reported_at_once(tmp_path):
    wrong = {"wte.weight": np.zeros((96, 32), np.float32), "h.0.attn.rotary.weight": np.zeros(3)}
    folder = hf_parity.copied(tmp_path, "gpt2_headless", wrong, ["ln_f.weight"])
    with pytest.raises(ValueError, match="3 tensors do not fit") as error:
        models.from_hf(folder)
    message = str(error.value)
    assert "missing ln_f.weight (32,) (holds norm_f/scale)" in message
    assert "wte.weight: shape (96, 32), expected (97, 32)" in message
    assert "unmatched h.0.attn.rotary.weight (3,)" in message


def test_pruned_weights_are_zero_outside(tmp_path):
    model, params = models.from_hf(GOLDEN / "gpt2_headless")
    kernel = np.array(params["layers_0"]["ffn"]["up"]["kernel"])
    kernel[0, :3] = np.nan
    params["layers_0"]["ffn"]["up"]["kernel"] = kernel
    models.to_hf(model, params, tmp_path, pruned={"layers_0/ffn/up/kernel"})
    written = open_tensors(tmp_path)["h.0.mlp.c_fc.weight"]
    np.testing.assert_array_equal(written[0, :3], 0)
    np.testing.assert_array_equal(written[1:], kernel[1:])


class _Evil:
    def __reduce__(self):
        return (print, ("this must never run",))


def test_a_pickle_that_names_anything_but_tensors_is_refused(tmp_path, capsys):
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"w": _Evil()}))
    with pytest.raises(ValueError, match=r"refused to load builtins\.print"):
        open_tensors(path)
    assert capsys.readouterr().out == ""
    with zipfile.ZipFile(path, "w") as archive:  # sets an attribute of the builder of tensors
        builder = b"ctorch._utils\n_rebuild_tensor_v2\n"
        archive.writestr("archive/data.pkl", b"\x80\x02" + builder + b"}X\x01\0\0\0aNsb.")
    with pytest.raises(ValueError, match="refused to set the state of anything but a dict"):
        open_tensors(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:  # a bomb: 64 MB of zeros
        archive.writestr("archive/data.pkl", bytes(64 << 20))
    with pytest.raises(ValueError, match=r"data\.pkl is compressed"):
        open_tensors(path)
    path.write_bytes(struct.pack("<Q", 1))
    with pytest.raises(ValueError, match="not a zip archive"):
        open_tensors(path)


@pytest.mark.parametrize("name", ["../secret.safetensors", "", ".", ".."])
def test_an_index_cannot_point_outside_its_folder(tmp_path, name):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ValueError, match=f"{index.name}.*no file of its own folder"):
        open_tensors(tmp_path)


def test_tensors_are_read_once_each(monkeypatch):
    source = open_tensors(GOLDEN / "gpt_bigcode_mha")
    read, names = type(source).__getitem__, []

    def watched(self, name):
        if self is source:
            names.append(name)
        return read(self, name)

    monkeypatch.setattr(type(source), "__getitem__", watched)
    model = build(config_from_hf(read_config(GOLDEN / "gpt_bigcode_mha")))
    for _ in import_tensors(model, convert_table(model.config), source):
        pass
    assert sorted(names) == sorted(source)


def test_commands_there_and_back(tmp_path, capsys, command):
    source = GOLDEN / "gpt_bigcode_mha"
    ours, back = tmp_path / "ours", tmp_path / "back"
    common = ("--model", "starcoder")
    command(
        "convert", *common, "--src-fmt", "hf", "--tgt-fmt", "wafer", "--output-dir", ours, source
    )
    record, params = open_params(ours)
    count = sum(int(np.prod(leaf.shape)) for leaf in params.values())
    said = f"{ours}: starcoder, hf to wafer, {len(params)} tensors, {count:,} parameters"
    assert capsys.readouterr().out == f"{said}, no tokenizer found\n"
    settings = record["config"]["model"]
    assert build(settings).config.num_kv_heads == 4
    assert params["embed/token/embedding"].dtype == np.float32
    args = ("--src-fmt", "wafer", "--tgt-fmt", "hf", "--hf-shard-size", "30KB")
    command("convert", *common, *args, "--output-dir", back, ours)
    assert (back / "model.safetensors.index.json").exists()
    assert diff_weights(source, back) == []
    assert command("diff", source, back) == 0
    assert command("diff", source, GOLDEN / "gpt_bigcode_mqa_starcoder") == 1
    assert "shape" in capsys.readouterr().out
    command("list", "starcoder")
    assert "gpt_bigcode" in capsys.readouterr().out


def test_pruned_weights_do_not_hide_how_the_others_differ(tmp_path):
    names = ["pruned", "dense", "moved", "signed"]
    nan = np.nan
    left = [[nan, nan, 3, 4], [1, 2, 3, 4], [nan, 2, 3, 4], [0.0, 1, 2, 3]]
    right = [[0, 7, 3, 4], [1, 2, 3, 4], [0, nan, 3, 4.5], [-0.0, 1, 2, 3]]
    for folder, rows in (("a", left), ("b", right)):
        arrays = zip(names, np.array(rows, np.float32), strict=True)
        write_params(tmp_path / folder, {}, names, arrays, names)
    a, b = tmp_path / "a", tmp_path / "b"
    pruned = "values are NaN (pruned) in"
    assert sorted(diff_weights(a, b)) == [
        f"moved: 1 of 4 {pruned} {a} and 0 in {b}, 1 of 4 {pruned} {b} and other values in {a}, the"
        " other values differ by up to 0.5",
        f"pruned: 1 of 4 {pruned} {a} and 0 in {b}, 1 of 4 {pruned} {a} and other values in {b},"
        " the other values are equal",
        "signed: values are equal, their bits differ",
    ]
    assert "signed" not in " ".join(diff_weights(a, b, "allclose"))


def test_a_headless_file_gains_and_loses_its_head(tmp_path, command):
    ours, back = tmp_path / "ours", tmp_path / "back"
    source = GOLDEN / "gptj_headless"
    fmt = ("--model", "gptj-headless", "--src-fmt", "hf", "--tgt-fmt", "wafer")
    command("convert", *fmt, "--output-dir", ours, source)
    record, params = open_params(ours)
    settings = record["config"]["model"]
    assert params["lm_head/kernel"].shape == (32, 97)
    assert np.std(np.asarray(params["lm_head/kernel"])) == pytest.approx(0.02, rel=0.1)
    fmt = ("--model", "gptj-headless", "--src-fmt", "wafer", "--tgt-fmt", "hf")
    command("convert", *fmt, "--output-dir", back, ours)
    assert diff_weights(source, back) == []
    assert build(settings).config.with_lm_head


def test_wrong_commands_say_why(tmp_path, command):
    fmt = ("--src-fmt", "hf", "--tgt-fmt", "wafer")
    with pytest.raises(ValueError, match="did you mean 'gptj'"):
        command("convert", "--model", "gpt-j", *fmt, tmp_path)
    with pytest.raises(ValueError, match="both 'hf'"):
        command("convert", "--model", "gptj", "--src-fmt", "hf", "--tgt-fmt", "hf", tmp_path)
    (tmp_path / "step").mkdir()
    with pytest.raises(FileNotFoundError, match=r"stop does not exist; did you mean 'step'\?"):
        command("diff", tmp_path / "stop", tmp_path / "step")
    with pytest.raises(ValueError, match="says model_type 'gptj'"):
        command("convert", "--model", "gpt2", *fmt, GOLDEN / "gptj_headless")


@pytest.mark.parametrize("name", sorted(p.name for p in GOLDEN.iterdir()))
def test_settings_survive_presets(name):
    cfg = build(config_from_hf(read_config(GOLDEN / name))).config
    assert parse_config(settings_of(cfg)) == cfg
