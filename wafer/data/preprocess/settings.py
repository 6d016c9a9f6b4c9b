"""Settings of ``wafer data preprocess``: flags, or the vendor's YAML, checked before any work.

The YAML may group keys under ``setup``, ``processing`` and ``dataset`` as the vendor's does, or
list them flat; a flag wins over the file.
"""

import abc
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from wafer.data.text.contexts import Contexts
from wafer.data.text.turns import Turns
from wafer.errors import ConfigError, Problem
from wafer.models.files import file_name
from wafer.models.sections import Bool, Section

Mode = Literal[
    "LMData", "LMData_VSL", "Summarization", "Summarization_VSL", "FIM", "MLM", "MLM_NSP", "T5"
]
MODES: tuple[str, ...] = get_args(Mode)
Tokenizers = Literal[
    "GPT2Tokenizer", "NeoXTokenizer", "HuggingFaceTokenizer", "BertTokenizer", "TrainBPE"
]
Text = Annotated[str, Field(min_length=1)]
Probability = Annotated[float, Field(ge=0, le=1)]


def _paths(value: Any) -> Any:
    """One path, a comma-separated list, or a list."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if value is None or (isinstance(value, list | tuple) and value):
        return value
    raise ValueError("expected a path, or several separated by commas")


def _shares(value: Any) -> Any:
    """A list of numbers, or text with commas."""
    return value.split(",") if isinstance(value, str) else value


class RunSettings(Section):
    """Keys of every preprocessing: what is read, where rows go, the tokenizer's files.

    A subclass adds ``mode``, ``use_ftfy``, ``data_format`` and ``tokenizer_type``.
    """

    mode: Any
    use_ftfy: Any

    #: file, folder of files, or Hugging Face dataset on disk; several with commas
    input_dir: Annotated[tuple[str, ...] | None, BeforeValidator(_paths)] = None
    #: text files that list input files, one to a line
    metadata_files: Annotated[tuple[str, ...] | None, BeforeValidator(_paths)] = None
    output_dir: Text = "./data_dir/"  #: folder for the rows
    #: prefix of the file names, without folders
    output_name: Annotated[str, AfterValidator(file_name)] = "examples"
    processes: PositiveInt | None = None  #: processes that tokenize; all cores
    files_per_record: PositiveInt = 50_000  #: rows in one HDF5 file
    compression: Literal["gzip", "none"] = "gzip"  #: of the HDF5 chunks
    write_remainder: Bool = True  #: keep the last, partly filled file and rows
    #: true: must continue; false: begin again; default: continue if possible
    resume_from_checkpoint: Bool | None = None
    #: read special tokens that stand in a text, such as <|endoftext|>, as text
    encode_special_tokens: Bool = False
    #: log records that cannot be read and go on, instead of stopping
    skip_bad_records: Bool = False
    display_pbar: Bool = True  #: show progress
    #: shares such as 0.95,0.05: parts without common documents, OUTPUT_DIR/split_0, ...
    split: Annotated[
        tuple[PositiveFloat, ...] | None, Field(min_length=2), BeforeValidator(_shares)
    ] = None
    seed: NonNegativeInt = 0  #: of everything random

    #: tokenizer.json, or a folder with one (HuggingFaceTokenizer)
    huggingface_tokenizer: Text | None = None
    eos_id: NonNegativeInt | None = None  #: end of a document; the tokenizer's own
    pad_id: NonNegativeInt | None = None  #: id of unused positions; eos_id

    max_seq_length: Annotated[PositiveInt, Field(ge=2)] = 2048  #: S, tokens in a row
    short_seq_prob: Probability = 0.0  #: share of rows cut short at random
    min_sequence_len: NonNegativeInt = 10  #: shorter sequences are left out
    #: normal form that ftfy brings text to
    ftfy_normalizer: Literal["NFC", "NFKC", "NFD", "NFKD"] | None = "NFC"
    wikitext_detokenize: Bool = False  #: undo WikiText's spaces

    fim_rate: Probability = 0.9  #: share of documents with a moved middle
    spm_rate: Probability = 0.5  #: share of those with the suffix first
    fim_prefix_tok: Text = "<fim_prefix>"  #: mark before the prefix
    fim_middle_tok: Text = "<fim_middle>"  #: mark before the middle
    fim_suffix_tok: Text = "<fim_suffix>"  #: mark before the suffix

    @model_validator(mode="before")
    @classmethod
    def _other_names(cls, data: Any) -> Any:
        names = {"max_sequence_length": "max_seq_length", "ftfy": "use_ftfy"}
        return {names.get(key, key): value for key, value in data.items()}

    @property
    @abc.abstractmethod
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of a record."""

    @property
    def row_limit(self) -> int | None:
        """Rows after which to stop; None makes all."""
        return None

    @property
    def chunk_bytes(self) -> int | None:
        """Bytes of records that are packed together; None where rows do not depend on it."""
        return None


