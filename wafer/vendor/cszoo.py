"""``cszoo``, the vendor's command: each of its verbs as a verb of ``wafer``."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wafer.errors import WaferError
from wafer.models.convert.vendor.weights import FORMATS
from wafer.models.errors import did_you_mean


class Verb(NamedTuple):
    """A verb of ``cszoo``."""

    help: str  #: one line
    #: words of ``wafer`` before the arguments; empty where it is not here
    ours: tuple[str, ...] = ()
    instead: str = ""  #: what to use where it is not here
    first: tuple[str, ...] = ()  #: words that go before the first argument, such as ``-p``
    dropped: Mapping[str, int] = {}  #: flags without effect -> the values that each takes


_PARAMS = ("-p",)
_S3 = {"-p": 1, "--profile": 1, "-l": 0, "--list_objects": 0}  # of files in S3
_ORDER = {"--order_by": 1, "--descending": 0}  # of the table
_NO_FILES = "the vendor's shipped files are not part of wafer; "
_CONVERSION = {"--no-progress-bar": 0, "--debug": 0, "--export-safetensors": 0, "--hide-notes": 0}
_PROFILE = {"--sampling_frequency": 1, "--profile_activities": 1, "--logging": 1}
_LM_EVAL = (
    "train with `wafer run --export hf`, or `wafer convert convert --src-fmt wafer --tgt-fmt hf`; "
    "then `lm_eval --model hf --model_args pretrained=MODEL_DIR/hf/STEP` of the lm-eval package"
)

VERBS: dict[str, Verb] = {
    "fit": Verb("train, and evaluate in between", ("run", "-m", "train_and_eval"), "", _PARAMS),
    "validate": Verb("evaluate once", ("run", "-m", "eval"), "", _PARAMS),
    "validate_all": Verb("evaluate every checkpoint", ("run", "-m", "eval_all"), "", _PARAMS),
    "lm_eval": Verb("EleutherAI's harness", instead=_LM_EVAL),
    "bigcode_eval": Verb(
        "BigCode's harness",
        instead=_LM_EVAL.replace(
            "lm_eval --model hf --model_args pretrained=MODEL_DIR/hf/STEP` of the lm-eval package",
            "main.py --model MODEL_DIR/hf/STEP` of bigcode-evaluation-harness",
        ),
    ),
    "assistant": Verb("a hosted assistant", instead="read docs/index.md; it lists tasks and pages"),
    "data_preprocess run": Verb("text to HDF5 rows", ("data", "preprocess")),
    "data_preprocess list": Verb("files to begin with", ("data", "new")),
    "data_preprocess pull": Verb("a file to begin with", ("data", "new")),
    "data_processor list": Verb("every data processor", ("config", "keys", "train_input")),
    "data_processor info": Verb("keys of a data processor", ("config", "keys")),
    "data_processor describe": Verb(
        "keys of a data processor", ("config", "keys"), dropped={"-P": 0, "--json": 0}
    ),
    "data_processor benchmark": Verb(
        "speed of a data loader", ("data", "benchmark"), "", _PARAMS, _PROFILE
    ),
    "model list": Verb("every model", ("models",)),
    "model info": Verb("keys of a model", ("models",)),
    "model describe": Verb("keys of a model", ("models",), dropped={"-P": 0, "--json": 0}),
    "model init_checkpoint": Verb(
        "a checkpoint before the first step", ("checkpoint", "init"), "", _PARAMS
    ),
    "config pull": Verb(
        "a shipped file",
        instead=_NO_FILES + "see `wafer config new --model NAME --data ROWS`",
    ),
    "config validate": Verb("check a file", ("run", "--validate_only"), "", _PARAMS),
    "config stats": Verb(
        "memory, traffic and time of a file", ("plan",), first=_PARAMS, dropped=_ORDER
    ),
    "config convert_legacy": Verb(  # --model NAME where the file does not say it
        "a file with runconfig to one with trainer",
        ("convert", "convert-config", "--src-fmt", "cs-2.2", "--tgt-fmt", "cs-2.9"),
    ),
    "config diff": Verb(
        "differences between two files", ("config", "diff"), dropped={"-v": 1, "--verbose_level": 1}
    ),
    "checkpoint info": Verb("size, time and step", ("checkpoint", "info"), dropped=_S3),
    "checkpoint diff": Verb("compare two checkpoints", ("convert", "diff"), dropped=_S3),
    "checkpoint convert": Verb("weights and config", ("convert", "convert"), dropped=_CONVERSION),
    "checkpoint convert-config": Verb(
        "the config alone", ("convert", "convert-config"), dropped=_CONVERSION
    ),
    "checkpoint list-converters": Verb(
        "models that convert", ("convert", "list"), dropped=_CONVERSION | {"all": 0}
    ),
    "checkpoint list": Verb(
        "models that convert", ("convert", "list"), dropped=_CONVERSION | {"all": 0}
    ),
    "checkpoint delete": Verb("remove a checkpoint", ("checkpoint", "delete"), dropped=_S3),
    "checkpoint copy": Verb("copy a checkpoint", ("checkpoint", "copy"), dropped=_S3),
    "checkpoint move": Verb("move a checkpoint", ("checkpoint", "move"), dropped=_S3),
}
"""Words of ``cszoo`` -> the verb."""


def help_text(group: str = "") -> str:
    """Every verb and what it is here; of a group of verbs (``checkpoint``) those alone."""
    usage = " ".join(filter(None, ("usage: cszoo", group, "VERB [arguments]")))
    lines = [f"{usage}; the same as the `wafer` command on its right", ""]
    for words, verb in VERBS.items():
        if group and words.split()[0] != group:
            continue
        there = f"wafer {' '.join((*verb.ours, *verb.first))}" if verb.ours else "not here"
        lines.append(f"  {words:<28} {verb.help:<38} {there}")
    return "\n".join(lines)


def translate(argv: Sequence[str]) -> list[str]:
    """Arguments of ``wafer`` for those of ``cszoo``.

    Raises:
        WaferError: no such verb, or one that is not here; says what to use.
    """
    words = " ".join(argv[: 1 if argv[:1] and argv[0] in VERBS else 2])
    verb = VERBS.get(words)
    if verb is None:
        inside = [name for name in VERBS if argv and name.split()[0] == argv[0]] or list(VERBS)
        hint = did_you_mean(words, inside) or did_you_mean(words.split(" ")[0], inside)
        raise WaferError(f"cszoo {words}: no such verb{hint}; known: {', '.join(inside)}")
    if not verb.ours:
        raise WaferError(f"cszoo {words} is not here: {verb.instead}")
    rest = _without(list(argv[len(words.split()) :]), verb.dropped)
    rest, system = _system(rest)
    if verb.ours[0] == "convert":
        rest = _formats(rest)
    return [*verb.ours[:1], *system, *verb.ours[1:], *_placed(rest, verb.first)]


def _without(rest: list[str], dropped: Mapping[str, int]) -> list[str]:
    kept: list[str] = []
    while rest:
        word = rest.pop(0)
        name, equal, _ = word.partition("=")
        if name in dropped:
            del rest[: 0 if equal else dropped[name]]
        else:
            kept.append(word)
    return kept


def _system(rest: list[str]) -> tuple[list[str], list[str]]:
    """The arguments without ``--target_device``, and what it names."""
    for i, word in enumerate(rest):
        name, equal, value = word.partition("=")
        if name == "--target_device":
            end = i + 1 if equal else i + 2
            return rest[:i] + rest[end:], [value] if equal else rest[i + 1 : end]
    return rest, []


def _formats(rest: list[str]) -> list[str]:
    """The vendor's names for whatever release a file is of: a folder is ours."""
    newest = list(FORMATS)[-1]
    source = newest if any(word.endswith(".mdl") for word in rest) else "wafer"
    words = {"cs-auto": source, "cs-current": newest}
    return [words.get(word, word) for word in rest]


def _placed(rest: list[str], first: Sequence[str]) -> list[str]:
    """The file goes behind ``first``: the first argument, else the first that is a YAML file."""
    if not first or not rest or {"-h", "--help"} & set(rest):
        return rest
    files = (i for i, word in enumerate(rest) if word.endswith((".yaml", ".yml")))
    at = next(files, 0) if rest[0].startswith("-") else 0
    return [*first, rest[at], *rest[:at], *rest[at + 1 :]]
