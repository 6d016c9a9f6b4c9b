"""From XLA's instructions to parameter paths: which module an operation belongs to.

A compiled program names the Python scopes of every instruction, ``jit(step)/transpose(
jvp(layers_0))/Block/attn/query/dot_general``. A module is the longest parameter path along the
scopes, here ``layers_0/attn/query``; ``transpose(`` marks the backward pass.
"""

import collections
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["instruction_scopes", "module_of"]

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = ")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{\s*$")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CALLS = re.compile(r"(?:calls|to_apply|body)=%?([\w.\-]+)")
_WRAPPED = re.compile(r"^\w+\((.*)\)$")
_UPDATES = ("optimizer", "sparsity")
OTHER = "other"


def instruction_scopes(hlo: str) -> dict[str, str]:
    """Instruction name -> scope path of a compiled program.

    A fusion without a name of its own takes the commonest of the computation it calls.

    Args:
        hlo: text of the program, ``compiled.as_text()``.
    """
    own: dict[str, str] = {}
    calls: dict[str, str] = {}
    inside: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    computation = ""
    for line in hlo.splitlines():
        found = _INSTRUCTION.match(line)
        if found is None:
            header = _COMPUTATION.match(line)
            computation = header[1] if header else computation
            continue
        name, scope, called = found[1], _OP_NAME.search(line), _CALLS.search(line)
        if scope is not None and "/" in scope[1]:
            own[name] = scope[1]
            inside[computation][scope[1]] += 1
        if called is not None:
            calls[name] = called[1]
    borrowed = {
        name: inside[called].most_common(1)[0][0]
        for name, called in calls.items()
        if name not in own and inside[called]
    }
    return own | borrowed


def module_of(scope: str, params: Mapping[str, Any]) -> str:
    """Name the module of a scope path, with its phase.

    Args:
        scope: as ``instruction_scopes`` gives it; '' is ``other``.
        params: the parameter tree (arrays or shapes), whose paths name modules.

    Returns:
        'layers_0/attn/query.fwd', '....bwd', 'optimizer.upd', 'head.fwd',
        'loss.fwd', 'swarmx.reduce' or 'other'.

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
    for part in ("head", "loss"):  # a head that shares the embedding owns no parameters
        if part in parts:
            return f"{part}.{phase}"
    return OTHER


def _bare(part: str) -> str:
    """Strip transformations: ``transpose(jvp(layers_0))`` -> ``layers_0``; ``jit(f)`` -> ''."""
    while (found := _WRAPPED.match(part)) is not None:
        part = "" if part.startswith("jit(") else found[1]
    return part
