"""The state of all PEs as arrays: C PEs, S colors in use, T threads, M bytes, R registers."""

from typing import Any, NamedTuple

__all__ = [
    "ENDLESS",
    "MAIN",
    "NEVER",
    "Fault",
    "Lanes",
    "Main",
    "Operations",
    "Outputs",
    "State",
    "TaskKind",
]

Array = Any  # of NumPy while it is made, of JAX from the first step on
MAIN, THREADS = 8, 9  # the task's own thread; all of them
ENDLESS = 2**32 - 1  # length of an operation that a control wavelet ends
NEVER = 2**62


class Main:
    """What the task's thread does."""

    IDLE, RUNNING, OPERATING, WAITING = range(4)


class TaskKind:
    """What a task was begun for."""

    LOCAL, DATA, CONTROL, TEARDOWN, EMPTY, FUNCTION, START = range(7)


class Operations(NamedTuple):
    """What each thread's operation has left to do, [C, T]; of operands [C, T, 4].

    Attributes:
        on: whether there is one.
        rank: the first of those that can step is the one with the highest.
        pc: of its instruction.
        op: a DsdOp.
        length: elements; ENDLESS if a control wavelet ends it.
        position: elements so far.
        carry: of ADDC16.
        wide: elements per step.
        across: elements of the shortest row of a descriptor of several dimensions.
        turns: cycles per step.
        turn: cycles of the running step that are over.
        clears: source that is set to 0 after it was read.
        control_ends: whether a control wavelet ends it.
        heard: action and target of a control wavelet, [C, T, 2].
        effects: actions and targets at its end, [C, T, 4, 2].
        kind: Operand.
        dsr: file << 8 | id; -1.
        row: of fabrics or shapes.
        base: address in bytes, or a scalar's value.
        stride: bytes.
    """

    on: Array
    rank: Array
    pc: Array
    op: Array
    length: Array
    position: Array
    carry: Array
    wide: Array
    across: Array
    turns: Array
    turn: Array
    clears: Array
    control_ends: Array
    heard: Array
    effects: Array
    kind: Array
    dsr: Array
    row: Array
    base: Array
    stride: Array


class Outputs(NamedTuple):
    """The output queues, [C, 8, 8]; head and size [C, 8]. A slot of -1 is the queue's own.

    ``since`` is the cycle in which a word was sent.
    """

    word: Array
    slot: Array
    flag: Array
    since: Array
    head: Array
    size: Array


class Lanes(NamedTuple):
    """Each color at each PE, [C, S]: router, ramp up and down, and the CE's queue.

    A flag is 1 for a word, with 2 for a control wavelet and 4 for one that advances switches.
    """

    word: Array  # [C, S, 2]: of the router
    flag: Array
    up_word: Array  # [C, S, 2]
    up_flag: Array
    down_word: Array
    down_flag: Array
    queue: Array  # [C, S, 8]
    control: Array  # [C, S, 8]
    head: Array
    size: Array
    depth: Array
    color: Array  # registers
    switches: Array
    position: Array  # [C, S, 2]: for what enters and for what leaves
    torn: Array  # [C, S, 2], likewise
    filtered: Array  # whether a filter is on
    counter: Array  # of it, and where it begins anew
    limit: Array
    second: Array  # whether a sparse counter has reached its first limit


class Fault(NamedTuple):
    """What ended the run: a number of ``reports.Fault``, 0 for nothing; PE, instruction, detail."""

    kind: Array
    cell: Array
    pc: Array
    detail: Array


class State(NamedTuple):
    """All PEs, row by row; arrays are [C] where nothing else is said.

    Attributes:
        cycle: scalar.
        moved: scalar; whether anything happened in the last cycle.
        memory: [C, M] uint8.
        registers: [C, R] int64.
        frames: [C, 64, 2]; where calls return to: instruction, first register.
        main: a Main.
        task: TaskKind and id, [C, 2].
        last_task: that was dispatched.
        pc: instruction.
        base: first register of the frame.
        depth: of calls.
        paid: whether the visible instruction at pc has been paid for.
        busy: whether its task's instructions take the cycles until it wakes.
        debt: cycles charged and not yet waited out.
        worked: cycles in which the CE works.
        ended: the cycle behind the last of them.
        wake: cycle in which the task goes on.
        active: bits of local tasks.
        blocked: [C, 5] bits by Gate.
        commanded: the host's command stream waits.
        launches: [C, 8, 1 + arguments]; entry and arguments.
        launched: [C, 2]; of them, the first one and how many.
        unanswered: scalar; calls that have to return, and streams to be freed.
        dsr: [C, 3, D, 2]; value, row of dsr_loads.
        in_slot: [C, 8]; slot of the color that an input queue is bound to, -1.
        out_slot: [C, 8].
        stamp: [C, 2]; the counter, and since when it runs (-1: it does not).
        random: shift register.
        operations: of the threads.
        outputs: queues.
        lanes: colors.
        links: [C, 5]; wavelets that left by the W, E, S, N and down the ramp.
        fault: the first PE's.
    """

    cycle: Array
    moved: Array
    memory: Array
    registers: Array
    frames: Array
    main: Array
    task: Array
    last_task: Array
    pc: Array
    base: Array
    depth: Array
    paid: Array
    busy: Array
    debt: Array
    worked: Array
    ended: Array
    wake: Array
    active: Array
    blocked: Array
    commanded: Array
    launches: Array
    launched: Array
    unanswered: Array
    dsr: Array
    in_slot: Array
    out_slot: Array
    stamp: Array
    random: Array
    operations: Operations
    outputs: Outputs
    lanes: Lanes
    links: Array
    fault: Fault
