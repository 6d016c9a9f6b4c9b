"""Regions of a document: which characters carry loss, and which tokens those are."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from wafer.data.preprocess.rows.image_hooks import Turn, Turns
from wafer.errors import DataError

Range = tuple[int, int]
Render = Callable[[Sequence[Mapping[str, str]]], str]


class TextRegion(NamedTuple):
    """A stretch of a document's text."""

    start: int  #: start, end: characters
    end: int
    weight: float  #: of its tokens' loss
    role: str = ""  #: of its turn
    extra: int = 0  #: tokens that follow it and count as its own
    attention: int = 1  #: 0 where no other token attends to its tokens
    path: str = ""  #: of an image, below ``image_dir``; empty for a text


class Document(NamedTuple):
    """A text and its regions, in order; the text has a mark where an image stands."""

    text: str
    regions: list[TextRegion]
    images: tuple[TextRegion, ...] = ()
    where: str = ""  #: its file and record, for errors


class Defaults(NamedTuple):
    """What a region gets whose hook says nothing."""

    weights: Mapping[str, float]  #: region name -> loss weight; 0 counts as not given
    drops: Mapping[str, bool]  #: region name -> whether to leave it out
    clean: Callable[[str], str]  #: mends a text
    attentions: Mapping[str, bool]  #: region name -> whether other tokens attend to it
    image_mark: str = ""  #: text that stands for an image; empty where rows have no images


class _Part(NamedTuple):
    """A region of a turn that is kept; its text is None where the record has none."""

    name: str
    text: str | None
    weight: float
    attention: int = 1
    path: str = ""


def _masks(turn: Turn) -> tuple[Any, Any, Any]:
    """Loss weights, drop mask and attention mask of a turn; None or empty: not given."""
    names = ("semantic_loss_weight", "semantic_drop_mask", "semantic_attention_mask")
    for name in names:
        mask, content = turn.get(name), turn["content"]
        if mask is not None and len(mask) != len(content):
            raise DataError(f"read_hook: {name} has {len(mask)} values for {len(content)} regions")
    return turn.get(names[0]), turn.get(names[1]), turn.get(names[2])


def _parts(turn: Turn, defaults: Defaults, usual: int, tag: str) -> list[_Part]:
    """The regions of a turn without those to drop; ``tag`` goes around a text with its name."""
    weights, drops, attentions = _masks(turn)
    regions = []
    for i, content in enumerate(turn["content"]):
        name = next(key for key in content if key != "include_tags")
        path = content[name] if name == "image" else ""
        default = int(turn.get("type") == "assistant") if name == "image" else usual
        weight = weights[i] if weights else defaults.weights.get(name) or default
        if drops[i] if drops else defaults.drops.get(name, False):
            continue
        if name == "image" and not defaults.image_mark:
            raise DataError("read_hook: gives an image, and is_multimodal is false")
        text = None
        if content[name]:
            text = defaults.image_mark if path else defaults.clean(content[name])
        tagged = tag.format(name=name, text=text) if text and content.get("include_tags") else text
        attention = attentions[i] if attentions else defaults.attentions.get(name, True)
        regions.append(_Part(name, tagged, weight, int(bool(attention)), path or ""))
    return regions


def text_document(turns: Turns, defaults: Defaults) -> Document:
    """A pretraining document: all regions joined; empty ones are passed over."""
    tag = "<|{name}|>{text}<|{name}|>"
    return _joined([(_parts(turn, defaults, 1, tag), "", "") for turn in turns])


def _joined(turns: Sequence[tuple[list[_Part], str, str]]) -> Document:
    """The document of turns: their parts, their role, the text that follows."""
    text, regions = "", []
    for parts, role, after in turns:
        for part in parts:
            regions.append(_region(part, len(text), role))
            text += part.text or ""
        text += after
    return _document(text, regions)


def _region(region: _Part, start: int, role: str) -> TextRegion:
    """The region of a content whose text begins at a character."""
    end = start + len(region.text or "")
    return TextRegion(start, end, region.weight, role, attention=region.attention, path=region.path)


def is_chat(turns: Turns) -> bool:
    """Whether turns go through a chat template; prompt and completion do not."""
    return turns[0].get("type") not in ("prompt", "completion")


def _turn_parts(turn: Turn, defaults: Defaults) -> list[_Part] | None:
    """The regions of a finetuning turn; None where one has no text."""
    usual = int(turn["type"] in ("assistant", "completion"))
    parts = _parts(turn, defaults, usual, "<{name}>{text}</{name}>")
    return None if any(part.text is None for part in parts) else parts


def pair_document(turns: Turns, defaults: Defaults, after: Mapping[str, str]) -> Document | None:
    """A prompt and a completion; None where one is empty.

    Args:
        turns: of roles prompt and completion.
        defaults: see ``Defaults``.
        after: role -> text that follows its turn.
    """
    joined = []
    for turn in turns:
        regions, role = _turn_parts(turn, defaults), turn["type"]
        if regions is None:
            return None
        joined.append((regions, role, after.get(role, "")))
    return _joined(joined)


def _document(text: str, regions: Sequence[TextRegion]) -> Document:
    """Regions of texts apart from those of images, without empty ones."""
    texts = [region for region in regions if region.end > region.start and not region.path]
    return Document(text, texts, tuple(region for region in regions if region.path))


