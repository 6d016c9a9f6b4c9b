"""Sections inside a preprocessing file: the input, the tokenizer's files, parts, shortening."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt

from wafer.data.preprocess.settings import Text
from wafer.errors import ConfigError, Problem
from wafer.models.sections import Bool, Section


def _number_or_text(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("expected a number, or text such as 1/3")
    return value


_Number = Annotated[Any, BeforeValidator(_number_or_text)]


class DataSource(Section):
    """``setup.data``."""

    type: Literal["local", "huggingface"]
    source: Text  #: a folder, or what the hub calls the data set
    split: Text | None = None  #: of type huggingface: which part is read; train
    cache_dir: Text | None = None  #: of type huggingface: where the vendor's tool has put it
    data_dir: Text | None = None  #: of type huggingface: folder inside the source
    subsets: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None  #: a run of each
    top_level_as_subsets: Bool = False  #: every folder of the source is a run of its own

    def model_post_init(self, _: Any) -> None:
        """Refuse what a local source has not."""
        keys = ("split", "cache_dir", "data_dir") if self.type == "local" else ()
        if given := [key for key in keys if getattr(self, key) is not None]:
            message = "a local source is read whole; name its folder in source, or write "
            message += "type: huggingface, which reads one split of a folder"
            raise ConfigError([Problem((key,), message) for key in given])
        if self.type == "huggingface" and self.top_level_as_subsets:
            raise ConfigError([Problem(("top_level_as_subsets",), "is for type: local")])


class TokenizerParams(Section):
    """``tokenizer_params`` of the vendor's tokenizers."""

    encoder_file: Text | None = None  #: gpt2tokenizer, neoxtokenizer
    vocab_file: Text | None = None  #: gpt2tokenizer
    pretrained_model_name_or_path: Text | None = None  #: CustomLlama3Tokenizer
    token: Any = None  #: no effect, as the others below: nothing is downloaded
    cache_dir: Any = None
    force_download: Any = None
    local_files_only: Any = None
    proxies: Any = None
    revision: Any = None
    trust_remote_code: Any = None
    use_auth_token: Any = None
    use_fast: Any = None


class Truncation(Section):
    """``truncate_to_msl`` of finetuning."""

    #: which end a prompt keeps
    prompt_truncation_mode: Literal["keep_start", "keep_end"] = "keep_end"
    max_turn_length: PositiveInt | None = None  #: tokens that each turn keeps; max_seq_length
    truncation_mode: Any = None  #: of the vendor's files, whose tool does not read it


class ContextSplits(Section):
    """Lengths of rows, and the share of the documents of each."""

    MSL_List: Annotated[tuple[_Number, ...], Field(min_length=1)]
    split_fractions: tuple[_Number, ...]


class DocumentSplit(Section):
    """A part of ``data_splits``."""

    split_fraction: _Number
    context_splits: ContextSplits | None = None
