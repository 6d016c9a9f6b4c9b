"""MemoryX and a power cut: every set of writes that the disk may have had is opened again."""

import itertools
import json
import os
import pathlib

import numpy as np

from wafer.engines.stagewise.streaming.memoryx import FileStore, MemoryXError

SECTOR = 512
STEPS = 3


def contents(step, record):
    """What a record holds after a step: two arrays, nowhere equal to another step's."""
    rng = np.random.default_rng([step, record])
    return {"w": rng.normal(size=300).astype(np.float32), "m": rng.integers(0, 255, 2000, np.uint8)}


class Recorder:
    """The calls of a store that reach the disk, in their order."""

    def __init__(self, monkeypatch, folder):
        self.calls = []  # (what, argument)
        real = {name: getattr(os, name) for name in ("pwrite", "fdatasync", "fsync", "replace")}
        kind = lambda fd: pathlib.Path(f"/proc/self/fd/{fd}").resolve()

        def pwrite(fd, data, offset):
            self.calls.append(("write", (offset, bytes(data))))
            return real["pwrite"](fd, data, offset)

        def sync(name):
            def call(fd):
                path = kind(fd)
                if path == folder:
                    self.calls.append(("settle names", None))
                elif path == folder / "memoryx.bin":
                    self.calls.append(("settle data", None))
                elif path.is_file():
                    self.calls.append(("settle layout", None))
                return real[name](fd)

            return call

        def replace(source, target):
            text = pathlib.Path(source).read_text()
            self.calls.append(("name layout", text if self.is_settled() else None))
            return real["replace"](source, target)

        monkeypatch.setattr(os, "pwrite", pwrite)
        monkeypatch.setattr(os, "fdatasync", sync("fdatasync"))
        monkeypatch.setattr(os, "fsync", sync("fsync"))
        monkeypatch.setattr(os, "replace", replace)

    def is_settled(self):
        return self.calls[-1][0] == "settle layout"


def run(folder, monkeypatch):
    """Three steps of a new store; returns the calls and how many there were after each commit."""
    with monkeypatch.context() as patch:
        recorder, marks = Recorder(patch, folder), []
        store = FileStore(folder)
        for record in range(2):
            store.add(f"layer{record}", contents(0, record))
        store.commit({"step": 0})
        marks.append(len(recorder.calls))
        for step in range(1, STEPS + 1):
            for record in range(2):
                store.put(f"layer{record}", contents(step, record))
            store.commit({"step": step})
            marks.append(len(recorder.calls))
        store.close()
    return recorder.calls, marks


def subsets(items):
    return itertools.chain.from_iterable(
        itertools.combinations(items, n) for n in range(len(items) + 1)
    )


def torn(write):
    """A write of which only some sectors came: the first ones, the last ones, none, all."""
    offset, data = write
    half = len(data) // SECTOR // 2 * SECTOR
    yield ()
    yield ((offset, data),)
    if half:
        yield ((offset, data[:half]),)
        yield ((offset + half, data[half:]),)


def disks(calls):
    """Every state of the disk that a cut during or after ``calls`` may leave: (file, layout).

    What was written since the last wait may be there or not, in any selection, and one of the
    writes in part.
    """
    sure, loose, layouts = [], [], ["old", None]  # of the layout: what may be under its name
    for what, argument in calls:
        if what == "write":
            loose.append(argument)
        elif what == "settle data":
            sure, loose = sure + loose, []
        elif what == "name layout":
            layouts.append(argument)
        elif what == "settle names":
            layouts = layouts[-1:]
    for chosen in subsets(loose):
        for k in range(len(chosen) or 1):
            for part in torn(chosen[k]) if chosen else [()]:
                parts = [*(w for w in chosen if w is not chosen[k]), *part] if chosen else []
                for layout in layouts:
                    yield sure + parts, layout


def image(writes, size):
    disk = bytearray(size)
    for offset, data in writes:
        disk[offset : offset + len(data)] = data
    return bytes(disk)


def verdict(folder, writes, layout, size):
    """The step that a disk opens at, None where it is refused; the contents must be that step's."""
    (folder / "memoryx.bin").write_bytes(image(writes, size))
    (folder / "memoryx.json").unlink(missing_ok=True)
    if layout is not None:
        (folder / "memoryx.json").write_text(layout)
    try:
        store = FileStore.open(folder)
    except MemoryXError:
        return None
    step = store.meta["step"]
    for record in range(2):
        arrays = store.fetch(f"layer{record}")
        for name, want in contents(step, record).items():
            np.testing.assert_array_equal(arrays[name], want, err_msg=f"step {step} is not whole")
    store.close()
    return step


def test_every_committed_step_survives_a_power_cut(tmp_path, monkeypatch):
    """Cut the power after every call."""
    folder, other = tmp_path / "store", tmp_path / "after"
    other.mkdir()
    # Before: another run's store, with another layout in the same folder.
    old = FileStore(folder)
    old.add("else", {"x": np.arange(5000.0)})
    old.commit({"step": 77})
    old.close()
    old_layout = (folder / "memoryx.json").read_text()
    calls, marks = run(folder, monkeypatch)
    size, seen = (folder / "memoryx.bin").stat().st_size, {}
    for end in range(len(calls) + 1):
        committed = sum(end >= mark for mark in marks) - 1  # the newest step whose commit returned
        for writes, named in disks(calls[:end]):
            layout = old_layout if named == "old" else named
            key = (tuple((o, len(d), hash(d)) for o, d in writes), layout)
            if key not in seen:
                seen[key] = verdict(other, writes, layout, size)
            step = seen[key]
            whole = step is not None and committed <= step <= committed + 1
            assert committed < 0 or whole, (end, committed, step)
    assert len(seen) > 60  # states of the disk that were opened


def test_a_store_that_is_not_durable_waits_for_nothing(tmp_path, monkeypatch):
    recorder = Recorder(monkeypatch, tmp_path)
    store = FileStore(tmp_path, durable=False)
    store.add("layer", contents(0, 0))
    store.commit({"step": 0})
    store.close()
    assert {what for what, _ in recorder.calls} == {"write", "name layout"}
    assert json.loads((tmp_path / "memoryx.json").read_text())["durable"] is False
