"""From XLA's instructions to parameter paths: which module an operation belongs to.

A compiled program names the Python scopes of every instruction, ``jit(step)/transpose(
jvp(layers_0))/Block/attn/query/dot_general``. A module is the longest parameter path along the
scopes, here ``layers_0/attn/query``; ``transpose(`` marks the backward pass.
"""

import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = ")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{\s*$")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_INERT = re.compile(r" (?:parameter|constant)\(")  # runs no code, so lends nobody its users' name
_CALLS = re.compile(r"(?:calls|to_apply|body)=%?([\w.\-]+)")
_REFERENCE = re.compile(r"%([\w.\-]+)")
_WRAPPED = re.compile(r"^\w+\((.*)\)$")
_UPDATES = ("optimizer", "sparsity")
_SHARED = ("head", "loss", "mask", "batch")  # scopes of work that belongs to no parameter
OTHER = "other"


@dataclasses.dataclass(frozen=True)
class _Instruction:
    """One line of a program: its own scope ('' when XLA made it) and what it names."""

    name: str
    scope: str
    references: tuple[str, ...]  # operands, and computations it calls
    called: str


def instruction_scopes(hlo: str) -> dict[str, str]:
    """Instruction name -> scope path of a compiled program.

    XLA adds instructions (copies, broadcasts, split reductions) without a scope. Such a one takes,
    first that applies: the commonest scope of the computation it calls; that of the first
    instruction which uses its result; that of its first operand that has one; that of the
    instruction which calls the computation it stands in.
    """
    scopes: dict[str, str] = {}
    commonest: dict[str, str] = {}
    computations = dict(_computations(hlo))
    for computation, body in computations.items():  # callees are written before their callers
        known = {i.name: i.scope or commonest.get(i.called, "") for i in body}
        counts = collections.Counter(filter(None, known.values()))
        commonest[computation] = counts.most_common(1)[0][0] if counts else ""
        scopes |= _from_neighbours(body, known)
    for body in reversed(computations.values()):
        for caller in body:
            for instruction in computations.get(caller.called, ()):
                scopes[instruction.name] = scopes[instruction.name] or scopes[caller.name]
    return {name: scope for name, scope in scopes.items() if scope}


def _computations(hlo: str) -> Iterator[tuple[str, list[_Instruction]]]:
    name, body = "", list[_Instruction]()
    for line in hlo.splitlines():
        instruction = _INSTRUCTION.match(line)
        if instruction is None:
            header = _COMPUTATION.match(line)
            if header is not None:
                yield name, body
                name, body = header[1], []
            continue
        if _INERT.search(line):
            continue
        scope, called = _OP_NAME.search(line), _CALLS.search(line)
        body.append(
            _Instruction(
                name=instruction[1],
                scope=scope[1] if scope is not None and "/" in scope[1] else "",
                references=tuple(_REFERENCE.findall(line, instruction.end())),
                called=called[1] if called is not None else "",
            )
        )
    yield name, body


def _from_neighbours(body: Sequence[_Instruction], known: Mapping[str, str]) -> dict[str, str]:
    """Fill scopes in from users, then from operands; a computation's text is in order of use."""
    scopes = dict(known)
    for user in reversed(body):
        for operand in user.references:
            if not known.get(operand, "?") and scopes[user.name]:
                scopes[operand] = scopes[user.name]
    for instruction in body:
        if not scopes[instruction.name]:
            known_scopes = (scopes.get(operand, "") for operand in instruction.references)
            scopes[instruction.name] = next(filter(None, known_scopes), "")
    return scopes


def module_of(scope: str, params: Mapping[str, object]) -> str:
    """Name the module of a scope path, with its phase.

    Args:
        scope: as ``instruction_scopes`` gives it; '' is ``other``.
        params: the parameter tree (arrays or shapes), whose paths name modules.

    Returns:
        'layers_0/attn/query.fwd', '....bwd', 'optimizer.upd', 'sparsity.upd' (the update of the
        pattern), 'mask.fwd' (weights times pattern), 'batch.fwd' (the layout of the tokens),
        'head.fwd', 'loss.fwd', 'swarmx.reduce' or 'other'.

    >>> module_of("jit(step)/transpose(jvp(layers_0))/Block/ffn/up/dot", {"layers_0": {"ffn": {}}})
    'layers_0/ffn.bwd'
    """
    parts = [_bare(part) for part in scope.split("/")]
    for part in parts:
        if part in _UPDATES:
            return f"{part}.upd"
    phase = "bwd" if "transpose(" in scope else "fwd"
    path: list[str] = []
    node: Any = params
    for part in parts:
        if isinstance(node, Mapping) and isinstance(node.get(part), Mapping):
            path.append(part)
            node = node[part]
    if path:
        return f"{'/'.join(path)}.{phase}"
    if any(part.startswith("psum") for part in parts):  # gradients summed over the systems
        return "swarmx.reduce"
    for part in _SHARED:  # a head that shares the embedding owns no parameters
        if part in parts:
            return f"{part}.{phase}"
    return OTHER


def _bare(part: str) -> str:
    """Strip transformations: ``transpose(jvp(layers_0))`` -> ``layers_0``; ``jit(f)`` -> ''."""
    while (wrapped := _WRAPPED.match(part)) is not None:
        part = "" if part.startswith("jit(") else wrapped[1]
    return part
