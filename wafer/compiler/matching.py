"""Matching: from operations to kernels.

A kernel begins at an operation that needs PEs of its own: a product with a weight, a product of
activations (two around an exponential are attention), a convolution, a look-up, a normalisation.
Everything elementwise joins the kernel that made its operand, as its epilogue; what follows the
last kernel and ends in a scalar is the loss. The backward and update parts follow by
transposition: for ``y = x W``, ``dx = dy W^T`` and ``dW = x^T dy``, each only where a gradient is
asked for. Operations on inputs alone are left to the input workers, operations on parameters alone
happen once per step; neither gets PEs.
"""

import math
import re
from collections.abc import Iterable, Sequence

import jax.numpy as jnp

from wafer.compiler.flatten import TracedOp, TracedValue
from wafer.compiler.graph import Graph, Kernel, Product

_PRODUCTS = {"dot_general", "ragged_dot_general", "conv_general_dilated"}
_FREE = frozenset({
    "bitcast_convert_type", "broadcast_in_dim", "concatenate", "convert_element_type", "copy",
    "copy_p", "dynamic_slice", "dynamic_update_slice", "expand_dims", "iota",
    "optimization_barrier", "pad", "reshape", "rev", "sharding_constraint", "slice", "split",
    "squeeze", "stop_gradient", "transpose",
})  # fmt: skip
_TURN = re.compile(r"\[\d+\]")
_LINEAR = frozenset({"add", "add_any", "neg", "reduce_sum", "sub", "cumsum", "select_n"})
# Lane operations per element of what takes a series or an iteration instead of one instruction.
_SLOW = {
    "acos": 20, "asin": 20, "atan": 20, "atan2": 24, "cbrt": 16, "cos": 16, "cosh": 16, "digamma":
    30, "div": 8, "erf": 16, "erf_inv": 24, "erfc": 16, "exp": 12, "exp2": 12, "expm1": 14,
    "lgamma": 30, "log": 14, "log1p": 16, "logistic": 16, "pow": 28, "rem": 10, "rsqrt": 10,
    "sin": 16, "sinh": 16, "sqrt": 10, "tan": 20, "tanh": 16,
}  # fmt: skip


class _Group:
    """A kernel while it is being collected."""

    def __init__(self, kind: str, scope: str, op: TracedOp) -> None:
        self.kind, self.scope, self.first = kind, scope, op
        self.products: list[Product] = []
        self.weights: dict[str, int] = {}  # name -> elements, of a stack of layers one layer's
        self.lanes = self.half_lanes = self.elements = 0
        self.inside: set[int] = set()
        self.ins: dict[int, TracedValue] = {}
        self.origin: dict[int, int] = {}  # what is only moved -> the input it was
        self.kept: dict[int, int] = {}  # value -> bytes that the backward part reads again
        self.dx = self.dw = False

    @property
    def bits(self) -> int:
        """Of its products' operands, without any of its widest input."""
        return 16 if any(v.dtype.itemsize == 2 for v in self.ins.values()) else 32

    def take(self, op: TracedOp) -> None:
        """Add an operation."""
        for value in op.ins:
            if value.data and value.key not in self.inside and _float(value):
                self.ins[value.key] = value
            elif value.weight and op.name not in _FREE:
                for name in sorted(value.params):
                    self.weights[name] = max(value.size, self.weights.get(name, 0))
            self.dx |= value.data and value.trained and value.key not in self.inside
            self.dw |= value.weight and value.trained
        self._keep(op)
        self.inside |= {value.key for value in op.outs}
        lanes = _lanes(op)
        if op.outs[0].dtype is not None and op.outs[0].dtype.itemsize == 2:
            self.half_lanes += lanes
        else:
            self.lanes += lanes
        self.elements = max(self.elements, *(v.size for v in (*op.ins, *op.outs)))

    def _keep(self, op: TracedOp) -> None:
        """Note which values the derivative needs: operands of what is not linear in them."""
        data = [v for v in op.ins if v.data and v.trained]
        if op.name in _FREE:
            for value in data:
                root = self.origin.get(value.key, value.key)
                self.origin |= dict.fromkeys((out.key for out in op.outs), root)
            return
        linear = op.name in _LINEAR or (op.name in {"mul", "div"} and len(data) < 2)
        if linear and not any(v.weight and v.trained for v in op.ins):
            return
        if op.name in _LINEAR:  # a bias
            return
        for value in op.ins:
            root = self.origin.get(value.key, value.key)
            if value.data and _float(value):
                self.kept[root] = value.size * value.dtype.itemsize * op.times

    @property
    def stashed(self) -> int:
        """Bytes per sample. A loss turns round at once; attention computes its scores again."""
        if self.kind == "loss":
            return 0
        if self.kind == "attention":
            return sum(v.size * v.dtype.itemsize for v in self.ins.values() if v.trained)
        inputs = sum(size for key, size in self.kept.items() if key in self.ins)
        inner = [size for key, size in self.kept.items() if key not in self.ins]
        if self.kind == "norm":  # statistics are small, the rest follows from the input
            return max([inputs, *inner])
        return inputs + max(inner, default=0)


