"""Read hooks of records with images."""

import functools
import hashlib
import os
import pathlib
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from wafer.errors import DataError

Turn = dict[str, Any]  # its role and its regions
Turns = list[Turn]
Example = Mapping[str, Any]
Mark = Annotated[str, Field(min_length=1)]
_ROLES = {"human": "user", "gpt": "assistant"} | {r: r for r in ("user", "assistant", "system")}
_PAIR = {"user": "prompt", "assistant": "completion"}
_CHAT = (
    "A chat between a curious {0} and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the {0}'s questions."
)
_HUMAN, _USER = _CHAT.format("human"), _CHAT.format("user")
SystemPrompt = Literal[
    "zephyr",
    "vicuna_v0",
    "vicuna_v1",
    "llava_v0",
    "llava_v1",
    "llava_plain",
    "mistral_instruct",
]
_PROMPTS = ("<|system|>\n</s>", _HUMAN, _USER, _HUMAN, _HUMAN, "", "")
SYSTEM_PROMPTS = dict(zip(get_args(SystemPrompt), _PROMPTS, strict=True))
"""Name -> text of a system turn."""


def _path(value: object) -> object:
    """The path of an image; data sets of the hub have an object with it."""
    return value.get("path") if isinstance(value, dict) else value


def _captioned(example: Example, image_key: str, caption_key: str) -> Turns:
    image, text = _path(example.get(image_key)), example.get(caption_key)
    return [{"content": [{"image": image}, {"text": text}]}]


def _asked_captions(example: Example, image_key: str, caption_key: str) -> Turns:
    image, text = _path(example.get(image_key)), example.get(caption_key)
    return [
        {"type": "prompt", "content": [{"image": image}]},
        {"type": "completion", "content": [{"text": text}]},
    ]


def _turns(
    example: Example,
    *,
    multi_turn_key: str,
    image_key: str,
    image_token: Mark,
    phase: Literal[1, 2] = 2,
    multi_turn_role_key: str = "from",
    multi_turn_content_key: str = "value",
) -> Turns:
    """The turns of a conversation; phase 1 leaves out the text beside an image."""
    turns = []
    for turn in example.get(multi_turn_key) or ():
        role = _ROLES.get(turn.get(multi_turn_role_key))
        if role is None:
            known = ", ".join(_ROLES)
            raise DataError(
                f"{multi_turn_role_key}: {turn.get(multi_turn_role_key)!r}; expected {known}"
            )
        text = turn.get(multi_turn_content_key) or ""
        turns.append(_turn(role, text, _path(example.get(image_key)), image_token, phase))
    return turns


def _turn(role: str, text: str, image: object, mark: str, phase: int) -> Turn:
    """One turn, its image first.

    Raises:
        DataError: more than one image, or one in an answer.
    """
    before, *tail = text.split(mark)
    if len(tail) > (role == "user"):
        raise DataError(
            f"a turn of {role} has {len(tail)} image marks {mark!r}; expected one in a turn of the "
            "user, and none in others"
        )
    content, drops = [{"text": text}], [False]
    if tail:
        words = before.strip() + tail[0].strip()
        content = [{"image": image}, *([{"text": words}] if words else [])]
        drops = [False, phase == 1][: len(content)]
    return {"type": role, "content": content, "semantic_drop_mask": drops}


@functools.wraps(_turns, assigned=())
def _llava(example: Example, **keys: Any) -> Turns:
    """A conversation without blanks around its texts, and without an empty system turn."""
    turns = _turns(example, **keys)
    for part in (part for turn in turns for part in turn["content"] if "text" in part):
        part["text"] = part["text"].strip()
    return [turn for turn in turns if turn["type"] != "system" or turn["content"][0]["text"]]


