"""Data processors of token rows: HDF5 files, the vendor's tokenized text, random tokens."""

import functools
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from models.sections import Bool, Section
from wafer.data.sections.base import Folders, InputSection
from wafer.errors import ConfigError, Problem

__all__ = [
    "BertCSVDataProcessor",
    "BertHDF5DataProcessor",
    "DPRHDF5DataProcessor",
    "DpoHDF5DataProcessor",
    "GptHDF5DataProcessor",
    "GptHDF5MapDataProcessor",
    "MixturePart",
    "RandomDataProcessor",
    "SinkTokens",
    "SyntheticDataProcessor",
    "T5DynamicDataProcessor",
    "T5HDF5DataProcessor",
    "TransformerDynamicDataProcessor",
]


class MixturePart(Section):
    """One dataset of a mixture.

    Attributes:
        data_dir: folders of .h5 files.
        weight: share of the examples that come from here; the shares need not sum to 1.
        data_subset: which part of it, '0.0-0.5' or '0.1-0.3,0.7-1.0'.
    """

    data_dir: Folders
    weight: PositiveFloat
    data_subset: str | None = None


class _RowsInput(InputSection):
    """Rows in HDF5 files.

    Attributes:
        data_dir: folders of .h5 files.
        mixture: several datasets with weights, instead of ``data_dir``.
        data_subset: which part of ``data_dir``.
        num_samples: examples of one pass; with ``shuffle``, several epochs are mixed together.
        vocab_size: V, compared with the model's.
    """

    data_dir: Folders | None = None
    mixture: Annotated[tuple[MixturePart, ...], Field(min_length=1)] | None = None
    data_subset: str | None = None
    num_samples: PositiveInt | None = None
    vocab_size: PositiveInt | None = None

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


class SinkTokens(Section):
    """``{name: add_sink_tokens}``: tokens without loss put into every row (Xiao et al. 2023).

    Attributes:
        name: of the transform.
        num_sink_tokens: how many.
        sink_token_id: of all of them.
        sink_token_start_pos: where they begin.
        truncate_to_original_length: whether rows lose as many tokens at their end.
    """

    name: Literal["add_sink_tokens"]
    num_sink_tokens: PositiveInt = 1
    sink_token_id: NonNegativeInt = 0
    sink_token_start_pos: NonNegativeInt = 0
    truncate_to_original_length: Bool = False

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        name = data.get("name") if isinstance(data, Mapping) else data
        if name in ("add_memory_tokens", "add_pose_shift"):
            raise ValueError(f"{name}: not computed here: only add_sink_tokens is; drop it")
        return data


class GptHDF5DataProcessor(_RowsInput, reader="wafer.data.readers.rows:gpt_rows"):
    """Next-token rows.

    ``max_sequence_length`` is needed for files in the corpus format and a check for others.

    Attributes:
        data_transforms: what is done to every row while it is read, in order.
    """

    data_transforms: tuple[SinkTokens, ...] = ()

    @property
    def tokens_added(self) -> int:
        """Tokens by which ``data_transforms`` make a row longer."""
        return sum(
            own.num_sink_tokens
            for own in self.data_transforms
            if not own.truncate_to_original_length
        )

    def model_post_init(self, _: Any) -> None:
        """Refuse what would cut documents."""
        super().model_post_init(_)
        if self.data_transforms and self.use_vsl:
            message = "rows of several documents cannot take them; drop use_vsl"
            raise ConfigError([Problem(("data_transforms",), message)])


class GptHDF5MapDataProcessor(GptHDF5DataProcessor):
    """The vendor's random-access reader of the same rows."""


class BertHDF5DataProcessor(_RowsInput, task="mlm", reader="wafer.data.readers.rows:bert_rows"):
    """BERT rows: masked anew at every reading, unless the file brings masked labels.

    With ``use_vsl`` a row holds several sequences (ESM-2's proteins): ``attention_span`` and
    ``position_ids`` beside the ids. Nothing attends beyond its own.

    Attributes:
        masked_lm_prob: share of the tokens that is masked.
        max_predictions_per_seq: M, most tokens masked in a row; None is that share of a row.
        mask_id: id of [MASK]; None takes it from ``data_params.json``.
    """

    packed_files: ClassVar[bool] = True

    masked_lm_prob: Annotated[float, Field(gt=0, lt=1)] = 0.15
    max_predictions_per_seq: PositiveInt | None = None
    mask_id: NonNegativeInt | None = None


class DpoHDF5DataProcessor(_RowsInput, task="dpo", reader="wafer.data.readers.row_pairs:dpo_rows"):
    """Pairs of answers; ``reference_logps.npy`` beside them is what ``wafer score`` wrote."""

    unread = (*InputSection.unread, "max_sequence_length")  # the rows have their lengths


