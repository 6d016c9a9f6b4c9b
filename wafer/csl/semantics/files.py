"""Where imported files are found, and the instances made of them."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from wafer.csl.semantics.core.evaluator import Failure
from wafer.csl.semantics.core.values import Module, Value
from wafer.csl.syntax import tree
from wafer.csl.syntax.check import check
from wafer.csl.syntax.parser import Parsed
from wafer.csl.syntax.source import Diagnostic, Position, Source

T = TypeVar("T", bound=tree.Node)
LIBRARY = Path(__file__).parents[1] / "library"
_VALUES = "values"  # its modules of plain values, imported without the folder
# Names of older releases -> the module that is the same.
_SAME = {"<memcpy_multi/memcpy_switches>": "<memcpy/memcpy_switches>"}


class Files:
    """Opens each file once.

    Attributes:
        import_paths: folders that are searched after the importing file's own.
        layout_path: the file with the layout; its folder is searched last.
    """

    def __init__(self, import_paths: tuple[str, ...], layout_path: Path) -> None:
        self.import_paths = import_paths
        self.layout_path = layout_path
        self._opened: dict[Path, OpenFile] = {}

    def source(self, at: Position) -> Source | None:
        """The text of the file that a position is in, if it was opened."""
        return next((f.source for f in self._opened.values() if f.source.file == at.file), None)

    def opened(self, path: str | Path) -> "OpenFile":
        """A file's tree.

        Raises:
            CslError: it is not CSL.
        """
        if (path := Path(path)) not in self._opened:
            self._opened[path] = OpenFile(check(Source.open(path)))
        return self._opened[path]

    def found(self, name: str, importer: str, at: Position) -> Path:
        """The path of a file or system module that another file names.

        Raises:
            Failure: there is no such file.
        """
        if name.startswith("<") and name.endswith(">"):
            name = _SAME.get(name, name)
            for folder in (LIBRARY, LIBRARY / _VALUES, *map(Path, self.import_paths)):
                if (path := folder / f"{name[1:-1]}.csl").is_file():
                    return path
            paths = (str(p.relative_to(LIBRARY))[:-4] for p in LIBRARY.rglob("*.csl"))
            known = sorted(path.removeprefix(f"{_VALUES}/") for path in paths)
            hint = f"there are {', '.join(f'<{each}>' for each in known)}"
            raise Failure(Diagnostic(at, f"there is no system module {name}", hint))
        folders = [Path(importer).parent, *map(Path, self.import_paths)]
        if self.layout_path.parent not in folders:
            folders.append(self.layout_path.parent)
        for folder in folders:
            if (folder / name).is_file():
                return folder / name
        looked = ", ".join(str(folder) for folder in folders)
        raise Failure(Diagnostic(at, f"there is no file {name}", f"looked for it in {looked}"))

    def instance(self, name: str, importer: str, params: dict[str, Value], at: Position) -> Module:
        """A new instance of a file or system module.

        Raises:
            Failure: there is no such file.
            CslError: it is not CSL.
        """
        return self.module(self.found(name, importer, at), params, name)

    def module(self, path: Path, params: dict[str, Value], name: str = "") -> Module:
        """A new instance of the file at a path."""
        declarations = self.opened(path).declarations
        named = {
            d.name: d for d in declarations if isinstance(d, tree.Variable | tree.FunctionDecl)
        }
        blocks = tuple(d.body for d in declarations if isinstance(d, tree.Comptime))
        library = path.is_relative_to(LIBRARY)
        return Module(str(path), name or path.name, named, blocks, params, library)


class OpenFile:
    """A file's declarations, and what its text says of names; each is worked out once.

    Attributes:
        source: its text.
        declarations: of its tree.
    """

    def __init__(self, parsed: Parsed) -> None:
        self.source, self._file = parsed.source, parsed.file
        self.declarations = parsed.file.declarations
        self._addressed: dict[Position, frozenset[str]] = {}

    @functools.cached_property
    def mentioned(self) -> frozenset[str]:
        """The names that the file uses anywhere."""
        return frozenset(node.id for node in _nodes(self._file, tree.Name))

    @functools.cached_property
    def changed(self) -> frozenset[str]:
        """The names that the file assigns to, or takes the address of; of arrays not all."""
        places = [node.target for node in _nodes(self._file, tree.Assign)]
        places += [n.operand for n in _nodes(self._file, tree.Unary) if n.operator == "&"]
        return frozenset(name for place in places for name in _parts(place))

    @functools.cached_property
    def importing(self) -> tuple[str, ...]:
        """The names that stand for imported files, or for what is made of them."""
        values = [(d.name, d.value) for d in self.declarations if isinstance(d, tree.Variable)]
        imports = lambda node: any(b.name == "@import_module" for b in _nodes(node, tree.Builtin))
        return tuple(name for name, value in values if value is not None and imports(value))

    def addressed(self, function: tree.FunctionDecl) -> frozenset[str]:
        """The names in a function whose address is taken."""
        if function.at not in self._addressed:
            taken = [n.operand for n in _nodes(function, tree.Unary) if n.operator == "&"]
            names = frozenset(node.id for node in taken if isinstance(node, tree.Name))
            self._addressed[function.at] = names
        return self._addressed[function.at]


def _parts(place: tree.Node) -> Iterator[str]:
    """The names of a place: of a variable, its module and fields; none of what a pointer is to."""
    match place:
        case tree.Name(id=name):
            yield name
        case tree.Member(value=value, name=name):
            yield name
            yield from _parts(value)
        case tree.Index(value=tree.Index() | tree.Member() as value):
            yield from _parts(value)


def _nodes(root: tree.Node, kind: type[T]) -> Iterator[T]:
    """The nodes of a kind below one."""
    return (node for node, _ in tree.walk(root) if isinstance(node, kind))
