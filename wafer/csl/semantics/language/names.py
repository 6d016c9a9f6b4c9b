"""What names and places stand for: local names, those of a module, parts of arrays and structs."""

from typing import Any

from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator, Failure, described
from wafer.csl.semantics.core.values import (
    Cell,
    Function,
    KnownPlace,
    Memory,
    MemoryPlace,
    Module,
    Place,
    Reference,
    Register,
    RegisterVariable,
    Value,
    copied,
    is_known,
)
from wafer.csl.semantics.language.coerce import coerce, zero
from wafer.csl.syntax import tree
from wafer.csl.syntax.builtins import is_integer_name
from wafer.csl.syntax.source import Position, suggestion
from wafer.machine.codes import Op, Type
from wafer.machine.tools.reports import SIDES

DIRECTIONS = {side: bit for bit, side in enumerate(SIDES)}


def signature(ev: Evaluator, function: Function) -> types.Type:
    """The type of a function."""
    if function.generic:
        return types.FUNCTION
    node, inner = function.node, Evaluator(ev.unit, function.module)
    formals = tuple(inner.type(formal.type) for formal in node.formals)
    return types.FunctionType(node.kind, formals, inner.type(node.result))


def given_value(node: tree.Variable) -> tree.Node | None:
    """The value of a declaration; None if it has none, or ``undefined`` of a type."""
    undefined = isinstance(node.value, tree.Name) and node.value.id == "undefined"
    return None if undefined and node.type is not None else node.value


def _global(ev: Evaluator, module: Module, node: tree.Variable) -> Cell:
    """A param, constant or variable of a file."""
    inner = Evaluator(ev.unit, module)
    kind = inner.type(node.type) if node.type is not None else None
    ev.unit.declaring = node.name
    value = module.params.get(node.name) if node.kind == "param" else None
    if value is not None and (kind is None or value.type != types.VOID):  # {} is no value of a type
        if kind == types.COLOR and types.is_number(value.type):  # of the command line
            value = Value(types.COLOR, value.data)
        elif kind is not None:
            value = coerce(inner, value, kind, node.at)
    elif (given := given_value(node)) is not None:
        value = inner.known(given)
        if kind is not None:
            value = coerce(inner, value, kind, given.at)
    elif node.kind == "param":
        where = module.name if module.library else module.path
        inner.fail(
            node.at,
            f"the param '{node.name}' of {where} has no value",
            "give it one where the file is imported or placed, or a default",
        )
    elif kind is None:
        inner.fail(node.at, f"'{node.name}' has neither a type nor a value")
    else:
        value = Value(kind, zero(inner, kind, node.at))
    multiples = [inner.known(a.value).data for a in node.attributes if a.name == "align"]
    variable = node.kind == "var"
    cell = Cell(
        node.name,
        value.type,
        copied(value.data) if variable else value.data,
        running=variable and ev.unit.running,
        constant=not variable,
        alignment=max(multiples, default=0),
        at=node.at,
    )
    names = [str(inner.known(a.value).data) for a in node.attributes if a.name == "linkname"]
    if cell.running:
        cell = _linked(inner, cell, names[0] if names else node.name, node)
    constant_array = node.kind == "const" and isinstance(cell.type, types.Array)
    symbol = cell.running or (ev.unit.running and ("export" in node.modifiers or constant_array))
    if symbol and (names or not module.library):
        ev.unit.globals.setdefault(names[0] if names else node.name, cell)
    return cell


def _linked(inner: Evaluator, cell: Cell, name: str, node: tree.Variable) -> Cell:
    """The one variable that an ``export var`` and each ``extern var`` of its name stand for."""
    if not {"export", "extern"} & set(node.modifiers):
        return cell
    shared = inner.unit.linked.setdefault(name, cell)
    if shared.type != cell.type:
        inner.fail(
            node.at, f"'{name}' is {shared.type} in another place, {cell.type} here", "use one type"
        )
    if "export" in node.modifiers:
        shared.data, shared.alignment = cell.data, max(shared.alignment, cell.alignment)
    return shared


def declared(ev: Evaluator, module: Module, name: str) -> Cell | Value | None:
    """What a file's name stands for, worked out when it is first used; None if it has none.

    Raises:
        Failure: its declaration is wrong; the same each time.
    """
    if name in module.members:
        member = module.members[name]
        if member is None:
            node = module.declarations[name]
            ev.fail(node.at, f"'{name}' depends on itself")
        if isinstance(member, Failure):
            raise member
        return member
    node = module.declarations.get(name)
    if node is None:
        return None
    if isinstance(node, tree.FunctionDecl):
        function = Function(module, node)
        module.members[name] = Value(signature(ev, function), function)
        return module.members[name]
    module.members[name] = None
    try:
        with ev.unit.leading(ev.unit.led or module.imported):
            module.members[name] = _global(ev, module, node)
    except Failure as failure:
        module.members[name] = failure
        raise
    return module.members[name]


