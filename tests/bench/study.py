"""The study of sparse training: every arm with its own learning rate and initial scale, over seeds.

The main job's text and model. Stages, each a `wafer sweep` that goes on where it was interrupted:

1. `rate`: three learning rates for each arm, on a seed of its own
2. `scale`: twice and four times the initial scale, at the best rate
3. `further-N`: on from the best pair where it is the last one tried: twice or half the scale, then
   also the rate, until no arm's best pair is the last one tried
4. `final`: the best pair, five other seeds
5. `tune`, `tuned`: after sparse pre-training all weights train on (SPDF): rates, then seeds
6. `law`: dense and static at 80 %, three sizes, three lengths, for `--fit`

    python tests/bench/study.py --folder runs/study [--jobs 2] [--until STAGE]

Sweep files, tables and runs.csv lie in DIR/STAGE. 300 steps; about two hours on 2 quiet cores.
Dense arms named -f80 and -f90 stop where the FLOPs of a static arm at that level are spent.

It goes on on any machine: runs whose numbers are in ``docs/results/study/STAGE.csv`` are not run
again (``--anew`` runs all). Fine-tuning needs weights, so the arms that it starts from are run
again until it is finished. ``study_report.py`` writes those CSVs and the report.
"""

import argparse
import csv
import json
import pathlib
import subprocess
import sys

import yaml

from wafer.sweeps.table import TrialResult, write_runs

HERE = pathlib.Path(__file__).resolve().parents[2]
RAW = HERE / "docs/results/study"
METRIC = "eval/bits_per_byte"
BASE = HERE / "models/configs/gpt_pystdlib.yaml"
STEPS, WARM, TUNING, SEEDS = 300, 30, 11, [1, 2, 3, 4, 5]
RATES = (0.003, 0.006, 0.012)
SIZES = {"l": 128, "s": 64}
KERNELS = ["*proj_[qkv]_dense_layer.weight", "*proj_output_dense_layer.weight"]
KERNELS += ["*linear_layer.weight"]
DENSE_SCALE = 0.009  # of the main job's 900 steps; a level's scale is this over sqrt(kept)
MOVES = {"update": {"freq": 25, "stop": 225}}
MOVES |= {"drop_fraction": {"type": "cosine", "init": 0.3, "half_period": 225}}
LAW_ARMS = ["l-dense", "l-static80", "s-dense", "s-static80"]
PRETRAINED = ["l-dense", "l-spdf50", "l-spdf75"]
FLOPS = {"f80": 0.6, "f90": 0.55}  # of a dense step: what a static arm of that level costs


def gradual(level):
    """Zhu and Gupta's cubic, seven prunings."""
    levels = [round(level * (1 - (1 - k / 7) ** 3), 4) for k in range(1, 8)]
    return {"sparsity": levels, "update": {"steps": [30 * k for k in range(1, 8)]}}


METHODS = {
    "static": lambda level: {"sparsity": level},
    "erk": lambda level: {"sparsity": level, "budget": "erk"},
    "rigl": lambda level: {"sparsity": level, **MOVES},
    "set": lambda level: {"sparsity": level, **MOVES},
    "mest": lambda level: {"sparsity": level, **MOVES},
    "gmp": gradual,
    "acdc": lambda level: {"sparsity": level, "update": {"freq": 40, "start": 40, "stop": 240}},
}
ALGORITHMS = {"erk": "static"}
HIGHEST = {"static", "erk", "rigl", "set"}  # also at 95 %


def section(method, level):
    """The sparsity section of an arm."""
    values = {"algorithm": ALGORITHMS.get(method, method), "param_filter": KERNELS}
    values |= METHODS[method](level)
    if method not in {"gmp", "acdc"}:
        values["init_method"] = "random"
    return values


def arms():
    """Name -> (width, steps, sparsity section, share of weights kept at the start)."""
    table = {}
    for size, width in SIZES.items():
        table[f"{size}-dense"] = (width, STEPS, None, 1.0)
        for method in METHODS:
            for level in (80, 90, 95):
                kept = 1.0 if method in {"gmp", "acdc"} else 1 - level / 100
                if level == 80 or (size == "l" and (level == 90 or method in HIGHEST)):
                    name = f"{size}-{method}{level}"
                    table[name] = (width, STEPS, section(method, level / 100), kept)
    for name, share in FLOPS.items():
        table[f"l-dense-{name}"] = (SIZES["l"], round(STEPS * share), None, 1.0)
    for level in (50, 75):
        table[f"l-spdf{level}"] = (
            SIZES["l"],
            STEPS,
            section("static", level / 100),
            1 - level / 100,
        )
    for level in (75, 92):  # of a model of twice the width: equal FLOPs of kernels, of all
        wide = section("static", level / 100)
        table[f"l-wide{level}"] = (2 * SIZES["l"], STEPS, wide, 1 - level / 100)
    return table


