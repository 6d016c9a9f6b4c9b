"""Is the scaling model right about this machine? Predicted against measured step times, N = 1, 2.

``predicted_n1`` and ``predicted_n2``: what ``wafer plan --machine host`` predicts for a streamed
step over what the step takes, systems being devices of this host; GPT, d=768, 8 layers, 512 tokens
on each system. The backward sweep computes everything again, as the model assumes. ``scaling_n2``:
predicted over measured time of two systems relative to one.

    python tests/bench/scaling.py [--quick]
"""

import sys
from pathlib import Path

import jax

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import harness
from streaming import features, parts_of

from wafer import malloc
from wafer.engines.cluster import swarmx_mesh
from wafer.engines.stagewise.core import make_core
from wafer.engines.stagewise.streaming.engine import Streaming
from wafer.roofline import costs, measure_host, predict

SYSTEMS = (1, 2)


def steps(sizes):
    """Bind one streamed step per number of systems; every system has a row of its own."""
    _, _, vocab, tokens = sizes
    bound = {}
    for n in SYSTEMS:
        run = Streaming(make_core(*parts_of(*sizes)[:-1]), swarmx_mesh(n))
        batch = features(run, vocab, tokens, systems=n)
        state = [run.init(jax.random.key(0))]

        def step(run=run, batch=batch, state=state):
            state[0], _ = run.step(state[0], batch, topology=False)
            jax.block_until_ready(state[0].step)

        bound[str(n)] = step
    return bound


def predicted(sizes):
    """Seconds per step by the roofline of this host, measured now."""
    model, tokens = parts_of(*sizes)[0], sizes[3]
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    host = measure_host()
    print(f"{host.name}: {host.flops / 1e9:.0f} GFLOP/s, {host.memory / 1e9:.1f} GB/s")
    return {
        n: predict(
            costs(model, shapes, tokens * n, tokens, bytes_each=4),
            host,
            n,
            state_ratio=2.0,
            recompute=True,
        ).seconds
        for n in SYSTEMS
    }


def main():
    malloc.restart()
    jax.config.update("jax_num_cpu_devices", max(SYSTEMS))
    args = harness.arguments(__doc__.splitlines()[0]).parse_args()
    print(harness.environment())
    sizes = (4, 256, 1024, 256) if args.quick else (8, 768, 50257, 512)
    times = harness.interleave(steps(sizes), 3 if args.quick else 5, seconds=100)
    model = predicted(sizes)
    for n in SYSTEMS:
        print(f"N = {n}: predicted {model[n]:.3f} s, measured {times[str(n)].median:.3f} s")
    one, two = (model[n] / times[str(n)].median for n in SYSTEMS)
    harness.report({"predicted_n1": one, "predicted_n2": two, "scaling_n2": two / one})


if __name__ == "__main__":
    main()
