"""The CSL machine with damaged images, and wrong arguments of its methods."""

import functools
import pathlib

import numpy as np
from helpers.assembly import assemble, build, color_register, switch_register

from fuzz.values import damaged_array
from wafer.machine.arch import PORTS
from wafer.machine.base import Rectangle
from wafer.machine.engine import Machine
from wafer.machine.image import COLUMNS
from wafer.machine.tools.recording import Recording

_LIMIT = 3_000  # cycles
_FOLDER = pathlib.Path(__file__).parent


@functools.cache
def _images():
    routes = {(0, 0, 0): color_register("R", "E"), (1, 0, 0): color_register("W", "R")}
    routes |= {(0, 0, 4): color_register("R", "E"), (1, 0, 4): color_register("W", "R")}
    switches = {(0, 0, 0): switch_register("tx=E", ring=True)}
    filters = {(1, 0, 4): {"kind": 1, "most": 2, "limit1": 3}}
    texts = [(_FOLDER / name).read_text(encoding="utf-8") for name in ("sends.asm", "takes.asm")]
    programs = [assemble(text, memory=size) for text, size in zip(texts, (96, 64), strict=True)]
    options = {"routes": routes, "switches": switches, "filters": filters}
    return [
        build(programs, [[0, 1], [-1, 1]], arch, streams={9: "MEMCPYH2D_1"}, **options)
        for arch in ("wse2", "wse3")
    ]


def _damaged(image, rng):
    """One array of an image, or one of a program, is another one."""
    if rng.random() < 0.2:
        name = rng.choice(["tiles", "colors", "switches", "routed", "filters"])
        return image._replace(**{name: damaged_array(getattr(image, name), rng, 0.4)})
    programs = list(image.programs)
    at = rng.randrange(len(programs))
    program = programs[at]
    fields = [
        *["code"] * 12, "memory", "local_tasks", "data_tasks", "control_tasks", "teardown_handlers",
        "empty_handlers", "blocked", *["tables"] * 6,
    ]  # fmt: skip
    name = rng.choice(fields)
    if name == "tables":
        table = rng.choice([name for name in COLUMNS if name != "filters"])
        new = program.tables | {table: damaged_array(program.tables[table], rng, 0.1)}
    else:
        new = damaged_array(np.asarray(getattr(program, name)), rng, 0.1)
    programs[at] = program._replace(**{name: new})
    if rng.random() < 0.1:
        numbers = {"start": rng.randrange(-2, 60), "frame": rng.choice([-1, 0, 2, 10**6, 2**31])}
        programs[at] = programs[at]._replace(**numbers)
    return image._replace(programs=tuple(programs))


def _used(image, threads=None, record=None):
    """All that a machine can be asked."""
    machine = Machine(image, threads, record)
    height, width = image.tiles.shape
    for y, x in np.argwhere(image.tiles >= 0).tolist():
        machine.launch(Rectangle(x, y, 1, 1), "go")
    for _ in range(2):
        machine.run(_LIMIT)
        _ = machine.fault, machine.prints, machine.profile, machine.scalar_share, machine.links
        machine.waiting()
    for y, x in np.argwhere(image.tiles >= 0).tolist():
        machine.read(x, y, 0, len(image.programs[image.tiles[y, x]].memory))
    _ = machine.trace if record else None
    return machine.commands_waiting(Rectangle(0, 0, width, height))


def image_calls(rng):
    """Runs of damaged images."""
    while True:
        image = _damaged(rng.choice(_images()), rng)
        if rng.random() < 0.3:
            image = _damaged(image, rng)
        record = rng.choice([None, None, Recording()])
        yield lambda image=image, record=record: _used(image, rng.choice([None, 1, 2]), record)


_ODD = [-(2**63), -(2**31), -5, -1, 0, 1, 2, 3, 23, 24, 60, 64, 96, 159, 1000]
_ODD += [2**31, 2**63 - 1, 2**64]


def _method(machine, rng):
    """One method with numbers of every size."""
    odd = lambda: rng.choice(_ODD)
    near = lambda: rng.choice([0, 0, 1, odd()])
    port = lambda: (near(), near(), rng.choice([*PORTS]))
    words = rng.choice([np.zeros(3, np.uint32), np.zeros((2, 0)), np.full(4, np.nan), np.zeros(())])
    return rng.choice(
        [
            lambda: Machine(machine.image, odd()).run(50),
            lambda: machine.run(rng.choice([number for number in _ODD if number < 1001])),
            lambda: machine.launch(
                Rectangle(near(), 0, 1, 1), "go", [odd()] * rng.choice([0, 9, 5000])
            ),
            lambda: machine.commands_waiting(Rectangle(near(), near(), rng.randrange(3), 2)),
            lambda: machine.read(near(), near(), odd(), rng.choice([n for n in _ODD if n < 1001])),
            lambda: machine.write(near(), near(), odd(), words),
            lambda: machine.send(rng.choice([9, odd()]), port(), words),
            lambda: machine.receive(odd(), port(), rng.choice([None, odd()])),
            lambda: machine.receivable(odd(), port()),
            lambda: Machine(
                machine.image, None, Recording(odd(), odd(), (near(), 0, 1, near()), odd(), near())
            ).run(50),
        ]
    )


def method_calls(rng):
    """Methods of machines that ran before."""
    machines = [Machine(image) for image in _images()]
    while True:
        machine = rng.choice(machines)
        yield _method(machine, rng)
        if rng.random() < 0.02:
            machines = [Machine(image) for image in _images()]
