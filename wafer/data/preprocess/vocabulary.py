"""The tokenizer of a preprocessing run, loaded or trained, and the ids of its marks."""

import pathlib
import shutil
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from wafer.data.preprocess.rows.chat import (
    CHAT_TEMPLATE,
    CHATML,
    SETTINGS_FILES,
    SPECIAL_IDS,
    SpecialTokens,
    read_special_tokens,
)
from wafer.data.preprocess.settings import Settings
from wafer.data.rowfiles.writer import write_json
from wafer.data.text.textfiles import read_json, text_lines, words_of
from wafer.data.text.tokenizer import load_tokenizer, tokenizing, train_bpe
from wafer.data.text.wordpiece import load_vocabulary
from wafer.errors import DataError
from wafer.models.files import write_text

END_MARKS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]")
_PADS = ("<pad>", "[PAD]", "<|pad|>")
_MASKS = ("[MASK]", "<mask>")
_BERT = {"cls_id": "[CLS]", "sep_id": "[SEP]", "mask_id": "[MASK]"}
_FIM = ("fim_prefix_tok", "fim_middle_tok", "fim_suffix_tok")
_OWN_MARKS = {  # of tokenizers without files that name them
    "GPT2Tokenizer": SpecialTokens(bos=END_MARKS[0], eos=END_MARKS[0]),
    "NeoXTokenizer": SpecialTokens(bos=END_MARKS[0], eos=END_MARKS[0], pad="<|padding|>"),
}


class RowVocabulary(NamedTuple):
    """Ids that the rows need."""

    size: int  #: V, sentinels of T5 included
    eos_id: int  #: end of a document
    pad_id: int  #: unused positions
    cls_id: int | None = None  #: begins a BERT row, or None
    sep_id: int | None = None  #: ends a text of a BERT row, or None
    mask_id: int | None = None  #: hides a token of a BERT row, or None
    fim: tuple[int, int, int] | None = None  #: ids of the prefix, middle and suffix marks, or None
    before_prompt: tuple[int, ...] = ()  #: ids before each prompt that is encoded apart
    after_prompt: tuple[int, ...] = ()  #: ids behind it
    before_answer: tuple[int, ...] = ()  #: ids before each completion
    special: SpecialTokens = SpecialTokens()  #: texts of the special tokens
    image_id: int | None = None  #: stands for an image in a text, or None


def _existing(settings: Settings, key: str) -> pathlib.Path:
    """A tokenizer's file, or its folder."""
    value = getattr(settings, key)
    if value is None:
        raise DataError(f"{key}: missing; tokenizer_type {settings.tokenizer_type} needs it")
    path = pathlib.Path(value).expanduser()
    if path.exists():
        return path
    hub = key == "huggingface_tokenizer" and value.count("/") < 2 and value[0] not in "/."
    hint = (
        f"; names on the Hugging Face hub are not fetched here: `hf download {value} --include "
        "'tokenizer*' 'special_tokens_map.json' --local-dir FOLDER`, then name that folder"
    )
    raise DataError(f"{key}: no such file: {path}{hint if hub else ''}")


def _folder_file(settings: Settings) -> pathlib.Path:
    """The ``tokenizer.json`` of a Hugging Face tokenizer."""
    path = _existing(settings, "huggingface_tokenizer")
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise DataError(
            f"{path}: holds no tokenizer.json; write one with AutoTokenizer.from_pretrained(FOLDER)"
            ".save_pretrained(FOLDER) of Hugging Face's transformers"
        )
    return file


