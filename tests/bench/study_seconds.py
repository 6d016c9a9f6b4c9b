"""Seconds of a whole training of each arm of the study, measured alternately in one sitting.

    python tests/bench/study_seconds.py [--quick] [--repeats 3] [--arms dense rigl80] [--out FILE]

Every arm of ``docs/results/study/study.yaml`` of 300 steps, with csr products, trains in this
process from the same batches. Arms take turns after every 25 steps; a piece's time is the median
of the repeats, after a first one that is not counted and pays for compilation. Topology updates
and dense phases are in the pieces where they happen; reading data and evaluation are not in it.
Arms of other lengths are derived: dense-N by its steps, X-1200 as 4 X (its updates lie at the same
shares), X-then-dense as X and 150 dense steps.
"""

import csv
import dataclasses
import datetime
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import harness
import jax
from study_rows import RAW, STEPS, plans

from wafer import malloc
from wafer.config import parse_config
from wafer.errors import ConfigError
from wafer.experiment import Experiment
from wafer.session.build import Run, build
from wafer.sparsity.schema import SparsityError
from wafer.sweeps.files import SweepArm, read_sweep

PIECE = 25
HEADS = ("arm", "seconds", "products", "repeats", "processor", "date", "load")


@dataclasses.dataclass
class Training:
    """One arm, its state and the times of its pieces."""

    run: Run
    products: str  #: csr, or auto where csr is refused
    state: Any = None
    times: list[list[float]] = dataclasses.field(default_factory=list)  #: [pieces][repeats]

    def piece(self, batches: list[Any], begin: int, end: int) -> float:
        """Take the steps from ``begin`` to ``end``; return their seconds."""
        sparsifier, shape = self.run.experiment.sparsifier, self.run.experiment.batch("train")
        start = time.perf_counter()
        for step in range(begin, end):
            features = self.run.place_batch(batches[step], shape)
            due = sparsifier.due(step + 1)
            self.state, _ = self.run.engine.step(self.state, features, topology=due)
        jax.block_until_ready(self.state)
        return time.perf_counter() - start


def training_of(arm: SweepArm, folder: str) -> Training:
    """Build an arm with csr products where they are possible."""
    settings = arm.sections["runconfig"] | {"mode": "train", "model_dir": folder, "seed": 1}
    sections = arm.sections | {"runconfig": settings}
    if "sparsity" not in sections:
        return Training(_built(sections), "dense")
    try:
        csr = sections["sparsity"] | {"compute": "csr"}
        return Training(_built(sections | {"sparsity": csr}), "csr")
    except (ConfigError, SparsityError):  # a level that follows a schedule
        return Training(_built(sections), "auto")


def _built(sections: dict[str, Any]) -> Run:
    run = build(Experiment.from_config(parse_config(sections), seed=1))
    run.engine.init(jax.random.key(1))  # refuses csr where it cannot be
    return run


def measure(
    trainings: Mapping[str, Training], batches: list[Any], repeats: int
) -> dict[str, float]:
    """Train all arms in turns; return the seconds of each."""
    ends = [*range(PIECE, len(batches) + 1, PIECE)]
    for repeat in range(repeats + 1):
        for one in trainings.values():
            one.state = one.run.engine.init(jax.random.key(1))
            one.times = one.times or [[] for _ in ends]
        for at, end in enumerate(ends):
            for one in trainings.values():
                seconds = one.piece(batches, end - PIECE, end)
                if repeat:
                    one.times[at].append(seconds)
        print(f"repeat {repeat} of {repeats}: load {os.getloadavg()[0]:.1f}", flush=True)
    return {
        name: sum(statistics.median(times) for times in one.times)
        for name, one in trainings.items()
    }


def derived(arms: Mapping[str, int], measured: Mapping[str, float]) -> dict[str, float]:
    """Add arms of other lengths and of two phases.

    Args:
        arms: name -> steps of its run file.
        measured: arm of 300 steps -> its seconds.
    """
    seconds = dict(measured)
    for arm, steps in arms.items():
        whole, phase, _ = arm.partition("-then-dense")
        base = arm.removesuffix(f"-{steps}")
        if phase and whole in measured:
            seconds[arm] = measured[whole] + measured["dense"] * steps / STEPS
        elif arm not in measured and base in measured:
            seconds[arm] = measured[base] * steps / STEPS
    return seconds


def main() -> None:
    """Measure, and write the table."""
    malloc.restart()  # as `wafer run` does
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=RAW / "seconds.csv")
    parser.add_argument("--arms", nargs="+", default=())
    args = parser.parse_args()
    print(harness.environment(), flush=True)
    arms = [arm for arm in read_sweep(RAW / "study.yaml", args.arms).arms if not arm.after]
    arms = [arm for arm in arms if arm.steps == STEPS]
    steps = 2 * PIECE if args.quick else STEPS
    with tempfile.TemporaryDirectory() as folder:
        trainings = {arm.name: training_of(arm, folder) for arm in arms}
        first = next(iter(trainings.values())).run
        assert first.train is not None
        loader = first.train.loader(first.experiment.batch("train").samples, None)
        batches = [next(loader) for _ in range(steps)]
        repeats = 1 if args.quick else args.repeats
        measured = measure(trainings, batches, repeats)
    measured = {name: seconds * STEPS / steps for name, seconds in measured.items()}
    lengths = {arm: n for plan in plans(RAW, []) for arm, n in plan.steps.items()}
    about = (harness.processor(), datetime.date.today().isoformat(), f"{os.getloadavg()[2]:.1f}")
    with args.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADS)
        for arm, seconds in derived(lengths, measured).items():
            own = trainings.get(arm)
            products = own.products if own else "derived"
            writer.writerow((arm, f"{seconds:.3f}", products, repeats, *about))
    harness.report({f"{arm} / dense": s / measured["dense"] for arm, s in measured.items()})


if __name__ == "__main__":
    main()