def schedule(rate, steps, warm=WARM):
    """Linear warm-up, cosine to a twentieth."""
    return [
        {
            "scheduler": "Linear",
            "initial_learning_rate": 0.0,
            "end_learning_rate": rate,
            "total_iters": warm,
        },
        {
            "scheduler": "CosineDecay",
            "initial_learning_rate": rate,
            "end_learning_rate": rate / 20,
            "total_iters": steps - warm,
        },
    ]


def changes(width, steps, sparse, rate, scale, **more):
    """One arm of a sweep file."""
    sizes = {"hidden_size": width, "filter_size": 4 * width, "num_heads": width // 32}
    every = {"max_steps": steps, "eval_frequency": steps, "checkpoint_steps": steps}
    return {
        **{f"model.{key}": value for key, value in sizes.items()},
        **{f"runconfig.{key}": value for key, value in every.items()},
        "model.initializer_range": round(scale, 6),
        "sparsity": sparse,
        "optimizer.learning_rate": schedule(rate, steps),
        **more,
    }


def scale_of(width, kept):
    """The scale that every arm starts its tuning from; narrower models take wider weights."""
    return DENSE_SCALE * (SIZES["l"] / width) ** 0.5 / kept**0.5


def read_raw(stage):
    """Rows of a stage's committed numbers; none where there are none."""
    path = RAW / f"{stage}.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))[1:]
    return [
        TrialResult(
            arm, group, int(seed), float(bits), int(n), int(kept), int(tokens), *map(float, costs)
        )
        for arm, group, seed, bits, n, kept, tokens, *costs in lines
    ]


def write_raw(stage, rows):
    """Write a stage's numbers as ``wafer sweep`` does."""
    write_runs(RAW / f"{stage}.csv", METRIC, rows)


class Study:
    """The sweeps of a folder; ``raw``: take over what the committed numbers have."""

    def __init__(self, folder, jobs, *, raw=True):
        self.folder, self.jobs, self.raw = folder.resolve(), jobs, raw
        tuned = {(row.arm, row.seed) for seed in SEEDS for row in read_raw(f"tuned-{seed}")}
        self.weights_read = len(tuned) < len(PRETRAINED) * len(SEEDS)

    def take_over(self, name, table, seeds):
        """Note committed numbers as results, so that the sweep does not run them again."""
        for row in read_raw(name):
            result = self.folder / name / row.arm / str(row.seed) / "result.json"
            arm = row.arm.split("_")[0]
            if row.arm not in table or row.seed not in seeds or result.exists():
                continue
            if self.weights_read and arm in PRETRAINED and not name.startswith("tune"):
                continue
            result.parent.mkdir(parents=True, exist_ok=True)
            content = {"metrics": {METRIC: row.metric}, "levels": {}, "seconds": row.seconds}
            result.write_text(json.dumps(content) + "\n", encoding="utf-8")

    def sweep(self, name, table, seeds, *options):
        """Run one, as far as it is not; return {arm: {seed: metric}}."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        content = {"base": str(BASE), "seeds": seeds, "arms": table}
        (folder / "sweep.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        if self.raw:
            self.take_over(name, table, seeds)
        command = [sys.executable, "-m", "wafer", "sweep", str(folder / "sweep.yaml")]
        command += ["--model_dir", str(folder), "--jobs", str(self.jobs), *options]
        subprocess.run(command, check=True)
        values = {}
        with (folder / "runs.csv").open() as file:
            for row in csv.DictReader(file):
                metric = float(list(row.values())[3])
                values.setdefault(row["arm"], {})[int(row["seed"])] = metric
        return values

    def best(self, stages):
        """Arm -> (rate, scale) with the least bits over all tuning runs."""
        least = {}
        for values in stages:
            for name, by_seed in values.items():
                arm, rate, scale = name.rsplit("_", 2)
                bits = by_seed[TUNING]
                if arm not in least or bits < least[arm][0]:
                    least[arm] = (bits, float(rate), float(scale), name)
        return least


def tuning(pairs):
    """Arms of a tuning sweep: name -> changes, the name ends in rate and scale."""
    table = arms()
    return {
        f"{name}_{rate}_{scale:.5f}": changes(*table[name][:3], rate, float(f"{scale:.5f}"))
        for name, rate, scale in pairs
    }


def further(first, stages, rates_too):
    """Pairs beyond the best ones: no pair is tried twice."""
    tried = {}
    for name in (name for values in stages for name in values):
        arm, rate, scale = name.rsplit("_", 2)
        tried.setdefault(arm, []).append((float(rate), float(scale)))
    pairs = []
    for arm, (_, rate, scale, _) in first.items():
        scales = [s for r, s in tried[arm] if r == rate]
        rates = [r for r, _ in tried[arm]]
        if scale == max(scales):
            pairs.append((arm, rate, 2 * scale))
        if scale == min(scales):
            pairs.append((arm, rate, scale / 2))
        if rates_too and rate == max(rates):
            pairs.append((arm, 2 * rate, scale))
        if rates_too and rate == min(rates):
            pairs.append((arm, rate / 2, scale))
    return pairs


def continued(study, best, rates, seeds, stage, pretrained):
    """All weights train on from pre-trained ones; {arm: {seed: bits}}."""
    values = {}
    for seed in seeds:
        table = {}
        for arm, rate in ((name, rate) for name in pretrained for rate in rates[name]):
            run = pretrained[arm](seed)
            dense = run / "finalized"
            if not dense.exists():
                command = [sys.executable, "-m", "wafer", "finalize", "-o", str(dense)]
                subprocess.run([*command, "-i", str(run / f"checkpoints/{STEPS}")], check=True)
            start = {"runconfig.checkpoint_path": str(dense)}
            start["runconfig.load_checkpoint_states"] = "model"
            name = f"{arm}_{rate}" if len(rates[arm]) > 1 else arm
            scale = best[arm][2]
            table[name] = changes(SIZES["l"], STEPS // 2, None, rate, scale, **start)
        for name, by_seed in study.sweep(f"{stage}-{seed}", table, [seed]).items():
            values.setdefault(name, {}).update(by_seed)
    return values


def law(best):
    """Arms for the fit: three widths, three lengths, dense and static at 80 %."""
    table = {}
    for width, steps in (
        (64, 150),
        (64, 300),
        (64, 600),
        (96, 300),
        (128, 150),
        (128, 300),
        (128, 600),
    ):
        for kind, group in (("dense", "dense"), ("static80", "static 80 %")):
            size = "s" if width == SIZES["s"] else "l"
            _, rate, scale, _ = best[f"{size}-{kind}"]
            sparse = arms()[f"l-{kind}"][2]
            own = changes(width, steps, sparse, rate, scale)
            table[f"{kind}-{width}-{steps}"] = own | {"group": group}
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    stages = ("rate", "scale", "final", "tuned", "law")
    parser.add_argument("--until", choices=stages, default="law", help="the last stage")
    parser.add_argument("--further", type=int, default=9, help="rounds of it at most")
    parser.add_argument("--arms", nargs="+", default=list(arms()), help="these alone")
    parser.add_argument("--anew", action="store_true", help="take no committed numbers over")
    args = parser.parse_args()
    last = stages.index(args.until)
    study, table = Study(args.folder, args.jobs, raw=not args.anew), arms()
    table = {name: table[name] for name in table if name in args.arms}
    scales = {name: scale_of(width, kept) for name, (width, _, _, kept) in table.items()}
    rates = study.sweep("rate", tuning((n, r, scales[n]) for n in table for r in RATES), [TUNING])
    if last < 1:
        return
    first = study.best([rates])
    pairs = [(n, first[n][1], scales[n] * factor) for n in table for factor in (2.0, 4.0)]
    tried = [rates, study.sweep("scale", tuning(pairs), [TUNING])]
    for at in range(args.further):
        pairs = further(study.best(tried), tried, rates_too=at > 0)
        if at > 0 and not pairs:
            break
        if pairs:
            tried.append(study.sweep(f"further-{at + 1}", tuning(pairs), [TUNING]))
    best = study.best(tried)
    if last < 2:
        return
    final = {name: changes(*table[name][:3], best[name][1], best[name][2]) for name in table}
    study.sweep("final", final, SEEDS)
    if last < 3:
        return
    starts = [name for name in PRETRAINED if name in table]
    tuned_in = {
        name: lambda seed, at=best[name][3]: next(study.folder.glob(f"*/{at}/{seed}"))
        for name in starts
    }
    some = {name: [0.0005, 0.001, 0.002] for name in starts}
    by_rate = continued(study, best, some, [TUNING], "tune", tuned_in)
    chosen = {
        name: [min(some[name], key=lambda rate: by_rate[f"{name}_{rate}"][TUNING])]
        for name in starts
    }
    after = {name: lambda seed, n=name: study.folder / "final" / n / str(seed) for name in starts}
    continued(study, best, chosen, SEEDS, "tuned", after)
    if last < 4:
        return
    if set(LAW_ARMS) <= table.keys():
        study.sweep("law", law(best), [1], "--fit")


if __name__ == "__main__":
    main()