@functools.wraps(_turns, assigned=())
def _llava_pairs(example: Example, image_key: str, **keys: Any) -> Turns:
    """Prompts and completions instead of a conversation.

    Raises:
        DataError: a record without an image.
    """
    if not example.get(image_key):
        raise DataError(f"{image_key}: missing; every record of this hook needs an image")
    turns = _turns(example, image_key=image_key, **keys)
    return [turn | {"type": _PAIR.get(turn["type"], turn["type"])} for turn in turns]


def _counted_turns(
    example: Example,
    *,
    multi_turn_key: str,
    image_key: str,
    image_token: Mark,
    phase: Literal[1, 2] = 2,
    multi_turn_content_key: str = "value",
    system_prompt: SystemPrompt | None = None,
) -> Turns:
    """Turns are the user's and the assistant's by their number."""
    image = _path(example.get(image_key))
    system = SYSTEM_PROMPTS.get(system_prompt or "", "")
    turns = [{"type": "system", "content": [{"text": system.strip()}]}] if system else []
    for number, turn in enumerate(example.get(multi_turn_key) or ()):
        role, text = ("user", "assistant")[number % 2], turn[multi_turn_content_key]
        if image or role == "assistant":
            turns.append(_turn(role, text, image, image_token, phase))
            if role == "user" and phase == 1 and len(turns[-1]["content"]) == 1:
                only_text = "text" in turns[-1]["content"][0]
                turns[-1]["semantic_drop_mask"] = [only_text]
        else:
            turns.append({"type": role, "content": [{"text": text}]})
    return turns


@functools.wraps(_counted_turns, assigned=())
def _counted_pairs(example: Example, phase: Literal[1, 2] = 1, **keys: Any) -> Turns:
    turns = _counted_turns(example, phase=phase, **keys)
    return [turn | {"type": _PAIR.get(turn["type"], turn["type"])} for turn in turns]


def _interleaved(example: Example, image_dir: str, image_key: str, caption_key: str) -> Turns:
    """Texts and the addresses of images in turn; images that are in ``image_dir`` by their hash."""
    content = []
    pairs = zip(example.get(image_key) or (), example.get(caption_key) or (), strict=True)
    for address, text in pairs:
        if address is None:
            content.append({"text": text})
            continue
        name = os.path.basename(urllib.parse.urlparse(address).path)
        file = f"{hashlib.sha256(name.encode()).hexdigest()[:10]}.png"
        if name not in ("", ".png") and (pathlib.Path(image_dir) / file).is_file():
            content.append({"image": file})
    return [{"content": content}]


def _plain_pairs(
    example: Example,
    *,
    multi_turn_key: str,
    multi_turn_content_key: str | None = None,
    image_key: str | None = None,
    image_token: Mark = "<image>",
    system_prompt_style: SystemPrompt | None = None,
    **_: object,
) -> Turns:
    """Prompts and completions in turn; the first has the image, and no image mark is left.

    Raises:
        DataError: a prompt without a completion.
    """
    del system_prompt_style  # a row's, not a turn's
    image = _path(example.get(image_key or ""))
    turns = example.get(multi_turn_key) or ()
    texts = [turn[multi_turn_content_key] if multi_turn_content_key else turn for turn in turns]
    if len(texts) % 2:
        raise DataError(f"{multi_turn_key}: {len(texts)} turns; each prompt needs a completion")
    texts = [t.replace(image_token, "") if image and not i % 2 else t for i, t in enumerate(texts)]
    roles = ("prompt", "completion")
    out = [{"type": roles[i % 2], "content": [{"text": text}]} for i, text in enumerate(texts)]
    if image and out:
        out[0]["image"] = image
    return out


IMAGE_HOOKS: dict[str, Callable[..., Turns]] = {
    "image_caption": _captioned,
    "image_caption_pair": _asked_captions,
    "image_chat": _llava,
    "image_pairs": _llava_pairs,
    "counted_image_chat": _counted_turns,
    "counted_image_pairs": _counted_pairs,
    "plain_image_pairs": _plain_pairs,
    "interleaved_images": _interleaved,
}
"""Our hooks of images by name."""
