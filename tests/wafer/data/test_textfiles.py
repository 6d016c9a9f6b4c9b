"""Lines, byte order marks and columns of text files in every reader; stories of CNN/DailyMail."""

import hashlib
import pathlib

import numpy as np
import pytest
from helpers.finetune_data import VOCAB, vocab

from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.readers.text.stories import read_stories, read_story
from wafer.data.registry import parse_input
from wafer.data.text.fasta import letter_codes, read_fasta
from wafer.data.text.functions import load_corpus
from wafer.data.text.textfiles import read_json, read_rows
from wafer.data.text.tokenizer import load_tokenizer, train_bpe
from wafer.data.text.wordpiece import load_vocabulary
from wafer.errors import DataError
from wafer.models.files import read_json as read_object

BOM = b"\xef\xbb\xbf"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2028", "\x85", "10\xa0000", "a"]
ENDS = pytest.mark.parametrize("end", [b"\n", b"\r\n"])


def write(path: pathlib.Path, lines, end=b"\n") -> pathlib.Path:
    path.write_bytes(BOM + b"".join(line.encode() + end for line in lines))
    return path


@ENDS
def test_a_vocabulary_has_one_token_a_line(tmp_path, end):
    path = write(tmp_path / "vocab.txt", TOKENS, end)
    known = load_vocabulary(str(path)).tokenizer.token_to_id
    assert [known(token) for token in TOKENS] == list(range(len(TOKENS)))


@ENDS
def test_columns_of_words_and_labels(tmp_path, end):
    lines = ["-DOCSTART- O", "", "10\xa0000 B-N", "a\u2028b  O", "", "c\tB-N"]
    write(tmp_path / "train.conll", lines, end)
    write(tmp_path / "vocab.txt", [*TOKENS[:4], "a", "b", "c", "10", "##000"], end)
    values = {"data_processor": "BertTokenClassifierDataProcessor", "data_dir": str(tmp_path)}
    values |= {"vocab_file": f"{tmp_path}/vocab.txt", "batch_size": 1, "max_sequence_length": 8}
    rows = build_dataset(parse_input(values), tmp_path, Context(num_labels=2)).source
    assert [int(row["loss_mask"].sum()) for row in rows] == [2, 1]
    assert [row["labels"][row["loss_mask"] != 0].tolist() for row in rows] == [[1, 0], [1]]


def table(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(text)
    return [dict(row.values) for row in read_rows(path)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.tsv", "sentence\tlabel{}a\u2028b\x0b \tc\rd{}"),
        ("x.CSV", 'sentence,label{}a\u2028b\x0b ,"c\rd"{}'),
        ("x.jsonl", '{{"sentence": "a\u2028b\\u000b ", "label": "c\\rd"}}{}{}'),
    ],
)
@ENDS
def test_rows_of_a_table(tmp_path, name, text, end):
    raw = BOM + text.format(end.decode(), end.decode()).encode()
    assert table(tmp_path, name, raw) == [{"sentence": "a\u2028b\x0b ", "label": "c\rd"}]


@pytest.mark.parametrize(("name", "comma"), [("x.tsv", "\t"), ("x.csv", ",")])
@pytest.mark.parametrize(("cells", "count"), [("1 2 3", 3), ("1", 1)])
def test_cells_must_be_as_many_as_columns(tmp_path, name, comma, cells, count):
    lines = [" ".join(["a", "b"]), "1 2", cells]
    text = "\n".join(lines).replace(" ", comma).encode()
    with pytest.raises(DataError, match=rf"{name}, row 3: {count} columns, the header has 2 \(a"):
        table(tmp_path, name, text)


def test_what_is_no_csv_is_named(tmp_path):
    with pytest.raises(DataError, match=r"x\.csv, row 2: not CSV"):
        table(tmp_path, "x.csv", b"a,b\n1,\r2\n")


def test_json_with_a_mark_is_read(tmp_path):
    path = write(tmp_path / "x.json", ['{"a": 1}'])
    assert read_json(path) == read_object(path) == {"a": 1}
    text = train_bpe(["abc abc"], 260).to_str()
    tokenizer = load_tokenizer(write(tmp_path / "tokenizer.json", [text]))
    assert tokenizer.get_vocab_size() == 260


def test_sequences_and_stories_with_a_mark(tmp_path):
    path = write(tmp_path / "x.fasta", [">one\xa0two three", "AC"], b"\r\n")
    (record,) = read_fasta(path, letter_codes({"A": 0, "C": 1}), "letters")
    assert (record.name, record.codes.tolist()) == ("one\xa0two", [0, 1])
    story = write(tmp_path / "x.story", ["@highlight", "", "a\u2028@highlight"], b"\r\n")
    assert read_story(story).values == {"src": [], "tgt": ["a @highlight"]}


