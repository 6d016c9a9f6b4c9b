"""Keys of the data processors for encoders, encoder-decoders, images and fine-tuning."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from models.sections import Bool
from wafer.data.section import Folders, InputSection
from wafer.errors import ConfigError, Problem

__all__ = ["TASK_PROCESSORS", "ImageInput", "TextInput"]


class TaskInput(InputSection):
    """Rows that are complete as they are read; a batch of them is not packed.

    Attributes:
        data_dir: folders or files; a folder is searched for the names the format prescribes.
    """

    data_dir: Folders

    def model_post_init(self, _: object) -> None:
        """Say what removes padding here."""
        if self.use_vsl and self.task != "lm":
            message = (
                "packing is for next-token rows; model.enable_vts: true removes the padding of "
                "these"
            )
            raise ConfigError([Problem(("use_vsl",), message)])


class TextInput(TaskInput):
    """Text that is tokenized while it is read.

    Attributes:
        vocab_file: WordPiece vocabulary (vocab.txt, one token a line) or a tokenizer.json.
        do_lower: lower-case and strip accents, for uncased vocab.txt files.
        max_sequence_length: S, special tokens included; longer texts are cut.
    """

    vocab_file: str
    do_lower: Bool = False
    max_sequence_length: PositiveInt  # pyright: ignore[reportIncompatibleVariableOverride,reportGeneralTypeIssues]


class ClassifierInput(TextInput):
    """SST2DataProcessor and MNLIDataProcessor: GLUE's own TSV files, or JSON lines."""

    task: ClassVar[str] = "classification"


class SquadInput(TextInput):
    """SquadDataProcessor: SQuAD version 1 JSON.

    Attributes:
        doc_stride: tokens between the beginnings of two windows over a long context.
        max_query_length: longer questions are cut.
        max_answer_length: longest predicted answer, in tokens.
        n_best_size: start and end positions considered for each window.
    """

    task: ClassVar[str] = "qa"
    doc_stride: PositiveInt = 128
    max_query_length: PositiveInt = 64
    max_answer_length: PositiveInt = 30
    n_best_size: PositiveInt = 20


class TokenClassifierInput(TextInput):
    """BertTokenClassifierDataProcessor: CoNLL-like columns, or the vendor's CSV.

    Attributes:
        label_vocab_file: JSON, label -> class; None takes the labels of the file in order.
    """

    task: ClassVar[str] = "token_classification"
    label_vocab_file: str | None = None


class BertSumInput(TextInput):
    """BertSumCSVDataProcessor: sentences and which of them a summary extracts.

    Attributes:
        max_cls_tokens: sentences kept of a document.
        summary_sentences: sentences a predicted summary has.
    """

    task: ClassVar[str] = "summarization"
    max_cls_tokens: PositiveInt = 50
    summary_sentences: PositiveInt = 3


class MaskedLmInput(TextInput, legacy={"mask_whole_word": "whole_word_masking"}):
    """BertCSVDynamicMaskDataProcessor: tokenized sentence pairs, masked anew every epoch.

    Attributes:
        max_predictions_per_seq: M, most tokens masked in a sequence.
        masked_lm_prob: share of the tokens that is masked.
        whole_word_masking: only false; pieces of a word are masked one by one.
        disable_nsp: the rows have no next-sentence label; long ones are cut.
        shuffle_buffer: the whole file is shuffled here.
    """

    task: ClassVar[str] = "mlm"
    max_predictions_per_seq: PositiveInt = 20
    masked_lm_prob: Annotated[float, Field(gt=0, lt=1)] = 0.15
    whole_word_masking: Literal[False] = False
    disable_nsp: Bool = False
    shuffle_buffer: PositiveInt | None = None


