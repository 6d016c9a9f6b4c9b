"""One batch of records on its way to sequences: what errors tell, and what is counted."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tokenizers import Encoding, Tokenizer

from wafer.data.preprocess.encode import Encoder, ReadCounts, count_marks, mended
from wafer.data.preprocess.rows.images import has_images
from wafer.data.preprocess.rows.regions import Defaults, Document, Range, TextRegion, token_ranges
from wafer.data.preprocess.settings import Settings
from wafer.data.text.tokenizer import tokenizing
from wafer.errors import DataError

Made = TypeVar("Made")


def utf8_size(text: str) -> int:
    """Return the bytes of a text."""
    return len(text) if text.isascii() else len(text.encode())


class EncodingBatch:
    """One batch of records on its way to sequences, and what is counted on the way.

    Args:
        encoder: the run's.
        tokenizer: of this process.
    """

    def __init__(self, encoder: Encoder, tokenizer: Tokenizer) -> None:
        settings: Settings = encoder.settings
        self.settings, self.ids, self.tokenizer = settings, encoder.vocabulary, tokenizer
        self.special = encoder.vocabulary.special
        self._sums: dict[str, int] = dict.fromkeys(ReadCounts._fields, 0)
        self.left_out, self._where = list[str](), ""
        weights, drops = settings.semantic_loss_weight, settings.semantic_drop_mask
        attentions = settings.semantic_attention_mask
        self.image_mark = settings.image_token if settings.is_multimodal else ""
        self.defaults = Defaults(weights, drops, self.clean, attentions, self.image_mark)

    @property
    def counts(self) -> ReadCounts:
        """The sums."""
        return ReadCounts(**self._sums)

    def count(self, **more: int) -> None:
        """Add to the sums."""
        for key, n in more.items():
            self._sums[key] += n

    def clean(self, text: str) -> str:
        """Mend a text and count it."""
        if not isinstance(text, str):
            raise DataError(f"read_hook: a region is {type(text).__name__}; expected text")
        clean, size = mended(text, self.settings), utf8_size(text)
        clean_size = size if clean is text else utf8_size(clean)
        self.count(characters=len(text), raw_bytes=size)
        self.count(clean_characters=len(clean), clean_bytes=clean_size)
        return clean

    def attempt(self, make: Callable[[], Made], record: object, location: str = "") -> Made | None:
        """Call a function for one record; None where it is left out.

        Args:
            make: makes what the record becomes.
            record: the record, or a document of it, which errors show.
            location: the record's file and number; a document has them.

        Raises:
            DataError: it fails, and bad records are not to be skipped.
        """
        location = self._where = record.where if isinstance(record, Document) else location
        try:
            sequence = make()
        except Exception as error:  # a hook is the user's program: it raises anything
            self.left_out.append(problem_of(error, self.settings, record, location))
            self.count(records=-1, skipped=1)
            return None
        if sequence is None:
            self.count(empty=1)
        return sequence

    def kept(self, rows: Iterable[Made | None]) -> list[Made]:
        """Return the rows that are not None; the others are discarded."""
        every = list(rows)
        kept = [row for row in every if row is not None]
        self.count(discarded=len(every) - len(kept))
        return kept

    def ranges(self, offsets: Sequence[Range], regions: Sequence[TextRegion]) -> list[Range]:
        """Return the tokens of each region; ``offsets`` are the characters of each token."""
        return token_ranges(offsets, regions, by_gaps=self.settings.rules.gaps)

    def pictured(self, document: Document | None) -> Document | None:
        """A document whose images can be read; None for any other."""
        if document is None or has_images(document.images, self.settings):
            return document and document._replace(where=self._where)
        self.count(without_image=1)
        return None

    def encode(self, texts: Sequence[str], *, special: bool = True) -> list[Encoding]:
        """Tokens with their characters."""
        with tokenizing("the tokenizer cannot encode a text of the input"):
            return self.tokenizer.encode_batch(list(texts), add_special_tokens=special)

    def plain_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens without the tokenizer's own marks; those that stand in the texts are counted."""
        with tokenizing("the tokenizer cannot encode a text of the input"):
            encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        self.count(marks=count_marks(ids, self.tokenizer))
        return ids


def problem_of(error: Exception, settings: Settings, record: object, location: str) -> str:
    """Return what is wrong with a record that is left out.

    Args:
        error: of the hook, or of what its turns became.
        settings: say whether bad records are left out.
        record: the record, or a document of it.
        location: its file and number.

    Raises:
        DataError: bad records are not to be skipped.
    """
    shown = " ".join(repr(record).split())[:80]
    hook = f"read_hook {settings.read_hook}: {type(error).__name__}: "
    problem = f"{'' if isinstance(error, DataError) else hook}{error}; the record is {shown}"
    if not settings.skip_bad_records:
        raise DataError(
            f"{location}: {problem}. To leave such records out: --skip_bad_records true"
        ) from None
    return f"{location}: {problem}"
