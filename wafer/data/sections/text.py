"""Data processors of text that is tokenized while it is read: fine-tuning, and Python's sources."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from wafer.data.sections.base import InputSection, TextInput
from wafer.models.sections import Bool


class SST2DataProcessor(
    TextInput, task="classification", reader="wafer.data.readers.text.classification:sst2"
):
    """GLUE's own TSV files, or JSON lines."""

    #: [CLS], [SEP] and a token; longer sentences are cut
    max_sequence_length: Annotated[int, Field(ge=3)]  # pyright: ignore[reportIncompatibleVariableOverride,reportGeneralTypeIssues]


class MNLIDataProcessor(
    TextInput, task="classification", reader="wafer.data.readers.text.classification:mnli"
):
    """GLUE's own TSV files, or MultiNLI's JSON lines."""

    #: [CLS], two [SEP] and a token; longer pairs are cut
    max_sequence_length: Annotated[int, Field(ge=4)]  # pyright: ignore[reportIncompatibleVariableOverride,reportGeneralTypeIssues]


class SquadDataProcessor(TextInput, task="qa", reader="wafer.data.readers.text.squad:squad"):
    """SQuAD version 1 JSON."""

    #: tokens between the beginnings of two windows over a long context
    doc_stride: PositiveInt = 128
    max_query_length: PositiveInt = 64  #: longer questions are cut
    max_answer_length: PositiveInt = 30  #: longest predicted answer, in tokens
    n_best_size: PositiveInt = 20  #: start and end positions considered for each window


class BertQADataProcessor(TextInput, task="qa", reader="wafer.data.readers.tokens:qa_csv"):
    """CSV of SQuAD, windows of question and context cut beforehand."""

    unread = (*InputSection.unread, "vocab_file", "do_lower")  # its rows hold ids


class BertTokenClassifierDataProcessor(
    TextInput,
    task="token_classification",
    reader="wafer.data.readers.text.token_labels:token_classification",
):
    """CoNLL-like columns, or CSV."""

    #: JSON, label -> class; None takes the labels of the file in order
    label_vocab_file: str | None = None


class BertSumCSVDataProcessor(
    TextInput, task="summarization", reader="wafer.data.readers.text.bertsum:bertsum"
):
    """Sentences and which of them a summary extracts."""

    max_cls_tokens: PositiveInt = 50  #: sentences kept of a document
    summary_sentences: PositiveInt = 3  #: sentences a predicted summary has
    #: file of addresses or hashes that says which .story files to read; None is all
    story_urls: str | None = None


class BertCSVDynamicMaskDataProcessor(
    TextInput,
    task="mlm",
    reader="wafer.data.readers.masked_lm:masked_lm",
):
    """Tokenized sentence pairs, masked anew every epoch."""

    max_predictions_per_seq: PositiveInt = 20  #: M, most tokens masked in a sequence
    #: share of the tokens that is masked
    masked_lm_prob: Annotated[float, Field(gt=0, lt=1)] = 0.15
    #: only false; pieces of a word are masked one by one
    whole_word_masking: Literal[False] = False
    disable_nsp: Bool = False  #: the rows have no next-sentence label; long ones are cut


class _Prompted(TextInput):
    """JSON lines of prompts with answers."""

    prompt_key: str = "prompt"  #: where a line holds the prompt
    sep_token: str | None = None  #: token between prompt and answer, or None
    #: token after an answer; where the vocabulary lacks the default, the one that its files name
    eos_token: str = "<|endoftext|>"


class PromptCompletionDataProcessor(_Prompted, reader="wafer.data.readers.text.pairs:prompts"):
    """JSON lines for instruction tuning and summarization."""

    #: where a line holds what follows the prompt; only this carries loss
    completion_key: str = "completion"
    #: where a line holds a conversation (``messages``) instead of the two
    multi_turn_key: str | None = None
    multi_turn_content_key: str = "content"  #: where a turn holds its text
    multi_turn_role_key: str = "role"  #: where a turn says who speaks
    prompt_prefix: str = ""  #: text before each prompt
    completion_prefix: str = ""  #: text before each completion, without loss

    @property
    def no_effect(self) -> tuple[str, ...]:
        """Keys the file sets that mean nothing here, or without ``multi_turn_key``."""
        of_turns = ("multi_turn_content_key", "multi_turn_role_key")
        fields = type(self).model_fields
        idle = [key for key in of_turns if getattr(self, key) != fields[key].default]
        return (*super().no_effect, *(idle if self.multi_turn_key is None else ()))


class PreferenceDataProcessor(
    _Prompted, task="dpo", reader="wafer.data.readers.text.preferences:preferences"
):
    """JSON lines of pairs for DPO, as ``wafer score`` wrote them."""

    chosen_key: str = "chosen"  #: where a line holds the better answer
    rejected_key: str = "rejected"  #: where it holds the worse one


class Seq2SeqDataProcessor(
    TextInput, task="seq2seq", reader="wafer.data.readers.text.pairs:seq2seq"
):
    """JSON lines or TSV of sources and targets for T5 and Transformer."""

    src_key: str = "source"  #: column of the source text
    tgt_key: str = "target"  #: column of the target text
    #: of targets; None is ``max_sequence_length``
    tgt_max_sequence_length: PositiveInt | None = None
    #: ends sources and targets; where the vocabulary lacks the default, the one its files name
    eos_token: str = "</s>"
    decoder_start_token_id: NonNegativeInt = 0  #: first input of the decoder


class DPRJsonDataProcessor(
    TextInput, task="dpr", reader="wafer.data.readers.text.retrieval:retrieval"
):
    """DPR's published JSON of questions and contexts."""

    #: of questions; None is ``max_sequence_length``
    questions_max_sequence_length: PositiveInt | None = None
    num_hard_negatives: NonNegativeInt = 1  #: negative contexts read with every question


class HuggingFaceDataProcessor(
    TextInput,
    reader="wafer.data.readers.text.saved_datasets:hugging_face",
):
    """Folders that ``save_to_disk`` of Hugging Face's ``datasets`` wrote, for next tokens.

    Texts, or ids in a column ``input_ids``, stand end to end in rows of S tokens; what fills no
    last row is dropped. With ``use_vsl`` each record is a document of its own. Every row begins
    with ``bos_token``.
    """

    unread = (*InputSection.unread, "shuffle_buffer")

    split: str | None = None  #: of folders that hold several; None is train, or validation or test
    text_key: str = "text"  #: column of texts, or of lists of texts, which a space joins
    #: first input of every row, not predicted; where the vocabulary lacks the default, the one
    #: that its files name
    bos_token: str = "<|endoftext|>"
    eos_token: str | None = None  #: token after each record; None adds none
    shuffle_buffer: PositiveInt | None = None  #: the whole dataset is shuffled here


class PyStdlibDataProcessor(InputSection, reader="wafer.data.readers.pystdlib:pystdlib"):
    """The functions of the Python standard library's sources, with a tokenizer trained on them."""

    ahead: ClassVar[str] = "wafer.data.text.functions:keep_tokens"

    vocab_size: Annotated[int, Field(ge=257)] = 2048  #: V, byte-pair vocabulary
    max_sequence_length: PositiveInt = 512  # pyright: ignore[reportIncompatibleVariableOverride]
    #: which part; the split is by function, after de-duplication
    split: Literal["train", "eval"] = "train"
    source_dir: str | None = None  #: folder of .py files; None is the running interpreter's library
    max_bytes: PositiveInt = 1024  #: longest function kept, in bytes
    shuffle: Bool = True