class DPRHDF5DataProcessor(_RowsInput, task="dpr", reader="wafer.data.readers.row_pairs:dpr_rows"):
    """Questions, each with its own context and hard negatives."""

    unread = (*InputSection.unread, "max_sequence_length")  # the rows have their lengths


class T5HDF5DataProcessor(_RowsInput, task="seq2seq", reader="wafer.data.readers.rows:t5_rows"):
    """Source and target rows: input_ids, attention_mask, decoder_input_ids, ..., labels."""

    unread = (*InputSection.unread, "max_sequence_length")  # the rows have their lengths


class BertCSVDataProcessor(InputSection, task="mlm", reader="wafer.data.readers.tokens:bert_csv"):
    """The vendor's CSV with masks drawn beforehand.

    Attributes:
        data_dir: folders of .csv files.
        disable_nsp: the rows have no next-sentence label.
        vocab_size: V, compared with the model's.
    """

    data_dir: Folders
    vocab_size: PositiveInt | None = None
    disable_nsp: Bool = False

    @property
    def decides_shapes(self) -> bool:
        """The files do."""
        return False


class T5DynamicDataProcessor(
    InputSection,
    task="seq2seq",
    reader="wafer.data.readers.tokens:t5_dynamic",
    legacy={"data_dir": "src_data_dir"},
):
    """Tokenized text, one document a line; spans are hidden anew at every reading.

    Attributes:
        src_data_dir: folders of text files; ``meta.dat`` names them, else every .txt counts.
        src_vocab_file: one token a line.
        src_max_sequence_length: of the encoder's rows.
        tgt_max_sequence_length: of the decoder's rows.
        extra_ids: sentinels after the vocabulary.
        do_lower: lower the case of tokens and vocabulary.
    """

    unread = (*InputSection.unread, "max_sequence_length")  # each half has its own

    src_data_dir: Folders
    src_vocab_file: str
    src_max_sequence_length: PositiveInt
    tgt_max_sequence_length: PositiveInt
    extra_ids: NonNegativeInt = 100
    do_lower: Bool = False
    oov_token: str = "<unk>"
    sos_token: str = "<s>"
    eos_token: str = "</s>"
    pad_token: str = "<pad>"


class TransformerDynamicDataProcessor(
    T5DynamicDataProcessor, reader="wafer.data.readers.tokens:transformer_pairs"
):
    """Tokenized text of two languages, a pair of lines at equal numbers of two files.

    One vocabulary is for both, as in the vendor's processor; pairs that do not fit are left out.

    Attributes:
        src_data_dir: folders whose ``meta.dat`` names a file of sources and one of targets a line.
        tgt_data_dir: accepted: ``meta.dat`` names both files.
        tgt_vocab_file: accepted: the vocabulary of the sources is for both.
        extra_ids: accepted: nothing is hidden.
    """

    unread = (*T5DynamicDataProcessor.unread, "extra_ids", "tgt_data_dir", "tgt_vocab_file")

    extra_ids: NonNegativeInt = 0
    tgt_data_dir: Folders | None = None
    tgt_vocab_file: str | None = None


class SyntheticDataProcessor(InputSection, reader="wafer.data.readers.synthetic:synthetic"):
    """Random token sequences of random lengths, for timing and tests.

    Attributes:
        vocab_size: V.
        num_examples: sequences per epoch.
    """

    vocab_size: PositiveInt
    max_sequence_length: PositiveInt = 512  # pyright: ignore[reportIncompatibleVariableOverride]
    num_examples: PositiveInt = 1024


class RandomDataProcessor(InputSection, reader="wafer.data.readers.random_rows:random_rows"):
    """Random rows for any task: ``task: mlm``, ``qa``, ``image``, ...; 'lm' where it is left out.

    Attributes:
        num_examples: rows per epoch.
        vocab_size: ids are below; None takes the model's.
        num_classes: of labels; None takes the model's.
        image_size: of the model's images, to be checked; None takes the model's.
        seed: changes every row.
    """

    num_examples: PositiveInt = 1024
    vocab_size: Annotated[int, Field(ge=2)] | None = None
    num_classes: PositiveInt | None = None
    image_size: PositiveInt | None = None
    seed: NonNegativeInt = 0

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> tuple[type[InputSection], Mapping[str, Any]]:
        """Take the class of the task that the section names."""
        own = {key: item for key, item in value.items() if key != "task"}
        return _random_rows(value.get("task", "lm")), own

    def to_dict(self) -> dict[str, Any]:
        """Plain YAML types that parse back to the same section."""
        return super().to_dict() | {"task": self.task}


@functools.cache
def _random_rows(task: str) -> type[RandomDataProcessor]:
    class RandomRows(RandomDataProcessor, task=task):
        """Rows of one task."""

    return RandomRows
