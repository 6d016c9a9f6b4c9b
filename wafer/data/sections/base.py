"""What every data processor takes: the common keys of ``train_input`` and ``eval_input``."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from wafer.errors import ConfigError, Problem
from wafer.models.files import require_local
from wafer.models.sections import Bool, Section, parse


class _Ignored(Section):
    """Host settings of a cluster; here the data pipeline sets itself up.

    Training data repeat: a batch goes on over the end of a pass. The last batch of an evaluation
    is filled with empty rows.
    """

    num_workers: NonNegativeInt | None = None
    prefetch_factor: NonNegativeInt | None = None
    persistent_workers: Bool | None = None
    use_worker_cache: Bool | None = None
    repeat: Bool | None = None  # training data always repeats here, evaluation data never
    sort_files: Bool | None = None  # files are always read in the order of their names
    drop_last: Bool = True  # also in checkpoints of before
    pad_last: Bool | None = None


class _Range(Section):
    min: PositiveInt | None = None  #: least size
    max: PositiveInt | None = None  #: greatest size

    def model_post_init(self, _: Any) -> None:
        if self.min and self.max and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")


class MicroBatchRange(Section):
    """``{explore: {min, max}}``: micro-batch sizes the compiler may choose between."""

    explore: _Range  #: sizes the compiler may choose between: {min, max}


def _micro_batch(value: Any) -> Any:
    if value is None or value in ("auto", "explore"):
        return value
    if isinstance(value, Mapping | MicroBatchRange):
        return parse(MicroBatchRange, value)
    allowed = "expected a whole number > 0, 'auto', 'explore', {explore: {min, max}} or null"
    if isinstance(value, bool | float):
        raise ValueError(allowed)
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise ValueError(allowed) from None
    if number < 1:
        raise ValueError(allowed)
    return number


def _folders(value: Any) -> Any:
    folders = (value,) if isinstance(value, str) else value
    if not isinstance(folders, list | tuple) or not folders:
        raise ValueError("expected a folder or a list of folders")
    if not all(isinstance(f, str) and f for f in folders):
        raise ValueError("every folder must be text")
    return tuple(map(require_local, folders))


Folders = Annotated[tuple[str, ...], BeforeValidator(_folders)]


class InputSection(_Ignored):
    """What every data processor takes.

    A processor is a subclass: ``class X(InputSection, task="lm", reader="module:function")``.
    Subclasses inherit both.
    """

    #: what its rows are for, a name of ``wafer.data.tasks.TASKS``; the model must take it
    task: ClassVar[str] = "lm"
    #: ``"module:function"``, (section, ``Context``) -> ``Dataset``; '' for none
    reader: ClassVar[str] = ""
    #: ``"module:function"``, called with [the keys of each section] in a process of its own before
    #: the reader, whose arrays it puts into the cache's folder; '' for none
    ahead: ClassVar[str] = ""
    #: whether its files may hold packed rows of a task other than next tokens
    packed_files: ClassVar[bool] = False
    #: keys that are accepted and mean nothing here
    unread: ClassVar[tuple[str, ...]] = tuple(_Ignored.model_fields)

    data_processor: str  #: the class's name in the YAML, or ``module:class``
    batch_size: PositiveInt  #: sequences per step over all systems (the effective batch)
    #: sequences computed at once per system; 'auto' lets the run choose
    micro_batch_size: Annotated[
        int | Literal["auto", "explore"] | MicroBatchRange | None, BeforeValidator(_micro_batch)
    ] = "auto"
    max_sequence_length: PositiveInt | None = None  #: S; longer examples are cut
    use_vsl: Bool = False  #: variable sequence length: pack examples, compute no padding
    shuffle: Bool = False  #: whether the order is shuffled each epoch
    shuffle_seed: NonNegativeInt | None = None  #: of that order; None takes ``runconfig.seed``

    def __init_subclass__(
        cls, task: str | None = None, reader: str | None = None, **kwargs: Any
    ) -> None:
        """Take the class keywords."""
        super().__init_subclass__(**kwargs)
        cls.task = cls.task if task is None else task
        cls.reader = cls.reader if reader is None else reader

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> tuple[type[Self], Mapping[str, Any]]:
        """Choose the class that reads a section, and what of the section it reads."""
        return cls, value

    def model_post_init(self, _: Any) -> None:
        """Say what removes padding of rows that are not packed."""
        if self.use_vsl and self.task != "lm" and not self.packed_files:
            message = (
                "not computed here: packing is for next-token and BERT's HDF5 rows; set false; "
                "model.enable_vts: true removes the padding of these"
            )
            raise ConfigError([Problem(("use_vsl",), message)])

    @property
    def decides_shapes(self) -> bool:
        """Whether the section alone says which shapes rows have; else the files do."""
        given = self.max_sequence_length is not None and "max_sequence_length" not in self.unread
        return given or self.task == "image"

    @property
    def no_effect(self) -> tuple[str, ...]:
        """Keys the file sets that mean nothing on this machine."""
        return tuple(key for key in self.unread if key in self.model_fields_set)


class MixturePart(Section):
    """One dataset of a mixture."""

    data_dir: Folders  #: folders of .h5 files
    #: share of the examples that come from here; the shares need not sum to 1
    weight: PositiveFloat
    data_subset: str | None = None  #: which part of it, '0.0-0.5' or '0.1-0.3,0.7-1.0'


class RowsInput(InputSection):
    """Rows in HDF5 files."""

    data_dir: Folders | None = None  #: folders of .h5 files
    #: several datasets with weights, instead of ``data_dir``
    mixture: Annotated[tuple[MixturePart, ...], Field(min_length=1)] | None = None
    data_subset: str | None = None  #: which part of ``data_dir``
    #: examples of one pass; with ``shuffle``, several epochs are mixed together
    num_samples: PositiveInt | None = None
    vocab_size: PositiveInt | None = None  #: V, compared with the model's

    @property
    def decides_shapes(self) -> bool:
        """Next-token rows must be as the section says; others may lack features."""
        return self.task == "lm" and super().decides_shapes

    def model_post_init(self, _: Any) -> None:
        """Exactly one of ``data_dir`` and ``mixture``."""
        super().model_post_init(_)
        if self.data_dir is None and self.mixture is None:
            raise ConfigError([Problem(("data_dir",), "missing; give data_dir, or a mixture")])
        if self.data_dir is not None and self.mixture is not None:
            raise ConfigError([Problem(("mixture",), "given together with data_dir; keep one")])
        if self.mixture is not None and self.data_subset is not None:
            message = "belongs into the parts of the mixture"
            raise ConfigError([Problem(("data_subset",), message)])


class TextInput(InputSection):
    """Text that is tokenized while it is read."""

    data_dir: Folders  #: folders or files; a folder is searched for the names the format prescribes
    vocab_file: str  #: WordPiece vocabulary (vocab.txt, one token a line) or a tokenizer.json
    vocab_size: PositiveInt | None = None  #: V, compared with the model's
    do_lower: Bool = False  #: lower-case and strip accents, for uncased vocab.txt files
    #: S, special tokens included; longer texts are cut
    max_sequence_length: PositiveInt  # pyright: ignore[reportIncompatibleVariableOverride,reportGeneralTypeIssues]
