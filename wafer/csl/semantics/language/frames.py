"""How many registers a program's calls need at once."""

from wafer.csl.semantics.core.emit import Label
from wafer.csl.semantics.core.evaluator import Failure
from wafer.csl.semantics.core.unit import Unit
from wafer.csl.syntax.source import Problem
from wafer.machine.codes import DEEPEST_CALL

Callees = dict[Label, list[tuple[int, Label]]]  # first register of the callee's frame, callee


def frame_size(unit: Unit) -> int:
    """Most registers that calls within each other need at once.

    Where functions call themselves, directly or not, that is what the deepest calls can need.

    Raises:
        Failure: such a function keeps a variable in memory, which its calls would share.
    """
    callees: Callees = {}
    for caller, base, callee in unit.calls:
        targets = unit.variable_functions if callee is None else (callee,)
        callees.setdefault(caller, []).extend((base, target) for target in targets)
    recursive = {label for label in callees if label in _reached(label, callees)}
    for label in recursive & unit.locals.keys():
        name, at = unit.locals[label]
        function = next(r.function.node for r in unit.requests.values() if r.label is label)
        message = f"'{function.name}' may call itself, and all its calls would share '{name}'"
        raise Failure(Problem(at, message, "declare the variable outside of functions"))
    if recursive:
        bases = [base for inner in callees.values() for base, _ in inner]
        return DEEPEST_CALL * max(bases) + max(unit.registers.values())
    needs: dict[Label, int] = {}

    def need(label: Label) -> int:
        if label not in needs:
            inner = [base + need(callee) for base, callee in callees.get(label, [])]
            needs[label] = max([unit.registers.get(label, 1), *inner])
        return needs[label]

    return max(map(need, unit.registers), default=1)


def _reached(start: Label, callees: Callees) -> set[Label]:
    """The functions that a function's calls lead to."""
    reached, waiting = set[Label](), [start]
    while waiting:
        for _, callee in callees.get(waiting.pop(), []):
            if callee not in reached:
                reached.add(callee)
                waiting.append(callee)
    return reached
