"""How fast are training and decoding beside PyTorch with transformers, on the same weights?

Training: the GPT of sparse_step.py (d=512, 4 layers, vocabulary 512, 8 rows of 512 tokens), AdamW,
gradients clipped at norm 1, float32. PyTorch runs it as it is written (eager) and compiled, with
fused AdamW and its own attention kernel. Decoding: a step of GPT-2 small after 32 tokens. Weights
go to PyTorch through ``models.convert``; losses of the first and of the last step and logits are
compared: both sides compute the same. All alternate in one process; medians, compilation apart.
Threads are those that each library takes by itself.

    python tests/bench/peers.py [--quick] [--part train]      # needs torch and transformers

Rows: ``train_eager``, ``train_compiled``: PyTorch's time over that of our dense step; ``s90_eager``
and ``s90_compiled``: over ours with 90 % zeros; ``decodeN``: over our dense decode of N rows;
``decodeN_csr90``: over ours with 90 % zeros, ``decodeN_csr80_int8``: with 80 % zeros and int8
weights (other weights than PyTorch's); ``vs_torch`` is ``decode1``; with ``--llama-cpp``,
``decode1_llama_cpp`` and so on: the time of llama.cpp over ours, float32, its greedy tokens
compared with ours. Above 1, ours is faster.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import generate
import harness
import sparse_step

from wafer import malloc, models
from wafer.data.text.tokenizer import train_bpe
from wafer.models.convert import to_hf
from wafer.models.generation.decode import decode_step
from wafer.models.layers.caches import init_cache
from wafer.models.paths import map_named, named_leaves
from wafer.sparsity import decoding

ROOT = Path(__file__).parents[2]
_FED = ("input_ids", "labels")
LIMIT = 2e-4  # of a difference between logits of the two sides, over their largest value


def torch_model(model, params):
    """The same weights in transformers' class."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        to_hf(model, params, folder)
        return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")