def _binding(ev: Evaluator, node: tree.Name) -> Any:
    if (binding := ev.local(node.id)) is not None:
        return binding
    if (binding := declared(ev, ev.module, node.id)) is not None:
        return binding
    if (kind := types.named(node.id)) is not None:
        return Value(types.TYPE, kind)
    if node.id in DIRECTIONS:
        return Value(types.DIRECTION, DIRECTIONS[node.id])
    if is_integer_name(node.id):
        ev.fail(node.at, f"{node.id}: integers have at most 16,777,215 bits")
    known = {name for scope in ev.scopes for name in scope} | ev.module.declarations.keys()
    return ev.fail(node.at, f"'{node.id}' is not declared", suggestion(node.id, known))


def named_value(ev: Evaluator, node: tree.Node) -> Value:
    """The value of a name, an element, a field or what a pointer points to."""
    target = resolve(ev, node)
    return target if isinstance(target, Value) else ev.read(target, node.at)


def resolve(ev: Evaluator, node: tree.Node) -> Place | Value:
    """Where the value of an expression is kept, or the value if it is kept nowhere."""
    match node:
        case tree.Name():
            return _kept(_binding(ev, node))
        case tree.Dereference():
            pointer = ev.value(node.value)
            function = isinstance(pointer.type, types.FunctionType)
            return pointer if function else pointed(ev, pointer, node.at)
        case tree.Index():
            return _indexed(ev, node)
        case tree.Member():
            return _member(ev, node)
    return _kept(ev.value(node))


def _kept(binding: Any) -> Place | Value:
    match binding:
        case Cell():
            return KnownPlace(binding.type, Reference(binding))
        case Value(kind, Memory(register, offset)):
            return MemoryPlace(kind, register, offset)
    return binding


def _followed(ev: Evaluator, target: Place | Value, at: Position) -> Place | Value:
    """What a pointer points to; anything else itself."""
    if not isinstance(target.type, types.Pointer):
        return target
    pointer = target if isinstance(target, Value) else ev.read(target, at)
    place = pointed(ev, pointer, at)
    if target.type.many:  # an array without end
        return place._replace(type=types.Array((1 << 16,), place.type))
    return place


def pointed(ev: Evaluator, pointer: Value, at: Position) -> KnownPlace | MemoryPlace:
    """The place that a pointer points to."""
    kind = pointer.type
    if not isinstance(kind, types.Pointer):
        ev.fail(at, f"expected a pointer, found {described(pointer)}")
    if isinstance(pointer.data, Reference):
        return KnownPlace(kind.target, pointer.data)
    ev.require_code(at, "what this pointer points to")
    return MemoryPlace(kind.target, ev.register(pointer, at), 0)


def flat(ev: Evaluator, kind: types.Type, indices: list[Value], at: Position) -> Value:
    """The row-by-row index of an element."""
    if not isinstance(kind, types.Array):
        ev.fail(at, f"expected an array, found a value of type {kind}")
    if len(indices) != len(kind.shape):
        ev.fail(at, f"{kind} takes {len(kind.shape)} indices, found {len(indices)}")
    for position, value in enumerate(indices):
        integer = types.is_integer(value.type) or value.type == types.COMPTIME_INT
        if not integer:
            ev.fail(at, f"an index is an integer, found {described(value)}")
        extent = kind.shape[position]
        if is_known(value) and not 0 <= value.data < extent:
            ev.fail(at, f"index {value.data} is outside of {kind}, which has {extent}")
    if all(map(is_known, indices)):
        number = 0
        for value, extent in zip(indices, kind.shape, strict=True):
            number = number * extent + value.data
        return Value(types.COMPTIME_INT, number)
    code = ev.require_code(at, "this index")
    total = None
    for value, extent in zip(indices, kind.shape, strict=True):
        term = ev.register(_word(ev, value, at), at)
        if total is not None:
            total = code.result(Op.MUL, Type.U16, total, code.constant(extent))
            term = code.result(Op.ADD, Type.U16, total, term)
        total = term
    return Value(types.U16, Register(total or 0))


def _word(ev: Evaluator, value: Value, at: Position) -> Value:
    """An index as the machine adds it to addresses: modulo 16 bits."""
    if is_known(value):
        return Value(types.U16, value.data % (1 << 16))
    if types.size_of(value.type) == 2:
        return Value(types.U16, value.data)
    source = types.machine_type(value.type)
    assert source is not None
    assert ev.code is not None
    return Value(
        types.U16, Register(ev.code.result(Op.CAST, Type.U16, ev.register(value, at), source))
    )


def array_of(ev: Evaluator, node: tree.Node) -> KnownPlace | MemoryPlace | Value:
    """What an index is applied to."""
    target = _followed(ev, resolve(ev, node), node.at)
    if isinstance(target, RegisterVariable):
        ev.fail(node.at, f"expected an array, found a value of type {target.type}")
    return target


