"""Run gigaGPT's published program on ``wafer.loop``, with the model of this file for its own.

    python tests/helpers/gigagpt.py FOLDER OUT

FOLDER is a checkout or a git directory of github.com/Cerebras/gigaGPT, of which nothing is stored
here; OUT gets the program, changed by ``CHANGES``, and ``model.py``. What differs is printed and
counted. The program needs torch and transformers, for its data loader and its command line.
"""

import argparse
import dataclasses
import difflib
import pathlib
import subprocess
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import wafer.loop as cstorch

PROGRAM = ("train.py", "eval.py", "data.py", "configuration.py")
# Everything that changes, as text and its replacement.
CHANGES = (
    ("cerebras.pytorch", "wafer.loop"),
    ("loss.backward()", "cstorch.backward(loss)"),
    ("torch.nn.utils.", "cstorch.nn.utils."),
)


@dataclasses.dataclass
class GPTConfig:
    """The model's keys, under the program's names."""

    max_position_embeddings: int = 2048
    vocab_size: int = 50257
    depth: int = 12
    heads: int = 12
    width: int = 768
    dropout: float = 0.0
    bias: bool = True
    init_std: float = 0.02


class Block(nnx.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, cfg: GPTConfig, rngs: nnx.Rngs) -> None:
        scaled = nnx.initializers.normal(cfg.init_std / (2 * cfg.depth) ** 0.5)
        keys: dict[str, Any] = {"use_bias": cfg.bias, "rngs": rngs}
        first: dict[str, Any] = keys | {"kernel_init": nnx.initializers.normal(cfg.init_std)}
        self.heads = cfg.heads
        self.ln_1 = nnx.LayerNorm(cfg.width, epsilon=1e-5, rngs=rngs)
        self.qkv = nnx.Linear(cfg.width, 3 * cfg.width, **first)
        self.proj_output = nnx.Linear(cfg.width, cfg.width, kernel_init=scaled, **keys)
        self.ln_2 = nnx.LayerNorm(cfg.width, epsilon=1e-5, rngs=rngs)
        self.fc = nnx.Linear(cfg.width, 4 * cfg.width, **first)
        self.proj = nnx.Linear(4 * cfg.width, cfg.width, kernel_init=scaled, **keys)
        self.dropout = nnx.Dropout(cfg.dropout, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Transform [B, S, D]."""
        rows = (*x.shape[:2], self.heads, -1)
        q, k, v = (part.reshape(rows) for part in jnp.split(self.qkv(self.ln_1(x)), 3, axis=-1))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj_output(mixed.reshape(x.shape))
        return x + self.dropout(self.proj(nnx.gelu(self.fc(self.ln_2(x)), approximate=False)))


class GPTModel(cstorch.nn.Module):
    """GPT-2: the mean loss of labels, or logits without them."""

    def __init__(self, cfg: GPTConfig) -> None:
        rngs = nnx.Rngs(0)
        table: dict[str, Any] = {
            "embedding_init": nnx.initializers.normal(cfg.init_std),
            "rngs": rngs,
        }
        self.wte = nnx.Embed(cfg.vocab_size, cfg.width, **table)
        self.wpe = nnx.Embed(cfg.max_position_embeddings, cfg.width, **table)
        self.drop_embd = nnx.Dropout(cfg.dropout, rngs=rngs)
        self.decoder = nnx.List([Block(cfg, rngs) for _ in range(cfg.depth)])
        self.ln_f = nnx.LayerNorm(cfg.width, epsilon=1e-5, rngs=rngs)

    def __call__(self, input_ids: jax.Array, labels: jax.Array | None = None) -> jax.Array:
        """Score [B, S] ids: [] mean loss, or [B, S, V] logits."""
        x = self.drop_embd(self.wte(input_ids) + self.wpe(jnp.arange(input_ids.shape[1])))
        for block in self.decoder:
            x = block(x)
        logits = self.wte.attend(self.ln_f(x))
        if labels is None:
            return logits
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1).mean()


def _published(folder: pathlib.Path, name: str) -> str:
    if (folder / name).exists():
        return (folder / name).read_text()
    command = ["git", "-C", str(folder), "show", f"HEAD:{name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def port(folder: pathlib.Path, out: pathlib.Path) -> list[str]:
    """Write the changed program; returns the lines that differ, as they are now."""
    changed: list[str] = []
    for name in PROGRAM:
        old = _published(folder, name)
        new = old
        for text, replacement in CHANGES:
            new = new.replace(text, replacement)
        (out / name).write_text(new)
        lines = difflib.ndiff(old.splitlines(), new.splitlines())
        changed += [f"{name}: {line[2:]}" for line in lines if line[:2] == "+ "]
    (out / "model.py").write_text("from helpers.gigagpt import GPTConfig, GPTModel\n")
    return changed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    found = port(words.folder, words.out)
    print("\n".join(found), f"\n{len(found)} changed lines", sep="")
