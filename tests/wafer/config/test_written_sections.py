"""What is written as a ``model`` section is read by a run as the same configuration."""

import argparse
import types
import typing

import h5py
import jax
import numpy as np
import pytest
import yaml
from helpers.hf_sections import SECTIONS
from helpers.paths import GOLDEN

import wafer
from wafer import models
from wafer.commands.checkpoints import convert as verbs
from wafer.commands.inputs import start_of
from wafer.config import load
from wafer.config.loader import model_section_of
from wafer.config.newfile import run_file
from wafer.models.checkpoint.writer import write_params
from wafer.models.convert.api import section_from_hf
from wafer.models.names import MODELS
from wafer.models.paths import named_leaves
from wafer.models.registry import config_class, parse_config, settings_of
from wafer.vendor.releases import convert_file
from wafer.vendor.runfile import read as translate

# The same sizes, for names without a Hugging Face form.
ALIKE = {"ebert": "bert", "bert-summarization": "bert-q&a", "fc_mnist": None}
NAMES = [*SECTIONS, *ALIKE]
HALF = {"mixed_precision": True}
EVERY_OTHER = {"sliding_window_every_other_decoder_layer": True}
EVERY_OTHER |= {"attention_sliding_window_length": 4}
VALUES = {int: [0, 1, 8], float: [0.0, 0.5, 1.0], bool: [True, False], type(None): [None]}
VALUES |= {str: ["bfloat16", "gelu", "relu", "swiglu", "learned", "rotary", "alibi", "fixed"]}


def sizes(name):
    return {"name": name, **SECTIONS.get(ALIKE.get(name, name), {})}


def choices(annotation):
    """Values of a field's type."""
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return list(parts)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [value for part in parts for value in choices(part)]
    if typing.get_origin(annotation) is typing.Annotated:
        return choices(parts[0])
    return VALUES.get(annotation, [])


def configurations(name):
    """Every configuration of a name with one key set to one of its values, in half precision."""
    for key, field in config_class(name).model_fields.items():
        for value in choices(field.annotation) if key != "name" else ():
            try:
                yield parse_config({**sizes(name), **HALF, key: value})
            except ValueError:
                continue


def read(raw):
    """(the configuration that a run computes with, keys without effect)."""
    translated = translate(raw)
    assert not translated.problems
    ignored = {path.rpartition(".")[2] for path in translated.ignored}
    return parse_config(translated.sections["model"]), ignored


def different(left, right, ignored=()):
    """Keys with other values; a part's rate that is null is the general one."""
    keys = [key for key in type(left).model_fields if getattr(left, key) != getattr(right, key)]
    rates = {f"{part}_dropout_rate" for part in ("embedding", "attention", "residual")}
    value = lambda cfg, key: getattr(cfg, key) if key in rates else ...
    general = lambda cfg, key: cfg.dropout_rate if value(cfg, key) is None else value(cfg, key)
    same = {k for k in keys if k in rates and general(left, k) == general(right, k)}
    return set(keys) - same - set(ignored)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_of_every_family_comes_back(name):
    count = 0
    for cfg in configurations(name):
        count += 1
        assert parse_config(settings_of(cfg)) == cfg
        again, ignored = read({"model": model_section_of(cfg)})
        assert different(cfg, again, ignored) == set()
    assert count > 10


def test_gemma_2_keeps_its_windows_in_a_new_run_file():
    """Hugging Face's code begins with the window, the vendor's with full attention."""
    cfg = parse_config(sizes("gemma2"))
    pattern = "sliding_window_every_other_decoder_layer_pattern"
    assert model_section_of(cfg)[pattern] == "sliding_window_first"
    assert read({"model": settings_of(cfg)})[0] != cfg


@pytest.mark.parametrize("release", ["1.6", "1.7", "1.8", "2.0", "2.2", "2.3", "2.4", "2.10"])
def test_an_upgraded_section_is_read_as_before(release):
    changes = [{}, HALF, EVERY_OTHER, {"disable_nsp": True}, {"num_segments": 0}]
    count = 0
    for name in MODELS:
        for change in changes:
            try:
                before, _ = read({"release": release, "model": {**sizes(name), **change}})
            except ValueError:  # of another family
                continue
            count += 1
            source = tuple(map(int, release.split(".")))
            file, _ = convert_file({"model": {**sizes(name), **change}}, name, source)
            after, ignored = read(file)
            assert different(before, after, ignored) == set(), (name, change)
    assert count > 100


@pytest.mark.parametrize("name", ["gemma2", "bert"])
def test_prune_and_a_new_run_file_keep_the_configuration(name, tmp_path):
    extra = {"num_segments": 0, "dropout_rate": 0.0} if name == "bert" else EVERY_OTHER
    model = models.build({**sizes(name), **HALF, **extra})
    params = dict(named_leaves(model.init(jax.random.key(0))))
    source = tmp_path / "1"
    write_params(source, settings_of(model.config), list(params), params.items())
    wafer.prune(tmp_path / "pruned", 0.5, method="magnitude", checkpoint=source)
    start = start_of(tmp_path / "pruned")
    path = tmp_path / "params.yaml"
    (tmp_path / "rows").mkdir()
    with h5py.File(tmp_path / "rows" / "rows.h5", "w") as file:
        file["data"] = np.ones((2, 3, 8), np.int32)
        file.attrs["n_examples"] = 2
    path.write_text(run_file(start, tmp_path / "rows"))
    config = load(path)
    assert parse_config(config.model) == model.config
    path.write_text(config.to_yaml())
    assert parse_config(load(path).model) == model.config


def convert(*args):
    parser = argparse.ArgumentParser()
    verbs.add_arguments(parser)
    parsed = parser.parse_args([*map(str, args)])
    assert parsed.run(parsed) == 0


FOLDERS = sorted(path for path in (GOLDEN / "hf").iterdir() if "headless" not in path.name)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_converted_section_is_what_hugging_face_says(folder, tmp_path):
    cfg = parse_config(section_from_hf(folder))
    fmt = ("--model", cfg.name, "--src-fmt", "hf", "--tgt-fmt", "wafer", "-o", tmp_path)
    convert("convert-config", *fmt, folder)
    written = yaml.safe_load((tmp_path / "params_model.yaml").read_text())
    again, ignored = read(written)
    assert different(cfg, again, ignored) == set()
