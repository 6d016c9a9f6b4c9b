"""Bit rot: no flipped bit in any file of a checkpoint is loaded as if nothing had happened."""

import functools
import json
import random
import urllib.parse
import zlib

import numpy as np
import pytest
import tensorstore as ts

from wafer.cli import main
from wafer.models.checkpoint.checksums import checksum
from wafer.models.checkpoint.layout import read_record
from wafer.models.checkpoint.reader import StoredTree, load_checkpoint, load_params
from wafer.models.checkpoint.verify import verify
from wafer.models.checkpoint.writer import write_checkpoint, write_params
from wafer.models.errors import CheckpointError
from wafer.models.paths import named_leaves
from wafer.sparsity.finalize import finalize

RNG = np.random.default_rng(0)


def locations(tree):
    """Where each key's value lies: (file inside the item, offset, length); None in the index."""
    base = ts.KvStore.open(f"{tree.path.as_uri()}/", context=tree.context).result()
    root = ts.ocdbt.dump(base).result()["versions"][-1]["root"]["location"]
    places = {}
    for entry in ts.ocdbt.dump(base, root).result()["entries"]:
        places[entry["key"].decode()] = None
        if "indirect_value" in entry:  # 'value:FOLDER:FILE:OFFSET:LENGTH', names percent-encoded
            _, folder, file, offset, length = entry["indirect_value"].split(":")
            place = urllib.parse.unquote(folder + file), int(offset), int(length)
            places[entry["key"].decode()] = place
    return places


PRUNED = np.where(RNG.random((48, 64)) < 0.5, np.nan, RNG.random((48, 64))).astype(np.float32)
STATE = {
    "params": {"a": {"kernel": PRUNED, "bias": np.zeros(5, np.float32)}, "c": RNG.random((40, 40))},
    "opt_state": {"0": {"exp_avg": {"a": {"kernel": PRUNED * 2}}}},
    "step": np.int32(7),
}
META = {"step": 7, "config": {"model": {"name": "x", "rate": 1e-5}}, "sparsity": {"step": 3}}
EXPECTED = {name: np.asarray(leaf).tobytes() for name, leaf in named_leaves(STATE)}


@pytest.fixture
def checkpoint(tmp_path):
    return write_checkpoint(tmp_path / "7", STATE, META) or tmp_path / "7"


def flip(path, bit):
    """Turn one bit over; returns what puts it back."""
    sound = path.read_bytes()
    data = bytearray(sound)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return lambda: path.write_bytes(sound)


def outcome(path):
    """'refused', or 'same'; anything else is damage that was believed."""
    try:
        tree, record = load_checkpoint(path)
    except CheckpointError as error:
        return "refused" if str(path) in str(error) else str(error)
    stored = {name: leaf.tobytes() for name, leaf in named_leaves(tree)}
    assert (stored, record) == (EXPECTED, META)
    return "same"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax's loop
def test_no_flipped_bit_in_any_file_is_believed(checkpoint):
    """A mark of Orbax, or what the database has superseded, changes nothing when it is damaged."""
    chance, ends = random.Random(0), {}
    for file in sorted(p for p in checkpoint.rglob("*") if p.is_file()):
        bits = range(8 * file.stat().st_size)
        for bit in chance.sample(bits, min(12, len(bits))):
            undo = flip(file, bit)
            ends.setdefault(str(file.relative_to(checkpoint)), set()).add(outcome(checkpoint))
            undo()
    assert outcome(checkpoint) == "same"
    for file in ("meta/metadata", "state/manifest.ocdbt"):
        assert ends[file] == {"refused"}, file


def test_a_flipped_bit_in_an_array_is_refused_by_all_who_read_it(checkpoint, tmp_path, capsys):
    tree = StoredTree(checkpoint / "state")
    places = {key: place for key, place in locations(tree).items() if place is not None}
    assert sorted(places) == ["opt_state.0.exp_avg.a.kernel/0.0", "params.a.kernel/0.0",
                              "params.c/0.0"]  # fmt: skip
    file, offset, length = places["params.a.kernel/0.0"]
    chance = random.Random(1)
    readers = [load_checkpoint, load_params, functools.partial(load_checkpoint, lazily=True)]
    readers.append(lambda path: finalize(path, tmp_path / "out"))
    for number in range(40):
        undo = flip(checkpoint / "state" / file, 8 * offset + chance.randrange(8 * length))
        for read in readers[: None if number < 5 else 1]:
            with pytest.raises(CheckpointError, match="tensor params/a/kernel "):
                read(checkpoint)
        if number < 5:
            assert main(["checkpoint", "verify", str(checkpoint)]) == 1
            assert "tensor params/a/kernel " in capsys.readouterr().err
        undo()
    assert [path.name for path in tmp_path.iterdir()] == ["7"]
    assert main(["checkpoint", "verify", str(checkpoint)]) == 0
    assert "7: sound, 5 arrays" in capsys.readouterr().out


