"""Reading HDF5 rows: tokens per second of our loader, of h5py alone, of torch's DataLoader.

The loader must keep up with ten times the fastest training run, so the main job's own rate is
measured too (a short run of ``models/configs/gpt_pystdlib.yaml``). Every arm reads the same
shuffled rows and makes the same batches; arms alternate in one process.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

import h5py
import numpy as np
from harness import ROOT, arguments, environment, interleave, ratio, report

from wafer.data.batching.pipeline import Loader
from wafer.data.batching.sources import FEATURES
from wafer.data.preprocess.rows.layouts import lm_row
from wafer.data.rowfiles.files import Hdf5Source
from wafer.data.rowfiles.rules import RowGroup
from wafer.data.rowfiles.writer import write_rows

BATCH = 8
VOCABULARY = 50_000


def corpus(folder: pathlib.Path, rows: int, length: int, compression: str | None) -> pathlib.Path:
    """Rows of tokens with the frequencies of text (Zipf), so that gzip has what it has there."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for part in range(4):
        ids = np.minimum(rng.zipf(1.3, (rows // 4, length + 1)), VOCABULARY - 1).astype(np.int32)
        data = np.stack([lm_row(tokens, length, 0) for tokens in ids])
        write_rows(
            folder / f"part_{part}.h5", (RowGroup("data", FEATURES, length),), [data], compression
        )
    return folder


def ours(folder, batches):
    """Our loader, shuffled, with every check on: the vocabulary and the spans."""
    source = Hdf5Source([folder], VOCABULARY)

    def read():
        loader = Loader(source, batch_size=BATCH, row_length=None, shuffle=True, seed=1)
        for _ in range(batches):
            next(loader)
        loader.close()

    return read


def alone(folder, batches):
    """h5py with the datasets kept open, rows in random order, stacked into batches."""
    data = [h5py.File(path)["data"] for path in sorted(folder.glob("*.h5"))]
    each = len(data[0])
    order = np.random.default_rng(1).permutation(each * len(data))

    def read():
        at = 0
        for _ in range(batches):
            index = np.take(order, range(at, at + BATCH), mode="wrap")
            np.stack([data[i // each][i % each] for i in index])
            at += BATCH

    return read


def torch_loader(folder, batches, workers):
    """torch's DataLoader over the same rows, as the vendor's map dataset uses it."""
    from torch.utils.data import DataLoader

    class Rows:
        def __init__(self):
            self.paths, self.data = sorted(folder.glob("*.h5")), None
            self.each = len(h5py.File(self.paths[0])["data"])

        def __len__(self):
            return self.each * len(self.paths)

        def __getitem__(self, index):
            if self.data is None:
                self.data = [h5py.File(path)["data"] for path in self.paths]
            row = self.data[index // self.each][index % self.each]
            return dict(zip(FEATURES, row, strict=True))

    loader = DataLoader(
        Rows(), batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )

    def read():
        left = batches
        while left > 0:
            for _ in loader:
                left -= 1
                if left == 0:
                    break

    return read


def training_rate(steps: int) -> float:
    """Token slots per second of the main job at its best, from its own log."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "wafer", "run", "--mode", "train", "--model_dir", folder]
        command += [
            "--params",
            str(ROOT / "models/configs/gpt_pystdlib.yaml"),
            "--max_steps",
            str(steps),
        ]
        env = os.environ | {"WAFER_JOBS_DB": f"{folder}/jobs.db"}
        process = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    rates = [float(r) for r in re.findall(r"\bRate=([\d.]+)", process.stdout + process.stderr)]
    return max(rates) * 512  # rows of 512 slots, 97 % of them filled


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--training_rate", type=float, help="tokens/s, instead of a run")
    parser.add_argument("--length", type=int, help="tokens a row; 512 and 2,048 (quick: 512)")
    args = parser.parse_args()
    print(environment())
    rate = args.training_rate or training_rate(100 if args.quick else 300)
    print(f"main job: {rate:,.0f} token slots/s")
    rows: dict[str, float] = {"training_tokens_per_s": rate}
    lengths = (args.length,) if args.length else (512,) if args.quick else (512, 2048)
    batches, total = (60, 800) if args.quick else (200, 4000)
    with tempfile.TemporaryDirectory() as folder:
        for length in lengths:
            for name in ("gzip", "none"):
                path = corpus(
                    pathlib.Path(folder) / f"{length}_{name}",
                    total,
                    length,
                    {"none": None}.get(name, name),
                )
                measure(path, f"{length}_{name}", batches, length, rows)
    worst = min(value for name, value in rows.items() if name.startswith("ours_"))
    rows["ours_over_training"] = worst / rate
    print(f"slowest of ours over the main job: {worst / rate:,.0f} times (target 10)")
    report(rows)


def measure(path, label, batches, length, rows) -> None:
    programs = {"h5py": alone(path, batches), "ours": ours(path, batches)}
    try:
        import torch  # noqa: F401
    except ImportError:
        pass
    else:
        programs["torch0"] = torch_loader(path, batches, 0)
        programs["torch2"] = torch_loader(path, batches, 2)
    times = interleave(programs, repeats=5, seconds=20)
    for name, time in times.items():
        rows[f"{name}_{label}"] = batches * BATCH * length / time.median
    shown = ", ".join(f"{n} {rows[f'{n}_{label}'] / 1e6:.2f} M" for n in times)
    print(f"{label}: tokens/s {shown}; ours/h5py {ratio(times, 'h5py', 'ours').median:.2f}")


if __name__ == "__main__":
    main()
