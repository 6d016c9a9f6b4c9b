"""Question answering: SQuAD version 1 JSON, windows over long contexts, answers back as text.

As in BERT's own run (Devlin et al. 2019): a row is ``[CLS] question [SEP] window [SEP]``; windows
begin every ``doc_stride`` tokens; one without the answer points at ``[CLS]``; a token is answered
from the window in which it has most context around it.
"""

import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.pipeline import Rows
from wafer.data.batching.rowsets import RowSource, text_row
from wafer.data.readers.text.squad_metrics import exact_match, f1
from wafer.data.text.textfiles import find_files, read_json
from wafer.data.text.wordpiece import Vocabulary, load_vocabulary
from wafer.errors import DataError


class Question(NamedTuple):
    """One question on one context."""

    where: str  #: file and id, for errors
    text: str  #: the question
    context: str  #: the text the answers stand in
    answers: tuple[tuple[str, int], ...]  #: (answer, character it begins at)


class Window(NamedTuple):
    """One row: part of a context, with its question."""

    question: int  #: index of the question
    query: list[int]  #: token ids of the question
    begin: int  #: first token of the context in the window
    ids: np.ndarray  #: [n] token ids of the window
    offsets: np.ndarray  #: [n, 2] first and one past the last character of every token
    central: np.ndarray  #: [n] bool: no other window shows the token with more context
    #: (first, last) token within the window, or None when it is not whole in it
    answer: tuple[int, int] | None

    @property
    def start(self) -> int:
        """Position of the window's first context token in the row."""
        return len(self.query) + 2


def read_squad(path: pathlib.Path) -> Iterator[Question]:
    """Read SQuAD's nesting of articles, paragraphs, questions, answers.

    Raises:
        DataError: a part is missing, or an answer does not stand where the file says; names the
            file and the question.
    """
    whole = read_json(path)
    try:
        for number, article in enumerate(whole["data"], 1):
            for paragraph in article["paragraphs"]:
                context = paragraph["context"]
                for qa in paragraph["qas"]:
                    where = f"{path}, article {number}, question {qa.get('id', '?')!r}"
                    yield _question(where, qa, context)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: not SQuAD version 1: {error!r}; expected data / paragraphs / context, qas / "
            "question, answers / text, answer_start"
        ) from None


def _question(location: str, qa: Mapping[str, Any], context: str) -> Question:
    answers = tuple((a["text"], int(a["answer_start"])) for a in qa["answers"])
    if not answers:
        raise DataError(f"{location}: no answer; version 1 has one for every question")
    for text, start in answers:
        excerpt = context[start : start + len(text)]
        if not text or excerpt != text:
            raise DataError(
                f"{location}: the answer {text!r} is not at answer_start {start} of its context, "
                f"which has {excerpt!r} there"
            )
    return Question(location, qa["question"], context, answers)


def _begins(count: int, room: int, stride: int) -> list[int]:
    begins = [0]
    while begins[-1] + room < count:
        begins.append(begins[-1] + min(room, stride))
    return begins


def _central(begins: list[int], room: int, count: int) -> np.ndarray:
    """[windows, count] bool: the window in which a token sees most; the first one on a tie."""
    positions = np.arange(count)
    before = positions - np.array(begins)[:, None]
    length = np.minimum(room, count - np.array(begins))[:, None]
    after = length - before - 1
    score = np.where((before < 0) | (after < 0), -1.0, np.minimum(before, after) + 0.01 * length)
    return score.argmax(0) == np.arange(len(begins))[:, None]


def windows(
    questions: Sequence[Question], vocabulary: Vocabulary, length: int, stride: int, query: int
) -> list[Window]:
    """Cut every context into windows that fit rows of ``length`` tokens.

    Args:
        questions: what ``read_squad`` gave.
        vocabulary: the tokenizer.
        length: S.
        stride: tokens between the beginnings of two windows.
        query: longest question, in tokens.

    Raises:
        DataError: rows too short for question and context.
    """
    if length - query - 3 < 1:
        raise DataError(
            f"max_sequence_length {length} leaves no room for a context beside questions of "
            f"max_query_length {query}"
        )
    contexts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    cut: list[Window] = []
    for index, question in enumerate(questions):
        if question.context not in contexts:
            contexts[question.context] = vocabulary.encode_spans(question.context)
        ids, offsets = contexts[question.context]
        asked = vocabulary.encode(question.text)[:query]
        room = length - len(asked) - 3
        text, at = question.answers[0]
        touched = np.flatnonzero((offsets[:, 0] < at + len(text)) & (offsets[:, 1] > at))
        span = (int(touched[0]), int(touched[-1])) if len(touched) else None
        begins = _begins(len(ids), room, stride)
        central = _central(begins, room, len(ids))
        for number, begin in enumerate(begins):
            crop = slice(begin, begin + room)
            inside = span is not None and begin <= span[0] and span[1] < begin + room
            answer = (span[0] - begin, span[1] - begin) if span and inside else None
            cut.append(
                Window(index, asked, begin, ids[crop], offsets[crop], central[number, crop], answer)
            )
    return cut


