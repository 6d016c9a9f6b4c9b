"""HDF5 rows as data processors: what a batch holds, mixtures, resume, and rows that are wrong."""

import itertools
import json
import types

import h5py
import numpy as np
import pytest
from helpers.rows import batches, device_batch, restarted

from wafer.cli import main
from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.preprocess.convert import convert_dataset_to_hdf5
from wafer.data.registry import parse_input
from wafer.data.rowfiles.folders import shuffle_folder, split_folder
from wafer.data.rowfiles.rules import span_problem
from wafer.data.rowfiles.verify import verify_folder
from wafer.errors import DataError, SectionError

LENGTH = 6


def folder(path, rows, per_file=4, **params):
    """A folder of rows [N, F, S], with what data_params.json says besides."""
    path.mkdir(parents=True)
    for i in range(0, len(rows), per_file):
        with h5py.File(path / f"part_{i:03d}.h5", "w") as file:
            part = np.asarray(rows[i : i + per_file], np.int32)
            file.attrs["n_examples"] = len(part)
            file.create_dataset("data", data=part, chunks=(1, *part.shape[1:]), compression="gzip")
    if params:
        (path / "data_params.json").write_text(json.dumps(params))
    return path


def numbered(count, first=0):
    """Next-token rows whose first id tells which row it is."""
    ids = np.arange(first, first + count)[:, None] + np.zeros((1, LENGTH), int)
    return np.stack([ids, np.ones_like(ids), ids], axis=1)


def section(processor, where=None, **keys):
    place = {} if where is None else {"data_dir": str(where)}
    return parse_input({"data_processor": processor, "batch_size": 2, **place, **keys})


def opened(cfg, tmp_path, vocab_size=1000):
    return build_dataset(cfg, tmp_path / "model", Context(vocab_size=vocab_size))


def gpt(tmp_path, where, vocab_size=1000, **keys):
    return opened(section("GptHDF5DataProcessor", where, **keys), tmp_path, vocab_size)


def gpt_map(tmp_path, where, **keys):
    return opened(section("GptHDF5MapDataProcessor", where, **keys), tmp_path)


def all_firsts(data):
    """First id of every row of the source."""
    return [int(data.source[i]["input_ids"][0]) for i in range(len(data.source))]


def firsts(loader, count):
    """First id of the rows of some batches."""
    ids = [row[0] for rows in itertools.islice(loader, count) for row in rows["input_ids"]]
    loader.close()
    return [int(i) for i in ids]


def test_rows_in_order_over_files_and_carried_into_the_next_epoch(tmp_path):
    data = gpt(tmp_path, folder(tmp_path / "d", numbered(5)))
    assert data.batches(2) == 2
    assert firsts(data.loader(2, num_epochs=None), 5) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_mixture_draws_by_weight_and_goes_on_where_it_stopped(tmp_path):
    parts = [
        {"data_dir": str(folder(tmp_path / "a", numbered(40))), "weight": 3},
        {"data_dir": str(folder(tmp_path / "b", numbered(40, 500))), "weight": 1},
    ]
    data = gpt_map(tmp_path, None, mixture=parts, shuffle=True, shuffle_seed=1)
    assert "75.0%" in data.summary
    loader = data.loader(2, num_epochs=None)
    ids = firsts(loader, 20)
    assert sum(i >= 500 for i in ids) == 10
    assert len(set(ids)) == 40  # no row twice within an epoch of its part
    whole = data.loader(2, num_epochs=None)
    for _ in range(7):
        next(whole)
    state = json.loads(json.dumps(whole.state()))
    want = firsts(whole, 30)
    again = data.loader(2, num_epochs=None)
    again.restore(state)
    assert firsts(again, 30) == want


@pytest.mark.parametrize(
    ("keys", "want"),
    [
        ({"data_subset": "0.25-0.5,0.75-1.0"}, [2, 3, 6, 7]),
        ({"data_subset": "0.6-0.9"}, [4, 5]),  # 4.8 to 7.2: cut as the vendor cuts; batches of 2
        ({"data_subset": "0.0-0.25,0.25-0.7,0.7-1.0"}, list(range(8))),  # 2 rows end at a border
        ({"num_samples": 10}, [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]),
    ],
)
def test_subsets_and_longer_passes(tmp_path, keys, want):
    data = gpt_map(tmp_path, folder(tmp_path / "d", numbered(8)), **keys)
    assert firsts(data.loader(2, num_epochs=1), 9) == want


