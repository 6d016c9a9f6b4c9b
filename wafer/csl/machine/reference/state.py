"""The state of all PEs as arrays: C PEs, S colours in use, T threads, M bytes, R registers."""

from typing import NamedTuple

import jax

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

MAIN, THREADS = 8, 9  # the task's own thread; all of them
ENDLESS = 2**32 - 1  # length of an operation that a control wavelet ends
NEVER = 2**62


class Main:
    """What the task's thread does."""

    IDLE, RUNNING, OPERATING = range(3)


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
        done: elements so far.
        carry: of ADDC16.
        wide: elements per step.
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

    on: jax.Array
    rank: jax.Array
    pc: jax.Array
    op: jax.Array
    length: jax.Array
    done: jax.Array
    carry: jax.Array
    wide: jax.Array
    turns: jax.Array
    turn: jax.Array
    clears: jax.Array
    control_ends: jax.Array
    heard: jax.Array
    effects: jax.Array
    kind: jax.Array
    dsr: jax.Array
    row: jax.Array
    base: jax.Array
    stride: jax.Array


class Outputs(NamedTuple):
    """The output queues, [C, 8, 8]; head and size [C, 8]. A slot of -1 is the queue's own."""

    word: jax.Array
    slot: jax.Array
    flag: jax.Array
    head: jax.Array
    size: jax.Array


class Lanes(NamedTuple):
    """Each colour at each PE, [C, S]: router, ramp up and down, and the CE's queue.

    A flag is 1 for a word, with 2 for a control wavelet and 4 for one that advances switches.
    """

    word: jax.Array  # [C, S, 2]: of the router
    flag: jax.Array
    up_word: jax.Array  # [C, S, 2]
    up_flag: jax.Array
    down_word: jax.Array
    down_flag: jax.Array
    queue: jax.Array  # [C, S, 8]
    control: jax.Array  # [C, S, 8]
    head: jax.Array
    size: jax.Array
    depth: jax.Array
    color: jax.Array  # registers
    switches: jax.Array
    position: jax.Array  # [C, S, 2]: for what enters and for what leaves
    torn: jax.Array  # [C, S, 2], likewise


class Fault(NamedTuple):
    """What ended the run: a number of ``reports.Fault``, 0 for nothing; PE, instruction, detail."""

    kind: jax.Array
    cell: jax.Array
    pc: jax.Array
    detail: jax.Array


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
        debt: cycles charged and not yet waited out.
        wake: cycle in which the task goes on.
        active: bits of local tasks.
        blocked: [C, 5] bits by Gate.
        commanded: the host's command stream waits.
        launches: [C, 8, 1 + arguments]; entry and arguments.
        launched: [C, 2]; of them, the first one and how many.
        unanswered: scalar; calls that have to return, and streams to be freed.
        dsr: [C, 3, D, 2]; value, row of dsr_loads.
        in_slot: [C, 8]; slot of the colour that an input queue is bound to, -1.
        out_slot: [C, 8].
        stamp: [C, 2]; the counter, and since when it runs (-1: it does not).
        random: shift register.
        operations: of the threads.
        outputs: queues.
        lanes: colours.
        links: [C, 5]; wavelets that left by the W, E, S, N and down the ramp.
        fault: the first PE's.
    """

    cycle: jax.Array
    moved: jax.Array
    memory: jax.Array
    registers: jax.Array
    frames: jax.Array
    main: jax.Array
    task: jax.Array
    last_task: jax.Array
    pc: jax.Array
    base: jax.Array
    depth: jax.Array
    paid: jax.Array
    debt: jax.Array
    wake: jax.Array
    active: jax.Array
    blocked: jax.Array
    commanded: jax.Array
    launches: jax.Array
    launched: jax.Array
    unanswered: jax.Array
    dsr: jax.Array
    in_slot: jax.Array
    out_slot: jax.Array
    stamp: jax.Array
    random: jax.Array
    operations: Operations
    outputs: Outputs
    lanes: Lanes
    links: jax.Array
    fault: Fault
