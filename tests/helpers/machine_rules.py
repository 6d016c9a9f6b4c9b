"""Rules of the machine: assembled programs in files, whose heads say what they leave.

``#! rule:`` in words; ``#! arch: wse2 wse3`` (WSE-2 if none is named)
``#! tiles: 0 1 / 1 -1`` numbers of programs, rows of PEs apart by ``/``
``#! route x y color: R E``, ``#! switch x y color: tx=E``, ``#! stream color: name``
``#! memory: 64`` bytes of a PE at least; ``#! edges: 8`` as ``build`` takes them

``#! like: name`` head and programs begin as in ``name.part``
``#! each k word: 0 dest / 1 src0`` a rule for each row, with its words for ``{k}`` and ``{word}``

Other lines are for ``test_rules``. Programs of a file begin with a line ``=== name``; ``note 5``
and ``log r3`` append a number to a log.
"""

import re
from pathlib import Path
from typing import NamedTuple

from helpers.assembly import assemble, build, color_register, switch_register
from helpers.paths import ROOT

RULES = ROOT / "tests" / "wafer" / "machine" / "rules"
_LINE = re.compile(r"^#! (\w+)((?: \w+)*):(?: (.*))?$", re.MULTILINE)
_NOTE = re.compile(r"^ *note (\d+)$", re.MULTILINE)
_LOG = re.compile(r"^ *log (r\d+)$", re.MULTILINE)
# The place of the next number is kept in the first two bytes.
_APPEND = """const r20 0
load.u16 r21 r20 0
store.u16 r21 {} 2
const r22 2
add.u16 r21 r21 r22
store.u16 r20 r21 0"""


class Rule(NamedTuple):
    """A file for one architecture: (key, words, text) of its head, name -> text of programs."""

    path: Path
    arch: str
    lines: list[tuple[str, list[str], str]]
    programs: dict[str, str]

    def of(self, key, default=""):
        """The text of the first line of a key."""
        return next((text for name, _, text in self.lines if name == key), default)

    def table(self, key, value):
        """Numbers -> what a function makes of the texts of a key's lines."""
        lines = [(words, text) for name, words, text in self.lines if name == key]
        return {tuple(map(int, words)): value(text) for words, text in lines}


def _parts(text):
    """(key, words, text) of a head, and name -> text of programs."""
    head, *parts = re.split(r"^=== (\S+)\n", text, flags=re.MULTILINE)
    lines = [(key, words.split(), text) for key, words, text in _LINE.findall(head)]
    return lines, dict(zip(parts[::2], parts[1::2], strict=True)) or {"test.csl": head}


def _texts(text):
    """The text, or one for each row of its line ``each``."""
    rows = [line for line in _parts(text)[0] if line[0] == "each"]
    for _, names, words in rows:
        for row in words.split("/"):
            yield text.format(**dict(zip(names, row.split(), strict=True)))
    yield from [] if rows else [text]


def rules(folder=RULES):
    """Every rule of the files in a folder, once for each of its architectures."""
    for path in sorted(folder.rglob("*.asm")):
        for text in _texts(path.read_text(encoding="utf-8")):
            lines, programs = _parts(text)
            rule = Rule(path, "wse2", lines, programs)
            if name := rule.of("like"):
                shared, begun = _parts((path.parent / f"{name}.part").read_text(encoding="utf-8"))
                lines, programs = shared + lines, {n: begun[n] + programs.get(n, "") for n in begun}
            for arch in rule.of("arch", "wse2").split():
                yield Rule(path, arch, lines, programs)


def with_log(text):
    """A program's text with ``note`` and ``log`` written out."""
    text = _NOTE.sub(lambda found: f"const r19 {found[1]}\nlog r19", text)
    return _LOG.sub(lambda found: _APPEND.format(found[1]), text)


def image_of(rule):
    """The image that a rule describes."""
    size = int(rule.of("memory", "64"))
    programs = [
        assemble(with_log(text), name=name, memory=size) for name, text in rule.programs.items()
    ]
    return build(
        programs,
        [list(map(int, row.split())) for row in rule.of("tiles", "0").split("/")],
        rule.arch,
        rule.table("route", lambda text: color_register(*text.split())),
        rule.table("switch", lambda text: switch_register(*text.split())),
        streams={color: name for (color,), name in rule.table("stream", str).items()},
        edges=int(rule.of("edges", "0")),
    )
