"""Settings of preprocessing, checked before any work."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from wafer.data.preprocess.records import Columns
from wafer.errors import ConfigError, Problem
from wafer.models.errors import did_you_mean
from wafer.models.files import file_name
from wafer.models.sections import Bool, Section

Mode = Literal["pretraining", "finetuning", "dpo", "nlg"]
Objective = Literal["mlm", "fim", "bert_pretraining", "dynamic_mlm", "nsp", "t5"]
Tokenizers = Literal[
    "GPT2Tokenizer", "NeoXTokenizer", "HuggingFaceTokenizer", "BertTokenizer", "TrainBPE"
]
HIDDEN = ("rules", "described", "subsets")  # fields that are no keys of a file
_PLAIN = ("fim", "dynamic_mlm", "nsp", "t5")  # objectives for texts without the tokenizer's marks
_MARKED = ("mlm", "fim", "bert_pretraining")
_REGIONS = ("text", "image")  # that turns of our hooks have
_LISTS = ("turns_key", "contexts_key")  # arguments of hooks that name columns of lists

Text = Annotated[str, Field(min_length=1)]
Probability = Annotated[float, Field(ge=0, le=1)]

_OF_THE_WHOLE = {
    "tokenizer_type": "TrainBPE learns from the whole input. First, without shards: wafer data "
    "preprocess --tokenizer_type TrainBPE --input_dir SAMPLE --output_dir VOCABULARY; then the "
    "shards with --tokenizer_type HuggingFaceTokenizer --huggingface_tokenizer VOCABULARY",
    "split": "the shares are those of the whole input. Leave it out; after `wafer data merge OUT`: "
    "wafer data split -i OUT -o PARTS --ratios 0.95,0.05. data_splits works with shards",
    "shuffle": "the order is that of all rows. Leave it out; after `wafer data merge OUT`: wafer "
    "data shuffle -i OUT -o SHUFFLED",
    "token_limit": "it counts the rows of the whole input. List fewer files in metadata_files",
}  # keys whose effect needs all of the input: what to do instead


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


def _number_or_text(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("expected a number, or text such as 1/3")
    return value


_Number = Annotated[Any, BeforeValidator(_number_or_text)]
_Paths = Annotated[tuple[str, ...] | None, BeforeValidator(_paths)]
_Weights = Annotated[dict[str, float], Field(default_factory=dict)]
_Switches = Annotated[dict[str, Bool], Field(default_factory=dict)]


class RowRules(Section):
    """Details of rows in which files of different origin differ."""

    plain: Bool = False  #: texts are encoded one by one, without the tokenizer's own marks
    named_marks: Bool = True  #: the tokenizer's files name its marks, and are kept beside the rows
    overlap: Bool = False  #: neighbouring rows of pretraining share a token
    lossy: Bool = False  #: marks replace last tokens, rests and ends of long texts are dropped
    lines: Bool = True  #: each line of a text file is a record
    gaps: Bool = True  #: a region may end between two tokens
    answer_marks: Bool = False  #: dpo: special tokens before prompts, end marks behind answers


class Truncation(Section):
    """``truncate_to_msl`` of finetuning."""

    #: which end a prompt keeps
    prompt_truncation_mode: Literal["keep_start", "keep_end"] = "keep_end"
    max_turn_length: PositiveInt | None = None  #: tokens that each turn keeps; max_seq_length


class ContextSplits(Section):
    """Lengths of rows, and the share of the documents of each."""

    MSL_List: Annotated[tuple[_Number, ...], Field(min_length=1)]
    split_fractions: tuple[_Number, ...]


class DocumentSplit(Section):
    """A part of ``data_splits``."""

    split_fraction: _Number
    context_splits: ContextSplits | None = None


class Settings(Section):
    """Every key of preprocessing; their meanings are also the command line's help."""

    mode: Mode  #: what the rows are for
    #: of pretraining; next token
    training_objective: Objective | None = None
    read_hook: Text  #: module:function from a record to turns
    #: its arguments, such as text_key
    read_hook_kwargs: Annotated[dict[str, Any], Field(default_factory=dict)]
    rules: RowRules = RowRules()
    # further keys of data_params.json
    described: Annotated[dict[str, Any], Field(default_factory=dict)]
    # name -> its files and folders; each is a run of its own
    subsets: Annotated[dict[str, list[str]], Field(default_factory=dict)]

    #: file, folder of files, or Hugging Face dataset on disk; several with commas
    input_dir: _Paths = None
    #: text files that list input files, one to a line
    metadata_files: _Paths = None
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
    #: I/N: only part I (from 0) of N of the input, for `wafer data merge`; slurm: by the array
    shard: Text | None = None
    shards: PositiveInt | None = None  #: N: all N parts, one after the other, and merge them
    seed: NonNegativeInt = 0  #: of everything random
    shuffle: Bool = False  #: put the rows into random order
    shuffle_seed: NonNegativeInt = 0  #: of that order
    split_seed: NonNegativeInt = 0  #: of data_splits and context_splits
    data_splits: dict[str, DocumentSplit] | None = None  #: name -> split_fraction, context_splits
    context_splits: ContextSplits | None = None  #: MSL_List and split_fractions
    #: stop with the record that brings the rows to so many tokens
    token_limit: PositiveInt | None = None
    read_chunk_size: PositiveInt = 1024  #: KB that are packed together

    tokenizer_type: Tokenizers  #: TrainBPE learns one from the texts, the others read files
    #: tokenizer.json, or a folder with one (HuggingFaceTokenizer)
    huggingface_tokenizer: Text | None = None
    vocab_file: Text | None = None  #: GPT-2's merges (vocab.bpe), or BERT's vocab.txt
    encoder_file: Text | None = None  #: GPT-2's encoder.json, or NeoX's tokenizer.json
    vocab_size: PositiveInt | None = None  #: V to train, special tokens included (TrainBPE)
    do_lower: Bool = False  #: lower the case (BertTokenizer)
    eos_id: NonNegativeInt | None = None  #: end of a document; the tokenizer's own
    pad_id: NonNegativeInt | None = None  #: id of unused positions; eos_id

    #: rows, or one long list of tokens (LMData)
    data_format: Literal["sample", "corpus"] = "sample"
    max_seq_length: Annotated[PositiveInt, Field(ge=2)] = 2048  #: S, tokens in a row
    short_seq_prob: Probability = 0.0  #: share of rows cut short at random
    min_sequence_len: NonNegativeInt = 10  #: shorter sequences are left out
    use_vsl: Bool = False  #: several documents side by side in a row
    pack_sequences: Bool = True  #: let rows go on across documents
    fold_long_doc: Bool = True  #: VSL: cut long documents instead of leaving out
    inverted_mask: Bool = False  #: write 0 where loss counts and 1 elsewhere
    use_ftfy: Bool = False  #: mend broken Unicode with ftfy
    #: normal form that ftfy brings text to
    ftfy_normalizer: Literal["NFC", "NFKC", "NFD", "NFKD"] | None = "NFC"
    wikitext_detokenize: Bool = False  #: undo WikiText's spaces
    split_text_to_tokenize: Bool = False  #: encode long texts in pieces
    chunk_len_to_split: PositiveInt = 2000  #: least characters of a piece
    remove_bos_in_chunks: Bool = False  #: keep only the first piece's BOS
    semantic_loss_weight: _Weights
    semantic_drop_mask: _Switches

    sep_token: str | None = None  #: token or text between prompt and completion
    context_separator: str = "\n\n"  #: text after each context
    prompt_prefix: str = ""  #: text before each prompt
    completion_prefix: str = ""  #: text before each completion, without loss
    eos_after_prompt: Bool = False  #: put eos_id after each prompt, too
    end_of_turn_token: str | None = None  #: ends a turn instead of eos
    #: shorten long documents instead of leaving out
    truncate_to_msl: Truncation | Bool | None = None
    chat_template: str | None = None  #: Jinja; the tokenizer's own, else ChatML
    max_prompt_length: PositiveInt = 512  #: dpo: tokens of a cut prompt
    response_delimiter: Text = "<response>"  #: dpo: mark of the answer

    fim_rate: Probability = 0.9  #: share of documents with a moved middle
    spm_rate: Probability = 0.5  #: share of those with the suffix first
    fim_prefix_tok: Text = "<fim_prefix>"  #: mark before the prefix
    fim_middle_tok: Text = "<fim_middle>"  #: mark before the middle
    fim_suffix_tok: Text = "<fim_suffix>"  #: mark before the suffix
    mlm_fraction: Probability = 0.15  #: mlm: share of hidden tokens
    mlm_with_gather: Bool = False  #: mlm: labels of hidden tokens alone
    ignore_index: int = -100  #: mlm: label of tokens that are not hidden
    #: mlm: tokens that replace no other
    excluded_tokens: tuple[str, ...] = ("<cls>", "<pad>", "<eos>", "<unk>", "<null_1>", "<mask>")
    tgt_max_sequence_length: PositiveInt = 114  #: T5: tokens of a target row
    extra_ids: NonNegativeInt = 100  #: T5: sentinels after the vocabulary
    noise_density: Annotated[PositiveFloat, Field(lt=1)] = 0.15  #: T5: share of hidden tokens
    mean_noise_span_length: PositiveFloat = 3.0  #: T5: mean hidden span

    is_multimodal: Bool = False  #: rows of texts and images
    image_dir: Text | None = None  #: folder of the images that records name
    image_token: Text = "<special_image_token>"  #: token that stands for an image in a text
    num_patches: PositiveInt = 1  #: slots of an image
    max_num_img: PositiveInt = 1  #: images of a record, and of a row
    register_special_image_token: Bool = True  #: add image_token if need be
    use_single_image_token: Bool = False  #: one slot with image_token an image
    semantic_attention_mask: _Switches

    def model_post_init(self, _: object) -> None:
        """Refuse what does not go together."""
        clashes = {**self._clashes(), **(self._image_clashes() if self.is_multimodal else {})}
        problems = [Problem((key,), message) for key, (wrong, message) in clashes.items() if wrong]
        for key in ("semantic_loss_weight", "semantic_drop_mask", "semantic_attention_mask"):
            for name in getattr(self, key) if ":" not in self.read_hook else ():
                if name not in _REGIONS:
                    hint = did_you_mean(name, _REGIONS)
                    message = f"no region of this read_hook{hint}; known: text, image"
                    problems.append(Problem((key, name), message))
        if problems:
            raise ConfigError(problems)

    def _clashes(self) -> dict[str, tuple[Any, str]]:
        """Key -> whether it is wrong, and why."""
        objective, plain = self.training_objective, self.rules.plain
        inner = [split for split in (self.data_splits or {}).values() if split.context_splits]
        rows = "use_vsl" if self.use_vsl else objective or (self.mode if self._tunes else "")
        known = _PLAIN if plain else _MARKED
        shorten = {
            self.mode == "finetuning": "true: expected keys (prompt_truncation_mode, "
            "max_turn_length)",
            objective == "bert_pretraining": "keys are for mode finetuning; expected true or false",
        }
        whole = {} if self.shard is None and self.shards is None else _OF_THE_WHOLE
        trained = self.tokenizer_type == "TrainBPE"
        given = {key: getattr(self, key) for key in _OF_THE_WHOLE} | {"tokenizer_type": trained}
        return {
            **{key: (given[key], f"with shards: {why}") for key, why in whole.items()},
            "input_dir": (
                self.input_dir is None and self.metadata_files is None,
                "missing; give a file or folder to read, or metadata_files",
            ),
            "read_hook_kwargs": (
                not self.columns.names,
                "names no column; give a key that ends in _key, such as text_key: text",
            ),
            "vocab_size": (
                self.tokenizer_type == "TrainBPE" and self.vocab_size is None,
                "missing; tokenizer_type TrainBPE trains a vocabulary of this size",
            ),
            "data_format": (
                self.data_format == "corpus" and (rows or not plain),
                f"a corpus is a list of tokens without rows, but {rows or 'a chunk'} needs rows; "
                "use sample",
            ),
            "context_splits": (
                self.context_splits and inner,
                "stand here and under data_splits; keep one",
            ),
            "encode_special_tokens": (
                self.encode_special_tokens and self._tunes and not plain,
                f"the rows of mode {self.mode} find their ends by such marks; leave it out",
            ),
            "training_objective": (
                objective is not None and (self._tunes or objective not in known),
                f"is for mode pretraining, and mode is {self.mode}"
                if self._tunes
                else f"{objective!r}: expected one of {', '.join(known)}",
            ),
            "truncate_to_msl": (
                (self.truncate_to_msl is True and self.mode == "finetuning")
                or (self.truncation and objective == "bert_pretraining"),
                shorten.get(True, ""),
            ),
        }

    def _image_clashes(self) -> dict[str, tuple[Any, str]]:
        """What rows of images do not go together with."""
        return {
            "use_vsl": (self.use_vsl, "rows of images hold no sequences side by side"),
            "training_objective": (self.training_objective, "rows of images predict next tokens"),
            "truncate_to_msl": (self.truncate_to_msl, "images cannot be shortened"),
            "split_text_to_tokenize": (self.split_text_to_tokenize, "images stand in one text"),
            "is_multimodal": (
                self.mode not in ("pretraining", "finetuning"),
                f"rows of mode {self.mode} have no images; use pretraining or finetuning",
            ),
            "image_dir": (self.image_dir is None, "missing; name the folder of the images"),
            "num_patches": (
                self.image_slots >= self.max_seq_length,
                f"an image of {self.image_slots} slots needs rows of more than "
                f"{self.max_seq_length} tokens (max_seq_length)",
            ),
        }

    @property
    def _tunes(self) -> bool:
        return self.mode != "pretraining"

    @property
    def columns(self) -> Columns:
        """The columns of a record that the hook reads."""
        plain = self.rules.plain and not self.is_multimodal
        given = self.read_hook_kwargs
        lists = tuple(given[key] for key in _LISTS if given.get(key)) if plain else ()
        return Columns(columns(given), lists, lenient=not plain, by_line=self.rules.lines)

    @property
    def image_slots(self) -> int:
        """Slots that an image takes in a row."""
        return 1 if self.use_single_image_token else self.num_patches

    @property
    def row_limit(self) -> int | None:
        """Rows that reach ``token_limit``; a row of DPO has two answers with three features."""
        tokens = self.max_seq_length * (6 if self.mode == "dpo" else 1)
        return None if self.token_limit is None else -(-self.token_limit // tokens)

    @property
    def overlap(self) -> bool:
        """Whether neighbouring rows of pretraining share a token."""
        return self.rules.overlap or self.split_text_to_tokenize

    @property
    def chunk_bytes(self) -> int | None:
        """Bytes of records that are packed together; None where rows do not depend on it."""
        return None if self.rules.plain else self.read_chunk_size * 1024

    @property
    def vsl(self) -> bool:
        """Whether a row holds several sequences side by side."""
        return self.use_vsl and self.mode in ("pretraining", "finetuning")

    @property
    def truncation(self) -> Truncation | None:
        """How finetuning shortens long documents, or None."""
        return self.truncate_to_msl if isinstance(self.truncate_to_msl, Truncation) else None


def columns(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns that a hook reads: the values of its arguments that end in ``_key``."""
    keys = [key for key in arguments if key.endswith("_key")]
    return tuple(dict.fromkeys(str(arguments[key]) for key in keys if arguments[key]))