def test_functions_are_cut_where_the_parser_counts_lines(tmp_path):
    source = '"""A\x0cB\u2028C"""\n\n\ndef first():\n    return 1\n'
    write(tmp_path / "x.py", [source])
    corpus = load_corpus(str(tmp_path))
    assert corpus.train + corpus.held_out == ("def first():\n    return 1",)


def test_tokens_of_t5_lines(tmp_path):
    words = ["<pad>", "</s>", "<unk>", "a\u2028b", "10\xa0000"]
    write(tmp_path / "vocab", words)
    write(tmp_path / "x.txt", ["a\u2028b 10\xa0000\ta\u2028b"])
    write(tmp_path / "meta.dat", ["x.txt\t1"])
    values = {"data_processor": "T5DynamicDataProcessor", "src_data_dir": str(tmp_path)}
    values |= {"src_vocab_file": str(tmp_path / "vocab"), "batch_size": 1}
    values |= {"src_max_sequence_length": 8, "tgt_max_sequence_length": 8}
    long = {"src_max_sequence_length": 2048, "tgt_max_sequence_length": 600}
    with pytest.raises(DataError, match=r"extra_ids: 100 sentinels, but a row of .* hides 11\d"):
        build_dataset(parse_input(values | long), tmp_path)
    (row,) = build_dataset(parse_input(values), tmp_path).source
    assert row["tokens"][: int(row["length"])].tolist() == [3, 4, 3]
    assert np.all(row["tokens"][3:] == 0)


STORY = """bob lives in rome. anna flew to oslo.

the film was good .



@highlight

bob lives in rome

@highlight

the film
was good
"""
URL = "http://web.archive.org/web/20150401100102id_/http://www.cnn.com/a.html"
HASH = hashlib.sha1(URL.encode()).hexdigest()


def test_story_by_hand(tmp_path):
    path = tmp_path / "a.story"
    path.write_text(STORY)
    assert read_story(path).values == {
        "src": ["bob lives in rome.", "anna flew to oslo.", "the film was good ."],
        "tgt": ["bob lives in rome", "the film was good"],
    }


@pytest.mark.parametrize("line", [URL, HASH])
def test_published_splits_name_addresses_or_hashes(tmp_path, line):
    files = [tmp_path / f"{name}.story" for name in (HASH, "0" * 40)]
    for file in files:
        file.write_text(STORY)
    (tmp_path / "urls.txt").write_text(f"{line}\n\n")
    rows = list(read_stories(files, str(tmp_path / "urls.txt")))
    assert [row.where for row in rows] == [str(files[0])]
    (tmp_path / "urls.txt").write_text("http://elsewhere\n")
    with pytest.raises(DataError, match="names none of the 2 stories"):
        list(read_stories(files, str(tmp_path / "urls.txt")))


def test_stories_without_article_or_highlight(tmp_path, caplog):
    empty, wrong = tmp_path / "a.story", tmp_path / "b.story"
    empty.write_text("\n@highlight\n\nbob\n")
    assert list(read_stories([empty])) == []
    assert "1 of 1 stories have no article" in caplog.text
    wrong.write_text("the film was good .")
    with pytest.raises(DataError, match=r"b.story: no @highlight"):
        read_story(wrong)
    wrong.write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"b.story: not UTF-8"):
        read_story(wrong)


def rows(tmp_path, **keys):
    values = {"data_processor": "BertSumCSVDataProcessor", "data_dir": str(tmp_path)}
    values |= {"vocab_file": vocab(tmp_path), "batch_size": 1, "max_sequence_length": 32} | keys
    return build_dataset(parse_input(values), tmp_path).source


def test_rows_mark_the_sentences_of_the_highlights(tmp_path):
    (tmp_path / "cnn").mkdir()
    (tmp_path / "cnn" / f"{HASH}.story").write_text(STORY)
    (row,) = [rows(tmp_path)[0]]
    cls = VOCAB.index("[CLS]")
    heads = [i for i, token in enumerate(row["input_ids"].tolist()) if token == cls]
    assert row["gather_positions"][:3].tolist() == heads == [0, 7, 14]
    assert row["gather_labels"][:3].tolist() == [1, 0, 1]
    (tmp_path / "urls.txt").write_text("http://elsewhere\n")
    with pytest.raises(DataError, match="names none of the 1 stories"):
        rows(tmp_path, story_urls=str(tmp_path / "urls.txt"))
    with pytest.raises(DataError, match="story_urls: no such file"):
        rows(tmp_path, story_urls=str(tmp_path / "nothing.txt"))
