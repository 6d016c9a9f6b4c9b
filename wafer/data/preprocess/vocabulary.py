"""The tokenizer of a preprocessing run: loaded from the vendor's files, or trained on the input."""

import pathlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from wafer.data.preprocess.settings import RunSettings, Settings
from wafer.data.text.textfiles import read_json, text_lines, words_of
from wafer.data.text.tokenizer import load_tokenizer, tokenizing, train_bpe
from wafer.data.text.wordpiece import load_vocabulary
from wafer.data.vendor.special import SpecialTokens
from wafer.errors import DataError

END_MARKS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]")
_PADS = ("<pad>", "[PAD]", "<|pad|>")


class RowVocabulary(NamedTuple):
    """Ids that the rows need."""

    size: int  #: V, sentinels of T5 included
    eos_id: int  #: end of a document
    pad_id: int  #: unused positions
    sep_id: int | None = None  #: between prompt and completion, or None
    cls_id: int | None = None  #: begins a BERT row, or None
    mask_id: int | None = None  #: hides a token of a BERT row, or None
    fim: tuple[int, int, int] | None = None  #: ids of the prefix, middle and suffix marks, or None
    #: ids before each prompt, and before each completion
    before: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    #: texts of the special tokens, of a vendor's file with a read hook
    special: SpecialTokens = SpecialTokens()
    image_id: int | None = None  #: stands for an image in a text, or None


def _existing(settings: Settings, key: str) -> pathlib.Path:
    value = getattr(settings, key)
    if value is None:
        raise DataError(f"{key}: missing; tokenizer_type {settings.tokenizer_type} needs it")
    path = pathlib.Path(value)
    if key == "huggingface_tokenizer" and path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        hint = (
            "; names on the Hugging Face hub are not fetched here: download its tokenizer.json "
            "and name that file"
            if key == "huggingface_tokenizer"
            else ""
        )
        raise DataError(f"{key}: no such file: {path}{hint}")
    return path


