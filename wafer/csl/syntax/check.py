"""What can be said of a file before anything is evaluated: names, labels, arguments of builtins.

Code that is not taken at compile time need only be grammar, and a function that nobody calls is
never looked at by the vendor's compiler: names in branches, on the right of ``and`` and ``or``, and
in bodies of functions that this file does not mention are not judged here.
"""

from collections.abc import Callable, Iterable

from wafer.csl.syntax import tree
from wafer.csl.syntax.builtins import ARGUMENTS, predefined
from wafer.csl.syntax.parser import Parsed, read
from wafer.csl.syntax.releases import feature_of
from wafer.csl.syntax.source import CslError, Diagnostic, Position, Source, suggestion


def check(source: Source) -> Parsed:
    """Parse a file and check its names.

    Raises:
        CslError: the text is not CSL; or unknown names, names declared twice in one scope, labels
            of no loop or block, jumps out of no loop, unknown builtins, wrong numbers of their
            arguments, a second layout block.
    """
    parsed = read(source)
    if problems := _problems(parsed.file):
        raise CslError(problems, source)
    return parsed


def _problems(file: tree.File) -> list[Diagnostic]:
    checker = _Checker({node.id for node, _ in tree.walk(file) if isinstance(node, tree.Name)})
    for declaration in file.declarations:
        if isinstance(declaration, tree.Variable | tree.FunctionDecl):
            checker.declare(declaration.name, declaration.at)
    for declaration in file.declarations:
        checker.visit(declaration)
    checker.problems += _mixed(file)
    layouts = [d for d in file.declarations if isinstance(d, tree.LayoutBlock)]
    for layout in layouts[1:]:
        checker.problems.append(
            Diagnostic(
                layout.at, f"a second layout block; the first is in line {layouts[0].at.line}"
            )
        )
    return checker.problems


def _mixed(file: tree.File) -> list[Diagnostic]:
    """Builtins of an older release beside those that replaced them."""
    used = {node.name: node.at for node, _ in tree.walk(file) if isinstance(node, tree.Builtin)}
    return [
        Diagnostic(at, feature.text, f"this file has {newer}, too; no release has both")
        for name, at in used.items()
        if (feature := feature_of(name)) is not None
        for newer in feature.beside
        if newer in used
    ][:1]


