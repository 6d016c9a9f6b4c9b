"""docs/howto/model-family.md: a family from outside the packages, its logits, and back."""

import json
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import yaml
from helpers.paths import ROOT

from wafer import models, vsl
from wafer.models.names import MODELS, lookup

PAGE = ROOT / "docs" / "howto" / "model-family.md"
CONFIG = {
    "model_type": "phi",
    "architectures": ["PhiForCausalLM"],
    "vocab_size": 19,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu_new",
    "partial_rotary_factor": 0.5,
    "rope_theta": 10000.0,
}
LENGTH = 9


@pytest.fixture(scope="module", autouse=True)
def phi_family():
    """The page's module, as if its folder were on the path."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 40
    sys.modules["phi_family"] = module = types.ModuleType("phi_family")
    exec(compile(code, "phi_family.py", "exec"), vars(module))
    yield
    del sys.modules["phi_family"], MODELS["phi"]
    for kept in (models.convert.api._CONFIGS, models.convert.api._TABLES):
        del kept["phi"]


@pytest.fixture(scope="module")
def tensors():
    """Tensors under the names and in the shapes of a published Phi."""
    rng = np.random.default_rng(0)
    shapes = {"model.embed_tokens": (19, 16), "model.final_layernorm": (16,), "lm_head": (19, 16)}
    for i in range(2):
        shapes[f"model.layers.{i}.input_layernorm"] = (16,)
        for part in ("q_proj", "k_proj", "v_proj", "dense"):
            shapes[f"model.layers.{i}.self_attn.{part}"] = (16, 16)
        shapes[f"model.layers.{i}.mlp.fc1"] = (24, 16)
        shapes[f"model.layers.{i}.mlp.fc2"] = (16, 24)
    drawn = {}
    for name, shape in shapes.items():
        drawn[f"{name}.weight"] = rng.normal(0, 0.4, shape).astype(np.float32)
        if name != "model.embed_tokens":
            drawn[f"{name}.bias"] = rng.normal(0, 0.4, shape[:1]).astype(np.float32)
    return drawn


@pytest.fixture
def folder(tensors, tmp_path):
    """A Hugging Face folder."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def phi(w, tokens):
    """Phi in NumPy: logits [T, V] of one sequence."""

    def dense(name, x):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name, x):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def rotate(x):  # [T, heads, 8], of which the first 4 features turn
        angle = np.arange(len(x))[:, None] / 10000.0 ** (np.arange(2) / 2)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b, rest = x[..., :2], x[..., 2:4], x[..., 4:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)

    x = w["model.embed_tokens.weight"][tokens]
    for i in range(2):
        layer = f"model.layers.{i}"
        h = norm(f"{layer}.input_layernorm", x)
        q, k, v = (dense(f"{layer}.self_attn.{part}_proj", h).reshape(-1, 2, 8) for part in "qkv")
        scores = np.einsum("qhd,khd->hqk", rotate(q), rotate(k)) / np.sqrt(8)
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        attended = np.einsum("hqk,khd->qhd", share, v).reshape(-1, 16)
        inner = dense(f"{layer}.mlp.fc1", h)
        inner *= 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
        x = x + dense(f"{layer}.self_attn.dense", attended) + dense(f"{layer}.mlp.fc2", inner)
    return dense("lm_head", norm("model.final_layernorm", x))


def test_logits_are_phis(folder, tensors):
    model, params = models.from_hf(folder)
    tokens = np.random.default_rng(1).integers(0, 19, LENGTH)
    layout = vsl.padded_layout(jnp.asarray([LENGTH]), LENGTH)
    batch = models.Batch(tokens, tokens, np.ones(LENGTH, np.float32), layout)
    logits = jax.jit(model.apply)(params, batch)
    np.testing.assert_allclose(logits, phi(tensors, tokens), atol=1e-5)


def test_there_and_back(folder, tensors, tmp_path):
    models.to_hf(*models.from_hf(folder), tmp_path / "again")
    again = safetensors.numpy.load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(again[name], tensor, err_msg=name)
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert {key: config[key] for key in CONFIG if key in config} == {
        key: value for key, value in CONFIG.items() if key in config
    }
    assert config["rope_parameters"]["partial_rotary_factor"] == 0.5


def test_the_run_files_name_finds_it():
    (section,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    settings = yaml.safe_load(section)["model"]
    model = models.build(settings)
    assert model.config.parallel_attention
    assert lookup("phi_family:phi").hf == "phi"
    assert models.parameter_count(model) == pytest.approx(1.42e9, rel=0.01)  # Phi-1.5's
    with pytest.raises(ValueError, match=r"No module named 'ph'; is its folder on PYTHONPATH"):
        models.build(settings | {"name": "ph:none"})
    with pytest.raises(ValueError, match="has no attribute 'phy'; did you mean 'phi'"):
        models.build(settings | {"name": "phi_family:phy"})


def test_a_module_of_before_the_import_root_is_told_what_to_write(tmp_path, monkeypatch):
    (tmp_path / "of_before.py").write_text("import sparsity\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"of_before:net.*write `from wafer import sparsity`"):
        models.build({"name": "of_before:net"})


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="registered already"):
        models.convert.register("phi", types.SimpleNamespace(model_type="phi"), None, presets={})
