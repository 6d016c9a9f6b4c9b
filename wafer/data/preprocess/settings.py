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
)

from models.files import file_name
from models.sections import Bool, Section
from wafer.data.text.contexts import Contexts
from wafer.data.text.turns import Turns
from wafer.errors import ConfigError, Problem

__all__ = ["MODES", "Probability", "RunSettings", "Settings", "described"]

Mode = Literal[
    "LMData", "LMData_VSL", "Summarization", "Summarization_VSL", "FIM", "MLM", "MLM_NSP", "T5"
]
MODES: tuple[str, ...] = get_args(Mode)
Tokenizers = Literal[
    "GPT2Tokenizer", "NeoXTokenizer", "HuggingFaceTokenizer", "BertTokenizer", "TrainBPE"
]
Probability = Annotated[float, Field(ge=0, le=1)]


def _paths(value: Any) -> Any:
    """One path, a comma-separated list, or a list."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if value is None or isinstance(value, list | tuple):
        return value
    raise ValueError("expected a path, or several separated by commas")


def _shares(value: Any) -> Any:
    """A list of numbers, or text with commas."""
    return value.split(",") if isinstance(value, str) else value


def described(text: str) -> Any:
    """A field's description, which is also the command line's help."""
    return Field(description=text)


class RunSettings(Section, legacy={"max_sequence_length": "max_seq_length", "ftfy": "use_ftfy"}):
    """Keys of every preprocessing: what is read, where rows go, the tokenizer's files.

    A subclass adds ``mode``, ``use_ftfy``, ``data_format`` and ``tokenizer_type``.
    """

    mode: Any
    use_ftfy: Any

    input_dir: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(_paths),
        described("file, folder of files, or Hugging Face dataset on disk; several with commas"),
    ] = None
    metadata_files: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(_paths),
        described("text files that list input files, one to a line"),
    ] = None
    output_dir: Annotated[str, described("folder for the rows")] = "./data_dir/"
    output_name: Annotated[
        str, AfterValidator(file_name), described("prefix of the file names, without folders")
    ] = "examples"
    processes: Annotated[PositiveInt | None, described("processes that tokenize; all cores")] = None
    files_per_record: Annotated[PositiveInt, described("rows in one HDF5 file")] = 50_000
    compression: Annotated[Literal["gzip", "none"], described("of the HDF5 chunks")] = "gzip"
    write_remainder: Annotated[Bool, described("keep the last, partly filled file and rows")] = True
    resume_from_checkpoint: Annotated[
        Bool | None,
        described("true: must continue; false: begin again; default: continue if possible"),
    ] = None
    encode_special_tokens: Annotated[
        Bool, described("read special tokens that stand in a text, such as <|endoftext|>, as text")
    ] = False
    skip_bad_records: Annotated[
        Bool, described("log records that cannot be read and go on, instead of stopping")
    ] = False
    display_pbar: Annotated[Bool, described("show progress")] = True
    split: Annotated[
        tuple[PositiveFloat, ...] | None,
        Field(min_length=2),
        BeforeValidator(_shares),
        described(
            "shares such as 0.95,0.05: parts without common documents, OUTPUT_DIR/split_0, ..."
        ),
    ] = None
    seed: Annotated[NonNegativeInt, described("of everything random")] = 0

    huggingface_tokenizer: Annotated[
        str | None, described("tokenizer.json, or a folder with one (HuggingFaceTokenizer)")
    ] = None
    eos_id: Annotated[
        NonNegativeInt | None, described("end of a document; the tokenizer's own")
    ] = None
    pad_id: Annotated[NonNegativeInt | None, described("id of unused positions; eos_id")] = None

    max_seq_length: Annotated[
        Annotated[PositiveInt, Field(ge=2)], described("S, tokens in a row")
    ] = 2048
    short_seq_prob: Annotated[Probability, described("share of rows cut short at random")] = 0.0
    min_sequence_len: Annotated[NonNegativeInt, described("shorter sequences are left out")] = 10
    ftfy_normalizer: Annotated[
        Literal["NFC", "NFKC", "NFD", "NFKD"] | None,
        described("normal form that ftfy brings text to"),
    ] = "NFC"
    wikitext_detokenize: Annotated[Bool, described("undo WikiText's spaces")] = False

    fim_rate: Annotated[Probability, described("share of documents with a moved middle")] = 0.9
    spm_rate: Annotated[Probability, described("share of those with the suffix first")] = 0.5
    fim_prefix_tok: Annotated[str, described("mark before the prefix")] = "<fim_prefix>"
    fim_middle_tok: Annotated[str, described("mark before the middle")] = "<fim_middle>"
    fim_suffix_tok: Annotated[str, described("mark before the suffix")] = "<fim_suffix>"

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
    """Every key of preprocessing; the descriptions are also the command line's help.

    Attributes:
        no_effect: keys of the vendor's script that change nothing here.
    """

    no_effect: ClassVar[tuple[str, ...]] = (
        "write_in_batch",
        "split_text_to_tokenize",
        "chunk_len_to_split",
        "remove_bos_in_chunks",
    )

    mode: Annotated[Mode, described("what the rows are for")] = "LMData"
    data_format: Annotated[
        Literal["sample", "corpus"], described("rows, or one long list of tokens (LMData)")
    ] = "sample"

    tokenizer_type: Annotated[
        Tokenizers,
        described("TrainBPE learns one from the texts, the others read files"),
    ]
    vocab_file: Annotated[
        str | None, described("GPT-2's merges (vocab.bpe), or BERT's vocab.txt")
    ] = None
    encoder_file: Annotated[
        str | None, described("GPT-2's encoder.json, or NeoX's tokenizer.json")
    ] = None
    vocab_size: Annotated[
        PositiveInt | None, described("V to train, special tokens included (TrainBPE)")
    ] = None
    do_lower: Annotated[Bool, described("lower the case (BertTokenizer)")] = False

    pack_sequences: Annotated[Bool, described("let rows go on across documents")] = True
    fold_long_doc: Annotated[Bool, described("VSL: cut long documents instead of leaving out")] = (
        True
    )
    jsonl_key: Annotated[str, described("field or column with the text")] = "text"
    prompt_key: Annotated[str, described("field with the prompt")] = "prompt"
    completion_key: Annotated[str, described("field with the completion")] = "completion"
    sep_token: Annotated[str | None, described("token between prompt and completion")] = None
    multi_turn_key: Annotated[
        str | None,
        described("field with a conversation, instead of prompt and completion (messages)"),
    ] = None
    multi_turn_content_key: Annotated[str, described("where a turn holds its text")] = "content"
    multi_turn_role_key: Annotated[str, described("where a turn says who speaks")] = "role"
    contexts_key: Annotated[
        str | None,
        described("field with retrieved contexts, which go before the prompt while they fit"),
    ] = None
    context_separator: Annotated[str, described("text after each context")] = "\n\n"
    prompt_prefix: Annotated[str, described("text before each prompt")] = ""
    completion_prefix: Annotated[str, described("text before each completion, without loss")] = ""
    eos_after_prompt: Annotated[Bool, described("put eos_id after each prompt, too")] = False
    use_ftfy: Annotated[Bool, described("mend broken Unicode with ftfy")] = False

    tgt_max_sequence_length: Annotated[PositiveInt, described("T5: tokens of a target row")] = 114
    extra_ids: Annotated[NonNegativeInt, described("T5: sentinels after the vocabulary")] = 100

    write_in_batch: Any = None
    split_text_to_tokenize: Any = None
    chunk_len_to_split: Any = None
    remove_bos_in_chunks: Any = None
    inverted_mask: Annotated[Literal[False], described("not supported")] = False
    input_ids_dtype: Annotated[Literal["int32"], described("always int32")] = "int32"
    input_mask_dtype: Annotated[Literal["int32"], described("always int32")] = "int32"
    noise_density: Annotated[
        PositiveFloat, Field(lt=1), described("T5: share of hidden tokens")
    ] = 0.15
    mean_noise_span_length: Annotated[PositiveFloat, described("T5: mean hidden span")] = 3.0

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
