"""The state of all PEs as arrays: C PEs, S colors in use, T threads, M bytes, R registers."""

from typing import Any, NamedTuple

Array = Any  # of NumPy while it is made, of JAX from the first step on
MAIN, THREADS = 8, 9  # the task's own thread; all of them
ENDLESS = 2**32 - 1  # length of an operation that a control wavelet ends
NEVER = 2**62


class Main:
    """What the task's thread does."""

    IDLE, RUNNING, OPERATING, RECEIVING, SENDING, WAITING = range(6)


class TaskKind:
    """What a task was begun for."""

    LOCAL, DATA, CONTROL, TEARDOWN, EMPTY, FUNCTION, START = range(7)


class Operations(NamedTuple):
    """What each thread's operation has left to do, [C, T]; of operands [C, T, 4]."""

    on: Array  #: whether there is one
    rank: Array  #: the first of those that can step is the one with the highest
    pc: Array  #: of its instruction
    task: Array  #: that began it, TaskKind and id, [C, T, 2]
    op: Array  #: a DsdOp
    length: Array  #: elements; ENDLESS if a control wavelet ends it
    position: Array  #: elements so far
    carry: Array  #: of ADDC16
    wide: Array  #: elements per step
    across: Array  #: elements of the shortest row of a descriptor of several dimensions
    turns: Array  #: of a step, in parts of a cycle: PACE are one
    turn: Array  #: cycles of the running step that are over
    clears: Array  #: source that is set to 0 after it was read
    index: Array  #: of the wavelets that it sends
    control_ends: Array  #: whether a control wavelet ends it
    heard: Array  #: action and target of a control wavelet, [C, T, 2]
    effects: Array  #: actions and targets at its end, [C, T, 5, 2]
    kind: Array  #: Operand
    dsr: Array  #: file << 8 | id; -1
    row: Array  #: of fabrics or shapes
    base: Array  #: address in bytes, or a scalar's value
    stride: Array  #: bytes
    indexed: Array  #: whether a wavelet's index is an offset to the address


class Outputs(NamedTuple):
    """The output queues, [C, 8, 8]; head and size [C, 8]."""

    wavelet: Array
    slot: Array  #: of its color; -1: that of the queue
    since: Array  #: cycle in which it was sent
    head: Array
    size: Array


class Fifos(NamedTuple):
    """The FIFOs of a program, [C, F]; lengths and places in 16-bit words."""

    head: Array
    used: Array
    read_length: Array  #: read_length, write_length: 0: that of the other operands
    write_length: Array
    starved: Array  #: starved, choked: an operation found it empty, or full
    choked: Array


class Lanes(NamedTuple):
    """Each color at each PE, [C, S]: router, ramp up and down, and the CE's queue.

    A wavelet is ``word << 8 | flag``, 0 for none. The flag is 1, with 2 for a control wavelet and 4
    for one that advances switches.
    """

    router: Array  # [C, S, 2] wavelets
    wire: Array  # [C, S] the wavelet on its way from a neighbour
    up: Array  # [C, S, 2]
    down: Array
    queue: Array  # [C, S, 8]
    head: Array
    size: Array
    depth: Array
    color: Array  # registers
    switches: Array
    position: Array  # [C, S, 2]: for what enters and for what leaves
    torn: Array  # [C, S, 2], likewise
    rule: Array  # row of filters, -1
    filtered: Array  # whether a filter is on
    counter: Array  # of it, and where it begins anew
    limit: Array
    most: Array  # up to which it lets words pass
    second: Array  # whether a sparse counter has reached its first limit


class Fault(NamedTuple):
    """What ended the run, [C]; fields as ``fault_message`` reads them."""

    kind: Array  #: a number of ``reports.Fault``, 0: none
    task: Array  #: TaskKind
    number: Array  #: of that task
    pc: Array
    detail: Array


class State(NamedTuple):
    """All PEs, row by row; arrays are [C] where nothing else is said."""

    tables: Any  #: the constants while it runs, else None
    cycle: Array  #: scalar
    moved: Array  #: scalar; whether anything happened in the last cycle
    program: Array  #: -1 for none
    place: Array  #: [C, 2]; column and row
    memory: Array  #: [C, M] uint8
    registers: Array  #: [C, R] int64
    frames: Array  #: [C, 64, 2]; where calls return to: instruction, first register
    main: Array  #: a Main
    task: Array  #: TaskKind and id, [C, 2]
    last_task: Array  #: that was dispatched
    pc: Array  #: instruction
    base: Array  #: first register of the frame
    depth: Array  #: of calls
    paid: Array  #: whether the visible instruction at pc has been paid for
    busy: Array  #: whether its task's instructions need the cycles until it wakes
    shared: Array  #: [C, 2]; the first byte of those that microthreads use, and the one behind
    awaited: Array  #: microthread whose operation a waiting task needs to end, -1
    debt: Array  #: cycles charged and not yet waited out
    worked: Array  #: cycles in which the CE works
    ended: Array  #: the cycle behind the last of them
    wake: Array  #: cycle in which the task goes on
    active: Array  #: bits of local tasks
    blocked: Array  #: [C, 5] bits by Gate
    torn: Array  #: bits of colors that were torn down, and of output queues found empty
    flushed: Array
    flushing: Array  #: output queues that the program waits to see empty
    commanded: Array  #: the host's command stream waits
    launches: Array  #: [C, 8, 1 + arguments]; entry and arguments
    launched: Array  #: [C, 2]; of them, the first one and how many
    unanswered: Array  #: calls that have to return, and streams to be freed
    dsr: Array  #: [C, 3, D, 2]; value, row of dsr_loads
    in_slot: Array  #: [C, 8]; slot of the color that an input queue is bound to, -1
    out_slot: Array  #: [C, 8]
    encoded: Array  #: bits of input queues that the running program has bound
    thread_words: Array  #: [C, 8]; of microthreads: bit 8 medium, bit 9 high priority
    stamp: Array  #: [C, 2]; the counter, and since when it runs (-1: it does not)
    random: Array  #: [C, GENERATORS]; shift registers
    turns: Array  #: [C, 8]; words that have started a queue's data task, if that rotates
    transform: Array  #: transform, generator, exceptions: registers
    generator: Array
    exceptions: Array
    operations: Operations  #: of the threads
    outputs: Outputs  #: queues
    fifos: Fifos
    lanes: Lanes  #: colors
    links: Array  #: [C, 5]; wavelets that left by the W, E, S, N and down the ramp
    fault: Fault  #: the first one of each; that of the first PE counts