def test_ranges_of_a_subset_do_not_overlap(tmp_path):
    rows = folder(tmp_path / "d", numbered(8))
    with pytest.raises(DataError, match=r"'0\.0-0\.5,0\.4-1\.0'; expected ranges in order, with"):
        gpt_map(tmp_path, rows, data_subset="0.0-0.5,0.4-1.0")


def test_a_corpus_is_cut_at_any_length(tmp_path):
    where = tmp_path / "d"
    where.mkdir()
    with h5py.File(where / "c.h5", "w") as file:
        file["data"] = np.arange(14, dtype=np.int32)
    for length, rows in ((4, 3), (6, 2)):
        data = gpt_map(tmp_path, where, max_sequence_length=length)
        assert all_firsts(data) == [length * i for i in range(rows)]
        got = [data.source[i] for i in range(rows)]
        assert all((r["labels"] == r["input_ids"] + 1).all() for r in got)
    with pytest.raises(DataError, match="max_sequence_length must say"):
        gpt_map(tmp_path, where)
    with pytest.raises(DataError, match="does not know where documents end"):
        gpt(tmp_path, where, max_sequence_length=4, use_vsl=True)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "data_dir.*missing; give data_dir, or a mixture"),
        ({"data_dir": "x", "mixture": [{"data_dir": "y", "weight": 1}]}, "keep one"),
        ({"mixture": [{"data_dir": "y", "weight": 0}]}, r"mixture.*weight"),
        ({"mixture": [{"data_dr": "y", "weight": 1}]}, "did you mean 'data_dir'"),
    ],
)
def test_wrong_sections(keys, message):
    with pytest.raises(SectionError, match=message):
        section("GptHDF5DataProcessor", **keys)


def bert_rows(count=8, length=20):
    """[CLS] 10 ... [SEP] and padding; ids 0-4 are special."""
    ids = np.tile(np.arange(10, 10 + length), (count, 1))
    ids[:, 0], ids[:, -3], ids[:, -2:] = 2, 3, 0
    mask = np.ones_like(ids)
    mask[:, -2:] = 0
    return np.stack([ids, mask], axis=1)


def test_bert_rows_are_masked_anew_each_epoch_and_the_same_after_a_restart(tmp_path):
    after = {"mask_id": 4, "vocab_size": 60, "special_ids": [0, 2, 3, 4]}
    params = {"features": ["input_ids", "attention_mask"], "post-process": after}
    where = folder(tmp_path / "d", bert_rows(), **params)
    data = opened(section("BertHDF5DataProcessor", where), tmp_path)
    first, _ = restarted(data, 8)
    original = bert_rows()[:, 0]
    chosen = np.take_along_axis(original, first["gather_positions"], axis=1)
    used = first["gather_weights"] == 1
    np.testing.assert_array_equal(chosen[used], first["gather_labels"][used])
    assert used.sum() == 8 * 2  # 15 % of the 16 tokens that are not special
    assert not np.isin(chosen[used], [0, 2, 3, 4]).any()
    batch = device_batch(first)
    assert float(batch.extras["masked_weights"].sum()) == used.sum()
    assert batch.layout.lengths.tolist() == [18] * 8


def test_static_bert_rows_keep_their_masks(tmp_path):
    where = folder(tmp_path / "d", bert_rows(4), features=["input_ids", "attention_mask"])
    labels = np.full((4, 1, 20), -100)
    labels[:, 0, [5, 9]] = [[7, 8]]
    with h5py.File(where / "part_000.h5", "a") as file:
        file["labels"] = labels.astype(np.int32)
    (rows,) = batches(opened(section("BertHDF5DataProcessor", where), tmp_path), 2)
    assert rows["gather_positions"][0, :2].tolist() == [5, 9]
    assert rows["gather_labels"][0, :3].tolist() == [7, 8, 0]
    assert rows["gather_weights"].sum() == 4


