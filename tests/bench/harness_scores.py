"""Scores of six tasks by our model of the EleutherAI harness and by its Hugging Face model.

Small models of five families with drawn weights are written as Hugging Face folders; the tasks'
rows are functions of Python's library. Half of the answers of ``last_words`` and ``line`` are the
model's own, so that accuracies are not 0. Seconds are those of the model's calls in a second run of
all tasks, of a larger LLaMA whose kernels lack 0, 80 or 90 % of their weights.

    python tests/bench/harness_scores.py --oracle PYTHON [--quick]

``PYTHON`` has lm-eval with its extra ``hf``; this one has the extra ``harness``.
"""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).parents[i]) for i in (2, 1, 0)]

import harness
import jax
import numpy as np
import yaml
from helpers.harness_oracle import timed

from wafer import models
from wafer.config.runconfig import EleutherEvalHarness
from wafer.data.text.functions import load_corpus
from wafer.data.text.tokenizer import train_bpe
from wafer.session.harness import tasks as tasks_of
from wafer.session.harness.texts import TaskModel

ORACLE = pathlib.Path(__file__).parents[1] / "helpers" / "harness_oracle.py"
SMALL = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 4}
SMALL |= {"filter_size": 128, "max_position_embeddings": 192}
LARGE = {"name": "llama", "vocab_size": 1000, "hidden_size": 768, "num_hidden_layers": 6}
LARGE |= {"num_heads": 12, "filter_size": 2048, "max_position_embeddings": 192}
FAMILIES = {
    "gpt2": {"name": "gpt2"},
    "llama": {
        "name": "llama",
        "attention_module": "multiquery_attention",
        "extra_attention_params": {"num_kv_groups": 2},
    },
    "mistral": {"name": "mistral", "attention_sliding_window_length": 32},
    "falcon": {"name": "falcon"},
    "gemma2": {"name": "gemma2"},
}
SHOTS = {"fewshot_split": "test", "num_fewshot": 3}
MEAN = lambda *names: [{"metric": name, "aggregation": "mean"} for name in names]
CHOICE = {"output_type": "multiple_choice", "doc_to_text": "{{text}}", "doc_to_target": "gold"}
TASKS = {
    "ending": CHOICE | {"doc_to_choice": "{{endings}}", "metric_list": MEAN("acc", "acc_norm")},
    "letter": CHOICE
    | {"doc_to_text": "{{listed}}", "doc_to_choice": ["A", "B", "C", "D"]}
    | {"metric_list": MEAN("acc")},
    "shots": CHOICE | {"doc_to_choice": "{{endings}}", "metric_list": MEAN("acc")} | SHOTS,
    "last_words": {"output_type": "loglikelihood", "doc_to_text": "{{text}}"}
    | {"doc_to_target": "{{last}}", "target_delimiter": ""}
    | {"metric_list": [{"metric": "perplexity"}, {"metric": "acc"}]},
    "line": {"output_type": "generate_until", "doc_to_text": "{{text}}"}
    | {"doc_to_target": "{{answer}}", "target_delimiter": ""}
    | {"generation_kwargs": {"until": ["\n"], "max_gen_toks": 12, "do_sample": False}}
    | {"metric_list": MEAN("exact_match")},
    "whole": {"output_type": "loglikelihood_rolling", "doc_to_text": ""}
    | {"doc_to_target": "{{whole}}"}
    | {"metric_list": [{"metric": m} for m in ("word_perplexity", "bits_per_byte")]},
}


def drawn(section, level, folder, tokenizer):
    """A model with drawn weights, its smallest kernels' entries 0, as a Hugging Face folder."""
    model = models.build(section)
    params = jax.tree.map(np.asarray, model.init(jax.random.key(0)))

    def visit(name, leaf):
        if leaf.ndim != 2:
            return leaf
        least = np.quantile(abs(leaf), level) if model.sparse(name) else 0
        return np.where(abs(leaf) >= least, leaf, 0)

    flat = {name: visit(name, leaf) for name, leaf in models.named_leaves(params)}
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    models.to_hf(model, flat, folder / "hf", text_from=folder)
    return folder / "hf"


def opened(folder, kernels="auto"):
    model, params = models.from_hf(folder)
    options = EleutherEvalHarness(eeh_args={"tasks": list(TASKS)})
    return TaskModel(model, params, folder, options, kernels)


