"""Sentence pairs for BERT: which texts stand beside each other, and how a model gets them."""

import numpy as np
from helpers.records import write
from helpers.rows import rows_in, same_rows, settings
from tokenizers import Tokenizer, models, pre_tokenizers

from wafer.data.batching.batches import host_batch, to_batch
from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.preprocess.rows.sentences import SentencePacker
from wafer.data.preprocess.run import preprocess
from wafer.data.registry import parse_input
from wafer.data.rowfiles.verify import verify_folder


def bert_words(tmp_path):
    words = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(200))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[PAD]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (tmp_path / "bert").mkdir()
    tokenizer.save(str(tmp_path / "bert" / "tokenizer.json"))
    return tmp_path / "bert"


def test_sentence_pairs_follow_each_other_or_come_from_elsewhere(tmp_path):
    """Document d holds the words 10 d ... 10 d + 9, one a sentence: every pair can be read off."""
    texts = ["\n".join(f"w{10 * d + i}" for i in range(10)) for d in range(20)]
    path = write(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    keys = {"mode": "MLM_NSP", "max_seq_length": 9, "input_dir": str(path)}
    words = bert_words(tmp_path)
    for processes in (1, 2):
        out = str(tmp_path / str(processes))
        preprocess(settings(tmp_path, words, **keys, processes=processes, output_dir=out))
    same_rows(tmp_path / "1", tmp_path / "2")
    rows, labels = rows_in(tmp_path / "1", "data_0"), rows_in(tmp_path / "1", "data_1")
    assert labels.shape == (len(rows), 1, 1)
    seen = set()
    for (ids, mask, segments), label in zip(rows, labels[:, 0, 0], strict=True):
        used = ids[mask == 1]
        first, second, rest = np.split(used, np.flatnonzero(used == 2) + 1)
        assert used[0] == 1
        assert rest.size == 0
        assert len(used) <= 9
        assert segments[mask == 1].tolist() == [0] * len(first) + [1] * len(second)
        a, b = first[1:-1] - 4, second[:-1] - 4  # numbers of the words
        assert (np.diff(a) == 1).all()
        assert (np.diff(b) == 1).all()
        assert len(a) > 0 < len(b)
        assert (b[0] // 10 != a[0] // 10) if label else (b[0] == a[-1] + 1)
        seen |= set(a.tolist()) | (set() if label else set(b.tolist()))
    assert len(seen) > 185  # of 200: a sentence alone at a document's end may find no partner
    assert 0.35 < labels.mean() < 0.75
    assert verify_folder(tmp_path / "1").problems == []


def test_a_model_reads_sentence_pairs(tmp_path):
    texts = ["w1 w2. w3 w4. w5 w6.", "w7 w8! w9 w10? w11"] * 4
    path = write(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    keys = {"mode": "MLM_NSP", "max_seq_length": 12, "input_dir": str(path)}
    preprocess(settings(tmp_path, bert_words(tmp_path), **keys))
    section = {"data_processor": "BertHDF5DataProcessor", "data_dir": str(tmp_path / "out")}
    section |= {"batch_size": 2, "shuffle": False}
    data = build_dataset(parse_input(section), tmp_path, Context(training=True, vocab_size=204))
    loader = data.loader(2, num_epochs=1)
    batch = to_batch({k: v[0, 0] for k, v in host_batch(next(loader)).items()})
    loader.close()
    assert batch.extras["next_sentence_label"].shape == (2,)
    assert set(np.asarray(batch.extras["segment_ids"])) == {0, 1}
    assert (np.asarray(batch.extras["masked_weights"]) > 0).any()


def test_a_packer_goes_on_from_its_state():
    rng = np.random.default_rng(0)
    documents = [np.where(rng.random(40) < 0.2, 0, rng.integers(1, 50, 40)) for _ in range(12)]
    documents = [np.append(d, 0).astype(np.int32) for d in documents]
    make = lambda: SentencePacker(8, 0, 0.1, 2, seed=3)
    one, again = make(), make()
    whole = [pair for d in documents for pair in one.add(d)]
    half = make()
    first = [pair for d in documents[:5] for pair in half.add(d)]
    again.restore(half.state())
    rest = [pair for d in documents[5:] for pair in again.add(d)]
    same = lambda a, b: all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert len(whole) == len(first + rest) > 30
    assert all(map(same, whole, first + rest))
    assert all(len(p.first) + len(p.second) <= 8 for p in whole)
