"""Older preprocessing files, which name a mode or a processor instead of a read hook."""

import logging

from wafer.data.preprocess.settings import RowRules
from wafer.models.errors import Problem, SectionError, did_you_mean
from wafer.models.sections import parse
from wafer.models.user.yamlfile import YamlMapping
from wafer.vendor.preprocess.keys import NO_EFFECT, OLDER, OlderKeys

_LOG = logging.getLogger(__name__)
_PLAIN = RowRules(plain=True, named_marks=False, overlap=True, lines=False)
_MODES: dict[str, YamlMapping] = {
    "LMData": {},
    "LMData_VSL": {"use_vsl": True},
    "Summarization": {"mode": "finetuning"},
    "Summarization_VSL": {"mode": "finetuning", "use_vsl": True},
    "FIM": {"training_objective": "fim"},
    "MLM": {"training_objective": "dynamic_mlm"},
    "MLM_NSP": {"training_objective": "nsp"},
    "T5": {"training_objective": "t5"},
}
_PROCESSORS = {  # say the same as a mode
    "LMDataPreprocessor": "LMData",
    "VSLLMDataPreprocessor": "LMData_VSL",
    "SummarizationPreprocessor": "Summarization",
    "CurationCorpusPreprocessor": "Summarization",
    "VSLSummarizationPreprocessor": "Summarization_VSL",
    "FIMDataPreprocessor": "FIM",
}
_IDLE: dict[str, str] = dict.fromkeys(
    ("split_text_to_tokenize", "chunk_len_to_split", "remove_bos_in_chunks"),
    "these rows are encoded whole",
)
_IDLE |= {key: NO_EFFECT[key] for key in ("write_in_batch", "input_ids_dtype", "input_mask_dtype")}
_TOKENIZERS = {"GPT2Tokenizer": "gpt2tokenizer", "NeoXTokenizer": "neoxtokenizer"}
_PHASES = {"LlavaPhaseOnePreprocessor": 1, "LlavaPhaseTwoPreprocessor": 2}
_IMAGE_ARGUMENTS = (
    "multi_turn_key",
    "multi_turn_content_key",
    "image_key",
    "multi_modal_non_image_ex_key",
    "image_token",
    "system_prompt_style",
)
_AROUND = ("prompt_prefix", "completion_prefix", "eos_after_prompt")


def hooked_form(keys: YamlMapping) -> tuple[YamlMapping, YamlMapping]:
    """An older file of token ids or of images as one with a read hook; others as they are.

    Args:
        keys: of the file.

    Returns:
        Keys, and settings that no file with a read hook can give.
    """
    processor = keys.get("dataset_processor")
    if not isinstance(processor, str) or processor not in (*_PHASES, "NLGPreprocessor"):
        return keys, {}
    keys = {key: value for key, value in keys.items() if key != "dataset_processor"}
    source = {"data": {"type": "local", "source": keys.pop("input_dir", None)}}
    kind = _TOKENIZERS.get(keys.pop("tokenizer_type", None))
    if processor == "NLGPreprocessor":
        files = {key: keys.pop(key) for key in ("encoder_file", "vocab_file") if key in keys}
        named = {"custom_tokenizer": kind, "tokenizer_params": files} if kind else {}
        columns = {"context_key": "context", "completion_key": "completion"}
        hook = {"mode": "nlg", "read_hook": "nlg_read_hook", "read_hook_kwargs": columns}
        return keys | hook | named | source, {}
    arguments = {name: keys.pop(name) for name in _IMAGE_ARGUMENTS if name in keys}
    around = {name: keys.pop(name) for name in _AROUND if name in keys}
    hook = {
        "mode": "finetuning",
        "is_multimodal": True,
        "read_hook": "old_llava",
        "read_hook_kwargs": arguments | {"phase": _PHASES[processor]},
    }
    given = {name: value for name, value in around.items() if value is not None}
    return {"use_ftfy": False} | keys | hook | source, given | {"rules": {"plain": True}}


def older_settings(keys: YamlMapping) -> YamlMapping:
    """Return the settings that the keys of an older file mean.

    Args:
        keys: of the file and the flags, without groups.

    Raises:
        SectionError: unknown keys, or keys that do not go together.
    """
    keys = _with_mode(keys)
    known = {*OLDER, *_IDLE, *OlderKeys.model_fields}
    unknown = [key for key in keys if key not in known]
    if unknown:
        hints = [f"unknown key{did_you_mean(str(key), known)}" for key in unknown]
        raise SectionError(
            [Problem((key,), hint, "key") for key, hint in zip(unknown, hints, strict=True)]
        )
    for key in (key for key in keys if key in _IDLE):
        _LOG.info("%s: no effect here: %s", key, _IDLE[key])
    older_keys = parse(OlderKeys, {k: v for k, v in keys.items() if k in OlderKeys.model_fields})
    settings = {k: v for k, v in keys.items() if k in OLDER}
    settings = {"mode": "pretraining"} | settings | _MODES[older_keys.mode] | _hook(older_keys)
    if older_keys.contexts_key is None and "context_separator" in keys:
        _LOG.info("context_separator: no effect here: it needs contexts_key")
    return settings | {"rules": _PLAIN.model_dump()}


def _with_mode(keys: YamlMapping) -> YamlMapping:
    """With the mode that ``dataset_processor`` means."""
    keys = dict(keys)
    processor = keys.pop("dataset_processor", None)
    if processor is not None and "mode" not in keys:
        if processor not in _PROCESSORS:
            message = (
                f"{processor!r} is not known{did_you_mean(processor, _PROCESSORS)}; known: "
                f"{', '.join(_PROCESSORS)}"
            )
            raise SectionError([Problem(("setup", "dataset_processor"), message)])
        keys["mode"] = _PROCESSORS[processor]
    return keys


def _hook(older_keys: OlderKeys) -> YamlMapping:
    """The hook that reads the columns which the keys name.

    Raises:
        SectionError: columns that the mode does not read.
    """
    pairs, turns = older_keys.mode.startswith("Summarization"), older_keys.multi_turn_key
    problems = []
    if turns is not None and not pairs:
        message = f"names conversations, but mode {older_keys.mode} reads texts; use Summarization"
        problems.append(Problem(("multi_turn_key",), message))
    if older_keys.contexts_key is not None and (not pairs or turns is not None):
        other = "a conversation" if pairs else f"mode {older_keys.mode}"
        message = f"contexts go before a prompt, but {other} has none of its own; use Summarization"
        problems.append(Problem(("contexts_key",), message))
    if problems:
        raise SectionError(problems)
    if turns is not None:
        hook, read = "plain_chat", {"turns_key": "multi_turn_key"}
        read |= {"content": "multi_turn_content_key", "role": "multi_turn_role_key"}
    elif pairs:
        hook, names = "plain_prompt_completion", ("contexts_key", "prompt_key", "completion_key")
        read = {name: name for name in names if getattr(older_keys, name) is not None}
    else:
        hook, read = "plain_text", {"text_key": "jsonl_key"}
    for key in sorted(older_keys.model_fields_set - {"mode", *read.values()}):
        if getattr(older_keys, key) is not None:
            _LOG.info("%s: no effect here: mode %s does not read it", key, older_keys.mode)
    arguments = {argument: getattr(older_keys, key) for argument, key in read.items()}
    return {"read_hook": hook, "read_hook_kwargs": arguments}
