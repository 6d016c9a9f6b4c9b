"""Sources, order, packing and host batches: exact rows, exact resume, errors that name the file."""

import ast
import json
import pathlib

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import vsl
from wafer.data.batching.batches import host_batch, numbered, row_lengths, to_batch
from wafer.data.batching.dataset import TOKENIZER, Context, build_dataset
from wafer.data.batching.pipeline import Loader
from wafer.data.batching.sources import DocumentSource
from wafer.data.readers.synthetic import SyntheticSource
from wafer.data.registry import parse_input
from wafer.data.rowfiles.files import Hdf5Source
from wafer.data.text.functions import load_corpus, yardsticks
from wafer.data.text.tokenizer import END_OF_TEXT, encode_words, token_bytes, train_bpe
from wafer.errors import DataError

DOCUMENTS = [[5, 6, 7, 0], [8, 0], [9, 10, 0], [11, 12, 13, 14, 0]]


@pytest.fixture
def source_tree(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "test").mkdir()
    (tmp_path / "a.py").write_text(
        "class C:\n    @staticmethod\n    def m():\n        def inner():\n            pass\n"
        "        return inner\n\ndef f(x):\n    return x\n"
    )
    (tmp_path / "b.py").write_text("def f(x):\n    return x\n\nasync def g():\n    return 'é'\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "test" / "t.py").write_text("def in_test():\n    pass\n")
    return tmp_path


def test_corpus_takes_outer_functions_once_and_skips_tests(source_tree):
    corpus = load_corpus(source_tree)
    texts = sorted(corpus.train + corpus.held_out)
    inner = "@staticmethod\ndef m():\n    def inner():\n        pass\n    return inner"
    assert texts == [inner, "async def g():\n    return 'é'", "def f(x):\n    return x"]
    assert load_corpus(source_tree).digest == corpus.digest


def test_a_parse_that_another_thread_spoiled_is_tried_again(source_tree, monkeypatch):
    whole, parse, calls = load_corpus(source_tree).digest, ast.parse, []

    def spoiled(source):
        calls.append(source)
        if len(calls) == 1:
            raise SystemError("AST constructor recursion depth mismatch (before=249, after=227)")
        return parse(source)

    monkeypatch.setattr(ast, "parse", spoiled)
    load_corpus.cache_clear()
    assert load_corpus(source_tree).digest == whole
    assert calls[0] == calls[1]


def test_corpus_cuts_at_bytes_without_breaking_a_character(source_tree):
    text = next(t for t in load_corpus(source_tree, max_bytes=27).train if "async" in t)
    assert text == "async def g():\n    return '"  # é would need bytes 28 and 29


def test_corpus_without_sources_says_where_it_looked(tmp_path):
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        load_corpus(tmp_path)


def test_yardsticks_of_a_constant_text_and_of_two_symbols():
    assert yardsticks(("a\na",))["order-0"] == pytest.approx(1.0)  # "a\na\n": two of each
    assert yardsticks(("a" * 4000,))["bz2"] < 0.2


def test_token_bytes_sum_to_the_text(source_tree):
    texts = load_corpus(source_tree).train
    tokenizer = train_bpe(texts, 300)
    sizes = token_bytes(tokenizer)
    for text in texts:
        ids = tokenizer.encode(text).ids
        assert sizes[ids].sum() == len(text.encode())
        assert tokenizer.decode(ids) == text
    assert sizes[tokenizer.token_to_id(END_OF_TEXT)] == 1


def test_words_encoded_once_are_the_tokenizers_own_tokens():
    rng = np.random.default_rng(0)
    parts = [*map(chr, range(128)), "'ll", "'re", "'", "  ", "\n    ", " def", "x1", "é", "\u2003"]
    texts = ["".join(rng.choice(parts, 40)) for _ in range(400)]
    texts += ["", " ", "\x1c\x1d \x85", END_OF_TEXT, f"a{END_OF_TEXT} b", "it's\n\n  I'LL 'lla"]
    tokenizer = train_bpe(texts[:200], 500)
    own = encode_words(tokenizer, texts)
    theirs = tokenizer.encode_batch(texts, add_special_tokens=False)
    assert own == [e.ids for e in theirs]


def test_corpus_takes_functions_of_every_block(tmp_path):
    (tmp_path / "a.py").write_text(
        "if a:\n    def f0(): 0\nelse:\n    async def f1(): 0\n"
        "try:\n    def f2(): 0\nexcept E:\n    def f3(): 0\n"
        "else:\n    def f4(): 0\nfinally:\n    def f5(): 0\n"
        "match a:\n    case 1:\n        def f6(): 0\n"
        "with a:\n    for b in c:\n        while d:\n            class C:\n"
        "                def f7(self): lambda: 0\n"
    )
    corpus = load_corpus(tmp_path)
    names = sorted(text.partition("(")[0].split()[-1] for text in corpus.train + corpus.held_out)
    assert names == [f"f{number}" for number in range(8)]


def stdlib(folder):
    keys = {"source_dir": str(folder), "vocab_size": 300, "batch_size": 1}
    return parse_input({"data_processor": "PyStdlibDataProcessor", **keys})


def test_a_run_takes_the_tokenizer_of_the_weights_it_begins_from(tmp_path, source_tree):
    """Beside the checkpoint, where its own folder has none; one that cannot fit is refused."""
    base, run = tmp_path / "base", tmp_path / "run"
    (base / "checkpoints" / "4").mkdir(parents=True)
    run.mkdir()
    words = train_bpe(["another text " * 9], 262)
    words.save(str(base / TOKENIZER))
    section = stdlib(source_tree)
    begins = Context(begins_from=str(base / "checkpoints" / "4"))
    assert build_dataset(section, run, begins).tokenizer == words.to_str(pretty=True)
    assert (run / TOKENIZER).read_text() == words.to_str(pretty=True)
    (base / TOKENIZER).unlink()  # from now on the run has its own
    assert build_dataset(section, run, begins).tokenizer == words.to_str(pretty=True)
    small = section.model_copy(update={"vocab_size": 259})
    with pytest.raises(DataError, match=r"tokenizer.json: has 262 tokens, vocab_size .* is 259"):
        build_dataset(small, run, begins)
    (run / TOKENIZER).write_text(words.to_str().replace(END_OF_TEXT, "<end>"))
    with pytest.raises(DataError, match=r"tokenizer.json: has no token <\|endoftext\|>"):
        build_dataset(section, run, begins)


def test_a_mark_that_a_source_file_spells_out_is_text(tmp_path):
    (tmp_path / "a.py").write_text(f"def f():\n    return '{END_OF_TEXT}'\n")
    data = build_dataset(stdlib(tmp_path), tmp_path / "run", Context())
    labels = data.source[0]["labels"].tolist()
    end = data.special_ids["eos_token_id"]
    assert labels.index(end) == len(labels) - 1  # only the end of the function


def test_bpe_refuses_a_vocabulary_smaller_than_the_bytes():
    with pytest.raises(ValueError, match="257 or more"):
        train_bpe(["x"], 256)


def test_documents_become_shifted_examples():
    source = DocumentSource(DOCUMENTS, bos_id=0, max_length=4)
    example = source[0]
    assert example["input_ids"].tolist() == [0, 5, 6, 7]
    assert example["labels"].tolist() == [5, 6, 7, 0]
    assert source[3]["labels"].tolist() == [11, 12, 13, 14]  # cut at max_length
    assert source.lengths.tolist() == [4, 2, 3, 4]


def _loader(**kwargs) -> Loader:
    source = SyntheticSource(50, vocab_size=40, max_length=12)
    return Loader(source, batch_size=2, row_length=24, **kwargs)


def test_packing_keeps_every_token_once_and_matches_the_layout():
    loader = _loader(pack=True, num_epochs=1, drop_last=False)
    batches = list(loader)
    loader.close()
    source = SyntheticSource(50, vocab_size=40, max_length=12)
    want = sorted(tuple(source[i]["labels"]) for i in range(50))
    got = []
    for rows in batches:
        layout = vsl.layout_from_spans(
            rows["attention_span"], rows["position_ids"], rows["attention_mask"]
        )
        starts = np.unique(np.asarray(layout.starts)[np.asarray(layout.valid)])
        ends = np.asarray(layout.ends)
        labels = rows["labels"].reshape(-1)
        got += [tuple(labels[s : ends[s]]) for s in starts]
    assert sorted(got) == want


@pytest.mark.parametrize("pack", [False, True])
def test_a_restored_loader_gives_the_same_batches_across_an_epoch(pack):
    loader = _loader(pack=pack, shuffle=True, seed=3)
    for _ in range(5):
        next(loader)
    state = json.loads(json.dumps(loader.state()))  # as the checkpoint stores it
    rest = [next(loader) for _ in range(30)]  # 50 examples: crosses into the next epoch
    loader.close()
    again = _loader(pack=pack, shuffle=True, seed=3)
    again.restore(state)
    for want in rest:
        jax.tree.map(np.testing.assert_array_equal, next(again), want)
    again.close()


def test_shards_of_a_batch_hold_the_rows_of_the_whole():
    source, keys = SyntheticSource(12, 9, 6), {"row_length": 6, "shuffle": True, "seed": 1}
    whole = Loader(source, batch_size=4, **keys)
    parts = [Loader(source, batch_size=2, task=(rank, 2), **keys) for rank in range(2)]
    both = np.concatenate([next(p)["input_ids"] for p in parts])
    want = next(whole)["input_ids"]
    for loader in (whole, *parts):
        loader.close()
    assert sorted(map(tuple, both)) == sorted(map(tuple, want))


@pytest.mark.parametrize("form", ["padded", "stripped", "packed"])
def test_sequences_have_one_number_for_any_number_of_processes(form):
    """24 rows on 6 systems of 1, 2 or 3 processes, 2 micro-batches each; each token has an id."""
    rows = {"input_ids": np.arange(96, dtype=np.int32).reshape(24, 4)}
    rows["attention_mask"] = np.ones_like(rows["input_ids"])
    if form == "packed":  # two documents of two tokens in each row
        rows["attention_span"] = np.tile(np.int32([1, 0, 1, 0]), (24, 1))
        rows["position_ids"] = np.tile(np.int32([0, 1, 0, 1]), (24, 1))

    def numbers(processes):
        found = {}
        for process in range(processes):
            own = {name: value[process::processes] for name, value in rows.items()}
            ladder = vsl.Ladder(multiple=4) if form == "stripped" else None
            shared = host_batch(own, 6 // processes, 2, ladder)
            for at in range(12 // processes):
                one = {k: v.reshape(-1, *v.shape[2:])[at] for k, v in shared.items()}
                shard = jnp.int32(process * 12 // processes + at)
                batch = numbered(to_batch(one), shard, 12, processes)
                found |= zip(
                    np.asarray(batch.tokens).tolist(),
                    np.asarray(batch.layout.sequences).tolist(),
                    strict=True,
                )
        return found

    assert numbers(1) == numbers(2) == numbers(3)
    assert len(set(numbers(2).values())) == (48 if form == "packed" else 24)


def test_hdf5_errors_name_the_file(tmp_path):
    with pytest.raises(DataError, match=r"no \.h5 files"):
        Hdf5Source([tmp_path])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"] = np.zeros((2, 7, 8), np.int32)
    with pytest.raises(DataError, match=r"a\.h5.*shape \(2, 7, 8\)"):
        Hdf5Source([tmp_path])


def test_stripped_and_padded_batches_hold_the_same_tokens():
    rows = {
        "input_ids": np.array([[1, 2, 3, 0], [4, 0, 0, 0], [5, 6, 0, 0], [7, 8, 9, 10]]),
        "attention_mask": np.array([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]),
        "labels": np.array([[2, 3, 9, 0], [9, 0, 0, 0], [6, 9, 0, 0], [8, 9, 10, 9]]),
    }
    rows = {k: v.astype(np.int32) for k, v in rows.items()}
    padded = host_batch(rows, num_csx=2)
    assert padded["input_ids"].shape == (2, 1, 2, 4)
    stripped = host_batch(rows, num_csx=2, ladder=vsl.Ladder(multiple=2))
    assert stripped["lengths"].tolist() == [[[3, 1]], [[2, 4]]]
    for system in range(2):
        own = [{k: v[system, 0] for k, v in b.items()} for b in (padded, stripped)]
        batches = [to_batch(features) for features in own]
        tokens = [np.asarray(b.tokens)[np.asarray(b.layout.valid)].tolist() for b in batches]
        assert tokens[0] == tokens[1] == ([1, 2, 3, 4] if system == 0 else [5, 6, 7, 8, 9, 10])
        assert [float(b.weights.sum()) for b in batches] == [len(tokens[0])] * 2


def test_row_lengths_end_at_the_last_loss_position():
    mask = np.array([[1, 0, 1, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    assert row_lengths(mask).tolist() == [4, 1, 0]