def _float(value: TracedValue) -> bool:
    return value.dtype is not None and jnp.issubdtype(value.dtype, jnp.inexact)


def _lanes(op: TracedOp) -> int:
    if op.name in _FREE or op.name in _PRODUCTS:
        return 0
    wide = op.name.startswith(("reduce", "arg", "cum", "scatter", "top_k"))
    sizes = (v.size for v in (op.ins if wide else op.outs))
    return max(sizes, default=0) * _SLOW.get(op.name, 1) * op.times


def _product(op: TracedOp) -> Product:
    """A product's dims, those of its activation first."""
    a, b = op.ins[:2]
    if op.name == "conv_general_dilated":
        spec = op.settings["dimension_numbers"].rhs_spec
        out_features, in_features = b.shape[spec[0]], b.shape[spec[1]]
        groups = op.settings["feature_group_count"]
        window = math.prod(b.shape[i] for i in spec[2:])
        places = op.outs[0].size // out_features
        return Product(groups, places * op.times, in_features * window, out_features // groups)
    if "ragged_dot_dimension_numbers" in op.settings:
        numbers = op.settings["ragged_dot_dimension_numbers"].dot_dimension_numbers
    else:
        numbers = op.settings["dimension_numbers"]
    (left, right), (batch, _) = numbers
    groups = math.prod(a.shape[i] for i in batch)
    k = math.prod(a.shape[i] for i in left)
    m, n = a.size // (groups * k), b.size // (groups * math.prod(b.shape[i] for i in right))
    if a.weight and not b.weight:
        m, n = n, m
    return Product(groups, m * op.times, k, n)


class _Matcher:
    def __init__(self, ops: Sequence[TracedOp], parameters: bool) -> None:
        self.groups: list[_Group] = []
        self.owner: dict[int, int] = {}  # value -> group that made it
        self.behind: list[int] = []  # group -> bits of the groups it gets data from
        self.by_scope: dict[tuple[str, str], int] = {}
        self.parameters = parameters
        self.kinds = _scope_kinds(ops)

    def needs_pes(self, op: TracedOp) -> bool:
        if not any(v.data for v in op.ins):
            return False
        if not self.parameters or op.name in _PRODUCTS:
            return True
        return any(v.params for v in op.ins)

    def add(self, op: TracedOp) -> None:
        if not self.needs_pes(op):
            return
        index = self._place(op)
        if index is None:
            return  # moves data from an input: nothing has been computed yet
        group = self.groups[index]
        if op.name in _PRODUCTS:
            group.products.append(_product(op))
        elif op.name == "gather" and group.kind == "embedding" and op.ins[0].weight:
            table, out = op.ins[0], op.outs[0]
            features = max(1, math.prod(op.settings["slice_sizes"]))
            look_ups = Product(1, out.size // features * op.times, table.size // features, features)
            group.products.append(look_ups)
        self.give(op, index)

    def give(self, op: TracedOp, index: int) -> None:
        """Put an operation into a group and remember what the group now depends on."""
        self.groups[index].take(op)
        more = 0
        for value in op.ins:
            maker = self.owner.get(value.key, index)
            if maker != index:
                more |= self.behind[maker] | 1 << maker
        if more & ~self.behind[index]:
            self.behind = [
                b | more if number == index or b >> index & 1 else b
                for number, b in enumerate(self.behind)
            ]
        self.owner |= dict.fromkeys((v.key for v in op.outs), index)

    def open(self, kind: str, op: TracedOp) -> int:
        """Begin a group."""
        self.groups.append(_Group(kind, op.scope, op))
        self.behind.append(0)
        self.by_scope[op.scope, kind] = len(self.groups) - 1
        return len(self.groups) - 1

    def _free_to_join(self, at: int | None, makers: Sequence[int]) -> bool:
        """Whether a group may take what these made: none of them waits for the group itself."""
        return at is not None and not any(self.behind[m] >> at & 1 for m in makers if m != at)

    def _place(self, op: TracedOp) -> int | None:
        """The group an operation belongs to; a new one where it needs one."""
        makers = [self.owner[v.key] for v in op.ins if v.key in self.owner]
        ready = [m for m in makers if self._free_to_join(m, makers)]
        latest = max(ready, default=None)
        kind = self.kinds.get(op.scope)
        if op.name in _PRODUCTS and any(v.weight for v in op.ins[:2]):
            return self.open("convolution" if op.name.startswith("conv") else "matmul", op)
        if kind is not None and op.name not in _FREE:  # the scope is one kernel
            scoped = self.by_scope.get((op.scope, kind))
            joins = scoped is not None and self._free_to_join(scoped, makers)
            return scoped if joins else self.open(kind, op)
        if op.name in _PRODUCTS:
            between = [at for at in ready if self.groups[at].kind == "attention"]
            return max(between) if between else self.open("attention", op)
        if op.name == "gather" and op.ins[0].weight:
            scoped = self.by_scope.get((op.scope, "embedding"))
            joins = bool(op.scope) and scoped is not None and self._free_to_join(scoped, makers)
            return scoped if joins else self.open("embedding", op)
        if op.name in _FREE or latest is None:
            return latest if op.name in _FREE else self.open("elementwise", op)
        fresh = op.name == "rsqrt" and self.groups[latest].kind != "norm"
        return self.open("norm", op) if fresh else latest


def _scope_kinds(ops: Sequence[TracedOp]) -> dict[str, str]:
    """Scopes that are one kernel as a whole: those of a norm, those of products of activations."""
    weighted, kinds = set(), {}
    for op in ops:
        if not op.scope or not any(v.data for v in op.ins):
            continue
        if op.name in _PRODUCTS and any(v.weight for v in op.ins[:2]):
            weighted.add(op.scope)
        elif op.name in _PRODUCTS:
            kinds[op.scope] = "attention"
        elif op.name == "rsqrt":
            kinds.setdefault(op.scope, "norm")
    return {scope: kind for scope, kind in kinds.items() if scope not in weighted}


def _tail(matcher: _Matcher, ops: Sequence[TracedOp], result: TracedValue) -> set[int]:
    """Positions of the operations after the last kernel that end in a scalar: the loss."""
    if result.size != 1 or not matcher.groups:
        return set()
    heads = {"matmul", "convolution", "attention", "embedding", "norm"}
    last = max((at for at, g in enumerate(matcher.groups) if g.kind in heads), default=-1)
    positions = set()
    tail_keys: set[int] = set()
    for position, op in enumerate(ops):
        if not matcher.needs_pes(op) or op.name in _PRODUCTS or op.name in _FREE:
            if any(v.key in tail_keys for v in op.ins):
                tail_keys |= {v.key for v in op.outs}
            continue
        owners = [matcher.owner[v.key] for v in op.ins if v.key in matcher.owner]
        after = any(v.key in tail_keys for v in op.ins)
        reduces = op.name.startswith(("reduce", "cum", "arg")) or op.name in {"exp", "log"}
        bare = not any(v.weight for v in op.ins)
        starts = last in owners and bare and (reduces or op.name in {"sub", "gather"})
        own_scope = op.scope != matcher.groups[last].scope
        if after or (starts and own_scope) or (starts and not op.scope):
            positions.add(position)
            tail_keys |= {v.key for v in op.outs}
    return positions


def build_graph(
    ops: Sequence[TracedOp],
    ins: Sequence[TracedValue],
    outs: Sequence[TracedValue],
    sizes: dict[str, int],
    densities: dict[str, float] | None = None,
) -> Graph:
    """Collect operations into kernels.

    Args:
        ops: from ``flatten``.
        ins: its arguments.
        outs: its results; a scalar first result is a loss.
        sizes: elements of each parameter.
        densities: kept share of each sparse parameter.
    """
    matcher = _Matcher(ops, any(v.params for v in ins))
    for op in ops:
        matcher.add(op)
    tail = _tail(matcher, ops, outs[0])
    if tail:  # a second pass, in which the loss has a kernel of its own
        second = _Matcher(ops, any(v.params for v in ins))
        loss_group: int | None = None
        for position, op in enumerate(ops):
            if position not in tail:
                second.add(op)
                continue
            loss_group = second.open("loss", op) if loss_group is None else loss_group
            second.give(op, loss_group)
        matcher = second
    return _finish(matcher, ins, sizes, densities or {})


def _finish(
    matcher: _Matcher,
    ins: Sequence[TracedValue],
    sizes: dict[str, int],
    densities: dict[str, float],
) -> Graph:
    names = _names(matcher.groups, sizes)
    flows: dict[tuple[int, int], dict[int, int]] = {}
    leaving: list[dict[int, int]] = [{} for _ in matcher.groups]
    for target, group in enumerate(matcher.groups):
        for key, value in group.ins.items():
            source = matcher.owner.get(key)
            if source is not None and source != target:
                flows.setdefault((source, target), {})[key] = value.size
                leaving[source][key] = value.size
    kernels = [
        _kernel(group, name, sizes, densities, sum(out.values()))
        for group, name, out in zip(matcher.groups, names, leaving, strict=True)
    ]
    edges = tuple((a, b, sum(v.values())) for (a, b), v in sorted(flows.items()))
    entering = sum(v.size * v.dtype.itemsize for v in ins if v.data and v.dtype is not None)
    return Graph(tuple(kernels), edges, entering)


def _kernel(
    group: _Group, name: str, sizes: dict[str, int], densities: dict[str, float], outputs: int
) -> Kernel:
    own = {name: min(size, sizes[name]) for name, size in group.weights.items()}
    held = sum(own.values())
    nonzeros = sum(size * densities.get(name, 1.0) for name, size in own.items())
    inputs = sum(v.size for v in group.ins.values())
    return Kernel(
        name=name,
        kind=group.kind,
        layer=name.split("/", maxsplit=1)[0],
        products=tuple(group.products),
        lanes=group.lanes,
        half_lanes=group.half_lanes,
        elements=group.elements,
        weights=held,
        names=tuple(group.weights),
        inputs=inputs,
        outputs=outputs,
        stashed=group.stashed,
        needs_dx=group.dx,
        needs_dw=group.dw,
        bits=group.bits,
        density=nonzeros / held if held else 1.0,
        source=group.first.source,
    )


def _paths(sizes: Iterable[str]) -> set[str]:
    """All branches of the parameter tree: 'a/b/kernel' gives 'a' and 'a/b'."""
    branches = set()
    for name in sizes:
        parts = name.split("/")
        branches |= {"/".join(parts[:i]) for i in range(1, len(parts))}
    return branches


def _names(groups: Sequence[_Group], sizes: dict[str, int]) -> list[str]:
    """The parameter branch of a kernel, else its scope along the tree, else its kind."""
    paths, names = _paths(sizes), []
    counts: dict[str, int] = {}
    owned: set[str] = set()
    for group in groups:
        name = _name(group, paths, owned)
        owned |= set(group.weights)
        count = counts[name] = counts.get(name, 0) + 1
        names.append(name if count == 1 else f"{name}.{count}")
    return names


def _name(group: _Group, paths: set[str], owned: set[str]) -> str:
    if group.kind == "loss":
        return "loss"
    turn = "".join(_TURN.findall(group.scope))  # of a scan over stacked layers
    if turn and group.weights:
        first, *more = next(iter(group.weights)).split("/")
        return "/".join([first + turn, *more[:-1]])
    scope = ""
    for part in group.scope.split("/"):
        longer = f"{scope}/{part}" if scope else part
        scope = longer if longer in paths else scope
    fresh = [w for w in group.weights if w not in owned]
    if fresh and group.kind in {"matmul", "convolution", "embedding", "norm"}:
        branch = fresh[0].rsplit("/", 1)[0] if "/" in fresh[0] else fresh[0]
        if branch.startswith(scope):
            return branch
    return scope or group.scope.split("/")[0] or group.kind