def test_verify_lists_all_that_is_damaged_and_takes_a_model_dir(tmp_path, capsys):
    steps = [tmp_path / "checkpoints" / name for name in ("9", "10")]
    for step in steps:
        write_checkpoint(step, STATE, META)
    tree = StoredTree(steps[1] / "state")
    for key in ("params.a.kernel/0.0", "params.c/0.0"):
        file, offset, length = locations(tree)[key]
        flip(steps[1] / "state" / file, 8 * offset + 8 * (length // 2))
    with pytest.raises(CheckpointError, match=r"(?s)tensor params/a/kernel .*tensor params/c "):
        verify(steps[1])
    assert main(["checkpoint", "verify", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert f"{steps[0]}: sound" in out
    assert f"{steps[1]} is damaged" in err
    assert main(["checkpoint", "verify", str(tmp_path / "checkpoints")]) == 1
    assert "neither a checkpoint" in capsys.readouterr().err


def test_a_tensor_that_its_index_no_longer_names_is_missed(checkpoint):
    """One bit makes params/a of params/c, and two entries one."""
    index = checkpoint / "state" / "_METADATA"
    content = json.loads(index.read_text())
    content["tree_metadata"].pop("('params', 'c')")
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"_METADATA is damaged: .* differ in params/c"):
        load_checkpoint(checkpoint)


def test_finalized_checkpoints_have_checksums_of_their_own(checkpoint, tmp_path):
    report = finalize(checkpoint, tmp_path / "dense")
    record, sums = read_record(tmp_path / "dense")
    assert record == {key: value for key, value in META.items() if key != "sparsity"}
    assert sums == {tensor.name: tensor.array.checksum for tensor in report.tensors}
    before = read_record(checkpoint)[1]
    changed = {name for name in sums if sums[name] != before[name]}
    assert changed == {"params/a/kernel", "opt_state/0/exp_avg/a/kernel"}
    assert verify(tmp_path / "dense").checked
    assert load_params(tmp_path / "dense")[0]["a"]["kernel"].sum() == np.nansum(PRUNED)


def test_finalize_refuses_what_lacks_its_record(checkpoint, tmp_path):
    (checkpoint / "meta" / "metadata").unlink()
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        finalize(checkpoint, tmp_path / "out")


def test_finalize_removes_what_a_killed_one_left(checkpoint, tmp_path, caplog):
    dead, living = tmp_path / ".out.partial-4194305", tmp_path / ".out.partial-1"
    for folder in (dead, living):
        (folder / "state").mkdir(parents=True)
    with caplog.at_level("WARNING"):
        finalize(checkpoint, tmp_path / "out")
    assert f"Removed a half-written {dead}" in caplog.text
    assert sorted(p.name for p in tmp_path.iterdir()) == [living.name, "7", "out"]


def test_converted_weights_have_checksums(tmp_path):
    arrays = {"b": np.arange(3, dtype=np.float16), "a/kernel": RNG.random((1500, 1000))}
    write_params(tmp_path / "new", {"name": "x"}, list(arrays), arrays.items())
    assert verify(tmp_path / "new").checked
    file, offset, length = next(
        place for place in locations(StoredTree(tmp_path / "new" / "state")).values() if place
    )
    flip(tmp_path / "new" / "state" / file, 8 * (offset + length // 2))
    with pytest.raises(CheckpointError, match="tensor params/a/kernel "):
        load_params(tmp_path / "new")


@pytest.mark.parametrize("shape", [(), (0, 3), (1023,), (1024,), (3, 1025)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.bool_, np.float64])
def test_the_checksum_is_the_documented_one(shape, dtype):
    value = RNG.integers(0, 2, shape).astype(dtype)
    data = value.tobytes()
    blocks = len(data) // 8192
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, blocks * 8192, 8)]
    sums = b"".join(
        (sum(words[at : at + 1024]) % 2**64).to_bytes(8, "little")
        for at in range(0, len(words), 1024)
    )
    assert checksum(value) == f"{zlib.crc32(sums + data[blocks * 8192 :]):08x}"
    assert checksum(np.asfortranarray(value)) == checksum(value)
