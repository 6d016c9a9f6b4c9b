"""Special tokens and chat template of a Hugging Face tokenizer folder.

Templates are Jinja in a sandbox, with the functions that Hugging Face's templates use.
"""

import datetime
import functools
import json
import logging
import pathlib
import resource
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import psutil

from wafer.data.text.textfiles import read_json, read_text
from wafer.errors import DataError
from wafer.models.errors import optional
from wafer.models.guarded import call_in_subprocess

_LOG = logging.getLogger(__name__)

_MEMORY = 1 << 30  # bytes of address space that a template may take

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_CONFIG, _MAP = "tokenizer_config.json", "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
SETTINGS_FILES = (_CONFIG, _MAP, CHAT_TEMPLATE, "generation_config.json")
SPECIAL_IDS = "special_ids.json"  # models.convert.tokenizer reads it


class SpecialTokens(NamedTuple):
    """What the files beside a ``tokenizer.json`` name; None for what they do not."""

    bos: str | None = None  #: bos, eos, pad, sep, cls, unk, mask: texts of the tokens
    eos: str | None = None
    pad: str | None = None
    sep: str | None = None
    cls: str | None = None
    unk: str | None = None
    mask: str | None = None
    chat_template: str | None = None  #: Jinja

    def names(self) -> dict[str, str]:
        """``bos_token`` and so on, as a chat template names them."""
        kinds = self._fields[:-1]
        return {f"{kind}_token": text for kind in kinds if (text := getattr(self, kind))}


def _text(value: Any) -> str | None:
    """The text of a token, which the files give plain or with its settings."""
    value = value.get("content") if isinstance(value, Mapping) else value
    return value if isinstance(value, str) else None


def _template(folder: pathlib.Path, value: Any) -> str | None:
    """The chat template: a file of its own, a text, or the one of several called ``default``."""
    file = folder / CHAT_TEMPLATE
    if file.is_file():
        return read_text(file)
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def read_special_tokens(folder: pathlib.Path) -> SpecialTokens:
    """Read ``tokenizer_config.json`` and ``special_tokens_map.json``; the former wins.

    Raises:
        DataError: a file that is no JSON object.
    """
    config: dict[str, Any] = {}
    for name in (_MAP, _CONFIG):
        path = folder / name
        content = read_json(path) if path.is_file() else {}
        if not isinstance(content, dict):
            raise DataError(f"{path}: expected a JSON object, got {type(content).__name__}")
        config |= {key: value for key, value in content.items() if value is not None}
    kinds = SpecialTokens._fields[:-1]
    tokens = {kind: _text(config.get(f"{kind}_token")) for kind in kinds}
    return SpecialTokens(**tokens, chat_template=_template(folder, config.get("chat_template")))


def tell_of_template(tokenizer: str | pathlib.Path) -> None:
    """Log a warning where a tokenizer has a chat template, which turns of plain text do not use.

    Args:
        tokenizer: a file, or its folder.
    """
    path = pathlib.Path(tokenizer)
    folder = path if path.is_dir() else path.parent
    if read_special_tokens(folder).chat_template is not None:
        _LOG.warning(
            "%s: its chat template is not used here: a turn is its text alone. For rows by the "
            "template: `wafer data new chat`, then `wafer data preprocess --params chat.yaml`",
            folder,
        )


def _refuse(message: str) -> None:
    raise DataError(message)


@functools.lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    from jinja2 import sandbox

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None, **_: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    now = lambda form: datetime.datetime.now(datetime.UTC).strftime(form)
    environment.globals |= {"raise_exception": _refuse, "strftime_now": now}
    return environment.from_string(template)


def render_chat(
    template: str, messages: Sequence[Mapping[str, str]], tokens: Mapping[str, str]
) -> str:
    """The text of a conversation.

    Args:
        template: Jinja.
        messages: objects with ``role`` and ``content``.
        tokens: ``bos_token`` and so on.

    Raises:
        DataError: the template is wrong, refuses the conversation, or takes too much time or
            memory.
        MissingPackageError: jinja2 is not installed.
    """
    optional("jinja2", "a chat template")
    function = "wafer.data.vendor.special:rendered"  # in any thread, loops of C included
    try:
        return call_in_subprocess(function, template, messages, tokens)
    except ValueError as error:
        raise DataError(f"chat_template: {error}") from None


def rendered(template: str, messages: list[Mapping[str, str]], tokens: Mapping[str, str]) -> str:
    """``render_chat`` in the process where a template without end does no harm.

    Args:
        template: Jinja.
        messages: objects with ``role`` and ``content``.
        tokens: ``bos_token`` and so on.

    Raises:
        DataError: the template is wrong, refuses the conversation, or takes too much memory.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = psutil.Process().memory_info().vms + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (min(most, soft) if soft >= 0 else most, hard))
    try:
        return _compiled(template).render(  # to compile is to compute constants
            messages=messages, add_generation_prompt=False, **tokens
        )
    except DataError:
        raise
    except MemoryError:
        raise DataError(f"it asks for more than {_MEMORY:,} bytes of memory") from None
    except Exception as error:  # a template is a program: it raises anything
        raise DataError(f"{type(error).__name__}: {error}") from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