def _indexed(ev: Evaluator, node: tree.Index) -> Place | Value:
    base = array_of(ev, node.value)
    indices = [ev.value(part) for part in node.indices]
    if base.type == types.ANONYMOUS:
        return _listed(ev, base, indices, node.at)
    number = flat(ev, base.type, indices, node.at)
    if not isinstance(base, Value):
        return element(ev, base, number, node.at)
    assert isinstance(base.type, types.Array)
    if is_known(number):
        return Value(base.type.element, base.data[number.data])
    cell = Cell("an array", base.type, base.data, constant=True)
    return element(ev, KnownPlace(base.type, Reference(cell)), number, node.at)


def _listed(ev: Evaluator, base: Place | Value, indices: list[Value], at: Position) -> Value:
    """An element of ``.{…}``."""
    parts = (base if isinstance(base, Value) else ev.read(base, at)).data
    if not isinstance(parts, list):
        ev.fail(at, "a struct has fields, not elements")
    number = flat(ev, types.Array((len(parts),), types.ANYTYPE), indices, at)
    if not is_known(number):
        ev.fail(at, "the elements of .{…} are chosen at compile time only")
    return parts[number.data]


def element(
    ev: Evaluator, base: KnownPlace | MemoryPlace, index: Value, at: Position
) -> KnownPlace | MemoryPlace:
    """The place of an array's element."""
    assert isinstance(base.type, types.Array)
    kind = base.type.element
    if is_known(index):
        if isinstance(base, KnownPlace):
            return KnownPlace(kind, _part(base.reference, base.type, index.data))
        return MemoryPlace(kind, base.register, base.offset + index.data * types.size_of(kind))
    code = ev.require_code(at, "this index")
    if isinstance(base, KnownPlace):
        address = ev.unit.address(base.reference, at)
        base = MemoryPlace(base.type, code.constant(address), 0)
    scaled, size = ev.register(index, at), types.size_of(kind)
    if size > 1:
        scaled = code.result(Op.MUL, Type.U16, scaled, code.constant(size))
    return MemoryPlace(kind, code.result(Op.ADD, Type.U16, base.register, scaled), base.offset)


def _part(reference: Reference, array: types.Array, number: int) -> Reference:
    if not reference.extra:
        part = reference.part()
        if isinstance(part, types.Array) and part.element == array.element:
            return Reference(reference.cell, (*reference.path, number))
        last = reference.path[-1] if reference.path else None
        if part == array.element and isinstance(last, int):  # a pointer to one of an array's
            return Reference(reference.cell, (*reference.path[:-1], last + number))
    size = types.size_of(array.element)
    return reference._replace(extra=reference.extra + number * size)


def _of_module(ev: Evaluator, module: Module, node: tree.Member) -> Any:
    """What ``module.name`` stands for."""
    binding = declared(ev, module, node.name)
    if binding is None:
        hint = suggestion(node.name, module.declarations)
        ev.fail(node.at, f"{module.name} declares no '{node.name}'", hint)
    return binding


def _member(ev: Evaluator, node: tree.Member) -> Place | Value:
    target = _followed(ev, resolve(ev, node.value), node.at)
    if not isinstance(target.type, types.Struct):
        value = target if isinstance(target, Value) else ev.read(target, node.at)
        return _of_value(ev, value, node)
    fields = dict(target.type.fields)
    if node.name not in fields:
        ev.fail(node.at, f"{target.type} has no field '{node.name}'", suggestion(node.name, fields))
    return _field(target, node.name, fields[node.name])


def _of_value(ev: Evaluator, value: Value, node: tree.Member) -> Place | Value:
    """A member of a module, an enum or ``.{…}``."""
    data = value.data
    if value.type == types.MODULE:
        return _kept(_of_module(ev, data, node))
    if value.type == types.TYPE and isinstance(data, types.Enum):
        members = {name: Value(data, number) for name, number in data.members}
    else:
        members = data if value.type == types.ANONYMOUS and isinstance(data, dict) else {}
    if node.name not in members:
        hint = suggestion(node.name, members)
        ev.fail(node.at, f"{described(value)} has no member '{node.name}'", hint)
    return members[node.name]


def _field(target: Place | Value, name: str, kind: types.Type) -> Place | Value:
    """A field of a struct."""
    assert isinstance(target.type, types.Struct)
    offset = target.type.offsets[name] if not isinstance(target, Value) else 0
    match target:
        case Value():
            return Value(kind, target.data[name])
        case MemoryPlace(_, register, start):
            return MemoryPlace(kind, register, start + offset)
        case KnownPlace(_, reference) if reference.extra:
            return KnownPlace(kind, reference._replace(extra=reference.extra + offset))
        case KnownPlace(_, reference):
            return KnownPlace(kind, Reference(reference.cell, (*reference.path, name)))
    raise AssertionError(target)
