"""Values of JSON files, one after another: lines of values, or one document over many lines."""

import io
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from wafer.errors import DataError

BOM = b"\xef\xbb\xbf"

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_LONGEST = 1 << 28  # bytes of a line, unpacked
_DOCUMENT = 1 << 30  # bytes of a document over several lines, or of a list
_BETWEEN = re.compile(r"[ \t\r\n]*")


class JsonRecord(NamedTuple):
    """One value of a file."""

    number: int  #: from 0: its line, or its place in a document
    value: Any  #: None where there is a problem
    problem: str  #: what is wrong, or ''


def parse_json(text: str | bytes) -> Any:
    """Parse JSON whose text can be encoded again.

    Raises:
        ValueError: no JSON, nested beyond measure, or with half a character (a lone surrogate),
            which no tokenizer takes.
    """
    text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _require_whole(values, text, 0, len(text))
    return values


def _require_whole(value: Any, text: str, start: int, end: int) -> None:
    """Refuse half a character in a value that stands from ``start`` to ``end``."""
    if _SURROGATE.search(text, start, end):
        json.dumps(value, ensure_ascii=False).encode()


def bounded_lines(stream: BinaryIO, first: int = 1) -> Iterator[bytes]:
    """Lines with their ends, without a byte order mark; memory is bounded for any stream.

    Args:
        stream: unpacked bytes.
        first: number of the first line, for errors.

    Raises:
        DataError: a line of more bytes than a row can have.
    """
    for number in itertools.count(first):
        line = stream.readline(_LONGEST + 1)
        if not line:
            return
        _check_size(line, _LONGEST, f"line {number}")
        yield line.removeprefix(BOM) if number == 1 else line


def _check_size(content: bytes, most: int, what: str) -> None:
    if len(content) > most:
        raise DataError(f"{what} has more than {most:,} bytes; expected one record a line")


def json_records(stream: BinaryIO, start: int = 0) -> Iterator[JsonRecord]:
    """Read the values of a stream: each line that is not blank, or the items of a document.

    A document is a list, or values that go over several lines, such as a pretty-printed object.
    The first line tells.

    Args:
        stream: unpacked bytes.
        start: number of the first record to give.

    Raises:
        DataError: a line or a document that is too long.
    """
    head, first = 0, stream.readline(_LONGEST + 1).removeprefix(BOM)
    while first and not first.strip():
        head, first = head + 1, stream.readline(_LONGEST + 1)
    lines = bounded_lines(stream, head + 2)
    if _begins_document(first):
        body = stream.read(_DOCUMENT - len(first) + 1)
        content = first + body
        _check_size(content, _DOCUMENT, "a JSON document")
        records = _items(content.decode("utf-8", "surrogateescape"))
        begin = next(records, None)
        if begin is not None and not begin.problem:
            yield from (r for r in itertools.chain([begin], records) if r.number >= start)
            return
        lines = bounded_lines(io.BytesIO(body), head + 2)
    _check_size(first, _LONGEST, f"line {head + 1}")
    for number, line in enumerate(itertools.chain([first], lines), head):
        if number >= start and line.strip():
            try:
                record = JsonRecord(number, parse_json(line), "")
            except ValueError as error:  # bad JSON, and bad UTF-8 in it
                record = JsonRecord(number, None, f"not JSON ({error})")
            yield record


def _begins_document(line: bytes) -> bool:
    """Whether a line begins a list, or an object that goes on in the next line."""
    begin = line.lstrip()[:1]
    if begin != b"{" or len(line) > _LONGEST:
        return begin == b"["
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        return error.pos >= len(error.doc.rstrip())
    except (ValueError, RecursionError):
        pass
    return False


def _items(text: str) -> Iterator[JsonRecord]:
    """Items of a list, or values with white space between; one by one, so that few are held."""
    listed = text.lstrip()[:1] == "["
    offset = _skip(text, text.index("[") + 1 if listed else 0)
    for number in itertools.count():
        if offset == len(text) or (listed and not number and text[offset] == "]"):
            return
        try:
            value, end = json.JSONDecoder().raw_decode(text, offset)
            text[offset:end].encode()  # bytes that are not UTF-8 were kept as halves
            _require_whole(value, text, offset, end)
            offset = _next(text, end) if listed else _skip(text, end)
        except RecursionError:
            yield JsonRecord(number, None, "not JSON (nested too deeply)")
            return
        except ValueError as error:
            yield JsonRecord(number, None, f"not JSON ({error})")
            return
        yield JsonRecord(number, value, "")


def _next(text: str, end: int) -> int:
    """Where the item behind an item of a list begins; the end of the text behind the last."""
    offset = _skip(text, end)
    if text.startswith("]", offset):
        offset = _skip(text, offset + 1)
        if offset < len(text):
            raise json.JSONDecodeError("Extra data", text, offset)
        return offset
    if not text.startswith(",", offset):
        raise json.JSONDecodeError("Expecting ',' delimiter", text, offset)
    offset = _skip(text, offset + 1)
    if offset == len(text):
        raise json.JSONDecodeError("Expecting value", text, offset)
    return offset


def _skip(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return found.end() if found else at