def test_t5_rows_of_the_vendors_converter(tmp_path):
    example = {
        "input_ids": [5, 6, 99, 1],
        "attention_mask": [1, 1, 1, 0],
        "decoder_input_ids": [0, 99, 7],
        "decoder_attention_mask": [1, 1, 1],
        "labels": [99, 7, -100],
    }
    convert_dataset_to_hdf5([example] * 4, tmp_path / "d", compression=None)
    data = opened(section("T5HDF5DataProcessor", tmp_path / "d"), tmp_path)
    batch = device_batch(batches(data, 2)[0])
    assert batch.labels.tolist() == [99, 7, 0] * 2
    assert batch.weights.tolist() == [1, 1, 0] * 2  # -100 carries no loss
    assert batch.extras["source_layout"].lengths.tolist() == [3, 3]
    with pytest.raises(DataError, match="rows have 2 features"):
        gpt(tmp_path, tmp_path / "d")


def test_t5_text_is_corrupted_anew_and_never_loses_a_token(tmp_path):
    words = ["<pad>", "</s>", "<unk>", "<s>", *(f"w{i}" for i in range(80))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "a.txt").write_text(" ".join(words[4:44]) + "\n" + " ".join(words[44:]) + "\n")
    (tmp_path / "meta.dat").write_text("a.txt 2\n")
    keys = {"src_vocab_file": str(tmp_path / "vocab.txt"), "extra_ids": 10}
    lengths = {"src_max_sequence_length": 44, "tgt_max_sequence_length": 20}
    cfg = section("T5DynamicDataProcessor", src_data_dir=str(tmp_path), **keys, **lengths)
    one, two = batches(opened(cfg, tmp_path), 2, 2)
    assert (one["input_ids"] != two["input_ids"]).any()
    for rows in (one, two):
        both = np.concatenate([rows["input_ids"][0], rows["labels"][0]])
        assert sorted(both[(both >= 4) & (both < len(words))]) == list(range(4, 44))
        assert rows["decoder_input_ids"][0, 0] == 3  # <s>
    with pytest.raises(DataError, match="84 tokens and 10 sentinels, but the model's vocabulary"):
        opened(cfg, tmp_path, vocab_size=90)


def test_bert_csv_with_masks_drawn_beforehand(tmp_path):
    header = "input_ids,attention_mask,token_type_ids,masked_lm_positions,masked_lm_weights,"
    header += "labels,next_sentence_label"
    row = '"[2, 4, 6, 3]","[1, 1, 1, 1]","[0, 0, 1, 1]","[1, 0]","[1, 0]","[9, 0]","[1]"'
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n{row}\n{row}\n")
    cfg = section("BertCSVDataProcessor", tmp_path)
    batch = device_batch(batches(opened(cfg, tmp_path), 2)[0])
    assert batch.extras["masked_labels"].tolist() == [9, 0, 9, 0]
    assert batch.extras["masked_positions"].tolist() == [1, 0, 5, 0]
    assert batch.extras["next_sentence_label"].tolist() == [1, 1]
    with pytest.raises(DataError, match=r"a\.csv, row 2: labels\[0\] is 9; .* vocabulary of 8"):
        opened(cfg, tmp_path, vocab_size=8)
    context = Context(vocab_size=1000, config=types.SimpleNamespace(num_segments=2))
    for old, new, says in (
        ("[1, 0]", "[1]", "expected equal lengths"),
        ("[2, 4, 6, 3]", "[]", "expected equal lengths"),
        ("[1, 0]", "[4, 0]", r"masked_lm_positions\[0\] is 4; expected .*0 to 3"),
        ("[1, 0]", "[-1, 0]", r"masked_lm_positions\[0\] is -1; expected .*0 to 3"),
        ("[2, 4, 6, 3]", "[2, -4, 6, 3]", r"input_ids\[1\] is -4; expected ids below"),
        ("[2, 4, 6, 3]", "[2.9, 4, 6, 3]", r"input_ids\[0\] is 2.9; expected ids"),
        ("[2, 4, 6, 3]", "[true, 4, 6, 3]", r"input_ids\[0\] is True; expected ids"),
        ("[2, 4, 6, 3]", "[99999999999, 4, 6, 3]", r"input_ids\[0\] is 99999999999; expected"),
        ("[1, 1, 1, 1]", "[0, 0, 0, 0]", "attention_mask is 0 everywhere"),
        ("[0, 0, 1, 1]", "[0, 0, 2, 1]", r"token_type_ids\[2\] is 2; .*model, 0 to 1"),
        ("[0, 0, 1, 1]", "[0, -1, 1, 1]", r"token_type_ids\[1\] is -1; .*model, 0 to 1"),
        ("[0, 0, 1, 1]", "[0, 1]", "expected equal lengths"),
        ('"[1, 0]","[9', '"[5, 0]","[9', r"masked_lm_weights\[0\] is 5; expected .*0 to 1"),
        ('"[1, 0]","[9', '"[0.5, 0]","[9', r"masked_lm_weights\[0\] is 0.5; expected .*0 to 1"),
        ('"[1, 0]","[9', '"[1]","[9', "expected equal lengths"),
        ("[9, 0]", "[-100, 0]", r"labels\[0\] is -100 with the weight 1; expected an id"),
        ("[9, 0]", "[9, -7]", r"labels\[1\] is -7 with the weight 0; expected .* -100"),
        ('"[1]"', '"[2]"', r"next_sentence_label\[0\] is 2; expected .*0 to 1"),
        ('"[1]"', '"[]"', "next_sentence_label has 0 values; expected one"),
    ):
        assert old in row
        path.write_text(f"{header}\n{row}\n{row.replace(old, new, 1)}\n")
        with pytest.raises(DataError, match=rf"a\.csv, row 3: .*{says}"):
            build_dataset(cfg, tmp_path / "model", context)
    floats = row.replace("[9, 0]", "[9.0, -100]").replace("[1, 0]", "[1.0, 0.0]")
    path.write_text(f"{header}\n{floats}\n")
    example = build_dataset(cfg, tmp_path / "model", context).source[0]
    slots = [example[f"gather_{name}"].tolist() for name in ("positions", "labels", "weights")]
    assert slots == [[1, 0], [9, 0], [1, 0]]


