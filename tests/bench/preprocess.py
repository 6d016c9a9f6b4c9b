"""Preprocessing: peak memory and text per second, whole or killed on the way.

Makes text of words with the frequencies of language (Zipf), in lines of JSON, and gives it to
``wafer data preprocess`` in a process of its own, beside the rate of the ``tokenizers`` library
alone. ``--hook`` gives it a vendor's file with a read hook in place of flags. ``--kills N`` kills
that process N times on the way and compares the rows with those of a run that nobody killed.

    python tests/bench/preprocess.py [--quick] [--megabytes 1000] [--hook] [--kills N]

Rows: ``rate``: the library's processor time over ours; ``all_mib``, ``once_mib``: peak of all
processes, and with each page counted once; ``run_s``; ``rows``.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np
import psutil

sys.path[:0] = [str(pathlib.Path(__file__).parents[2]), str(pathlib.Path(__file__).parent)]

import harness


def text(path, megabytes):
    """JSON lines of documents of some hundred words."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(5000)]
    with path.open("w") as file:
        while file.tell() < megabytes * 10**6:
            ids = np.minimum(rng.zipf(1.4, 100_000), len(words)) - 1
            for part in np.array_split(ids, 300):
                file.write(json.dumps({"text": " ".join(words[i] for i in part)}) + "\n")
    return path


def tokenizer(path, source):
    """A byte-pair vocabulary of the first megabytes, so that every run has the same."""
    from wafer.data.text.tokenizer import train_bpe

    with source.open() as file:
        texts = [json.loads(line)["text"] for line, _ in zip(file, range(3000), strict=False)]
    train_bpe(texts, 2000).save(str(path))
    return path


def alone(path, source):
    """CPU seconds of one ``encode_batch_fast`` over all texts, in batches of a megabyte."""
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(path))
    seconds, batch, size = 0.0, [], 0
    with source.open() as file:
        for line in [*file, None]:
            if line is None or size > 1 << 20:
                begin = time.process_time()
                encoder.encode_batch_fast(batch, add_special_tokens=False)
                seconds += time.process_time() - begin
                batch, size = [], 0
            if line:
                batch.append(json.loads(line)["text"])
                size += len(batch[-1])
    return seconds


def hook_file(path, flags):
    """A vendor's preprocessing file of the same run."""
    keys = {name: value for name, value in flags.items() if name != "tokenizer_type"}
    keys |= {"mode": "pretraining", "read_hook": "hooks:text_read_hook"}
    keys |= {"read_hook_kwargs": {"text_key": "text"}, "use_ftfy": True}
    text = {name: str(value) for name, value in keys.items() if isinstance(value, pathlib.Path)}
    path.write_text(json.dumps(keys | text | {"display_pbar": False}))
    return path


def resident(pid):
    """Megabytes in memory: of a process, of its largest child, of all; of all, each page once."""
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        infos = [process.memory_full_info() for process in processes]
    except psutil.Error:
        return np.zeros(4)
    own, *children = (info.rss for info in infos)
    once = sum(info.pss for info in infos)
    return np.array([own, max(children, default=0), own + sum(children), once]) / 1e6


def run(command, kills, share):
    """Peak megabytes, as above; seconds; CPU seconds of the process that packs and writes."""
    peaks, begin, main = np.zeros(4), time.monotonic(), 0.0
    for attempt in range(kills + 1):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        started = time.monotonic()
        while process.poll() is None:
            peaks = np.maximum(peaks, resident(process.pid))
            with contextlib.suppress(psutil.Error):
                main = sum(psutil.Process(process.pid).cpu_times()[:2])
            if attempt < kills and time.monotonic() - started > share:
                process.send_signal(signal.SIGKILL)
            time.sleep(0.05)
        if attempt == kills and process.returncode:
            raise SystemExit(process.returncode)
    return peaks, time.monotonic() - begin, main


def digest(folder):
    """Hash of all rows, and their number."""
    out, rows = hashlib.sha256(), 0
    for path in sorted(folder.glob("*.h5")):
        with h5py.File(path) as file:
            rows += len(file["data"])
            for start in range(0, len(file["data"]), 1000):
                out.update(file["data"][start : start + 1000].tobytes())
    return out.hexdigest()[:16], rows


def main():
    """Print one line for each run."""
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=80)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--hook", action="store_true", help="a vendor's file, with ftfy")
    parser.add_argument("--folder", help="for text and rows; a temporary one otherwise")
    args = parser.parse_args()
    args.megabytes = 2 if args.quick else args.megabytes
    print(harness.environment())
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(args.folder or scratch)
        source = text(folder / "text.jsonl", args.megabytes)
        vocabulary = tokenizer(folder / "tokenizer.json", source)
        command = [sys.executable, "-m", "wafer", "data", "preprocess"]
        flags = {"input_dir": source, "tokenizer_type": "HuggingFaceTokenizer"}
        flags |= {"huggingface_tokenizer": vocabulary, "max_seq_length": args.length}
        flags |= {"display_pbar": "false"}
        if args.hook:
            command += ["-p", str(hook_file(folder / "file.yaml", flags))]
        else:
            parts = ((f"--{key}", str(value)) for key, value in flags.items())
            command += ["LMData", *(part for pair in parts for part in pair)]
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        library = alone(vocabulary, source)
        command += ["--files_per_record", str(20_000 if args.kills else 50_000)]
        seconds, digests = 0.0, []
        for kills in sorted({0, args.kills}):
            out = folder / f"rows-{kills}"
            share = seconds / (kills + 1)
            used = sum(os.times()[2:4])
            peaks, seconds, main_cpu = run([*command, "--output_dir", str(out)], kills, share)
            cpu = sum(os.times()[2:4]) - used
            digests.append(digest(out))
            size = sum(path.stat().st_size for path in out.glob("*.h5")) / 1e6
            print(
                f"{source.stat().st_size / 1e6:.0f} MB, rows of {args.length}, {kills} kills: "
                f"peak {peaks[0]:.0f} MB, largest child {peaks[1]:.0f} MB, all {peaks[2]:.0f} MB, "
                f"each page once {peaks[3]:.0f} MB; "
                f"{digests[-1][1]:,} rows ({digests[-1][0]}) in {seconds:.0f} s and "
                f"{cpu:.1f} s of CPU ({main_cpu:.1f} s of the process that packs and writes; "
                f"{size:.0f} MB of rows), {library:.1f} s the library alone: {library / cpu:.2f}, "
                f"load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
            rows = {"rate": library / cpu, "all_mib": peaks[2] * 1e6 / 2**20}
            rows |= {"once_mib": peaks[3] * 1e6 / 2**20, "run_s": seconds, "rows": digests[-1][1]}
        if len(set(digests)) > 1:
            raise SystemExit("the killed run's rows differ")
        harness.report(rows)


if __name__ == "__main__":
    main()
