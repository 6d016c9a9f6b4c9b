"""Data processors of token rows: HDF5 files, tokenized text, random tokens."""

import functools
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from wafer.data.sections.base import Folders, InputSection, RowsInput
from wafer.errors import ConfigError, Problem
from wafer.models.sections import Bool, Section


class SinkTokens(Section):
    """``{name: add_sink_tokens}``: tokens without loss put into every row (Xiao et al. 2023)."""

    name: Literal["add_sink_tokens"]  #: of the transform
    num_sink_tokens: PositiveInt = 1  #: how many
    sink_token_id: NonNegativeInt = 0  #: of all of them
    sink_token_start_pos: NonNegativeInt = 0  #: where they begin
    truncate_to_original_length: Bool = False  #: whether rows lose as many tokens at their end

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        name = data.get("name") if isinstance(data, Mapping) else data
        if name in ("add_memory_tokens", "add_pose_shift"):
            raise ValueError(f"{name}: not computed here: only add_sink_tokens is; drop it")
        return data


class GptHDF5DataProcessor(RowsInput, reader="wafer.data.readers.rows:gpt_rows"):
    """Next-token rows.

    ``max_sequence_length`` is needed for files in the corpus format and a check for others.
    """

    #: what is done to every row while it is read, in order
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
    """Random access to the same rows."""


class BertHDF5DataProcessor(RowsInput, task="mlm", reader="wafer.data.readers.rows:bert_rows"):
    """BERT rows: masked anew at every reading, unless the file brings masked labels.

    With ``use_vsl`` a row holds several sequences (ESM-2's proteins): ``attention_span`` and
    ``position_ids`` beside the ids. Nothing attends beyond its own.
    """

    packed_files: ClassVar[bool] = True

    #: share of the tokens that is masked
    masked_lm_prob: Annotated[float, Field(gt=0, lt=1)] = 0.15
    #: M, most tokens masked in a row; None is that share of a row
    max_predictions_per_seq: PositiveInt | None = None
    mask_id: NonNegativeInt | None = None  #: id of [MASK]; None takes it from ``data_params.json``


class _FixedRows(RowsInput):
    unread = (*InputSection.unread, "max_sequence_length")  # the rows have their lengths


class DpoHDF5DataProcessor(_FixedRows, task="dpo", reader="wafer.data.readers.row_pairs:dpo_rows"):
    """Pairs of answers; ``reference_logps.npy`` beside them is what ``wafer score`` wrote."""


class DPRHDF5DataProcessor(_FixedRows, task="dpr", reader="wafer.data.readers.row_pairs:dpr_rows"):
    """Questions, each with its own context and hard negatives."""


class T5HDF5DataProcessor(_FixedRows, task="seq2seq", reader="wafer.data.readers.rows:t5_rows"):
    """Source and target rows: input_ids, attention_mask, decoder_input_ids, ..., labels."""


class BertCSVDataProcessor(InputSection, task="mlm", reader="wafer.data.readers.tokens:bert_csv"):
    """CSV with masks drawn beforehand."""

    data_dir: Folders  #: folders of .csv files
    vocab_size: PositiveInt | None = None  #: V, compared with the model's
    disable_nsp: Bool = False  #: the rows have no next-sentence label

    @property
    def decides_shapes(self) -> bool:
        """The files do."""
        return False


class T5DynamicDataProcessor(
    InputSection,
    task="seq2seq",
    reader="wafer.data.readers.tokens:t5_dynamic",
):
    """Tokenized text, one document a line; spans are hidden anew at every reading."""

    unread = (*InputSection.unread, "max_sequence_length")  # each half has its own

    src_data_dir: Folders  #: folders of text files; ``meta.dat`` names them, else every .txt counts
    src_vocab_file: str  #: one token a line
    src_max_sequence_length: PositiveInt  #: of the encoder's rows
    tgt_max_sequence_length: PositiveInt  #: of the decoder's rows
    extra_ids: NonNegativeInt = 100  #: sentinels after the vocabulary
    do_lower: Bool = False  #: lower the case of tokens and vocabulary
    oov_token: str = "<unk>"  #: stands for words that the vocabulary lacks
    sos_token: str = "<s>"  #: begins the decoder's rows
    eos_token: str = "</s>"  #: ends a row
    pad_token: str = "<pad>"  #: fills a row up


class TransformerDynamicDataProcessor(
    T5DynamicDataProcessor, reader="wafer.data.readers.tokens:transformer_pairs"
):
    """Tokenized text of two languages, a pair of lines at equal numbers of two files.

    One vocabulary is for both; pairs that do not fit are left out.

    Attributes:
        src_data_dir: folders whose ``meta.dat`` names a file of sources and one of targets a line.
    """

    unread = (*T5DynamicDataProcessor.unread, "extra_ids", "tgt_data_dir", "tgt_vocab_file")

    extra_ids: NonNegativeInt = 0  #: accepted: nothing is hidden
    tgt_data_dir: Folders | None = None  #: accepted: ``meta.dat`` names both files
    tgt_vocab_file: str | None = None  #: accepted: the vocabulary of the sources is for both


class SyntheticDataProcessor(InputSection, reader="wafer.data.readers.synthetic:synthetic"):
    """Random token sequences of random lengths, for timing and tests."""

    vocab_size: PositiveInt  #: V
    max_sequence_length: PositiveInt = 512  # pyright: ignore[reportIncompatibleVariableOverride]
    num_examples: PositiveInt = 1024  #: sequences per epoch


def _with_task(schema: dict[str, Any]) -> None:
    meaning = "what the rows are for; 'lm' if left out"
    schema["properties"]["task"] = {"type": "string", "description": meaning}


class RandomDataProcessor(InputSection, reader="wafer.data.readers.random_rows:random_rows"):
    """Random rows for any task: ``task: mlm``, ``qa``, ``image``, ...; 'lm' if left out."""

    model_config = ConfigDict(json_schema_extra=_with_task)  # a key that ``of`` reads

    num_examples: PositiveInt = 1024  #: rows per epoch
    vocab_size: Annotated[int, Field(ge=2)] | None = None  #: ids are below; None takes the model's
    num_classes: PositiveInt | None = None  #: of labels; None takes the model's
    #: of the model's images, to be checked; None takes the model's
    image_size: PositiveInt | None = None
    seed: NonNegativeInt = 0  #: changes every row

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
