"""``cszoo``, the vendor's command: each of its verbs as a verb of ``wafer``."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wafer.errors import WaferError
from wafer.models.errors import did_you_mean
from wafer.vendor.mdl.weights import FORMATS


class Verb(NamedTuple):
    """A verb of ``cszoo``."""

    help: str  #: one line
    #: words of ``wafer`` before the arguments; empty where it is not here
    ours: Sequence[str] = ()
    instead: str = ""  #: what to use where it is not here
    first: Sequence[str] = ()  #: words that go before the first argument, such as ``-p``
    dropped: Mapping[str, int] = {}  #: flags without effect -> the values that each takes


VERBS: dict[str, Verb] = {
    words: Verb(**row)
    for words, row in json.loads(
        pathlib.Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    ).items()
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
    arguments = _without(list(argv[len(words.split()) :]), verb.dropped)
    arguments, system = _system(arguments)
    if verb.ours[0] == "convert":
        arguments = _formats(arguments)
    return [*verb.ours[:1], *system, *verb.ours[1:], *_placed(arguments, verb.first)]


def _without(arguments: list[str], dropped: Mapping[str, int]) -> list[str]:
    remaining: list[str] = []
    while arguments:
        word = arguments.pop(0)
        name, equal, _ = word.partition("=")
        if name in dropped:
            del arguments[: 0 if equal else dropped[name]]
        else:
            remaining.append(word)
    return remaining


def _system(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments without ``--target_device``, and what it names."""
    for i, word in enumerate(arguments):
        name, equal, value = word.partition("=")
        if name == "--target_device":
            end = i + 1 if equal else i + 2
            return arguments[:i] + arguments[end:], [value] if equal else arguments[i + 1 : end]
    return arguments, []


def _formats(arguments: list[str]) -> list[str]:
    """The vendor's names for whatever release a file is of: a folder is ours."""
    newest = list(FORMATS)[-1]
    source = newest if any(word.endswith(".mdl") for word in arguments) else "wafer"
    words = {"cs-auto": source, "cs-current": newest}
    return [words.get(word, word) for word in arguments]


def _placed(arguments: list[str], first: Sequence[str]) -> list[str]:
    """The file goes behind ``first``: the first argument, else the first that is a YAML file."""
    if not first or not arguments or {"-h", "--help"} & set(arguments):
        return arguments
    files = (i for i, word in enumerate(arguments) if word.endswith((".yaml", ".yml")))
    at = next(files, 0) if arguments[0].startswith("-") else 0
    return [*first, arguments[at], *arguments[:at], *arguments[at + 1 :]]
