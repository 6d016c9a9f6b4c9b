"""Settings of a preprocessing file of the releases from 2.3 on, and the release of its rows."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt

from wafer.data.preprocess.records import Columns
from wafer.data.preprocess.settings import Probability, RunSettings, Settings, Text
from wafer.data.vendor.hooks import columns, is_vendors
from wafer.data.vendor.image_hooks import OLD_HOOK
from wafer.data.vendor.inner import ContextSplits, DocumentSplit, TokenizerParams, Truncation
from wafer.errors import ConfigError, Problem
from wafer.models.errors import did_you_mean
from wafer.models.sections import Bool

VendorMode = Literal["pretraining", "finetuning", "dpo", "nlg"]
VENDOR_MODES: tuple[str, ...] = get_args(VendorMode)
RELEASES = ("2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10")
HIDDEN = ("nested_keys", "given", "subsets")  # fields that are no keys of a file
_REGIONS = ("text", "image")  # that turns of the vendor's hooks have
_Weights = Annotated[dict[str, float], Field(default_factory=dict)]


class RowRules(NamedTuple):
    """How rows are made."""

    release: tuple[int, int]  #: (major, minor) whose rules they follow
    exact: bool  #: also where those lose a token or a rest of the text

    def __str__(self) -> str:
        name = f"{self.release[0]}.{self.release[1]}"
        if self.exact:
            return f"Rows of release {name}, as the vendor's tool writes them"
        return f"Rows of release {name} without its losses of text (release: {name} has those, too)"


def _release(value: Any) -> Any:
    """A release without its last number; 2.1 is how YAML reads 2.10, and had no such files."""
    if value is None:
        return None
    parts = str(value).removeprefix("Release_").split(".")
    found = ".".join(parts[:2])
    found = "2.10" if found == "2.1" else found
    if found not in RELEASES:
        raise ValueError(f"no release with such files; known: {', '.join(RELEASES)}")
    return found


def _arguments(value: Any) -> Any:
    """``read_hook_kwargs`` with the names that release 2.3 nests under ``data_keys``."""
    if not isinstance(value, Mapping):
        return value
    nested = value.get("data_keys")
    if nested is not None and not isinstance(nested, Mapping):
        raise ValueError("data_keys: expected a mapping of keys")
    return {k: v for k, v in value.items() if k != "data_keys"} | dict(nested or {})


class HookSettings(RunSettings):
    """Every key that has an effect; ``wafer.data.vendor.keys`` lists the others."""

    data_format: ClassVar[str] = "sample"
    tokenizer_type: ClassVar[str] = "HuggingFaceTokenizer"

    mode: VendorMode  #: what the rows are for
    #: the vendor's own rows of this release, also where they lose text
    release: Annotated[str | None, BeforeValidator(_release)] = None
    nested_keys: bool = False  # read_hook_kwargs has data_keys: a file of release 2.3
    given: Annotated[dict[str, Any], Field(default_factory=dict)]  # the file's groups
    read_hook: Text  #: module:function from a record to turns
    #: its arguments, such as text_key
    read_hook_kwargs: Annotated[dict[str, Any], BeforeValidator(_arguments)]
    #: gpt2tokenizer, neoxtokenizer, or the vendor's CustomLlama3Tokenizer
    custom_tokenizer: str | None = None
    #: encoder_file, vocab_file, pretrained_model_name_or_path
    tokenizer_params: TokenizerParams = TokenizerParams()
    use_ftfy: Bool = True  #: mend broken Unicode with ftfy
    #: of pretraining; next token
    training_objective: Literal["mlm", "fim", "bert_pretraining"] | None = None
    use_vsl: Bool = False  #: several documents side by side in a row
    pack_sequences: Bool = True  #: let rows go on across documents
    split_text_to_tokenize: Bool = False  #: encode long texts in pieces
    chunk_len_to_split: PositiveInt = 2000  #: least characters of a piece
    remove_bos_in_chunks: Bool = False  #: keep only the first piece's BOS
    inverted_mask: Bool = False  #: write 0 where loss counts and 1 elsewhere
    semantic_loss_weight: _Weights
    semantic_drop_mask: Annotated[dict[str, Bool], Field(default_factory=dict)]
    end_of_turn_token: str | None = None  #: ends a turn instead of eos
    #: shorten long documents instead of leaving out
    truncate_to_msl: Truncation | Bool | None = None
    sep_token: str | None = None  #: text after a prompt; the tokenizer's own
    chat_template: str | None = None  #: Jinja; the tokenizer's own, else ChatML
    max_prompt_length: PositiveInt = 512  #: dpo: tokens of a cut prompt
    response_delimiter: Text = "<response>"  #: dpo: mark of the answer
    mlm_fraction: Probability = 0.15  #: mlm: share of hidden tokens
    mlm_with_gather: Bool = False  #: mlm: labels of hidden tokens alone
    ignore_index: int = -100  #: mlm: label of tokens that are not hidden
    #: mlm: tokens that replace no other
    excluded_tokens: tuple[str, ...] = (
        "<cls>",
        "<pad>",
        "<eos>",
        "<unk>",
        "<null_1>",
        "<mask>",
    )
    is_multimodal: Bool = False  #: rows of texts and images
    image_dir: Text | None = None  #: folder of the images that records name
    image_token: Text = "<special_image_token>"  #: token that stands for an image in a text
    num_patches: PositiveInt = 1  #: slots of an image
    max_num_img: PositiveInt = 1  #: images of a record, and of a row
    register_special_image_token: Bool = True  #: add image_token if need be
    use_single_image_token: Bool = False  #: one slot with image_token an image
    semantic_attention_mask: Annotated[dict[str, Bool], Field(default_factory=dict)]
    #: stop with the record that brings the rows to so many tokens
    token_limit: PositiveInt | None = None
    # name -> its files and folders; each is a run of its own
    subsets: Annotated[dict[str, list[str]], Field(default_factory=dict)]
    read_chunk_size: PositiveInt = 1024  #: KB that are packed together
    shuffle: Bool = False  #: put the rows into random order
    shuffle_seed: NonNegativeInt = 0  #: of that order
    split_seed: NonNegativeInt = 0  #: of data_splits and context_splits
    data_splits: dict[str, DocumentSplit] | None = None  #: name -> split_fraction, context_splits
    context_splits: ContextSplits | None = None  #: MSL_List and split_fractions

    def model_post_init(self, _: Any) -> None:
        """Refuse what does not go together."""
        problems = []
        if self.input_dir is None and self.metadata_files is None:
            message = "missing; give setup.data with type local and source, a folder to read"
            problems.append(Problem(("data",), message))
        if not columns(self.read_hook_kwargs):
            message = "names no column; give a key that ends in _key, such as text_key: text"
            problems.append(Problem(("read_hook_kwargs",), message))
        if (self.custom_tokenizer is None) == (self.huggingface_tokenizer is None):
            message = "give exactly one of custom_tokenizer and huggingface_tokenizer"
            problems.append(Problem(("huggingface_tokenizer",), message))
        inner = [split for split in (self.data_splits or {}).values() if split.context_splits]
        if self.context_splits and inner:
            message = "stand here and under data_splits; keep one"
            problems.append(Problem(("context_splits",), message))
        if self.encode_special_tokens and self.mode != "pretraining":
            message = f"the rows of mode {self.mode} find their ends by such marks; leave it out"
            problems.append(Problem(("encode_special_tokens",), message))
        if self.training_objective is not None and self.mode != "pretraining":
            message = f"is for mode pretraining, and mode is {self.mode}"
            problems.append(Problem(("training_objective",), message))
        if problems := [*problems, *self._inner_problems(), *self._image_problems()]:
            raise ConfigError(problems)

    def _inner_problems(self) -> list[Problem]:
        """What keys of a key do not go together with."""
        problems = []
        if self.truncate_to_msl is True and self.mode == "finetuning":
            message = "true: expected keys (prompt_truncation_mode, max_turn_length)"
            problems.append(Problem(("truncate_to_msl",), message))
        if self.truncation and self.training_objective == "bert_pretraining":
            message = "keys are for mode finetuning; expected true or false"
            problems.append(Problem(("truncate_to_msl",), message))
        for key in ("semantic_loss_weight", "semantic_drop_mask", "semantic_attention_mask"):
            for name in getattr(self, key) if is_vendors(self.read_hook) else ():
                if name not in _REGIONS:
                    hint = did_you_mean(name, _REGIONS)
                    message = f"no region of the vendor's hooks{hint}; known: text, image"
                    problems.append(Problem((key, name), message))
        return problems

    def _image_problems(self) -> list[Problem]:
        """What rows of images do not go together with."""
        if not self.is_multimodal:
            return []
        clashes = {
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
        return [Problem((key,), message) for key, (wrong, message) in clashes.items() if wrong]

    @property
    def row_limit(self) -> int | None:
        """Rows that reach ``token_limit``; a row of DPO has two answers with three features."""
        tokens = self.max_seq_length * (6 if self.mode == "dpo" else 1)
        return None if self.token_limit is None else -(-self.token_limit // tokens)

    @property
    def old_images(self) -> bool:
        """Whether rows are those of a LLaVA processor of the older files."""
        return self.read_hook == OLD_HOOK

    @property
    def image_slots(self) -> int:
        """Slots that an image takes in a row."""
        return 1 if self.use_single_image_token else self.num_patches

    @property
    def rules(self) -> RowRules:
        """The newest release that takes the file, unless one is given."""
        newest = "2.3" if self.nested_keys else RELEASES[-1]
        major, minor = (self.release or newest).split(".")
        return RowRules((int(major), int(minor)), self.release is not None)

    @property
    def overlapping(self) -> bool:
        """Whether neighbouring rows of pretraining share a token: the rule of release 2.3."""
        return self.rules.release < (2, 4) or self.split_text_to_tokenize

    @property
    def fields(self) -> Columns:
        """The columns of a record that the hook reads."""
        return Columns(columns(self.read_hook_kwargs), by_line=self.rules.release >= (2, 6))

    @property
    def chunk_bytes(self) -> int:
        """Bytes of records that are packed together."""
        return self.read_chunk_size * 1024

    @property
    def vsl(self) -> bool:
        """Whether a row holds several sequences side by side."""
        return self.use_vsl and self.mode in ("pretraining", "finetuning")

    @property
    def truncation(self) -> Truncation | None:
        """How finetuning shortens long documents, or None."""
        return self.truncate_to_msl if isinstance(self.truncate_to_msl, Truncation) else None


AnySettings = Settings | HookSettings
