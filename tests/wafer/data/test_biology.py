"""DNA with epigenetic states, proteins with folds: rows by hand, masks, errors with lines."""

import gzip
import json

import h5py
import numpy as np
import pytest
from helpers.biology_data import dna, ebert, proteins
from helpers.finetune_data import MODEL, write_lines
from helpers.rows import batches, device_batch, restarted

from wafer import models
from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.readers.biology.genomics import MASK, kmer_ids, token_states
from wafer.data.readers.biology.proteins import VOCABULARY
from wafer.data.registry import parse_input
from wafer.errors import DataError, SectionError


def section(processor, **keys):
    return parse_input({"data_processor": processor, "batch_size": 4, **keys})


def dna_section(folder, **keys):
    if not (folder / "genome.fa").exists():
        dna(folder)
    places = {"data_dir": str(folder), "state_dir": str(folder)}
    keys = {"kmer_size": 1, "max_sequence_length": 8} | places | keys
    return section("EbertFastaDataProcessor", **keys)


def opened(cfg, folder, model=None, *, training=True):
    settings = models.registry.parse_config(model or ebert(getattr(cfg, "kmer_size", 1)))
    return build_dataset(cfg, folder / "run", Context.of(settings, training=training))


# --- DNA -------------------------------------------------------------------------------------


def test_kmers_and_their_states_by_hand():
    codes = np.array([0, 1, 3, 3, 4, 0, 2], np.uint8)  # AC TT NA and a G too few
    assert kmer_ids(codes, 2).tolist() == [5 + 1, 5 + 15, 1]
    assert kmer_ids(codes, 1).tolist() == [5, 6, 8, 8, 1, 5, 7]
    assert kmer_ids(codes[:1], 2).shape == (0,)
    bases = np.array([0, 0, 0, 2, -1, 1, 1])
    assert token_states(bases, 1, 3).tolist() == bases.tolist()
    expected = [[1.0, 0, 0], [0.5, 0, 0.5], [0, 0.5, 0]]
    np.testing.assert_array_equal(token_states(bases, 2, 3), np.array(expected, np.float32))


def test_windows_of_every_cell_type_by_hand(tmp_path):
    source = opened(dna_section(tmp_path), tmp_path).source
    # chr1 has windows of 6 and of 4 bases (of which the last two are N), chr2 one of 5; two cells.
    assert len(source) == 6
    first, second, third = (source[i] for i in range(3))
    a, c, g, t = 5, 6, 7, 8
    assert first["input_ids"].tolist() == [2, a, c, g, t, a, c, 3]
    assert first["epigenetic"].tolist() == [-1, 0, 0, 1, 1, 1, -1, -1]
    assert second["input_ids"].tolist() == [2, g, t, 1, 1, 3, 0, 0]
    assert second["attention_mask"].tolist() == [1, 1, 1, 1, 1, 1, 0, 0]
    assert second["epigenetic"].tolist() == [-1] * 8
    assert third["input_ids"].tolist() == [2, t, t, t, t, t, 3, 0]
    assert third["epigenetic"].tolist() == [-1, 2, 2, 2, -1, -1, -1, -1]
    lung = [source[i]["epigenetic"].tolist() for i in range(3, 6)]
    assert lung[0] == [-1, 2, 2, 2, 2, 2, 2, -1]
    assert lung[2] == [-1, -1, 0, 0, 0, 0, -1, -1]


