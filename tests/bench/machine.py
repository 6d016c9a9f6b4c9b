"""Two machines, one program: speed of the fabric's engine and of CSL's machine, in pairs.

    python tests/bench/machine.py [--quick] [--size 256] [--words 1024]

The same operations on both (``tests/helpers/emit.py``), PE-cycles per second of the payload rows of
``fabric.py``, by CPU seconds of all threads: other programs on the machine count less. Values are
compared bit by bit. Runs take turns.
"""

import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "bench")]

import harness
import jax
import numpy as np
from helpers.emit import Emitted

from wafer import fabric
from wafer.fabric.library import lowering

BUILDERS = {"chain": lowering.chain_program, "broadcast": lowering.broadcast_program}


def seconds_of(call):
    begin = time.process_time()
    call()
    return time.process_time() - begin


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--size", type=int, default=256, help="rows and columns of PEs")
    parser.add_argument("--words", type=int, default=1024)
    options = parser.parse_args()
    size, words, rows = options.size, options.words, {}
    x = np.random.default_rng(0).standard_normal((size, size, words)).astype(np.float32)
    for name, build in BUILDERS.items():
        program = build(size, size, words)
        emitted, start = Emitted(program), fabric.init(program, {"x": x})
        rates = {"fabric": [], "machine": []}
        for _ in range(1 if options.quick else 3):
            state, machine = [], emitted.machine()
            emitted.write(machine, "x", x)
            run = lambda state=state, program=program, start=start: state.append(
                jax.block_until_ready(fabric.run(program, start, implementation="native"))
            )
            spent = {"fabric": seconds_of(run), "machine": seconds_of(machine.run)}
            assert not machine.fault, machine.fault
            want = np.asarray(fabric.read(program, state[0], "x"))
            np.testing.assert_array_equal(emitted.read(machine, "x"), want)
            cycles = {"fabric": int(fabric.cycles(state[0])), "machine": machine.cycle}
            for engine, rate in rates.items():
                rate.append(cycles[engine] * size**2 / spent[engine])
            del state, machine, want
        for engine, rate in rates.items():
            rows[f"pe_cycles_per_s_{engine}_{name}"] = float(np.median(rate))
            print(f"{engine:8} {name:10} {cycles[engine]} cycles {np.median(rate):.3g} PE-cycles/s")
    harness.report(rows)


if __name__ == "__main__":
    main()
