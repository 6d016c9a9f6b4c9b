"""``wafer compile``: how long it takes, how well it fills the wafer, what copies gain.

Times count from after start-up (imports and reading the file). ``recompile_s`` is the kept answer
of GPT-2 small, ``cap_over_bound`` the slowest kernel over what no plan of one copy can beat, worst
of the models below, ``bert_speedup`` of copies at 128 tokens (published: 1.7).
"""

import dataclasses
import pathlib
import tempfile
import time

import harness

from wafer.compiler import experiment as compiling
from wafer.compiler.compile import compile_graph
from wafer.config import load
from wafer.errors import CapacityError
from wafer.experiment import Experiment

CONFIGS = pathlib.Path(__file__).parent.parent.parent / "models" / "configs"
MODELS = ("gpt2/gpt2_small", "bert/bert_base", "t5/t5_small", "fc_mnist/fc_digits")
MORE = ("transformer/transformer_big", "dpr/dpr_base", "t5/t5_v1_1_base", "fc_mnist/fc_mnist")


def config(name, **flags):
    return load(CONFIGS / f"{name}.yaml", flags)


def timed(fn, *args, **more):
    begin = time.perf_counter()
    result = fn(*args, **more)
    return result, time.perf_counter() - begin


def copies_of_bert(length):
    """Samples per second of 1, 2 copies and of as many as are fastest."""
    cfg = config("bert/bert_base")
    section = cfg.train_input.model_copy(update={"max_sequence_length": length})
    cfg = cfg.model_copy(update={"train_input": section})
    experiment = Experiment.from_config(cfg)
    graph = compiling.config_graph(experiment)
    options = compiling.options_of(experiment, seed=0)
    by_copies = {}
    for replicas in (1, 2, 0):
        compiled = compile_graph(graph, dataclasses.replace(options, replicas=replicas))
        by_copies[replicas] = compiled
        name = f"bert_base, {length} tokens, {len(compiled.plan.replicas)} copies"
        print(
            f"| {name} | {compiled.samples:,.0f} |"
            f" {compiled.speedup:.2f} | {compiled.active_share:.0%} | {compiled.busy_share:.0%} |"
        )
    return by_copies[0].speedup


def main():
    options = harness.arguments(__doc__).parse_args()
    print(harness.environment())
    rows, worst = {}, 0.0
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        print("| model | kernels | samples/s | active | utilization | over bound | s |")
        print("|---|---|---|---|---|---|---|")
        for name in MODELS if options.quick else (*MODELS, *MORE):
            experiment = Experiment.from_config(config(name, compile_dir=folder))
            result, seconds = timed(compiling.compile_experiment, experiment, root / "out")
            compiled = result.compiled
            over = compiled.cycles / compiled.bound
            worst = max(worst, over)
            rows.setdefault("gpt2_small_s", seconds)
            print(
                f"| {pathlib.Path(name).name} | {len(compiled.kernels)} | {compiled.samples:,.0f} |"
                f" {compiled.active_share:.0%} | {compiled.busy_share:.0%} |"
                f" {over:.3f} | {seconds:.2f} |",
                flush=True,
            )
        experiment = Experiment.from_config(config(MODELS[0], compile_dir=folder))
        again, rows["recompile_s"] = timed(compiling.compile_experiment, experiment, root / "again")
        assert again.kept
    cfg = config("gpt3/gpt3_xl_fixed_sparse")
    begin = time.perf_counter()
    experiment = Experiment.from_config(cfg)
    graph = compiling.config_graph(experiment)
    try:
        compile_graph(graph, compiling.options_of(experiment, seed=0))
    except CapacityError as error:
        rows["gpt3_xl_answer_s"] = time.perf_counter() - begin
        print(f"gpt3_xl: {error}")
    print("| model | samples/s | speed-up | active | utilization |")
    rows["bert_speedup"] = copies_of_bert(128)
    if not options.quick:
        copies_of_bert(512)
    harness.report(rows | {"cap_over_bound": worst})


if __name__ == "__main__":
    main()