def write_tasks(folder, texts, model):
    """Rows from functions' texts, and the definitions of the tasks that read them."""
    draw, rows, starts = np.random.default_rng(0), [], []
    for text in texts:
        words = text.split(" ")
        starts.append(" ".join(words[: len(words) // 2]))
    keys = {"until": ["\n"], "max_gen_toks": 12, "do_sample": False}
    own = model.answers([(start, keys) for start in starts])
    for i, (text, start) in enumerate(zip(texts, starts, strict=True)):
        others = [texts[j] for j in draw.integers(0, len(texts), 3)]
        endings = [" ".join(part.split(" ")[-6:]) for part in (text, *others)]
        gold = int(draw.integers(0, 4))
        endings[0], endings[gold] = endings[gold], endings[0]
        listed = "".join(f"{a}. {b}\n" for a, b in zip("ABCD", endings, strict=True))
        answer = own[i] if i % 2 else endings[gold]
        last = model.decode(model.encode(own[i], special=False)[:2]) if i % 2 else endings[gold]
        rows.append(
            {"text": start, "endings": endings, "gold": gold, "listed": f"{listed}Answer:"}
            | {"last": last or " x", "answer": answer or " x", "whole": text}
        )
    folder.mkdir()
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for name, task in TASKS.items():
        files = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
        own = {"task": name, "test_split": "test", "num_fewshot": 0} | files | task
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")
    return folder


def ours(folder, tasks, kernels="auto"):
    """Scores and seconds of our model."""
    adapter = timed(tasks_of.adapter(opened(folder, kernels)))
    tasks_of.adapter, before = (lambda _: adapter), tasks_of.adapter
    options = EleutherEvalHarness(eeh_args={"tasks": list(TASKS), "include_path": str(tasks)})
    try:
        for _ in range(2):
            adapter.seconds = 0.0
            record = tasks_of.run_tasks(None, options.eeh_args)
    finally:
        tasks_of.adapter = before
    return tasks_of.task_metrics(record), adapter.seconds


def theirs(python, folder, tasks):
    """The same of the harness's model of transformers."""
    command = [python, str(ORACLE), str(folder), str(tasks), ",".join(TASKS), "0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(ended.stderr[-4000:])
    answer = json.loads(ended.stdout.splitlines()[-1])
    return tasks_of.task_metrics(answer), answer["seconds"]


def shown(scores):
    """Metrics without standard errors, which are drawn."""
    return {
        f"{task} {name}": value
        for task, values in scores.items()
        for name, value in values.items()
        if "stderr" not in name
    }


def main():
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--oracle", required=True, help="a Python with lm-eval and torch")
    parser.add_argument("--only", default="", help="families, or levels, with commas")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    corpus = load_corpus(None, 1 << 20)
    tokenizer = train_bpe(corpus.train, SMALL["vocab_size"])
    texts = [text for text in corpus.held_out if 60 < len(text.split(" ")) < 160]
    texts = texts[: 8 if options.quick else 12]
    scores, seconds, worst = {}, {}, {}
    with tempfile.TemporaryDirectory() as place:
        root = pathlib.Path(place)
        for family, section in FAMILIES.items():
            if only and family not in only:
                continue
            folder = drawn(SMALL | section, 0, root / family, tokenizer)
            tasks = write_tasks(root / f"{family}_tasks", texts, opened(folder))
            with contextlib.redirect_stdout(io.StringIO()):
                own = shown(ours(folder, tasks)[0])
            other = shown(theirs(options.oracle, folder, tasks)[0])
            if own.keys() != other.keys():
                sys.exit(f"{family}: {own.keys() ^ other.keys()}")
            for name, value in own.items():
                off = abs(value - other[name]) / max(1.0, abs(other[name]))
                worst[name] = max(worst.get(name, 0.0), off)
                scores[f"{name} / {family}"] = value
                print(f"{family:<10} {name:<26} {value:12.6f} {other[name]:12.6f} {off:.1e}")
        for level in (0, 80, 90):
            if only and str(level) not in only:
                continue
            name = f"{level} % pruned" if level else "dense"
            folder = drawn(LARGE, level / 100, root / str(level), tokenizer)
            tasks = write_tasks(root / f"{level}_tasks", texts[:8], opened(folder))
            with contextlib.redirect_stdout(io.StringIO()):
                seconds[f"{name} / wafer"] = ours(folder, tasks)[1]
            seconds[f"{name} / transformers"] = theirs(options.oracle, folder, tasks)[1]
            print(name, {k: round(v, 2) for k, v in seconds.items() if k.startswith(name)})
    scores |= {f"{name} / largest difference": off for name, off in worst.items()}
    harness.report(scores, "harness_scores", units=lambda _: "", where=harness.ANY)
    harness.report(seconds, "harness_seconds", units=lambda _: "s")
    if max(worst.values(), default=0) > 1e-4:
        sys.exit("a score differs by more than 1e-4")


if __name__ == "__main__":
    main()
