"""Memory and time of sharded state beside copied state, on CPU devices of this host.

A GPT by AdamW with clipping, float32, a row on each system; systems are devices of one process.
Per number of systems, the peak of a step on one of them (arguments and temporaries of the compiled
program): ``copied``, ``in parts``, ``planned`` (by ``wafer plan``), and ``over the sum``: in parts
over state / N + one layer + activations. The state is weights, gradients and optimizer state, the
layer the largest stage's weights; activations are what the copied step has beyond the state. Then
seconds of a step on two devices, also with a vocabulary that they divide.

    python tests/bench/sharded.py [--quick]
"""

import sys
from pathlib import Path

import jax

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import harness
import numpy as np

from wafer import malloc
from wafer.commands.planning.plan import plan
from wafer.config import parse_config
from wafer.config.engines import engine_row
from wafer.data.batching.batches import host_batch
from wafer.engines.choose import make
from wafer.experiment import Experiment

SYSTEMS = (2, 4, 8)
TASKS = {"bert": "mlm", "t5": "seq2seq"}
MIB = 2**20
_UNITS = {"over the sum": "×", "s, copied": "s", "s, in parts": "s"}


def section(name, layers, hidden, vocab, tokens):
    """A model with these sizes; T5 has half of the layers on each side."""
    if name == "t5":
        sides = {f"{side}_max_position_embeddings": tokens for side in ("src", "tgt")}
        sides |= {f"{side}_vocab_size": vocab for side in ("src", "tgt")}
        sides |= {f"{side}_num_hidden_layers": layers // 2 for side in ("encoder", "decoder")}
        sizes = {"d_model": hidden, "d_ff": 4 * hidden, "d_kv": 64, "num_heads": hidden // 64}
        return {"name": name, "dropout_rate": 0.0} | sides | sizes
    sizes = {"vocab_size": vocab, "hidden_size": hidden, "filter_size": 4 * hidden}
    sizes |= {"num_hidden_layers": layers, "num_heads": hidden // 64}
    if name == "llama":
        sizes["attention_module"] = "multiquery_attention"
        sizes["extra_attention_params"] = {"num_kv_groups": 2}
    return {"name": name, "dropout_rate": 0.0, "max_position_embeddings": tokens} | sizes


def experiment(name, sizes, systems, *, sharded, accumulation=1):
    rows = {"data_processor": "RandomDataProcessor", "task": TASKS.get(name, "lm")}
    rows |= {"vocab_size": sizes[2], "batch_size": systems, "max_sequence_length": sizes[3]}
    return Experiment.from_config(parse_config({
        "model": section(name, *sizes),
        "train_input": rows,
        "optimizer": {
            "optimizer_type": "AdamW", "learning_rate": 1e-3, "max_gradient_norm": 1.0,
            "grad_accum_steps": accumulation,
        },
        "runconfig": {"max_steps": 1, "num_csx": systems, "shard_state": sharded},
    }))  # fmt: skip


def features_of(run, vocab, tokens, systems):
    """[N, 1, 1, S] random rows without padding."""
    ids = np.random.default_rng(0).integers(1, vocab, (systems, 1, 1, tokens), np.int32)
    ones = np.ones_like(ids)
    lengths = ones.sum(-1, dtype=np.int32)
    rows = {"input_ids": ids, "labels": ids, "attention_mask": ones, "lengths": lengths}
    return run.place(rows)


def program_bytes(model):
    """Return the peak of a step on one system."""
    run, batch = make(model, engine_row("resident")), model.batch("train")
    loader = model.dataset("train", ".").loader(batch.samples, num_epochs=None, task=(0, 1))
    rows = host_batch(next(loader), batch.systems, batch.micro_batches, None, lambda x: x)
    loader.close()
    state = run.shapes(jax.random.key(0))
    stats = run.compiled_step(state, run.place(rows), topology=False).memory_analysis()
    return (
        stats.argument_size_in_bytes + stats.temp_size_in_bytes
        + stats.output_size_in_bytes - stats.alias_size_in_bytes
    )  # fmt: skip


def nbytes(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def memory(sizes, name="gpt2", **keys):
    """Return rows: the peak of a step in each form, planned, and over the sum of its parts."""
    model = experiment(name, sizes, 1, sharded=False, **keys)
    weights = nbytes(model.shapes)
    state = 4 * weights  # gradients and two moments
    layer = max(nbytes([model.shapes[n] for n in s.params]) for s in model.model.stages)
    found = {}
    for n, predicted in zip(SYSTEMS, plan(model, SYSTEMS).predictions, strict=True):
        copied, sharded = (
            program_bytes(experiment(name, sizes, n, sharded=sharded, **keys))
            for sharded in (False, True)
        )
        activations = copied - state
        want = state / n + layer + activations
        forms = {"copied": copied, "in parts": sharded, "planned": predicted.sharded_memory}
        found |= {f"{n} systems / {form}": size / MIB for form, size in forms.items()}
        found[f"{n} systems / over the sum"] = sharded / want
    return found


def steps(sizes, systems=2):
    """Bind a step of each form."""
    bound = {}
    for sharded in (False, True):
        run = make(experiment("gpt2", sizes, systems, sharded=sharded))
        batch = features_of(run, *sizes[2:], systems)
        state = [run.init(jax.random.key(0))]

        def step(run=run, batch=batch, state=state):
            state[0], _ = run.step(state[0], batch, topology=False)
            jax.block_until_ready(state[0].step)

        bound["s, in parts" if sharded else "s, copied"] = step
    return bound


def main():
    malloc.restart()
    jax.config.update("jax_num_cpu_devices", max(SYSTEMS))
    args = harness.arguments(__doc__.splitlines()[0]).parse_args()
    print(harness.environment())
    sizes = (4, 256, 1024, 128) if args.quick else (12, 768, 50257, 512)
    found = memory(sizes)
    for vocab in (sizes[2],) if args.quick else (sizes[2], 50304):
        row = "a step of 2" + (f", vocabulary {vocab:,}" if vocab != sizes[2] else "")
        bound = steps((*sizes[:2], vocab, sizes[3]))
        times = harness.interleave(bound, 3 if args.quick else 5, seconds=100)
        print(row, {name: (round(t.median, 3), round(t.cpu, 3)) for name, t in times.items()})
        found |= {f"{row} / {name}": time.median for name, time in times.items()}
    harness.report(found, units=lambda name: _UNITS.get(name.rpartition(" / ")[2], "MiB"))


if __name__ == "__main__":
    main()
