"""What is predicted, and which tokens share a row: goldens, hand-made rows, exact resume."""

import jax
import numpy as np
import pytest
from helpers.paths import GOLDEN
from hypothesis import given, settings as limits, strategies as st

from wafer.data.batching.objectives import (
    conversation,
    corrupt_spans,
    fill_in_the_middle,
    mask_tokens,
    raw_length,
)
from wafer.data.preprocess.rows.layouts import lm_row, vsl_row
from wafer.data.preprocess.rows.packing import BinPacker, MaskPacker, SinglePacker, StreamPacker

VECTORS = np.load(GOLDEN / "vsl" / "vsl.npz")


def rows_of(packer, documents):
    out = [item for document in documents for item in packer.add(document.copy())]
    return out + packer.finish()


def arange(*lengths):
    """Documents 0..n-1, 100..100+n-1, ..."""
    return [np.arange(n, dtype=np.int32) + 100 * i for i, n in enumerate(lengths)]


def test_vsl_rows_are_the_vendors():
    documents = [np.array(d, np.int32) for d in ([5, 6, 7, 8], [9, 10, 11], [12, 13])]
    (blocks,) = rows_of(BinPacker(8, fold=True, shortest=0), documents)
    row = vsl_row(blocks, 8, pad_id=0)
    np.testing.assert_array_equal(row, VECTORS["vsl_features"])


@pytest.mark.parametrize(("name", "sep"), [("summarization", []), ("summarization_sep", [88])])
def test_summarization_rows_are_the_vendors(name, sep):
    rows = conversation([([1, 2, 3, *sep], [4, 5])], eos_id=99, pad_id=0)
    np.testing.assert_array_equal(lm_row(rows, 10, pad_id=0), VECTORS[name])


def test_a_rest_too_short_for_a_row_is_counted():
    packer = StreamPacker(4, 1, shortest=4)
    assert len(rows_of(packer, arange(8))) == 2  # 0-4 and 4-7
    assert packer.discarded == 0
    assert len(rows_of(packer, arange(7))) == 1  # the rest 4, 5, 6 is too short
    assert packer.discarded == 1


def test_first_fit_looks_at_the_newest_row_first():
    packer = BinPacker(10, fold=True, shortest=0)
    rows = rows_of(packer, arange(8, 8, 4))  # 7, 7 and 3 positions: the third fits both
    assert [[block.shape[1] for block in row] for row in rows] == [[7, 3], [7]]  # full ones first
    assert rows[0][0][0, 0] == 100  # the third went to the second row, the newer one


def test_long_documents_are_folded_without_losing_a_label_or_left_out():
    folded = rows_of(BinPacker(4, fold=True, shortest=0), arange(10))
    labels = np.concatenate([block[2] for row in folded for block in row])
    assert sorted(labels.tolist()) == list(range(1, 10))
    packer = BinPacker(4, fold=False, shortest=0)
    assert rows_of(packer, arange(10, 5)) != []
    assert packer.discarded == 1


PACKERS = {
    "stream": lambda: StreamPacker(7, 1, 2),
    "single": lambda: SinglePacker(7, 1, 2),
    "bins": lambda: BinPacker(7, fold=True, shortest=2),
    "every": lambda: StreamPacker(7, 0, 2, every=True, eos_id=0),
    "mask": lambda: MaskPacker(0.5, 6, 0, 1, special=frozenset({0}), allowed=range(2, 30)),
}


ROWS = {"every": lambda ids: np.stack([ids, np.ones_like(ids)]), "mask": lambda ids: ids[None]}


def flat(items):
    """Items as nested lists, to compare."""
    return jax.tree.map(lambda part: np.asarray(part).tolist(), items)


@pytest.mark.parametrize("name", PACKERS)
@limits(max_examples=25)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=30), at=st.integers(0, 30))
def test_a_restored_packer_goes_on_with_the_same_rows(name, lengths, at):
    whole = ROWS.get(name, lambda ids: ids)
    documents = [whole(ids) for ids in arange(*lengths)]
    packer, again = PACKERS[name](), PACKERS[name]()
    for document in documents[:at]:
        packer.add(document.copy())
    again.restore({key: value.copy() for key, value in packer.state().items()})
    assert flat(rows_of(packer, documents[at:])) == flat(rows_of(again, documents[at:]))


@limits(max_examples=40)
@given(length=st.integers(2, 60), seed=st.integers(0, 99))
def test_corrupted_spans_put_together_are_the_original(length, seed):
    tokens = np.arange(length, dtype=np.int32)
    pair = corrupt_spans(tokens, np.random.default_rng(seed), vocab_size=1000)
    hidden: dict[int, list[int]] = {}
    for token in pair.target.tolist():
        if token >= 900:
            hidden[token] = []
        else:
            hidden[max(hidden, key=lambda s: -s)].append(token)  # sentinels count down
    whole = [x for t in pair.source.tolist() for x in (hidden[t] if t >= 900 else [t])]
    assert whole == tokens.tolist()
    assert list(hidden) == [999 - k for k in range(len(hidden))]
    share = sum(map(len, hidden.values())) / length
    assert abs(share - 0.15) <= 1 / length + 0.15 / length or length < 7


def test_the_longest_raw_sequence_fills_the_source_row():
    raw, target = raw_length(512)
    assert (raw, target) == (568, 114)  # as published for T5's 512-token inputs
    pair = corrupt_spans(np.arange(raw, dtype=np.int32), np.random.default_rng(0), vocab_size=9999)
    assert (len(pair.source) + 1, len(pair.target) + 1) == (512, 114)


def test_masking_hides_the_right_share_and_never_special_tokens():
    tokens = np.tile(np.arange(5, 45, dtype=np.int32), 50)
    tokens[::100] = 2  # a special token
    how = {"mask_id": 3, "vocab_size": 50, "special_ids": (0, 1, 2)}
    hidden, target = mask_tokens(tokens, np.random.default_rng(0), **how)
    chosen = target == 1
    assert chosen.sum() == round((tokens != 2).sum() * 0.15)
    assert (tokens[chosen] != 2).all()
    assert (hidden[~chosen] == tokens[~chosen]).all()
    masked = (hidden[chosen] == 3).mean()
    replaced = (hidden[chosen] != 3) & (hidden[chosen] != tokens[chosen])
    assert 0.72 < masked < 0.88
    assert 0.04 < replaced.mean() < 0.16
    assert not np.isin(hidden[chosen][replaced], (0, 1, 2, 3)).any()
    fewer = mask_tokens(tokens, np.random.default_rng(0), most=7, **how)[1]
    assert fewer.sum() == 7


@pytest.mark.parametrize("spm", [False, True])
def test_the_middle_moved_back_is_the_text(spm):
    text = "def f(x):\n    return x"
    moved = fill_in_the_middle(
        text, lambda part: list(part.encode()), np.random.default_rng(1), (300, 301, 302), spm
    )
    order = [300, 302, 301]  # prefix, suffix and middle marks, in both variants
    assert [t for t in moved if t >= 300] == order
    bounds = [moved.index(mark) for mark in order]
    parts = [moved[a + 1 : b] for a, b in zip(bounds, [*bounds[1:], None], strict=True)]
    if spm:  # prefix mark, suffix mark, suffix, middle mark, prefix and middle
        assert parts[0] == []
        assert bytes(parts[2] + parts[1]).decode() == text
    else:
        assert bytes(parts[0] + parts[2] + parts[1]).decode() == text