def test_a_token_of_several_bases_has_shares_of_its_states(tmp_path):
    data = opened(dna_section(tmp_path, kmer_size=3, max_sequence_length=5), tmp_path)
    row = data.source[0]  # ACG TAC GTN
    assert row["input_ids"].tolist() == [2, 5 + 6, 5 + 49, 1, 3]
    third = 1 / 3
    expected = [[0, 0, 0], [2 * third, third, 0], [0, 2 * third, 0], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(row["epigenetic"], expected, rtol=1e-6)


def test_windows_without_a_known_token_are_left_out(tmp_path):
    write_lines(tmp_path / "genome.fa", [">chr1", "ACNNNNGG"])
    write_lines(tmp_path / "liver.bed", ["chr1 0 8 0"])
    source = opened(dna_section(tmp_path, max_sequence_length=4), tmp_path).source
    assert [source[i]["input_ids"].tolist()[1:3] for i in range(len(source))] == [[5, 6], [7, 7]]


SYNTHETIC = {"num_examples": 8, "max_sequence_length": 16, "masked_lm_prob": 0.5}


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("hidden", [False, True])
def test_masks_hide_tokens_and_states_only_where_asked(k, hidden, tmp_path):
    cfg = section("EbertSyntheticDataProcessor", kmer_size=k, mask_epigenetic=hidden, **SYNTHETIC)
    data = opened(cfg, tmp_path)
    (rows,) = batches(data, 8)
    for i in range(8):
        whole = data.source[i]
        chosen = rows["gather_positions"][i][rows["gather_weights"][i] != 0]
        rest = np.setdiff1d(np.arange(16), chosen)
        assert len(chosen) == round((whole["attention_mask"].sum() - 2) * 0.5)
        labels = rows["gather_labels"][i][: len(chosen)]
        np.testing.assert_array_equal(labels, whole["input_ids"][chosen])
        np.testing.assert_array_equal(rows["input_ids"][i][rest], whole["input_ids"][rest])
        np.testing.assert_array_equal(rows["attention_mask"][i], whole["attention_mask"])
        np.testing.assert_array_equal(rows["epigenetic"][i][rest], whole["epigenetic"][rest])
        expected = whole["epigenetic"][chosen]
        expected = expected * 0 - (k == 1) if hidden else expected
        np.testing.assert_array_equal(rows["epigenetic"][i][chosen], expected)
    assert (rows["input_ids"] == MASK).any()


def test_masks_are_drawn_anew_each_epoch_and_the_same_after_a_restart(tmp_path):
    data = opened(section("EbertSyntheticDataProcessor", kmer_size=2, **SYNTHETIC), tmp_path)
    restarted(data, 8)


def test_states_determine_synthetic_tokens_where_the_signal_is_all(tmp_path):
    keys = {"kmer_size": 2, "num_examples": 16, "max_sequence_length": 32}
    every = {}
    for signal in (1.0, 0.0):
        cfg = section("EbertSyntheticDataProcessor", signal=signal, state_length=5, **keys)
        source = opened(cfg, tmp_path).source
        rows = [source[i] for i in range(16)]
        seen = ((r["epigenetic"].argmax(1), r["input_ids"]) for r in rows)
        pairs = {pair for states, ids in seen for pair in zip(states, ids, strict=True)}
        every[signal] = len({pair for pair in pairs if pair[1] > MASK})
        lengths = {int(row["attention_mask"].sum()) for row in rows}
        assert min(lengths) >= 17
        assert len(lengths) > 1
    assert every == {1.0: 3, 0.0: 3 * 16}


def test_synthetic_sequences_are_a_function_of_seed_and_part(tmp_path):
    cfg = section("EbertSyntheticDataProcessor", kmer_size=2, **SYNTHETIC)
    other = section("EbertSyntheticDataProcessor", kmer_size=2, shuffle_seed=1, **SYNTHETIC)
    same, again = opened(cfg, tmp_path).source[3], opened(cfg, tmp_path).source[3]
    np.testing.assert_array_equal(same["input_ids"], again["input_ids"])
    for data in (opened(other, tmp_path), opened(cfg, tmp_path, training=False)):
        assert (data.source[3]["input_ids"] != same["input_ids"]).any()


def test_segments_are_numbered_by_the_file_where_no_model_says_how_many(tmp_path):
    data = build_dataset(dna_section(tmp_path, kmer_size=2), tmp_path / "run")
    assert data.source[0]["epigenetic"].shape == (8, 3)
    assert "2 cell type(s), 3 states" in data.summary


WRONG_DNA = [
    ("genome.fa", [">chr1", ">chr2", "AC"], "line 1: 'chr1' has no letters"),
    ("genome.fa", [">chr1", "AC", ">chr2"], "line 3: 'chr2' has no letters"),
    ("genome.fa", [">chr1", "ACGT", "AXG"], "line 3: 'X' at column 2 is no letter of DNA"),
    ("genome.fa", [">", "AC"], "line 1: a header without a name"),
    ("genome.fa", [">chr1", "A", ">chr1", "C"], "line 3: 'chr1' stands already at .*line 1"),
    ("genome.fa", ["ACGT"], "line 1: 'ACGT'; expected '>' and a name"),
    ("genome.fa", [], "genome.fa: the file is empty"),
    ("more.fa", [">chr1", "AC"], "more.fa, line 1: 'chr1' stands already at .*genome"),
    ("lung.bed", ["chr1 0 3"], r"lung\.bed, line 1: 'chr1 0 3'; expected a sequence"),
    ("lung.bed", ["chr1 0 3 E5"], "line 1: 'chr1 0 3 E5'; expected .*whole numbers"),
    ("lung.bed", ["chr1 0 11 0"], "line 1: 0 to 11 is no part of the 10 bases of 'chr1'"),
    ("lung.bed", ["chr1 5 5 0"], "line 1: 5 to 5 is no part"),
    ("lung.bed", [f"chr1 0 5 {10**30}"], f"line 1: state {10**30} is outside the 3"),
    ("lung.bed", ["", "chr1 0 5 3"], "line 2: state 3 is outside the 3 states"),
    ("lung.bed", ["chr1 4 6 0", "chr1 0 5 1"], "line 1: lies over the segment of line 2"),
    ("lung.bed", ["1 0 5 1"], "lung.bed: no segment of 'chr1'"),
]


@pytest.mark.parametrize(("name", "lines", "message"), WRONG_DNA)
def test_wrong_dna_is_named_with_its_line(name, lines, message, tmp_path):
    cfg = dna_section(tmp_path)
    write_lines(tmp_path / name, lines)
    with pytest.raises(DataError, match=message) as caught:
        opened(cfg, tmp_path)
    assert "\n" not in str(caught.value)


def test_gzipped_files_are_read_and_damaged_ones_named(tmp_path):
    plain = opened(dna_section(tmp_path), tmp_path).source
    packed = tmp_path / "packed"
    packed.mkdir()
    for path in (p for p in tmp_path.iterdir() if p.is_file()):
        (packed / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    places = {"data_dir": str(packed), "state_dir": str(packed)}
    source = opened(dna_section(tmp_path, **places), tmp_path).source
    assert len(source) == len(plain)
    for i in range(len(plain)):
        for name, value in plain[i].items():
            np.testing.assert_array_equal(source[i][name], value)
    whole = (packed / "genome.fa.gz").read_bytes()
    (packed / "genome.fa.gz").write_bytes(whole[:-12])
    with pytest.raises(DataError, match=r"genome\.fa\.gz: cannot be read \("):
        opened(dna_section(tmp_path, **places), tmp_path)


def test_missing_files_of_dna_name_their_key(tmp_path):
    dna(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"state_dir: .*empty holds none of \*\.bed, \*\.bed\.gz"):
        opened(dna_section(tmp_path, state_dir=str(tmp_path / "empty")), tmp_path)
    with pytest.raises(DataError, match=r"data_dir: .*empty holds none of \*\.fa, \*\.fa\.gz"):
        opened(dna_section(tmp_path, data_dir=str(tmp_path / "empty")), tmp_path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kmer_size": 9}, "kmer_size"),
        ({"max_sequence_length": 2}, "max_sequence_length"),
        ({"masked_lm_prob": 1.0}, "masked_lm_prob"),
        ({"kmers": 3}, "did you mean 'kmer_size'"),
    ],
)
def test_wrong_keys_are_refused(keys, message, tmp_path):
    with pytest.raises(SectionError, match=message):
        dna_section(tmp_path, **keys)


# --- HDF5 rows -------------------------------------------------------------------------------

NAMES = ["input_ids", "attention_mask", "epigenetic"]


def hdf5(folder, states, names=NAMES, labels=None):
    ids = np.array([[2, 5, 6, 7, 8, 3, 0, 0]] * 4)
    rows = np.stack([ids, ids != 0, np.broadcast_to(states, ids.shape)], axis=1)
    folder.mkdir()
    with h5py.File(folder / "part.h5", "w") as file:
        file["data"] = rows[:, : len(names)].astype(np.int32)
        if labels is not None:
            file["labels"] = np.asarray(labels, np.int32)
    after = {"mask_id": 4, "vocab_size": 9, "special_ids": [0, 1, 2, 3, 4]}
    described = {"features": names, "post-process": after}
    (folder / "data_params.json").write_text(json.dumps(described))
    return section("EbertHDF5DataProcessor", data_dir=str(folder), masked_lm_prob=0.5)


def test_rows_with_states(tmp_path):
    states = [-1, 0, 1, 2, 0, -1, -1, -1]
    cfg = hdf5(tmp_path / "rows", states)
    (rows,) = batches(opened(cfg, tmp_path), 4)
    np.testing.assert_array_equal(rows["epigenetic"], [states] * 4)
    assert rows["gather_weights"].sum() == 4 * 2
    hiding = cfg.model_copy(update={"mask_epigenetic": True})
    (rows,) = batches(opened(hiding, tmp_path), 4)
    chosen = np.take_along_axis(rows["epigenetic"], rows["gather_positions"][:, :2], axis=1)
    assert (chosen == -1).all()
    batch = device_batch(rows)
    assert batch.extras["epigenetic"].shape == batch.tokens.shape


def test_rows_with_masks_drawn_beforehand_keep_their_states(tmp_path):
    labels = np.full((4, 1, 8), -100)
    labels[:, 0, 3] = 7
    cfg = hdf5(tmp_path / "rows", [0, 1, 2, 1, 0, 1, 2, 0], labels=labels)
    hiding = cfg.model_copy(update={"mask_epigenetic": True})
    (rows,) = batches(opened(hiding, tmp_path), 4)
    assert rows["epigenetic"][0].tolist() == [0, 1, 2, -1, 0, 1, 2, 0]
    assert rows["gather_labels"][0, 0] == 7


def test_wrong_rows_with_states(tmp_path):
    message = r"part\.h5: row 0: epigenetic\[2\] is 3; expected -1 to 2"
    with pytest.raises(DataError, match=message):
        batches(opened(hdf5(tmp_path / "above", [0, 0, 3, 0, 0, 0, 0, 0]), tmp_path), 4)
    with pytest.raises(DataError, match=r"epigenetic\[0\] is -2; expected -1 to 2"):
        batches(opened(hdf5(tmp_path / "below", [-2, 0, 0, 0, 0, 0, 0, 0]), tmp_path), 4)
    with pytest.raises(DataError, match="rows have no epigenetic; they have input_ids, attention"):
        opened(hdf5(tmp_path / "without", [0] * 8, NAMES[:2]), tmp_path)


def test_states_of_a_users_loader(tmp_path, monkeypatch):
    (tmp_path / "own_dna.py").write_text("""
import numpy as np

def rows(batch_size, state):
    ids = np.full((batch_size, 8), 5)
    slots = dict.fromkeys(("gather_positions", "gather_labels", "gather_weights"), ids[:, :1] * 0)
    yield {"input_ids": ids, "attention_mask": ids > 0, "epigenetic": ids * 0 + state, **slots}
""")
    monkeypatch.syspath_prepend(tmp_path)
    keys = {"task": "epigenetic_mlm", "max_sequence_length": 8}
    cfg = section("own_dna:rows", state=2, **keys)
    (rows,) = batches(opened(cfg, tmp_path), 4)
    assert (rows["epigenetic"] == 2).all()
    with pytest.raises(DataError, match=r"row 0: epigenetic\[0\] is 3; expected -1 to 2"):
        opened(section("own_dna:rows", state=3, **keys), tmp_path)


# --- proteins --------------------------------------------------------------------------------

PROTEINS = MODEL | {"name": "bert-sequence-classifier", "vocab_size": 33, "num_labels": 2}


def protein_section(folder, **keys):
    if not any(folder.glob("*.fasta")):
        proteins(folder, count=4)
    keys = {"data_dir": str(folder), "max_sequence_length": 8} | keys
    return section("RemoteHomologyDataProcessor", **keys)


def test_the_vocabulary_is_esms():
    assert len(VOCABULARY) == 33
    letters = ("<cls>", "L", "A", "C", "O", "-", "<mask>")
    assert [VOCABULARY.index(x) for x in letters] == [0, 4, 5, 23, 28, 30, 32]


def test_proteins_by_hand(tmp_path):
    write_lines(tmp_path / "train.fasta", [">p1 x", "LAg", "v", ">p2", "ACDEFGHIK"])
    write_lines(tmp_path / "train.tsv", ["id\tlabel", "p2\t1", "p1\t0"])
    source = opened(protein_section(tmp_path), tmp_path, PROTEINS).source
    first, second = source[0], source[1]
    assert first["input_ids"].tolist() == [0, 4, 5, 6, 7, 2, 1, 1]
    assert first["attention_mask"].tolist() == [1] * 6 + [0] * 2
    assert first["token_type_ids"].tolist() == [0] * 8
    assert [int(row["labels"]) for row in (first, second)] == [0, 1]
    assert second["input_ids"].tolist() == [0, 5, 23, 13, 9, 18, 6, 2]  # cut


def test_classes_by_name_and_the_files_of_evaluation(tmp_path):
    write_lines(tmp_path / "valid.fasta", [">p1", "LAG"])
    write_lines(tmp_path / "valid.tsv", ["id\tfold_label", "p1\tb.1"])
    (tmp_path / "folds.json").write_text('{"a.1": 0, "b.1": 1}')
    cfg = protein_section(tmp_path, label_vocab_file=str(tmp_path / "folds.json"))
    assert int(opened(cfg, tmp_path, PROTEINS, training=False).source[0]["labels"]) == 1
    (tmp_path / "folds.json").write_text('{"b.2": 0}')
    message = r"valid\.tsv, row 2: label 'b\.1' is not in label_vocab_file$"
    with pytest.raises(DataError, match=message):
        opened(cfg, tmp_path, PROTEINS, training=False)
    (tmp_path / "folds.json").write_text('["b.1"]')
    with pytest.raises(DataError, match="expected an object of label -> number"):
        opened(cfg, tmp_path, PROTEINS, training=False)


HEAD = "id\tlabel"
WRONG_PROTEINS = [
    ("train.fasta", [">p0", "", ">p1", "L"], "line 1: 'p0' has no letters"),
    ("train.fasta", [">p0", "LJ"], "line 2: 'J' at column 2 is no letter of amino acids"),
    ("train.fasta", [">p0", "L*"], r"line 2: '\*' at column 2"),
    ("train.tsv", [HEAD, "p1\t0"], "line 1: 'p0' has no label in .*tsv"),
    ("train.tsv", [HEAD, "pp1\t0"], r"row 2: label of 'pp1', which .*fasta does not.*did you mean"),
    ("train.tsv", [HEAD, "p0\t0", "p0\t0"], "row 3: a second label of 'p0'"),
    ("train.tsv", [HEAD, "p0\t2"], "row 2: label 2 is outside .* 2 classes"),
    ("train.tsv", [HEAD, "p0\ta.1"], "label 'a.1'; expected a whole number"),
    ("train.tsv", ["name\tlabel", "p0\t0"], "row 2: no column 'id'"),
    ("train.tsv", None, r"train\.tsv does not exist; train\.fasta needs a table"),
]


@pytest.mark.parametrize(("name", "lines", "message"), WRONG_PROTEINS)
def test_wrong_proteins_are_named_with_their_line(name, lines, message, tmp_path):
    cfg = protein_section(tmp_path)
    if lines is None:
        (tmp_path / name).unlink()
    else:
        write_lines(tmp_path / name, lines)
    with pytest.raises(DataError, match=message) as caught:
        opened(cfg, tmp_path, PROTEINS)
    assert "\n" not in str(caught.value)
