"""Write a checkpoint with the vendor's own software, and what is in it.

Needs torch and the wheel ``cerebras-pytorch`` 2.10.0 (Python 3.11) in an environment of its own:

    python make.py adamw-2.10

The model has the module names of Model Zoo's GPT-2; five AdamW steps on random gradients.
"""

import lzma
import pathlib
import sys

import cerebras.pytorch as cstorch
import numpy as np
import torch
from torch import nn

VOCAB, HIDDEN, FILTER, POSITIONS = 16, 8, 16, 8


def bare(**modules):
    module = nn.Module()
    for name, part in modules.items():
        setattr(module, name, part)
    return module


def linear(inputs, outputs):
    return bare(linear_layer=nn.Linear(inputs, outputs))


def layer():
    attention = {f"proj_{p}_dense_layer": nn.Linear(HIDDEN, HIDDEN) for p in ("q", "k", "v")}
    attention["proj_output_dense_layer"] = nn.Linear(HIDDEN, HIDDEN)
    ffn = nn.ModuleList([linear(HIDDEN, FILTER), linear(FILTER, HIDDEN)])
    norms = {name: nn.LayerNorm(HIDDEN) for name in ("norm1", "norm3")}
    return bare(self_attn=bare(**attention), **norms, ffn=bare(ffn=ffn))


def gpt2():
    words = nn.Embedding(VOCAB, HIDDEN)
    positions = bare(embed=nn.Embedding(POSITIONS, HIDDEN))
    last = nn.LayerNorm(HIDDEN)
    head = nn.Linear(HIDDEN, VOCAB, bias=False)
    head.weight = words.weight
    return bare(
        model=bare(
            embedding_layer=bare(word_embeddings=words, position_embeddings=positions),
            ln_f=last,
            transformer_decoder=bare(layers=nn.ModuleList([layer()]), norm=last),
            lm_head=head,
        )
    )


def main(name):
    cstorch.backend("CPU")
    torch.manual_seed(0)
    model = gpt2()
    named = dict(model.named_parameters())
    fixed = [n for n in named if any(word in n for word in ("bias", "norm", "ln_f"))]
    decayed = [n for n in named if n not in fixed]
    groups = [
        {"params": [named[n] for n in names], "weight_decay": decay}
        for names, decay in ((decayed, 0.1), (fixed, 0.0))
    ]
    optimizer = cstorch.optim.AdamW(groups, lr=0.01)
    optimizer.preinitialize()
    schedule = cstorch.optim.lr_scheduler.LinearLR(
        optimizer, initial_learning_rate=0.01, end_learning_rate=0.0, total_iters=10
    )
    for _ in range(5):
        for weight in named.values():
            weight.grad = torch.randn_like(weight)
        optimizer.step()
        schedule.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    state |= {"schedulers": [schedule.state_dict()], "global_step": 5}
    path = pathlib.Path(f"{name}.mdl")
    cstorch.save(state, path)
    pathlib.Path(f"{name}.mdl.xz").write_bytes(lzma.compress(path.read_bytes(), preset=9))
    path.unlink()
    values = {n: weight.detach().numpy() for n, weight in named.items()}
    for n, weight in named.items():
        values |= {f"{n}|{key}": np.asarray(x) for key, x in optimizer.state[weight].items()}
    np.savez_compressed(f"{name}.npz", **values)


if __name__ == "__main__":
    main(sys.argv[1])