def test_ids_outside_the_vocabulary_are_named_while_training(tmp_path):
    rows = numbered(6)
    rows[5, 0, 3] = 777
    loader = gpt(tmp_path, folder(tmp_path / "d", rows), 500).loader(2, num_epochs=1)
    with pytest.raises(DataError, match=r"4\.h5: row 1: input_ids\[3\] is 777.*vocabulary of 500"):
        list(loader)
    loader.close()


def damage(path, row):
    """Overwrite the stored chunk of one row with garbage."""
    with h5py.File(path) as file:
        chunk = file["data"].id.get_chunk_info(row)
    with path.open("r+b") as file:
        file.seek(chunk.byte_offset)
        file.write(b"\xff" * chunk.size)


def test_damaged_rows_and_files_are_named(tmp_path, capsys):
    where = folder(tmp_path / "d", numbered(12))
    assert main(["data", "verify", str(where), "--vocab_size", "12"]) == 0
    assert "12 rows in 3 file(s), all in order" in capsys.readouterr().out
    damage(where / "part_000.h5", 2)
    cut = where / "part_008.h5"
    cut.write_bytes(cut.read_bytes()[:-500])
    assert main(["data", "verify", str(where), "--vocab_size", "6"]) == 1
    out = capsys.readouterr().out
    assert "part_000.h5: row 2 cannot be read; the file is damaged" in out
    assert "part_004.h5: row 2: input_ids[0] is 6" in out
    assert "part_008.h5: not a readable HDF5 file" in out
    with pytest.raises(DataError, match=r"part_008\.h5: not a readable HDF5 file"):
        gpt(tmp_path, where)
    cut.unlink()
    loader = gpt(tmp_path, where).loader(2, num_epochs=1)
    with pytest.raises(DataError, match=r"part_000\.h5: row 2 cannot be read"):
        list(loader)
    loader.close()


def test_spans_that_contradict_each_other_are_found():
    places = np.array([0, 1, 2, 0, 1, 0])
    told = lambda *span: span_problem({"attention_span": np.array(span), "position_ids": places})
    assert told(2, 1, 0, 1, 0, 0) == ""
    assert "disagree at position 0" in told(2, 2, 0, 1, 0, 0)
    assert "outside the row" in told(0, 0, 0, 0, 0, 1)