class SquadScorer:
    """Decode answers from start and end scores, and compare them with the true ones.

    Args:
        questions: all of them.
        windows: all of them, in the order of the rows.
        best: start and end positions considered per window.
        longest: tokens of an answer, at most.
    """

    reads = ("start", "end")

    def __init__(
        self, questions: Sequence[Question], windows: Sequence[Window], best: int, longest: int
    ) -> None:
        self._questions, self._windows = questions, windows
        self._best, self._longest = best, longest
        self.answers: dict[int, tuple[float, str]] = {}

    def add(self, rows: Rows, outputs: Mapping[str, np.ndarray]) -> None:
        """Keep the best answer of every question so far."""
        for row, start, end in zip(rows["row"], outputs["start"], outputs["end"], strict=True):
            window = self._windows[int(row) - 1]
            score, answer = self._decode(window, start, end)
            if score >= self.answers.get(window.question, (-np.inf, ""))[0]:
                self.answers[window.question] = score, answer

    def _decode(self, window: Window, start: np.ndarray, end: np.ndarray) -> tuple[float, str]:
        inside = slice(window.start, window.start + len(window.ids))
        begins = np.where(window.central, start[inside].astype(np.float64), -np.inf)
        ends = end[inside].astype(np.float64)
        first = np.argsort(-begins, kind="stable")[: self._best]
        last = np.argsort(-ends, kind="stable")[: self._best]
        score = begins[first][:, None] + ends[last][None]
        distance = last[None] - first[:, None]
        score = np.where((distance >= 0) & (distance < self._longest), score, -np.inf)
        if not score.size or not np.isfinite(score.max()):
            return -np.inf, ""
        i, j = np.unravel_index(score.argmax(), score.shape)
        begin, end_ = window.offsets[first[i], 0], window.offsets[last[j], 1]
        return float(score.max()), self._questions[window.question].context[begin:end_]

    def result(self) -> dict[str, float]:
        """``eval/exact_match`` and ``eval/f1`` in percent, as the official script prints them."""
        scores = []
        for index, (_, answer) in self.answers.items():
            truths = [text for text, _ in self._questions[index].answers]
            scores.append([max(m(answer, truth) for truth in truths) for m in (exact_match, f1)])
        mean = 100 * np.mean(scores, axis=0)
        return {"eval/exact_match": float(mean[0]), "eval/f1": float(mean[1])}


def squad(cfg: Any, context: Context) -> Dataset:
    """Read train-v1.1.json or dev-v1.1.json.

    Raises:
        DataError: a wrong file; names it and the question.
    """
    stem = "train" if context.training else "dev"
    files = find_files(cfg.data_dir, [f"{stem}-v1*.json", f"{stem}.json"])
    vocabulary = load_vocabulary(cfg.vocab_file, cfg.do_lower, context.vocab_size)
    questions = [question for file in files for question in read_squad(file)]
    length = cfg.max_sequence_length
    cut = windows(questions, vocabulary, length, cfg.doc_stride, cfg.max_query_length)

    def build(window: Window) -> Rows:
        answer = (0, 0) if window.answer is None else (a + window.start for a in window.answer)
        places = zip(("start_positions", "end_positions"), answer, strict=True)
        row = text_row(vocabulary.marks, length, window.query, window.ids)
        return row | {name: np.asarray(place, np.int32) for name, place in places}

    return Dataset(
        source=RowSource(cut, build, files[0]),
        row_length=length,
        complete=True,
        scorer=functools.partial(
            SquadScorer, questions, cut, cfg.n_best_size, cfg.max_answer_length
        ),
        summary=f"SQuAD: {len(questions):,} questions in {len(cut):,} windows of {length} tokens",
    )
