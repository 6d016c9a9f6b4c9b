"""The tokenizer of a vendor's preprocessing file, and the ids that its own files name."""

import pathlib
import shutil

from tokenizers import Tokenizer

from wafer.data.preprocess.vocabulary import (
    END_MARKS,
    RowVocabulary,
    check_ids,
    fim_ids,
    first_of,
    gpt2_tokenizer,
    needed,
)
from wafer.data.rowfiles.writer import write_json
from wafer.data.text.tokenizer import load_tokenizer
from wafer.data.vendor.hooks import HOMES
from wafer.data.vendor.settings import HookSettings
from wafer.data.vendor.special import (
    CHAT_TEMPLATE,
    CHATML,
    SETTINGS_FILES,
    SPECIAL_IDS,
    SpecialTokens,
    read_special_tokens,
)
from wafer.errors import DataError
from wafer.models.files import write_text

_GPT2, _NEOX, _LLAMA = "gpt2tokenizer", "neoxtokenizer", "CustomLlama3Tokenizer"
_NEOX_PAD = "<|padding|>"
_MASKS = ("[MASK]", "<mask>")


def _given(settings: HookSettings, key: str) -> pathlib.Path:
    value = getattr(settings.tokenizer_params, key)
    where = f"tokenizer_params.{key}"
    if value is None:
        raise DataError(f"{where}: missing; custom_tokenizer {settings.custom_tokenizer} needs it")
    path = pathlib.Path(value).expanduser()
    if not path.exists():
        raise DataError(f"{where}: no such file: {path}{_hub_hint(value)}")
    return path


def _hub_hint(name: str) -> str:
    return (
        f"; names on the Hugging Face hub are not fetched: `hf download {name} --include "
        "'tokenizer*' 'special_tokens_map.json' --local-dir FOLDER`, then name that folder"
        if name.count("/") == 1 and not name.startswith(("/", "."))
        else ""
    )


def _folder(settings: HookSettings) -> pathlib.Path:
    """The folder or ``tokenizer.json`` of a Hugging Face tokenizer."""
    custom = settings.custom_tokenizer
    if custom is not None:
        theirs = ":" not in custom or custom.startswith(HOMES)
        if not theirs or custom.rpartition(":")[2] != _LLAMA:
            raise DataError(
                f"custom_tokenizer: {custom} is a class, which cannot be used here; known: "
                f"{_GPT2}, {_NEOX}, {_LLAMA}. Save it with save_pretrained and name the folder "
                "under huggingface_tokenizer"
            )
        return _given(settings, "pretrained_model_name_or_path")
    name = settings.huggingface_tokenizer or ""
    path = pathlib.Path(name).expanduser()
    if not path.exists():
        raise DataError(f"huggingface_tokenizer: no such folder: {path}{_hub_hint(name)}")
    return path


def special_tokens(settings: HookSettings) -> SpecialTokens:
    """Special tokens by the tokenizer's own files.

    Raises:
        DataError: no such folder.
    """
    if settings.custom_tokenizer == _GPT2:
        return SpecialTokens(bos=END_MARKS[0], eos=END_MARKS[0])
    if settings.custom_tokenizer == _NEOX:
        return SpecialTokens(bos=END_MARKS[0], eos=END_MARKS[0], pad=_NEOX_PAD)
    path = _folder(settings)
    return read_special_tokens(path if path.is_dir() else path.parent)


def build_vocabulary(settings: HookSettings) -> Tokenizer:
    """Load the tokenizer; with rows of images, add ``image_token`` where it has none.

    Raises:
        DataError: missing files, or files that do not hold a tokenizer.
    """
    tokenizer = _loaded(settings)
    registers = settings.is_multimodal and settings.register_special_image_token
    if registers and tokenizer.token_to_id(settings.image_token) is None:
        tokenizer.add_special_tokens([settings.image_token])
    return tokenizer


def _loaded(settings: HookSettings) -> Tokenizer:
    if settings.custom_tokenizer == _GPT2:
        encoder, merges = _given(settings, "encoder_file"), _given(settings, "vocab_file")
        return gpt2_tokenizer(encoder, merges)
    if settings.custom_tokenizer == _NEOX:
        return load_tokenizer(_given(settings, "encoder_file"))
    path = _folder(settings)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise DataError(
            f"{path}: holds no tokenizer.json; write one with AutoTokenizer.from_pretrained(FOLDER)"
            ".save_pretrained(FOLDER) of Hugging Face's transformers"
        )
    return load_tokenizer(file)


def _id(tokenizer: Tokenizer, text: str | None) -> int | None:
    return None if text is None else tokenizer.token_to_id(text)


def describe(settings: HookSettings, tokenizer: Tokenizer) -> RowVocabulary:
    """Ids that the rows need: by the settings, the tokenizer's own files, or usual names.

    Raises:
        DataError: no end mark, an id outside the vocabulary, no mark that the mode needs.
    """
    special, size = special_tokens(settings), tokenizer.get_vocab_size()
    named = _id(tokenizer, special.eos)
    eos_id = settings.eos_id
    if eos_id is None:
        eos_id = first_of(tokenizer, END_MARKS) if named is None else named
    if eos_id is None:
        raise DataError(
            f"eos_id: tokenizer_config.json names no eos_token of the vocabulary, which has none "
            f"of {', '.join(END_MARKS)} either; give its id"
        )
    pad_id = settings.pad_id
    if pad_id is None or settings.custom_tokenizer == _GPT2:
        own = None if settings.eos_id is not None else _id(tokenizer, special.pad)
        pad_id = eos_id if own is None else own
    check_ids(size, eos_id, pad_id)
    special = special._replace(
        eos=tokenizer.id_to_token(eos_id),
        chat_template=settings.chat_template or special.chat_template or CHATML,
    )
    image = settings.image_token if settings.is_multimodal else None
    image_id = None if image is None else needed(tokenizer, image, "image_token")
    ids = RowVocabulary(size, eos_id, pad_id, special=special, image_id=image_id)
    objective = settings.training_objective
    if objective == "fim":
        return ids._replace(fim=fim_ids(settings, tokenizer, ids))
    if objective == "mlm":
        name = special.mask or next((m for m in _MASKS if tokenizer.token_to_id(m)), _MASKS[0])
        return ids._replace(mask_id=needed(tokenizer, name, "training_objective mlm"))
    return ids


def keep_settings(
    settings: HookSettings, ids: RowVocabulary, tokenizer: Tokenizer, folder: pathlib.Path
) -> None:
    """Keep special ids, chat template and the tokenizer's own settings beside the rows.

    Args:
        settings: of the run.
        ids: from ``describe``.
        tokenizer: saved in ``folder`` already.
        folder: of the rows; a training run takes the files from it.
    """
    tokens = {"bos_token_id": ids.special.bos, "pad_token_id": ids.special.pad}
    found = {key: _id(tokenizer, token) for key, token in tokens.items()}
    known = {key: index for key, index in found.items() if index is not None}
    write_json(folder / SPECIAL_IDS, known | {"eos_token_id": ids.eos_id})
    if settings.custom_tokenizer not in (_GPT2, _NEOX):
        path = _folder(settings)
        for name in SETTINGS_FILES:
            source = path / name if path.is_dir() else path.with_name(name)
            if source.is_file() and source.resolve() != (folder / name).resolve():
                shutil.copyfile(source, folder / name)
    if settings.chat_template:
        write_text(folder / CHAT_TEMPLATE, settings.chat_template)