def torch_step(module, batch, losses):
    """A training step of PyTorch, its own state kept."""
    import torch

    tokens, labels = (torch.from_numpy(np.array(batch[k], np.int64)[0, 0]) for k in _FED)
    module.train()
    tx = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def once():
        logits = module(input_ids=tokens, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        tx.step()
        tx.zero_grad(set_to_none=True)
        losses.append(loss.item())

    return once


def our_step(run, state, batch, losses):
    """A training step of ours."""
    kept = [state]

    def once():
        kept[0], metrics = run.step(kept[0], batch, topology=False)
        losses.append(float(metrics["loss"]))
        return kept[0].params

    return once


def train(quick):
    """Ratios of training steps."""
    import torch

    layers, width, rows, repeats = (2, 256, 2, 3) if quick else (4, 512, 8, 5)
    programs, losses = {}, {}
    static = {"algorithm": "static", "sparsity": 0.9, "compute": "csr"}
    for name, section in (("dense", None), ("s90", static)):
        run = sparse_step.executor(section, layers, width, max_gradient_norm=1.0, eps=1e-8)
        batch = sparse_step.features(run, rows)
        state = run.init(jax.random.key(0))
        if name == "dense":  # before a step gives its buffers away
            weights = jax.tree.map(np.asarray, state.params)
            for peer, build in (("eager", lambda m: m), ("compiled", torch.compile)):
                module = build(torch_model(run.model, weights))
                programs[peer] = torch_step(module, batch, losses.setdefault(peer, []))
        programs[name] = our_step(run, state, batch, losses.setdefault(name, []))
    same = ("dense", "eager", "compiled")
    for run in programs.values():
        run()
    harness.agree({name: losses[name] for name in same}, 1e-4)
    times = harness.interleave(programs, repeats)
    harness.agree({name: losses[name][-1] for name in same}, 5e-3)
    for name, timing in times.items():
        first, last = losses[name][0], losses[name][-1]
        over = harness.ratio(times, name, "dense")
        print(
            f"{name:9} {1e3 * timing.median:7.0f} ms   over our dense step {over.median:.2f} by "
            f"median {over.least:.2f} by fastest {over.cpu:.2f} by CPU   loss {first:.5f} .. "
            f"{last:.5f}"
        )
    ours = {"train": "dense", "s90": "s90"}
    return {
        f"{row}_{peer}": harness.ratio(times, peer, arm).median
        for row, arm in ours.items()
        for peer in ("eager", "compiled")
    }


def torch_decode(module, batch):
    """As many decoding steps as ``generate.stepper`` takes, after 32 tokens."""
    import torch
    import transformers

    module.eval()
    cache = transformers.DynamicCache()
    with torch.inference_mode():
        module(input_ids=torch.zeros((batch, 32), dtype=torch.long), past_key_values=cache)
    one = torch.ones((batch, 1), dtype=torch.long)

    def once():
        with torch.inference_mode():
            for _ in range(generate.TOKENS):
                logits = module(input_ids=one, past_key_values=cache).logits
                logits.argmax(-1)
        cache.crop(-generate.TOKENS)
        return logits.numpy()

    return once


def llama_cpp(model, params, python, script, folder):
    """A function of a request's keys: 32 tokens continued by llama.cpp with the same weights."""
    text = folder / "text"
    text.mkdir()
    train_bpe(["def f(x): return x"], 300).save(str(text / "tokenizer.json"))
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    (text / "special_ids.json").write_text(json.dumps(ids))
    to_hf(model, params, folder / "hf", text_from=text)
    convert = [sys.executable, str(ROOT / "tests/helpers/gguf_calls.py"), script, folder / "hf"]
    subprocess.run(convert, check=True, capture_output=True)
    serve = [python, str(ROOT / "tests/bench/llama_tokens.py"), str(folder / "hf" / "model.gguf")]
    serve += [str(os.cpu_count() or 1)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(serve, text=True, **pipes)

    def ask(**keys):
        process.stdin.write(json.dumps(keys) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    theirs = ask(n_predict=4, logprobs=1)["choices"][0]["logprobs"]["content"]
    ours = models.generate(model, params, np.ones((1, 32), int), 4)[0].tolist()
    if (found := [token["id"] for token in theirs]) != ours:
        sys.exit(f"llama.cpp continues by {found}, ours by {ours}: not the same model")
    return ask


def decode(quick, llama):
    """Ratios of decoding steps; ``llama``: Python and script of llama.cpp, or None."""
    model = models.build(generate.GPT2 | (generate.QUICK if quick else {}))
    weights = jax.tree.map(np.asarray, model.init(jax.random.key(0)))
    stored = map_named(lambda name, leaf: generate.pruned(0.9, name, leaf), weights)
    dense = jax.tree.map(lambda leaf: jnp.asarray(np.nan_to_num(leaf)), stored)
    sparse = decoding.convert(model, named_leaves(stored)).params
    fewer = map_named(lambda name, leaf: generate.pruned(0.8, name, leaf), weights)
    int8 = decoding.convert(model, named_leaves(fewer), jnp.int8).params
    module = torch_model(model, dense)
    rows, theirs = {}, []
    folder = tempfile.TemporaryDirectory()
    ask = llama and llama_cpp(model, dense, *llama, Path(folder.name))
    for batch in (1, 8):
        programs = {
            "torch": torch_decode(module, batch),
            f"decode{batch}": generate.stepper(model.config, dense, batch),
            f"decode{batch}_csr90": generate.stepper(model.config, sparse, batch),
            f"decode{batch}_csr80_int8": generate.stepper(model.config, int8, batch),
        }
        ours = [*programs][1:]
        if ask and batch == 1:
            timed = lambda: theirs.append(ask(n_predict=1 + generate.TOKENS)["timings"])
            programs["llama.cpp"] = timed
        times = harness.interleave(programs, 5 if quick else 15)
        for name, timing in times.items():
            step = 1e3 * timing.median / generate.TOKENS
            print(f"{name:15} {batch} rows {step:7.1f} ms a token")
        rows |= {name: harness.ratio(times, "torch", name).median for name in ours}
        if ask and batch == 1:  # without the prompt's time
            token = np.median([answer["predicted_per_token_ms"] for answer in theirs]) / 1e3
            print(f"llama.cpp {1e3 * token:.1f} ms a token")
            each = {name: times[name].median / generate.TOKENS for name in ours}
            rows |= {f"{name}_llama_cpp": token / seconds for name, seconds in each.items()}
    folder.cleanup()
    return rows


def agreement(quick):
    """The largest difference of logits between the two sides, over the largest logit."""
    import torch

    model = models.build(generate.GPT2 | (generate.QUICK if quick else {}))
    params = model.init(jax.random.key(0))
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, (1, 33))
    cache = init_cache(model.config, 1, generate.SLOTS, model.config.num_hidden_layers)
    count = jnp.array([tokens.shape[1]])
    ours = decode_step(model.config, params, jnp.asarray(tokens), count, cache)[0]
    with torch.inference_mode():
        theirs = torch_model(model, params).eval()(torch.from_numpy(tokens)).logits.numpy()
    return float(abs(ours - theirs).max() / abs(theirs).max())


def main():
    missing = [name for name in ("torch", "transformers") if not importlib.util.find_spec(name)]
    malloc.restart()  # as `wafer run` does; PyTorch's memory is kept in the same way
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("train", "decode"), help="one of the two alone")
    parser.add_argument(
        "--llama-cpp",
        nargs=2,
        metavar=("PYTHON", "SCRIPT"),
        help="a Python with xllamacpp, and llama.cpp's convert_hf_to_gguf.py",
    )
    options = parser.parse_args()
    if missing:
        sys.exit(f"{' and '.join(missing)} not installed: pip install {' '.join(missing)}")
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore", FutureWarning)  # names of arguments change with versions
    print(harness.environment())
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"transformers {transformers.__version__}"
    )
    rows = {}
    if options.part != "decode":
        rows |= train(options.quick)
    if options.part != "train":
        difference = agreement(options.quick)
        print(f"logits differ by {difference:.1e} of the largest")
        if difference > LIMIT:
            sys.exit(f"expected at most {LIMIT}: the two sides do not compute the same")
        rows |= decode(options.quick, options.llama_cpp)
        rows["vs_torch"] = rows["decode1"]
    print(harness.environment())
    harness.report(rows)


if __name__ == "__main__":
    main()
