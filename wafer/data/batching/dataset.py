"""A source of examples and what the run needs to know about it; from a section to a dataset."""

import dataclasses
import math
import pathlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from wafer.data.batching.pipeline import Loader, Rows, Transform
from wafer.data.batching.sources import Source
from wafer.data.sections.base import InputSection
from wafer.models.convert.tokenizer import carry_tokenizer, find_tokenizer, write_ids
from wafer.models.files import write_text

TOKENIZER = "tokenizer.json"  # kept beside the checkpoints, for ``wafer generate``


class Context(NamedTuple):
    """What a reader must know besides its section."""

    #: whether it is ``train_input``; some readers choose their file by it
    training: bool = True
    num_labels: int | None = None  #: classes of the model's head, or None where it has none
    vocab_size: int | None = None  #: V of the model, or None
    input_shape: tuple[int, ...] | None = None  #: shape of one image the model takes, or None
    folder: pathlib.Path = pathlib.Path()  #: the run's, where a tokenizer may have been kept
    config: Any = None  #: the model's, or None for any
    #: the checkpoint or folder whose weights the run starts with, or None
    begins_from: str | None = None

    @property
    def tokenizer(self) -> pathlib.Path | None:
        """The tokenizer.json that the weights know: the run's, else of what it begins from."""
        own = self.folder / TOKENIZER
        if own.exists():
            return own
        return None if self.begins_from is None else find_tokenizer(self.begins_from)

    @property
    def last_id(self) -> int:
        """Highest token id that the model takes; int32's where it has no vocabulary."""
        return (self.vocab_size or 2**31) - 1

    @property
    def last_segment(self) -> int:
        """Highest segment id that the model has an embedding of; int32's where it has none."""
        return (getattr(self.config, "num_segments", None) or 2**31) - 1

    @classmethod
    def of(cls, config: Any, *, training: bool) -> Self:
        """What the data has to fit, from a model's configuration."""
        classes = getattr(config, "num_labels", None)
        tokens = getattr(config, "vocab_size", None)
        return cls(training, classes, tokens, config.input_shape, config=config)


class Scorer(Protocol):
    """Metrics that need the predictions themselves, gathered over one evaluation."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the model's outputs it wants."""
        ...

    def add(self, rows: Rows, outputs: Mapping[str, np.ndarray]) -> None:
        """Take examples of a batch: their rows [n, ...], the outputs [n, positions or 1, ...]."""
        ...

    def result(self) -> dict[str, float]:
        """Tag -> value over everything added."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """A source and what the run needs to know about it."""

    source: Source  #: the examples
    row_length: int  #: S, the longest sequence and the length of a packed row
    complete: bool = False  #: the examples are whole rows already, nothing is padded or packed
    #: (example, generator) -> example, applied anew at every reading; or None
    transform: Transform | None = None
    #: makes the gatherer of metrics that need predictions; None when sums suffice
    scorer: Callable[[], Scorer] | None = None
    pack: bool = False  #: several examples per row (VSL), built on the fly
    #: tokens per example, or None where it is not known without reading all
    mean_length: float | None = None
    #: text of the tokenizer.json that the ids come from; None where it is not known
    tokenizer: str | None = None
    #: where that file lies, with the tokenizer's settings, if it does
    tokenizer_folder: pathlib.Path | None = None
    #: ``eos_token_id``, ``bos_token_id``: ids of the rows' special tokens, if known
    special_ids: Mapping[str, int] = dataclasses.field(default_factory=dict)
    #: [V] bytes per token, for bits per byte; None without a tokenizer
    token_bytes: np.ndarray | None = None
    #: name -> bits per byte of other compressors on the same text
    references: Mapping[str, float] = dataclasses.field(default_factory=dict)
    summary: str = ""  #: one line for the log
    shuffle: bool = False  #: whether the order is shuffled; ``build_dataset`` sets it
    shuffle_seed: int = 0  #: of the order; ``build_dataset`` sets it

    def example(self, index: int) -> Rows:
        """Return one example as it is trained on: after ``transform``, with draws of its own."""
        row = self.source[index]
        if self.transform is None:
            return row
        return self.transform(row, np.random.default_rng((self.shuffle_seed, index)))

    def batches(self, batch_size: int) -> int | None:
        """Batches of one pass; for packed rows the nearest estimate, None when unknown."""
        if not self.pack:
            return len(self.source) // batch_size
        if self.mean_length is None:
            return None
        return math.ceil(len(self.source) * self.mean_length / (batch_size * self.row_length))

    def loader(
        self,
        batch_size: int,
        num_epochs: int | None,
        drop_last: bool = True,
        task: tuple[int, int] = (0, 1),
    ) -> Loader:
        """Open a loader over ``batch_size`` rows a batch, of which a task gets its share."""
        return Loader(
            self.source,
            batch_size=batch_size // task[1],
            task=task,
            row_length=None if self.complete else self.row_length,
            pack=self.pack,
            shuffle=self.shuffle,
            seed=self.shuffle_seed,
            num_epochs=num_epochs,
            drop_last=drop_last,
            transform=self.transform,
        )


def build_dataset(
    section: InputSection,
    folder: str | pathlib.Path,
    context: Context | None = None,
    seed: int = 0,
) -> Dataset:
    """Read the data an input section names.

    Args:
        section: validated ``train_input`` or ``eval_input``.
        folder: the run's; the data's tokenizer is kept there.
        context: which input it is, and what the model takes; None is training data of any model.
        seed: of the order where the section names none.

    Raises:
        DataError: files that do not hold what the section says.
    """
    folder = pathlib.Path(folder)
    read = pkgutil.resolve_name(section.reader)
    dataset = read(section, (context or Context())._replace(folder=folder))
    target = folder / TOKENIZER
    if dataset.tokenizer is not None and not target.exists():
        write_text(target, dataset.tokenizer)
    if context is not None:
        _keep_special_ids(dataset, folder, context.begins_from)
    own = section.shuffle_seed
    return dataclasses.replace(
        dataset, shuffle=section.shuffle, shuffle_seed=seed if own is None else own
    )


def _keep_special_ids(dataset: Dataset, folder: pathlib.Path, begins_from: str | None) -> None:
    """Keep what generation and exported folders need beside the run's tokenizer."""
    theirs = None if begins_from is None else find_tokenizer(begins_from)
    same = theirs is not None and dataset.tokenizer in {None, theirs.read_text("utf-8")}
    if begins_from is not None and same:
        carry_tokenizer(begins_from, folder)
    if (folder / TOKENIZER).exists():
        write_ids(folder, dataset.special_ids)
    theirs = dataset.tokenizer_folder
    if theirs is not None and dataset.tokenizer == (folder / TOKENIZER).read_text("utf-8"):
        carry_tokenizer(theirs, folder, alone=True)