def gpt2_tokenizer(encoder: pathlib.Path, merges: pathlib.Path) -> Tokenizer:
    """Make a byte-level BPE from the two files of OpenAI's release, in the vendor's naming."""
    lines = text_lines(merges)
    pairs = [tuple(words_of(line)) for line in lines if line and not line.startswith("#version")]
    vocab = read_json(encoder)
    tokenizer = Tokenizer(models.BPE(vocab, [(a, b) for a, b in pairs]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([end for end in END_MARKS[:1] if end in vocab])
    return tokenizer


def _wanted(settings: Settings) -> list[str]:
    """Special tokens that the mode needs besides the end mark."""
    wanted = []
    if settings.mode.startswith("MLM"):
        wanted += ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    if settings.mode == "FIM":
        wanted += [settings.fim_prefix_tok, settings.fim_middle_tok, settings.fim_suffix_tok]
    if settings.sep_token is not None and settings.mode.startswith("Summarization"):
        wanted.append(settings.sep_token)
    return wanted


def _trained_size(settings: Settings) -> int:
    """Tokens to train: ``vocab_size`` without the special tokens that come on top."""
    wanted, size = _wanted(settings), settings.vocab_size or 0
    if size < (least := 257 + len(wanted)):
        parts = ", ".join(["the 256 bytes", "the end mark", *wanted])
        raise DataError(f"vocab_size: {size} cannot hold {parts}; use {least} or more")
    return size - len(wanted)


def build_vocabulary(settings: Settings, texts: Iterable[str]) -> Tokenizer:
    """Load the tokenizer, or train it.

    Args:
        settings: name the tokenizer's kind and files.
        texts: the input, read only to train on.

    Raises:
        DataError: missing files, or files that do not hold a tokenizer.
    """
    kind = settings.tokenizer_type
    try:
        if kind == "TrainBPE":
            tokenizer = train_bpe(texts, _trained_size(settings))
        elif kind == "GPT2Tokenizer":
            tokenizer = gpt2_tokenizer(
                _existing(settings, "encoder_file"), _existing(settings, "vocab_file")
            )
        elif kind == "BertTokenizer":
            path = str(_existing(settings, "vocab_file"))
            tokenizer = load_vocabulary(path, do_lower=settings.do_lower).tokenizer
        else:
            key = "encoder_file" if kind == "NeoXTokenizer" else "huggingface_tokenizer"
            tokenizer = load_tokenizer(_existing(settings, key))
    except DataError:
        raise
    except Exception as error:  # the tokenizers library raises plain Exception
        raise DataError(f"tokenizer_type {kind}: cannot make the tokenizer: {error}") from error
    added = [name for name in _wanted(settings) if tokenizer.token_to_id(name) is None]
    if added and (kind == "TrainBPE" or settings.sep_token in added):
        tokenizer.add_special_tokens([AddedToken(name, special=True) for name in added])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def first_of(tokenizer: Tokenizer, names: Sequence[str]) -> int | None:
    """Id of the first of these tokens that the vocabulary has."""
    ids = (tokenizer.token_to_id(name) for name in names)
    return next((i for i in ids if i is not None), None)


def needed(tokenizer: Tokenizer, name: str, key: str) -> int:
    """Return the id of a token that a mode cannot do without.

    Args:
        tokenizer: whose vocabulary is searched.
        name: of the token.
        key: of the settings, for the message.

    Raises:
        DataError: the vocabulary lacks it.
    """
    index = tokenizer.token_to_id(name)
    if index is None:
        raise DataError(
            f"{key}: the tokenizer has no token {name!r}. Name the one it has, or use a tokenizer "
            "with it"
        )
    return index


def fim_ids(
    settings: RunSettings, tokenizer: Tokenizer, ids: RowVocabulary
) -> tuple[int, int, int]:
    """Return the ids of the prefix, middle and suffix marks.

    Args:
        settings: that name the marks.
        tokenizer: that has them.
        ids: the end mark and padding, which are none of them.

    Raises:
        DataError: the vocabulary lacks one, or one has two meanings.
    """
    taken, marks = {ids.pad_id: "padding", ids.eos_id: "the end mark"}, []
    for key in ("fim_prefix_tok", "fim_middle_tok", "fim_suffix_tok"):
        name = getattr(settings, key)
        index = needed(tokenizer, name, key)
        if index in taken:
            raise DataError(f"{key}: {name!r} is {taken[index]}, too; name a token of its own")
        taken[index] = key
        marks.append(index)
    pre, mid, suf = marks
    return pre, mid, suf


def check_ids(size: int, eos_id: int, pad_id: int) -> None:
    """Check the ids of the end mark and of padding against the size of the vocabulary.

    Args:
        size: V.
        eos_id: of the end mark.
        pad_id: of padding.

    Raises:
        DataError: one is outside.
    """
    for key, value in (("eos_id", eos_id), ("pad_id", pad_id)):
        if value >= size:
            raise DataError(f"{key}: {value} is outside the vocabulary of {size} tokens")


def describe(settings: Settings, tokenizer: Tokenizer) -> RowVocabulary:
    """Look up the ids that the mode needs.

    Raises:
        DataError: a token that the mode needs is not in the vocabulary, an id outside it.
    """
    size = tokenizer.get_vocab_size()
    eos_id = first_of(tokenizer, END_MARKS) if settings.eos_id is None else settings.eos_id
    if eos_id is None:
        raise DataError(f"eos_id: the tokenizer has none of {', '.join(END_MARKS)}; give its id")
    pad_id = settings.pad_id
    if pad_id is None:
        own = first_of(tokenizer, _PADS) if settings.mode in ("MLM", "MLM_NSP", "T5") else None
        pad_id = eos_id if own is None else own
    check_ids(size, eos_id, pad_id)
    out = RowVocabulary(size + (settings.extra_ids if settings.mode == "T5" else 0), eos_id, pad_id)
    if settings.mode.startswith("MLM"):
        names = {"cls_id": "[CLS]", "sep_id": "[SEP]", "mask_id": "[MASK]"}
        return out._replace(**{k: needed(tokenizer, v, "MLM") for k, v in names.items()})
    if settings.mode == "FIM":
        return out._replace(fim=fim_ids(settings, tokenizer, out))
    if settings.mode.startswith("Summarization"):
        encode = lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).ids)
        with tokenizing("the tokenizer cannot encode prompt_prefix or completion_prefix"):
            before = encode(settings.prompt_prefix), encode(settings.completion_prefix)
        out = out._replace(before=before)
        if settings.sep_token is not None:
            return out._replace(sep_id=needed(tokenizer, settings.sep_token, "sep_token"))
    return out
