"""CNN/DailyMail's ``.story`` files (Hermann et al. 2015): an article, then its highlights.

A file is named by the SHA-1 of its address. The published splits are lists of addresses.
"""

import hashlib
import logging
import pathlib
import re
from collections.abc import Iterator, Sequence

from wafer.data.preprocess.rows.sentences import sentences
from wafer.data.text.textfiles import Row, text_lines
from wafer.errors import DataError

_LOG = logging.getLogger(__name__)
_MARK = "@highlight"
_SHA1 = re.compile(r"[0-9a-f]{40}")


def read_story(path: pathlib.Path) -> Row:
    """One file as ``src``, the article's sentences, and ``tgt``, its highlights.

    Raises:
        DataError: it is not UTF-8 text, or has no highlight.
    """
    sections: list[list[str]] = [[]]
    for line in text_lines(path):
        if line == _MARK:
            sections.append([])
        else:
            sections[-1].append(line)
    article, *highlights = ["\n".join(lines) for lines in sections]
    summary = [" ".join(text.split()) for text in highlights if text.strip()]
    if not summary:
        raise DataError(f"{path}: no {_MARK} with a text under it; a story's summary is needed")
    return Row(str(path), {"src": sentences(article), "tgt": summary})


def _names(listing: pathlib.Path) -> set[str]:
    """The file names, without their ending, that a list of addresses or of hashes stands for."""
    if not listing.is_file():
        raise DataError(f"story_urls: no such file: {listing}")
    lines = [line.strip() for line in text_lines(listing) if line.strip()]
    return {
        line if _SHA1.fullmatch(line) else hashlib.sha1(line.encode()).hexdigest() for line in lines
    }


def read_stories(files: Sequence[pathlib.Path], urls: str | None = None) -> Iterator[Row]:
    """Read the stories that have an article; the published files hold some without.

    Args:
        files: ``.story`` files.
        urls: file of addresses, or of their hashes, one to a line: only these; None reads all.

    Raises:
        DataError: a list that names none of the files, a wrong story; names the file.
    """
    if urls is not None:
        names = _names(pathlib.Path(urls))
        chosen = [path for path in files if path.stem in names]
        if not chosen:
            raise DataError(
                f"story_urls: {urls} names none of the {len(files)} stories beside {files[0]}"
            )
        files = chosen
    empty = 0
    for path in files:
        row = read_story(path)
        if row.values["src"]:
            yield row
        else:
            empty += 1
    if empty:
        _LOG.warning("%d of %d stories have no article (left out)", empty, len(files))
