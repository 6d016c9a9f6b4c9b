"""Call models of Hugging Face folders as users do, in every transformers at hand.

    python tests/helpers/hf_calls.py FOLDER ...

writes FOLDER/calls.npz: the inputs and outputs of ``model(**tokenizer(texts))`` and the tokens of
``model.generate(**tokenizer(text))``. Tests start it by ``called``: in their own Python, and in
those that the environment variable WAFER_TRANSFORMERS lists (paths, separated by ':'), so that one
run of tests sees both major versions.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys

import numpy as np

TEXTS = ["def f(x): return x", "x: f"]
NEW = 4  # tokens to generate
# Falcon's eager attention adds ALiBi twice in transformers 5; 4.57's sdpa leaves Gemma 2's cap out.
ATTENTION = {"falcon": "sdpa", "gemma2": "eager"}


def pythons():
    """Interpreters that have transformers and torch."""
    own = [sys.executable] if importlib.util.find_spec("transformers") else []
    return own + [path for path in os.environ.get("WAFER_TRANSFORMERS", "").split(":") if path]


def called(python, folders):
    """{folder: arrays of its calls.npz}, one interpreter."""
    folders = [str(folder) for folder in folders]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [python, "-W", "ignore", __file__, *folders]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return {folder: dict(np.load(pathlib.Path(folder, "calls.npz"))) for folder in folders}


def _calls(folder):
    import json

    import torch
    import transformers

    config = json.loads(pathlib.Path(folder, "config.json").read_text())
    cls = getattr(transformers, config["architectures"][0])
    attention = ATTENTION.get(config["model_type"])
    options = {"attn_implementation": attention} if attention else {}
    model = cls.from_pretrained(folder, torch_dtype=torch.float32, **options).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    whole = tokenizer(TEXTS, return_tensors="pt", padding=True)
    rows = {f"in_{name}": value.numpy() for name, value in whole.items()}
    rest = {}
    if config.get("is_encoder_decoder"):
        rest["decoder_input_ids"] = whole["input_ids"].flip(1)
        rows["in_decoder_input_ids"] = rest["decoder_input_ids"].numpy()
    with torch.no_grad():
        for name, value in model(**whole, **rest).items():
            if isinstance(value, torch.Tensor):
                rows[name] = value.numpy()
        if "logits" in rows and (rest or cls.__name__.endswith(("CausalLM", "LMHeadModel"))):
            one = tokenizer(TEXTS[0], return_tensors="pt")
            tokens = model.generate(**one, max_new_tokens=NEW, do_sample=False)
            rows["generated"] = tokens.numpy()[0][1 if rest else one["input_ids"].shape[1] :]
    np.savez(pathlib.Path(folder, "calls.npz"), **rows)


if __name__ == "__main__":
    for path in sys.argv[1:]:
        _calls(path)
