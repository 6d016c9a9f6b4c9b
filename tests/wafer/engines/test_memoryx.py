"""MemoryX: what was committed is there, whole, whatever happened to the process."""

import contextlib
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time

import ml_dtypes
import numpy as np
import pytest
from helpers.streamed import assert_same

from wafer.engines.stagewise.streaming.memoryx import FileStore, MemoryXError, RamStore

LEAVES = {
    "w": np.arange(30, dtype=np.float32).reshape(5, 6),
    "m": np.full((3, 2), 1.5, ml_dtypes.bfloat16),
    "kept": np.array([True, False]),
    "count": np.int32(7),
    "none": np.zeros((0, 4), np.float32),
}


@pytest.fixture(params=[None, True, False], ids=["ram", "file", "single"])
def store(request, tmp_path):
    """In memory, in a file, in a file with one copy."""
    new = RamStore() if request.param is None else FileStore(tmp_path, durable=request.param)
    with contextlib.closing(new):
        yield new


def test_a_record_comes_back_bit_for_bit(store):
    store.add("layer", LEAVES)
    store.add("other", {"x": np.zeros(3)})
    store.commit({"step": 0})
    assert_same(store.fetch("layer"), LEAVES)
    assert_same(store.view("layer"), LEAVES)
    after = LEAVES | {"w": LEAVES["w"] * 2}
    store.put("layer", after)
    assert_same(store.fetch("layer"), after)  # what was put is read before it is committed
    store.commit({"step": 1})
    assert_same(store.fetch("layer"), after)
    assert store.meta == {"step": 1}


def test_fetched_memory_is_aligned_for_xla_and_not_shared(tmp_path):
    store = FileStore(tmp_path)
    store.add("layer", LEAVES)
    first = store.fetch("layer")
    assert all(leaf.ctypes.data % 64 == 0 for leaf in first.values() if leaf.size)
    first["w"][:] = 0
    assert_same(store.fetch("layer"), LEAVES)


def test_reopened_store_is_at_its_last_commit(tmp_path):
    store = FileStore(tmp_path)
    store.add("layer", LEAVES)
    store.commit({"step": 0})
    for step in (1, 2):
        store.put("layer", LEAVES | {"count": np.int32(step)})
        store.commit({"step": step})
    store.put("layer", LEAVES | {"count": np.int32(99)})  # never committed
    store.close()
    again = FileStore.open(tmp_path)
    assert again.meta == {"step": 2}
    assert int(again.fetch("layer")["count"]) == 2
    again.close()


def test_a_store_with_one_copy_says_that_it_is_torn(tmp_path):
    store = FileStore(tmp_path, durable=False)
    store.add("layer", LEAVES)
    store.commit({"step": 4})
    store.put("layer", LEAVES)
    store.close()
    with pytest.raises(MemoryXError, match=r"middle of the step after .*4.*durable"):
        FileStore.open(tmp_path)


def test_what_is_no_store_or_was_cut_is_refused(tmp_path):
    with pytest.raises(MemoryXError, match="holds no weight store"):
        FileStore.open(tmp_path)
    store = FileStore(tmp_path)
    store.add("layer", LEAVES)
    store.commit({})
    with pytest.raises(ValueError, match="into a place for float32"):
        store.put("layer", LEAVES | {"w": np.zeros((2, 2), np.float32)})
    store.close()
    with (tmp_path / "memoryx.bin").open("r+b") as file:
        file.write(b"\0" * (1 << 17))
    with pytest.raises(MemoryXError, match="no commit record is complete"):
        FileStore.open(tmp_path)


def test_scratch_records_are_replaced_and_never_described(tmp_path):
    store = FileStore(tmp_path)
    store.add("layer", LEAVES)
    store.commit({})
    store.add("grads", {"g": np.ones(4)}, scratch=True)
    store.add("grads", {"g": np.full(2, 3.0)}, scratch=True)
    np.testing.assert_array_equal(store.fetch("grads")["g"], [3.0, 3.0])
    store.close()
    again = FileStore.open(tmp_path)
    with pytest.raises(KeyError, match="grads"):
        again.fetch("grads")
    again.close()


WRITER = textwrap.dedent("""
    import sys
    import numpy as np
    from wafer.engines.stagewise.streaming.memoryx import FileStore, MemoryXError
    folder, fresh = sys.argv[1], sys.argv[2] == "fresh"
    if fresh:
        store = FileStore(folder)
        for i in range(6):
            store.add(f"layer{i}", {"w": np.zeros(50_000), "m": np.zeros(20_000, np.float32)})
        store.commit({"step": 0})
    else:
        store = FileStore.open(folder)
    if len(sys.argv) > 3:
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write then fails as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
    print("ready", flush=True)
    try:
        for step in range(store.meta["step"] + 1, 10**9):
            for i in range(6):
                store.put(f"layer{i}", {k: v + 1 for k, v in store.fetch(f"layer{i}").items()})
            store.commit({"step": step})
            print(step, flush=True)
    except MemoryXError as error:
        print(error, flush=True)
        sys.exit(3)
    """)


def writer(folder, *args):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), *args], stdout=subprocess.PIPE, text=True
    )


def check_whole(folder):
    """Every value of every record is the number of the step that was committed."""
    store = FileStore.open(folder)
    step = store.meta["step"]
    for i in range(6):
        for leaf in store.fetch(f"layer{i}").values():
            np.testing.assert_array_equal(leaf, step)
    store.close()
    return step


@pytest.mark.slow
def test_twenty_kills_leave_whole_steps(tmp_path):
    chance = random.Random(0)
    for kill in range(20):
        process = writer(tmp_path, "fresh" if kill == 0 else "again")
        assert process.stdout.readline() == "ready\n"
        for _ in range(chance.randrange(1, 4)):
            last = int(process.stdout.readline())
        time.sleep(chance.uniform(0.0, 0.02))  # into the writing of a later step
        process.send_signal(signal.SIGKILL)
        process.communicate()
        step = check_whole(tmp_path)
        assert step >= last


def test_a_disk_that_takes_no_more_is_one_clear_error_and_the_store_is_intact(tmp_path):
    first = writer(tmp_path, "fresh")
    assert first.stdout.readline() == "ready\n"
    first.kill()
    first.communicate()
    step = check_whole(tmp_path)
    limited = writer(tmp_path, "again", str(1 << 20))  # the file's first MiB only
    out, _ = limited.communicate(timeout=300)
    assert limited.returncode == 3
    assert "cannot be written" in out
    assert "is intact" in out
    assert check_whole(tmp_path) == step


def test_no_room_for_the_file_is_an_error_at_the_start(tmp_path):
    script = textwrap.dedent("""
        import resource, signal, sys
        import numpy as np
        from wafer.engines.stagewise.streaming.memoryx import FileStore
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        FileStore(sys.argv[1]).add("layer", {"w": np.zeros(1 << 20)})
        """)
    process = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "MemoryXError" in process.stderr
    assert "cannot grow to 0.02 GiB" in process.stderr
    assert "memoryx.path" in process.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