class Settings(RunSettings):
    """Every key of preprocessing; their meanings are also the command line's help."""

    #: keys of the vendor's script that change nothing here
    no_effect: ClassVar[tuple[str, ...]] = (
        "write_in_batch",
        "split_text_to_tokenize",
        "chunk_len_to_split",
        "remove_bos_in_chunks",
    )

    mode: Mode = "LMData"  #: what the rows are for
    #: rows, or one long list of tokens (LMData)
    data_format: Literal["sample", "corpus"] = "sample"

    tokenizer_type: Tokenizers  #: TrainBPE learns one from the texts, the others read files
    vocab_file: str | None = None  #: GPT-2's merges (vocab.bpe), or BERT's vocab.txt
    encoder_file: str | None = None  #: GPT-2's encoder.json, or NeoX's tokenizer.json
    vocab_size: PositiveInt | None = None  #: V to train, special tokens included (TrainBPE)
    do_lower: Bool = False  #: lower the case (BertTokenizer)

    pack_sequences: Bool = True  #: let rows go on across documents
    fold_long_doc: Bool = True  #: VSL: cut long documents instead of leaving out
    jsonl_key: str = "text"  #: field or column with the text
    prompt_key: str = "prompt"  #: field with the prompt
    completion_key: str = "completion"  #: field with the completion
    sep_token: str | None = None  #: token between prompt and completion
    #: field with a conversation, instead of prompt and completion (messages)
    multi_turn_key: str | None = None
    multi_turn_content_key: str = "content"  #: where a turn holds its text
    multi_turn_role_key: str = "role"  #: where a turn says who speaks
    #: field with retrieved contexts, which go before the prompt while they fit
    contexts_key: str | None = None
    context_separator: str = "\n\n"  #: text after each context
    prompt_prefix: str = ""  #: text before each prompt
    completion_prefix: str = ""  #: text before each completion, without loss
    eos_after_prompt: Bool = False  #: put eos_id after each prompt, too
    use_ftfy: Bool = False  #: mend broken Unicode with ftfy

    tgt_max_sequence_length: PositiveInt = 114  #: T5: tokens of a target row
    extra_ids: NonNegativeInt = 100  #: T5: sentinels after the vocabulary

    write_in_batch: Any = None
    split_text_to_tokenize: Any = None
    chunk_len_to_split: Any = None
    remove_bos_in_chunks: Any = None
    inverted_mask: Literal[False] = False  #: not supported
    input_ids_dtype: Literal["int32"] = "int32"  #: always int32
    input_mask_dtype: Literal["int32"] = "int32"  #: always int32
    noise_density: Annotated[PositiveFloat, Field(lt=1)] = 0.15  #: T5: share of hidden tokens
    mean_noise_span_length: PositiveFloat = 3.0  #: T5: mean hidden span

    def model_post_init(self, _: Any) -> None:
        """Refuse what does not go together."""
        problems = []
        if self.input_dir is None and self.metadata_files is None:
            message = "missing; give a file or folder to read, or metadata_files"
            problems.append(Problem(("input_dir",), message))
        if self.data_format == "corpus" and self.mode != "LMData":
            message = f"a corpus is a list of tokens without rows, but {self.mode} needs rows"
            problems.append(Problem(("data_format",), f"{message}; use sample"))
        if self.tokenizer_type == "TrainBPE" and self.vocab_size is None:
            message = "missing; tokenizer_type TrainBPE trains a vocabulary of this size"
            problems.append(Problem(("vocab_size",), message))
        if self.multi_turn_key is not None and not self.mode.startswith("Summarization"):
            message = f"names conversations, but mode {self.mode} reads texts; use Summarization"
            problems.append(Problem(("multi_turn_key",), message))
        if self.contexts_key is not None:
            summarizes = self.mode.startswith("Summarization")
            if not summarizes or self.multi_turn_key is not None:
                other = "a conversation" if summarizes else f"mode {self.mode}"
                message = f"contexts go before a prompt, but {other} has none of its own"
                problems.append(Problem(("contexts_key",), f"{message}; use Summarization"))
        if problems:
            raise ConfigError(problems)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the text fields of a record."""
        if self.multi_turn_key is not None:
            field = self.multi_turn_key
            return (Turns(field, self.multi_turn_content_key, self.multi_turn_role_key),)
        if self.mode.startswith("Summarization"):
            contexts = () if self.contexts_key is None else (Contexts(self.contexts_key),)
            return (*contexts, self.prompt_key, self.completion_key)
        return (self.jsonl_key,)

    @property
    def vsl(self) -> bool:
        """Whether a row holds several sequences side by side."""
        return self.mode.endswith("_VSL")