def _gpt2_tokenizer(encoder: pathlib.Path, merges: pathlib.Path) -> Tokenizer:
    """A byte-level BPE from the two files of OpenAI's GPT-2."""
    lines = text_lines(merges)
    pairs = [tuple(words_of(line)) for line in lines if line and not line.startswith("#version")]
    vocab = read_json(encoder)
    tokenizer = Tokenizer(models.BPE(vocab, [(a, b) for a, b in pairs]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([end for end in END_MARKS[:1] if end in vocab])
    return tokenizer


def _wanted(settings: Settings) -> list[str]:
    """Special tokens that a plain mode needs besides the end mark."""
    if not settings.rules.plain:
        return []
    if settings.mode == "finetuning":
        return [settings.sep_token] if settings.sep_token and not settings.is_multimodal else []
    if settings.training_objective in ("dynamic_mlm", "nsp"):
        return ["[PAD]", *_BERT.values()]
    return [getattr(settings, key) for key in _FIM] if settings.training_objective == "fim" else []


def _trained_size(settings: Settings) -> int:
    """Tokens to train: ``vocab_size`` without the special tokens that come on top."""
    special_tokens, size = _wanted(settings), settings.vocab_size or 0
    if size < (least := 257 + len(special_tokens)):
        parts = ", ".join(["the 256 bytes", "the end mark", *special_tokens])
        raise DataError(f"vocab_size: {size} cannot hold {parts}; use {least} or more")
    return size - len(special_tokens)


def build_vocabulary(settings: Settings, texts: Iterable[str]) -> Tokenizer:
    """Load the tokenizer, or train it; with rows of images, add ``image_token`` where it has none.

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
            files = (_existing(settings, key) for key in ("encoder_file", "vocab_file"))
            tokenizer = _gpt2_tokenizer(*files)
        elif kind == "BertTokenizer":
            path = str(_existing(settings, "vocab_file"))
            tokenizer = load_vocabulary(path, do_lower=settings.do_lower).tokenizer
        elif kind == "NeoXTokenizer":
            tokenizer = load_tokenizer(_existing(settings, "encoder_file"))
        else:
            tokenizer = load_tokenizer(_folder_file(settings))
    except DataError:
        raise
    except Exception as error:  # the tokenizers library raises plain Exception
        raise DataError(f"tokenizer_type {kind}: cannot make the tokenizer: {error}") from error
    added = [name for name in _wanted(settings) if tokenizer.token_to_id(name) is None]
    if kind != "TrainBPE" and settings.sep_token not in added:
        added = []
    registers = settings.is_multimodal and settings.register_special_image_token
    if registers and tokenizer.token_to_id(settings.image_token) is None:
        added.append(settings.image_token)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in added])
    if settings.rules.plain:
        tokenizer.no_padding()
        tokenizer.no_truncation()
    return tokenizer


def _first_of(tokenizer: Tokenizer, names: Sequence[str | None]) -> int | None:
    """Id of the first of these tokens that the vocabulary has."""
    ids = (tokenizer.token_to_id(name) for name in names if name is not None)
    return next((i for i in ids if i is not None), None)


def _needed(tokenizer: Tokenizer, name: str, key: str) -> int:
    """The id of a token that a mode cannot do without; ``key`` of the settings names it."""
    index = tokenizer.token_to_id(name)
    if index is None:
        raise DataError(
            f"{key}: the tokenizer has no token {name!r}. Name the one it has, or use a tokenizer "
            "with it"
        )
    return index


def _fim_ids(settings: Settings, tokenizer: Tokenizer, ids: RowVocabulary) -> tuple[int, int, int]:
    """The ids of the prefix, middle and suffix marks, none of which has two meanings."""
    meanings, marks = {ids.pad_id: "padding", ids.eos_id: "the end mark"}, []
    for key in _FIM:
        name = getattr(settings, key)
        index = _needed(tokenizer, name, key)
        if index in meanings:
            raise DataError(f"{key}: {name!r} is {meanings[index]}, too; name a token of its own")
        meanings[index] = key
        marks.append(index)
    pre, mid, suf = marks
    return pre, mid, suf


def _special_tokens(settings: Settings) -> SpecialTokens:
    """Special tokens by the tokenizer's own files."""
    if not settings.rules.named_marks:
        return SpecialTokens()
    if settings.tokenizer_type in _OWN_MARKS:
        return _OWN_MARKS[settings.tokenizer_type]
    return read_special_tokens(_folder_file(settings).parent)


def _plain_ids(settings: Settings, tokenizer: Tokenizer, ids: RowVocabulary) -> RowVocabulary:
    """With what stands around prompts and completions that are encoded apart."""
    encode = lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).ids)
    with tokenizing("the tokenizer cannot encode prompt_prefix or completion_prefix"):
        before, answer = encode(settings.prompt_prefix), encode(settings.completion_prefix)
        between = encode(settings.sep_token or "") if settings.is_multimodal else ()
    if settings.sep_token and not settings.is_multimodal:
        between = (_needed(tokenizer, settings.sep_token, "sep_token"),)
    between = (ids.eos_id, *between) if settings.eos_after_prompt else between
    return ids._replace(before_prompt=before, after_prompt=between, before_answer=answer)