class PromptCompletionInput(TextInput):
    """PromptCompletionDataProcessor: JSON lines for instruction tuning and summarization.

    Attributes:
        prompt_key: where a line holds the prompt.
        completion_key: where it holds what follows; only this carries loss.
        sep_token: token between the two, or None.
        eos_token: token after the completion.
        multi_turn_key: where a line holds a conversation (``messages``) instead of the two.
        multi_turn_content_key: where a turn holds its text.
        multi_turn_role_key: where a turn says who speaks.
        prompt_prefix: text before each prompt.
        completion_prefix: text before each completion, without loss.
    """

    prompt_key: str = "prompt"
    completion_key: str = "completion"
    sep_token: str | None = None
    eos_token: str = "<|endoftext|>"
    multi_turn_key: str | None = None
    multi_turn_content_key: str = "content"
    multi_turn_role_key: str = "role"
    prompt_prefix: str = ""
    completion_prefix: str = ""


class PreferenceInput(TextInput):
    """PreferenceDataProcessor: JSON lines of pairs for DPO, as ``wafer score`` wrote them.

    Attributes:
        prompt_key: where a line holds the prompt.
        chosen_key: where it holds the better answer.
        rejected_key: where it holds the worse one.
        sep_token: token between prompt and answer, or None.
        eos_token: token after an answer.
    """

    task: ClassVar[str] = "dpo"
    prompt_key: str = "prompt"
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    sep_token: str | None = None
    eos_token: str = "<|endoftext|>"


class Seq2SeqInput(TextInput):
    """Seq2SeqDataProcessor: JSON lines or TSV of sources and targets for T5 and Transformer.

    Attributes:
        src_key: column of the source text.
        tgt_key: column of the target text.
        tgt_max_sequence_length: of targets; None is ``max_sequence_length``.
        eos_token: ends sources and targets.
        decoder_start_token_id: first input of the decoder.
    """

    task: ClassVar[str] = "seq2seq"
    src_key: str = "source"
    tgt_key: str = "target"
    tgt_max_sequence_length: PositiveInt | None = None
    eos_token: str = "</s>"
    decoder_start_token_id: NonNegativeInt = 0


class RetrievalInput(TextInput):
    """DPRJsonDataProcessor: DPR's published JSON of questions and contexts.

    Attributes:
        questions_max_sequence_length: of questions; None is ``max_sequence_length``.
        num_hard_negatives: negative contexts read with every question.
    """

    task: ClassVar[str] = "dpr"
    questions_max_sequence_length: PositiveInt | None = None
    num_hard_negatives: NonNegativeInt = 1


class LlavaInput(TaskInput):
    """LlavaHDF5MapDataProcessor: HDF5 rows with an image each.

    Attributes:
        img_data_dir: folder of the images that ``img_path`` names.
        image_data_size: (C, h, w) the tower takes; None is the model's.
    """

    task: ClassVar[str] = "image_text"
    img_data_dir: str
    image_data_size: tuple[PositiveInt, PositiveInt, PositiveInt] | None = None


class ImageInput(TaskInput, legacy={"drop_last_batch": "drop_last"}):
    """MNISTDataProcessor: IDX files as published, gzipped or not.

    Attributes:
        to_float16: accepted; images are float32 and the model casts.
    """

    task: ClassVar[str] = "image"
    to_float16: Bool | None = None


class DigitsInput(InputSection, legacy={"drop_last_batch": "drop_last"}):
    """DigitsDataProcessor: the 1,797 digits of 8 x 8 pixels that scikit-learn brings.

    Attributes:
        split: which part; the last fifth is held out.
    """

    task: ClassVar[str] = "image"
    split: Literal["train", "eval"] | None = None


TASK_PROCESSORS: dict[str, type[InputSection]] = {
    "SST2DataProcessor": ClassifierInput,
    "MNLIDataProcessor": ClassifierInput,
    "SquadDataProcessor": SquadInput,
    "BertTokenClassifierDataProcessor": TokenClassifierInput,
    "BertSumCSVDataProcessor": BertSumInput,
    "BertCSVDynamicMaskDataProcessor": MaskedLmInput,
    "PromptCompletionDataProcessor": PromptCompletionInput,
    "Seq2SeqDataProcessor": Seq2SeqInput,
    "DPRJsonDataProcessor": RetrievalInput,
    "LlavaHDF5MapDataProcessor": LlavaInput,
    "MNISTDataProcessor": ImageInput,
    "DigitsDataProcessor": DigitsInput,
    "PreferenceDataProcessor": PreferenceInput,
}