def chat_document(turns: Turns, defaults: Defaults, render: Render) -> Document | None:
    """A conversation in its template's form; None where a region is empty.

    Marks before the regions show where the template has put them.
    """
    messages, marked = [], []
    for turn in turns:
        turn_regions = _turn_parts(turn, defaults)
        if turn_regions is None:
            return None
        content = ""
        for region in turn_regions:
            if region.text:
                mark = f"<{len(marked)}_{region.name}>"
                marked.append((mark, region, turn["type"]))
                content += mark + region.text
        messages.append({"role": turn["type"], "content": content})
    text, regions, search = render(messages), [], 0
    for mark, region, role in marked:
        start = text.find(mark, search)
        if start < 0:
            raise DataError(f"chat_template: leaves out the content of a turn of role {role!r}")
        text = text.replace(mark, "")
        regions.append(_region(region, start, role))
        search = regions[-1].end
    return _document(text, regions)


def _places(text: str, mark: str, start: int) -> list[tuple[int, int]]:
    places = []
    while (start := text.find(mark, start)) >= 0:
        places.append((start, start + len(mark)))
        start += len(mark)
    return places


def stretch_over_ends(
    document: Document, mark: str | None, *, chat: bool, image_mark: str = ""
) -> Document:
    """Regions stretched over the end mark that follows each before the next begins.

    In a conversation with one mark at most, a region that is followed by other text takes one more
    token.

    Args:
        document: text and regions.
        mark: ends a turn.
        chat: whether it is a conversation.
        image_mark: a region is not stretched over it; empty where rows have no images.
    """
    text, regions = document.text, list(document.regions)
    if not regions or not mark:
        return document
    marks = _places(text, mark, regions[0].start)
    starts = [*(region.start for region in regions[1:]), len(text)]
    unread = iter(marks)
    end_mark = next(unread, None)
    for i, region in enumerate(regions):
        while end_mark and end_mark[0] < region.end:  # inside a region
            end_mark = next(unread, None)
        over_image = end_mark and image_mark and image_mark in text[region.end : end_mark[0]]
        if end_mark and end_mark[0] < starts[i] and not over_image:
            regions[i] = region._replace(end=end_mark[1])
            end_mark = next(unread, None)
    if chat and len(marks) <= 1 and (len(regions) > 1):
        gaps = [region.end < start for region, start in zip(regions, starts, strict=True)]
        regions = [r._replace(extra=int(gap)) for r, gap in zip(regions, gaps, strict=True)]
    return document._replace(regions=regions)


def token_ranges(
    offsets: Sequence[Range], regions: Sequence[TextRegion], *, by_gaps: bool
) -> list[Range]:
    """Tokens of each region, the end excluded.

    Args:
        offsets: characters of each token.
        regions: in order.
        by_gaps: a region may also end with the last token before its end.

    Raises:
        DataError: a region without a token.
    """
    ranges: list[Range] = []
    start = 0
    for region in regions:
        first = next((i for i in range(start, len(offsets)) if offsets[i][1] > region.start), None)
        last = None if first is None else _last(offsets, first, region.end, by_gaps)
        if first is None or last is None:
            raise DataError(
                f"no token covers characters {region.start} to {region.end} of a text: the "
                "tokenizer leaves them out"
            )
        start = last + 1 + region.extra
        ranges.append((first, start))
    return ranges


def _last(offsets: Sequence[Range], first: int, end: int, by_gaps: bool) -> int | None:
    """The token that reaches the character ``end``."""
    for i in range(first, len(offsets)):
        if offsets[i][1] >= end:
            return i
        if by_gaps and (i + 1 == len(offsets) or offsets[i + 1][0] >= end):
            return i
    return None


def weights_of(count: int, regions: Sequence[TextRegion], ranges: Sequence[Range]) -> np.ndarray:
    """[count] float weights of the tokens; 0 outside the regions."""
    weights = np.zeros(count)
    for region, (first, end) in zip(regions, ranges, strict=True):
        weights[first:end] = region.weight
    return weights


def truncation(
    count: int,
    regions: Sequence[TextRegion],
    ranges: Sequence[Range],
    *,
    length: int,
    least: int,
    keep_start: bool,
) -> np.ndarray | None:
    """[count] tokens to keep so that exactly ``length`` remain; None where too few can go.

    The longest prompts lose first, down to ``least`` tokens, then the ends of the longest
    completions.

    Args:
        count: tokens, more than ``length``.
        regions: of the document.
        ranges: their tokens.
        length: S.
        least: tokens that each turn keeps.
        keep_start: prompts lose their ends; otherwise their beginnings.

    Raises:
        DataError: roles without a prompt and a completion.
    """
    roles = {region.role for region in regions}
    sides = next(
        (
            s
            for s in (("prompt", "completion"), ("user", "assistant"))
            if roles > {*s} or roles == {*s}
        ),
        None,
    )
    if sides is None:
        raise DataError(
            f"truncate_to_msl: shortens prompt and completion, or user and assistant; the turns "
            f"have the roles {', '.join(sorted(roles))}"
        )
    keep_mask = np.ones(count, bool)
    excess = count - length
    for side, from_end in ((sides[0], keep_start), (sides[1], True)):
        side_ranges = [r for r, region in zip(ranges, regions, strict=True) if region.role == side]
        for first, end in sorted(side_ranges, key=lambda r: r[0] - r[1]):
            cut = min(excess, max(end - first - least, 0))
            keep_mask[slice(end - cut, end) if from_end else slice(first, first + cut)] = False
            excess -= cut
    return keep_mask if excess == 0 else None