def _end_and_padding(
    settings: Settings, tokenizer: Tokenizer, special: SpecialTokens
) -> tuple[int, int]:
    eos_id, pad_id, size = settings.eos_id, settings.pad_id, tokenizer.get_vocab_size()
    if eos_id is None:
        eos_id = _first_of(tokenizer, (special.eos, *END_MARKS))
    if eos_id is None:
        raise DataError(
            "eos_id: the tokenizer's files name no eos_token of the vocabulary, which has none of "
            f"{', '.join(END_MARKS)} either; give its id"
        )
    if pad_id is None:
        usual = _PADS if settings.training_objective in ("dynamic_mlm", "nsp", "t5") else ()
        named = None if settings.eos_id is not None else special.pad
        own = _first_of(tokenizer, (named, *usual))
        pad_id = eos_id if own is None else own
    for key, value in (("eos_id", eos_id), ("pad_id", pad_id)):
        if value >= size:
            raise DataError(f"{key}: {value} is outside the vocabulary of {size} tokens")
    return eos_id, pad_id


def describe(settings: Settings, tokenizer: Tokenizer) -> RowVocabulary:
    """Look up the ids that rows need: by the settings, the tokenizer's own files, or usual names.

    Raises:
        DataError: a token that the mode needs is not in the vocabulary, an id outside it.
    """
    special, size = _special_tokens(settings), tokenizer.get_vocab_size()
    objective = settings.training_objective
    eos_id, pad_id = _end_and_padding(settings, tokenizer, special)
    template = settings.chat_template or special.chat_template or CHATML
    ids = RowVocabulary(
        size + (settings.extra_ids if objective == "t5" else 0),
        eos_id,
        pad_id,
        special=special._replace(eos=tokenizer.id_to_token(eos_id), chat_template=template),
    )
    if settings.is_multimodal:
        ids = ids._replace(image_id=_needed(tokenizer, settings.image_token, "image_token"))
    if settings.rules.plain and settings.mode == "finetuning":
        return _plain_ids(settings, tokenizer, ids)
    if objective == "fim":
        return ids._replace(fim=_fim_ids(settings, tokenizer, ids))
    if objective in ("dynamic_mlm", "nsp"):
        return ids._replace(**{k: _needed(tokenizer, v, "MLM") for k, v in _BERT.items()})
    if objective == "mlm":
        name = special.mask or next((m for m in _MASKS if tokenizer.token_to_id(m)), _MASKS[0])
        return ids._replace(mask_id=_needed(tokenizer, name, "training_objective mlm"))
    return ids


def keep_marks(
    settings: Settings, ids: RowVocabulary, tokenizer: Tokenizer, folder: pathlib.Path
) -> None:
    """Keep special ids, chat template and the tokenizer's own settings beside the rows.

    Args:
        settings: of the run.
        ids: from ``describe``.
        tokenizer: saved in ``folder`` already.
        folder: of the rows; a training run takes the files from it.
    """
    tokens = {"bos_token_id": ids.special.bos, "pad_token_id": ids.special.pad}
    found = {key: _first_of(tokenizer, (token,)) for key, token in tokens.items()}
    known = {key: index for key, index in found.items() if index is not None}
    write_json(folder / SPECIAL_IDS, known | {"eos_token_id": ids.eos_id})
    if settings.tokenizer_type not in _OWN_MARKS:
        beside = _folder_file(settings).parent
        for name in SETTINGS_FILES:
            if (beside / name).is_file() and (beside / name).resolve() != (folder / name).resolve():
                shutil.copyfile(beside / name, folder / name)
    if settings.chat_template:
        write_text(folder / CHAT_TEMPLATE, settings.chat_template)