def test_shuffle_and_split_keep_every_row_once(tmp_path):
    where = folder(tmp_path / "d", numbered(20), features=["input_ids", "attention_mask", "labels"])
    assert shuffle_folder(where, tmp_path / "s", seed=1, samples_per_file=6) == 20
    assert len(list((tmp_path / "s").glob("*.h5"))) == 4
    order = all_firsts(gpt(tmp_path, tmp_path / "s"))
    assert sorted(order) == list(range(20))
    assert order != list(range(20))
    parts = split_folder(where, tmp_path / "p", [3, 1], seed=2)
    assert list(parts.values()) == [15, 5]
    all_ids = []
    for part, count in parts.items():
        assert verify_folder(part).problems == []
        assert json.loads((part / "data_params.json").read_text())["n_examples"] == count
        ids = all_firsts(gpt(tmp_path, part))
        assert ids == sorted(ids)
        all_ids += ids
    assert sorted(all_ids) == list(range(20))
    with pytest.raises(DataError, match=r"holds examples_00000\.h5 already"):
        shuffle_folder(where, tmp_path / "s")
    with pytest.raises(DataError, match="at least two positive shares"):
        split_folder(where, tmp_path / "q", [1])


def test_a_mixture_laid_end_to_end_holds_each_part_by_its_share(tmp_path):
    folders = [folder(tmp_path / str(i), numbered(4, 100 * i)) for i in range(3)]
    parts = [{"data_dir": str(where), "weight": 1} for where in folders]
    # 12 examples in all, of which the pass takes four
    assert all_firsts(gpt(tmp_path, None, mixture=parts, num_samples=4)) == [0, 1, 2, 3]
    assert all_firsts(gpt(tmp_path, None, mixture=parts))[4::7] == [100, 203]


def one_row(name, dtype=np.int32, **features):
    row = {"input_ids": 3, "attention_mask": 1, "labels": 3} | features
    return pytest.param(np.stack([np.full(LENGTH, x, dtype) for x in row.values()]), name)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        one_row(r"attention_mask\[0\] is -1; expected 0 to 1", attention_mask=-1),
        one_row(r"attention_mask\[0\] is 600; expected 0 to 1", attention_mask=600),
        one_row("attention_mask is 0 everywhere", attention_mask=0),
        one_row(r"input_ids\[0\] is 4294967299", np.int64, input_ids=2**32 + 3),
        one_row(r"labels\[0\] is 18446744073709551615", np.uint64, labels=2**64 - 1),
        one_row("labels.0. is -100, where the mask is 1", labels=-100),
        one_row("holds float32; expected integers", np.float32),
        one_row("holds complex64; expected integers", np.complex64),
    ],
)
def test_verify_and_training_refuse_the_same_rows(tmp_path, row, problem):
    where = tmp_path / "d"
    where.mkdir()
    with h5py.File(where / "a.h5", "w") as file:
        file["data"] = row[None]
    (complaint,) = verify_folder(where, 500).problems
    with pytest.raises(DataError, match=problem) as raised:
        gpt(tmp_path, where, 500).source[0]
    assert str(raised.value) == complaint


def _sparse(file):
    file.create_dataset("data", (10**9, 3, LENGTH), "i4", chunks=(1, 3, LENGTH))


def _bomb(file):
    chunks = (1 << 24, 3, LENGTH)
    file.create_dataset("data", chunks, "i4", chunks=chunks, compression="gzip")


def _outside(file):
    file.create_dataset("data", (2, 3, LENGTH), "i4", external="/etc/passwd")


@pytest.mark.parametrize(
    ("fill", "problem"),
    [
        (h5py.ExternalLink("/etc/passwd", "data"), "a link to elsewhere"),
        (h5py.SoftLink("/data"), "a link to elsewhere"),
        (lambda file: file.create_group("data"), "is a group"),
        (_sparse, "was never filled: 0 of 1,000,000,000 chunks"),
        (_bomb, "expected single rows"),
        (_outside, "has its values in other files"),
    ],
)
def test_files_that_hold_no_rows_of_their_own_are_refused_at_once(tmp_path, fill, problem):
    where = tmp_path / "d"
    where.mkdir()
    with h5py.File(where / "a.h5", "w") as file:
        if callable(fill):
            fill(file)
        else:
            file["data"] = fill
    with pytest.raises(DataError, match=rf"a\.h5: .*{problem}"):
        gpt(tmp_path, where)
    assert problem in verify_folder(where).problems[0]
