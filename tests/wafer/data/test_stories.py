"""CNN/DailyMail's stories: the format by hand, the published splits, rows for BERTSUM."""

import hashlib

import pytest
from helpers.finetune_data import VOCAB, vocab

from wafer.data.batching.dataset import build_dataset
from wafer.data.readers.text.stories import read_stories, read_story
from wafer.data.registry import parse_input
from wafer.errors import DataError

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