class _Checker:
    """Walks a tree with the names that are in scope.

    Attributes:
        problems: found so far.
    """

    def __init__(self, mentioned: set[str]) -> None:
        self._mentioned = mentioned  # names that the file uses anywhere
        self.problems = list[Diagnostic]()
        self._scopes: list[dict[str, Position]] = [{}]
        self._labels: list[str | None] = []  # of the loops and blocks around, '' for a loop
        self._certain = True  # whether this code is not in a branch

    def declare(self, name: str, at: Position) -> None:
        """Add a name to the innermost scope."""
        scope = self._scopes[-1]
        if name in scope and name != "_" and self._certain:
            message = f"'{name}' is declared twice; first in line {scope[name].line}"
            self.problems.append(Diagnostic(at, message))
        scope.setdefault(name, at)

    def visit(self, node: tree.Node | None) -> None:
        """Check a node and what is below it."""
        if node is not None:
            _VISITS.get(type(node), _Checker._below)(self, node)

    def _all(self, nodes: Iterable[tree.Node]) -> None:
        for node in nodes:
            self.visit(node)

    def _below(self, node: tree.Node) -> None:
        self._all(tree.children(node))

    def _scoped(self, names: Iterable[tuple[str | None, Position]], *nodes: tree.Node) -> None:
        """Visit nodes with more names in a scope of their own."""
        self._scopes.append({})
        for name, at in names:
            if name is not None:
                self.declare(name, at)
        self._all(nodes)
        self._scopes.pop()

    def _branch(self, *nodes: tree.Node | None) -> None:
        """Visit nodes that compile-time conditions may leave out."""
        certain, self._certain = self._certain, False
        for node in nodes:
            self.visit(node)
        self._certain = certain

    def _labelled(self, label: str | None, visit: Callable[[], None]) -> None:
        self._labels.append(label)
        visit()
        self._labels.pop()

    def _name(self, node: tree.Name) -> None:
        if not self._certain or node.id == "_" or predefined(node.id):
            return
        known = {name for scope in self._scopes for name in scope}
        if node.id not in known:
            message = f"'{node.id}' is not declared"
            self.problems.append(Diagnostic(node.at, message, suggestion(node.id, known)))

    def _builtin(self, node: tree.Builtin) -> None:
        self._below(node)
        if not self._certain:
            return
        if node.name not in ARGUMENTS:
            message = f"there is no builtin {node.name}"
            self.problems.append(Diagnostic(node.at, message, suggestion(node.name, ARGUMENTS)))
            return
        (low, high), count = ARGUMENTS[node.name], len(node.arguments)
        if not low <= count <= high:
            takes = str(low) if low == high else f"{low} to {high}"
            message = f"{node.name} takes {takes} argument(s), found {count}"
            self.problems.append(Diagnostic(node.at, message))

    def _variable(self, node: tree.Variable) -> None:
        self._below(node)
        if len(self._scopes) > 1:  # those of the file are known from its start
            self.declare(node.name, node.at)

    def _function(self, node: tree.FunctionDecl) -> None:
        formals = [(formal.name, formal.at) for formal in node.formals]
        signature = [*(formal.type for formal in node.formals), *node.attributes, node.result]
        self._scoped(formals, *signature)
        if node.body is not None:
            certain, self._certain = self._certain, node.name in self._mentioned
            self._scoped(formals, node.body)
            self._certain = certain

    def _function_type(self, node: tree.FunctionSignature) -> None:
        formals = [(formal.name, formal.at) for formal in node.formals]
        self._scoped(formals, *(formal.type for formal in node.formals), node.result)

    def _block(self, node: tree.Block) -> None:
        self._labelled(node.label, lambda: self._scoped((), *node.body))

    def _for(self, node: tree.For) -> None:
        self.visit(node.iterable)
        names = [(name, node.at) for name in node.variables]
        self._labelled(node.label or "", lambda: self._scoped(names, node.body))

    def _while(self, node: tree.While) -> None:
        self.visit(node.condition)
        self.visit(node.step)
        self._labelled(node.label or "", lambda: self._scoped((), node.body))

    def _tensor_access(self, node: tree.TensorAccess) -> None:
        self._all(node.extents)
        self._scoped([(name, node.at) for name in node.variables], node.body)

    def _if(self, node: tree.If) -> None:
        self.visit(node.arms[0][0])
        self._branch(node.arms[0][1])
        for condition, body in node.arms[1:]:
            self._branch(condition, body)
        self._branch(node.otherwise)

    def _switch(self, node: tree.Switch) -> None:
        self.visit(node.subject)
        for arm in node.arms:
            self._all(arm.patterns)
            self._branch(arm.body)

    def _binary(self, node: tree.Binary) -> None:
        self.visit(node.left)
        if node.operator in ("and", "or"):
            self._branch(node.right)
        else:
            self.visit(node.right)

    def _jump(self, node: tree.Break | tree.Continue) -> None:
        word = type(node).__name__.lower()
        self._below(node)
        if node.label is None:
            if not any(label is not None for label in self._labels):
                self.problems.append(Diagnostic(node.at, f"'{word}' outside of a loop"))
        elif node.label not in self._labels:
            hint = suggestion(f":{node.label}", [f":{label}" for label in self._labels if label])
            message = f"no loop or block around this has the label '{node.label}'"
            self.problems.append(Diagnostic(node.at, message, hint))


_VISITS: dict[type[tree.Node], Callable[..., None]] = {
    tree.Name: _Checker._name,
    tree.Builtin: _Checker._builtin,
    tree.Variable: _Checker._variable,
    tree.FunctionDecl: _Checker._function,
    tree.FunctionSignature: _Checker._function_type,
    tree.Block: _Checker._block,
    tree.For: _Checker._for,
    tree.While: _Checker._while,
    tree.TensorAccess: _Checker._tensor_access,
    tree.If: _Checker._if,
    tree.Switch: _Checker._switch,
    tree.Binary: _Checker._binary,
    tree.Break: _Checker._jump,
    tree.Continue: _Checker._jump,
}
