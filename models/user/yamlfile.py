"""The one reader of YAML files: no duplicate keys, 1e-5 is a number, every key knows its line.

PyYAML alone keeps the last of two equal keys silently and reads ``1e-5`` as text (YAML 1.1).
Files may come from anyone: nothing in them is executed, and aliases cannot blow up the memory.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from wafer.models.errors import Problem, SectionError, did_you_mean

Lines = dict[tuple[str | int, ...], int]
YamlMapping = dict[str, Any]  # a parsed mapping: key -> scalar, list or mapping

_MAX_BYTES = 1_000_000  # run files have some ten thousand; also once aliases are expanded
_MAX_NODES = 100_000  # expanded size; run files have a few hundred
_MAX_DIGITS = 1_000  # of an integer; Python prints some thousand decimal ones at most
_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"

if TYPE_CHECKING:
    from yaml import SafeLoader as _Base
else:
    _Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is much faster


class _Loader(_Base):
    """Safe loader with YAML 1.2 floats; what a tag cannot be made of is an error with its line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """Build the value of a node."""
        if node.tag == f"{_TAG}int" and len(node.value) > _MAX_DIGITS:
            problem = f"{node.value!r:.80} has {len(node.value):,} digits; expected {_MAX_DIGITS:,}"
            raise ConstructorError(None, None, f"{problem} at most", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError) as error:
            tag = str(node.tag).removeprefix(_TAG)
            raise ConstructorError(
                None, None, f"{node.value!r:.80} is no {tag}", node.start_mark
            ) from error


_Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)
_Loader.add_constructor(f"{_TAG}value", _Loader.construct_yaml_str)  # '=', text as any other


def read_yaml(path: str | os.PathLike[str]) -> tuple[Any, Lines]:
    """Parse the one document of a file.

    Args:
        path: the file.

    Returns:
        The document as plain Python values, and the line of every key and list entry by path.

    Raises:
        SectionError: no such file, not UTF-8, or what ``parse_yaml`` refuses; without the path.
    """
    return parse_yaml(_text(Path(path)))


def parse_yaml(text: str) -> tuple[Any, Lines]:
    """Parse one document, as ``read_yaml``.

    Raises:
        SectionError: a syntax error or unknown tag (with its line), a duplicate key (with both
            lines), an alias inside itself, aliases that expand to more than a file may hold.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise SectionError([Problem((), "the file is empty")])
            walk = _Walk(loader)
            walk.visit(node, ())
            if walk.problems:
                raise SectionError(walk.problems)
            return loader.construct_document(node), walk.lines
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        context = f" ({err.context})" if err.context else ""
        message = f"{line}not valid YAML: {err.problem}{context}"
        raise SectionError([Problem((), message)]) from None
    except (yaml.YAMLError, RecursionError) as err:
        raise SectionError([Problem((), f"not valid YAML: {err}")]) from None


def _text(path: Path) -> str:
    if not path.is_file():
        if path.is_symlink() and not path.exists():
            problem = f"a link to {os.readlink(path)}, which does not exist"
            raise SectionError([Problem((), problem)])
        if path.exists() and not path.is_dir():
            problem = "a pipe or device, which can be read once; write its text to a file"
            raise SectionError([Problem((), problem)])
        kind = "is a folder, not a file" if path.is_dir() else "no such file"
        near = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise SectionError([Problem((), kind + did_you_mean(path.name, near))])
    size = path.stat().st_size
    if size > _MAX_BYTES:
        problem = f"{size:,} bytes; a YAML file has {_MAX_BYTES:,} at most"
        raise SectionError([Problem((), problem)])
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise SectionError([Problem((), f"cannot be read: {err}")]) from None


class _Walk:
    """Collects lines and duplicate keys over the node graph, aliases expanded."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader
        self.lines: Lines = {}
        self.problems: list[Problem] = []
        self._open: set[int] = set()
        self._count = self._length = 0

    def visit(self, node: yaml.Node, path: tuple[str | int, ...]) -> None:
        self._count += 1
        self._length += len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        too_large = self._count > _MAX_NODES or self._length > _MAX_BYTES
        if id(node) in self._open or too_large:
            message = (
                f"more than {_MAX_NODES:,} values or {_MAX_BYTES:,} letters once aliases are "
                "expanded, or an alias that contains itself"
            )
            raise ComposerError(None, None, message, node.start_mark)
        self._open.add(id(node))
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            self._mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            if node.tag == f"{_TAG}omap":  # a list of mappings with one key each
                entries = (item.value for item in node.value if isinstance(item, yaml.MappingNode))
                self._require_distinct([pair for entry in entries for pair in entry], path)
            for i, item in enumerate(node.value):
                self.visit(item, (*path, i))
        self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: tuple[str | int, ...]) -> None:
        self._require_distinct(node.value, path)
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # the constructor refuses unhashable keys itself
            merge = key.tag == _MERGE
            inside = path if merge else (*path, key.value)
            if not merge:
                self.lines[inside] = key.start_mark.line + 1
            self.visit(value, inside)

    def _require_distinct(
        self, pairs: list[tuple[object, object]], path: tuple[str | int, ...]
    ) -> None:
        """Note keys whose values are equal, whatever their spelling: 1 and 0x1, true and yes."""
        lines: dict[Any, int] = {}
        for key, _ in pairs:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            line, value = key.start_mark.line + 1, self._loader.construct_object(key, deep=True)
            if value in lines:
                where = f"lines {lines[value]} and {line}"
                self.problems.append(
                    Problem((*path, key.value), f"duplicate key ({where}); keep one")
                )
            lines[value] = line
