"""A matrix product on a square mesh of PEs, C = A B: MeshGEMM of WaferLLM (arXiv:2502.04563)."""

import argparse
import json
from pathlib import Path

import numpy as np


def ring(size):
    """PEs of a line in the order of the ring: out over the even places, back over the odd ones."""
    return np.array([*range(0, size, 2), *range(size - 1 - size % 2, 0, -2)])


def cut(matrix, size, rows, columns):
    """[size, size, numbers of a block], padded with zeros at the matrix's ends."""
    padded = np.zeros((size * rows, size * columns), matrix.dtype)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded.reshape(size, rows, size, columns).swapaxes(1, 2).reshape(size, size, -1)


def run(runner, params, a, b, **options):
    """C, and the cycles of the call.

    Blocks of A begin where they are in A, and PEs align them. Those of B begin where the first step
    needs them, as weights that stay can. The copies' options name 16-bit data where the params have
    ``half``; such numbers take a word of the host's each.
    """
    size, rows, inner, columns = (params[k] for k in ("size", "rows", "inner", "columns"))
    number, word = (np.float16, np.uint16) if params["half"] else (np.float32, np.uint32)

    def write(name, values):
        words = values.astype(number).view(word).astype(np.uint32).ravel()
        runner.memcpy_h2d(runner.get_id(name), words, 0, 0, size, size, values.shape[2], **options)

    write("a", cut(a, size, rows, inner))
    pe = ring(size)
    place = np.argsort(pe)  # of a PE in the ring
    blocks = cut(b, size, inner, columns)[pe[(place[:, None] + place) % size], np.arange(size)]
    shift = 2 * params["half"] + 2  # 8 bytes: into another bank than C
    write("b", np.pad(blocks, ((0, 0), (0, 0), (shift, 0))))
    start = runner.cycles
    runner.launch("multiply")
    cycles = runner.cycles - start
    c = np.zeros(size * size * rows * columns, np.uint32)
    runner.memcpy_d2h(c, runner.get_id("c"), 0, 0, size, size, rows * columns, **options)
    c = c.astype(word).view(number).reshape(size, size, rows, columns).swapaxes(1, 2)
    return c.reshape(size * rows, -1)[: len(a), : b.shape[1]], cycles


def reference(a, b):
    return a @ b


def main():
    from cerebras.sdk.runtime.sdkruntimepybind import MemcpyDataType, SdkRuntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="out", help="folder of the compiled program")
    parser.add_argument("--cmaddr", help="IP:port of a system")
    args = parser.parse_args()
    params = json.loads(Path(args.name, "out.json").read_text())["params"]
    params = {name: int(value) for name, value in params.items()}
    size, half = params["size"], params["half"] == 1
    kind = MemcpyDataType.MEMCPY_16BIT if half else MemcpyDataType.MEMCPY_32BIT
    links = np.abs(ring(size) - np.roll(ring(size), -1))
    assert links.max() <= 2  # hops
    rng = np.random.default_rng(0)
    a = rng.standard_normal((size * params["rows"] - 1, size * params["inner"] - 1))
    b = rng.standard_normal((a.shape[1], size * params["columns"] - 1))
    runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
    runner.load()
    runner.run()
    c, cycles = run(runner, params, a, b, data_type=kind)
    runner.stop()
    # Numbers of both matrices are rounded, and a sum at each of its terms, by a unit each.
    unit = 2**-11 if half else 2**-24
    loose = unit * (size * params["inner"] + 2) * np.abs(a).max() * np.abs(b).max()
    np.testing.assert_allclose(c, reference(a, b), atol=loose, rtol=0)
    print(f"{cycles} cycles")
    print("SUCCESS!")


if __name__ == "__main__":
    main()
