"""Speed and accuracy of the fabric.

python tests/bench/fabric.py [--quick]
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "bench")]

import harness
import jax
import jax.numpy as jnp
import numpy as np

from wafer import fabric
from wafer.fabric.library import collectives, lowering, timing
from wafer.fabric.planes import plane_parts, run_parts
from wafer.spec import WSE2

FULL = (996, 757)
WORDS = 1024
CHAIN = [3128, 3129, 3131, 3135, 3143, 3159, 3191, 3255, 3383, 3639, 4151, 5175, 7223, 11319]
TREE = [742, 748, 760, 784, 832, 931, 1155, 1646, 2681, 4977, 9585, 18801, 37233, 74097]
TWO_PHASE = [819, 821, 825, 833, 849, 881, 945, 1073, 1329, 1841, 2865, 4913, 9009, 17201]
GROUPS = {2: 10055, 4: 9421, 8: 9117, 16: 8989, 32: 8973, 64: 9061, 128: 9297, 256: 9800}


def reduce_errors():
    """Worst relative error against the published 512-PE tables, per table."""
    start = np.full((1, 512), WSE2.task_start, np.int32)
    reload, launch = WSE2.op_reload, WSE2.op_launch
    tables = {
        "chain": (lambda n: timing.chain_time(start, n), CHAIN),
        "two_phase": (lambda n: timing.two_phase_time(start, n, 16, launch=reload), TWO_PHASE),
        "tree": (lambda n: timing.tree_time(start, n, launch=reload), TREE),
    }
    errors = {}
    for name, (model, published) in tables.items():
        ours = np.array([int(model(1 << k)[0, 0]) for k in range(14)])
        errors[name] = float(np.abs(ours / published - 1).max())
        print(f"{name:10} ours - published {(ours - published).tolist()}")
    ours = [int(timing.two_phase_time(start, 4096, s, launch=launch)[0, 0]) for s in GROUPS]
    errors["groups"] = float(np.abs(np.array(ours) / list(GROUPS.values()) - 1).max())
    print(f"groups     ours - published {(np.array(ours) - list(GROUPS.values())).tolist()}")
    return errors


def payload_rows(size, words, repeats):
    """The machine in C++, to the end; values and cycles are checked before timing."""
    x = np.random.default_rng(0).standard_normal((size, size, words)).astype(np.float32)
    clock = collectives.start_clock(size, size)
    rows = {}
    for name, program, bulk in (
        (
            "chain",
            lowering.chain_program(size, size, words),
            lambda x: collectives.reduce(x, clock, algorithm="chain"),
        ),
        (
            "broadcast",
            lowering.broadcast_program(size, size, words),
            lambda x: collectives.broadcast(x, clock),
        ),
    ):
        state = fabric.simulate(program, {"x": x}, implementation="native")
        want, ends = bulk(jnp.asarray(x))
        columns = slice(0, 1) if name == "chain" else slice(None)
        np.testing.assert_array_equal(
            fabric.read(program, state, "x")[:, columns], want[:, columns]
        )
        cycles = int(fabric.cycles(state))
        assert cycles == int(ends.max())
        run = lambda program=program: fabric.simulate(program, {"x": x}, implementation="native")
        del state, want
        seconds = harness.interleave({name: run}, repeats)[name]
        rows[f"pe_cycles_per_s_payload_{size}_{name}"] = cycles * size**2 / seconds.median
        print(
            f"payload {size} x {size} {name} of {words} words: {cycles} cycles"
            f" {cycles * size**2 / seconds.median:.3g} PE-cycles/s (cpu {seconds.cpu:.2f} s)",
            flush=True,
        )
    return rows


def main() -> None:
    options = harness.arguments(__doc__).parse_args()
    repeats = 1 if options.quick else 3
    errors = reduce_errors()
    rows = {f"reduce_error_{name}": error for name, error in errors.items()}
    rows["reduce_worst_error"] = max(errors.values())

    width, height = FULL
    make = {
        "broadcast": lambda: lowering.broadcast_program(width, height, WORDS),
        "chain": lambda: lowering.chain_program(width, height, WORDS),
        "allreduce_8_colors": lambda: lowering.allreduce_program(width, height, 16, 32),
    }
    for name, build in make.items():
        program = build()
        parts = plane_parts(program)
        cycles = fabric.count_cycles(program)
        ways = {
            "plane": lambda p=parts: run_parts(*p)
        }  # every row; then masks, and rows that differ
        ways["count_cycles"] = lambda p=program: fabric.count_cycles(p)
        for way, seconds in harness.interleave(ways, repeats).items():
            rate = cycles * width * height / seconds.median
            best = cycles * width * height / seconds.least
            print(
                f"{way:12} {name:20} {cycles:6} cycles  {rate / 1e9:6.2f} G PE-cycles/s"
                f"  (fastest run {best / 1e9:.2f}; cpu {seconds.cpu:.2f} s)",
                flush=True,
            )
            rows[f"pe_cycles_per_s_{way}_{name}"] = rate
    rows["pe_cycles_per_s"] = rows["pe_cycles_per_s_plane_chain"]

    payload = payload_rows(256, 1024, repeats)
    rows |= payload | {"pe_cycles_per_s_payload_256": min(payload.values())}

    # The whole run, values by bulk functions and cycles by the plane: same bits, same cycles.
    words = 16
    cycles = words + WSE2.hop_to_hop * 255
    x = jnp.ones((256, 256, words), jnp.float32)
    clock = collectives.start_clock(256, 256)
    values = jax.jit(lambda x: collectives.reduce(x, clock, algorithm="chain")[0])
    parts = plane_parts(lowering.chain_program(256, 256, words))
    split = harness.interleave({"split": lambda: (values(x), run_parts(*parts))}, 3)["split"]
    rows["pe_cycles_per_s_values_and_plane_256"] = cycles * 65536 / split.median
    print(f"whole run, values and plane apart {cycles * 65536 / split.median:.3g} PE-cycles/s")
    harness.report(rows)


if __name__ == "__main__":
    main()
