"""A vector times a matrix on a mesh of PEs, y = x W: MeshGEMV of WaferLLM (arXiv:2502.04563)."""

import argparse
import json
from pathlib import Path

import numpy as np


def cut(matrix, mesh, block):
    """[mesh rows, mesh columns, numbers of a block], padded with zeros at the matrix's ends."""
    padded = np.zeros((mesh[0] * block[0], mesh[1] * block[1]), matrix.dtype)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded.reshape(mesh[0], block[0], mesh[1], block[1]).swapaxes(1, 2).reshape(*mesh, -1)


def run(runner, params, x, matrix, times=1, **options):
    """y, [columns], and the cycles of a call that multiplies so often.

    The copies' options name 16-bit data where the params have ``half``; such numbers take a word of
    the host's each.
    """
    height, width, rows, columns = (params[k] for k in ("height", "width", "rows", "columns"))
    number, word = (np.float16, np.uint16) if params["half"] else (np.float32, np.uint32)

    def write(name, values):
        words = values.astype(number).view(word).astype(np.uint32).ravel()
        region = 0, 0, width, height, values.shape[2]
        runner.memcpy_h2d(runner.get_id(name), words, *region, **options)

    write("x", np.repeat(cut(x[:, None], (height, 1), (rows, 1)), width, axis=1))
    blocks = cut(matrix, (height, width), (rows, columns))
    shift = 2 * params["half"] + 2  # 8 bytes: into another bank than y
    write("matrix", np.pad(blocks, ((0, 0), (0, 0), (shift, 0))))
    start = runner.cycles
    runner.launch("multiply", np.uint16(times))
    cycles = runner.cycles - start
    y = np.zeros(width * columns, np.uint32)
    runner.memcpy_d2h(y, runner.get_id("y"), 0, height - 1, width, 1, columns, **options)
    return y.astype(word).view(number)[: matrix.shape[1]], cycles


def reference(x, matrix):
    return x @ matrix


def main():
    from cerebras.sdk.runtime.sdkruntimepybind import MemcpyDataType, SdkRuntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="out", help="folder of the compiled program")
    parser.add_argument("--cmaddr", help="IP:port of a system")
    args = parser.parse_args()
    params = json.loads(Path(args.name, "out.json").read_text())["params"]
    params = {name: int(value) for name, value in params.items()}
    half = params["half"] == 1
    kind = MemcpyDataType.MEMCPY_16BIT if half else MemcpyDataType.MEMCPY_32BIT
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal(
        (params["height"] * params["rows"], params["width"] * params["columns"] - 1)
    )
    x = rng.standard_normal(len(matrix))
    runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
    runner.load()
    runner.run()
    y, cycles = run(runner, params, x, matrix, data_type=kind)
    again, longer = run(runner, params, x, matrix, times=4, data_type=kind)
    runner.stop()
    # Numbers are rounded, and a sum at each row of a block and each PE of a column, by a unit each.
    unit = 2**-11 if half else 2**-24
    loose = unit * (params["rows"] + params["height"] + 2) * np.abs(x).max() * np.abs(matrix).max()
    np.testing.assert_allclose(y, reference(x, matrix), atol=loose, rtol=0)
    np.testing.assert_array_equal(y, again)  # no words of one product meet those of the next
    assert 3 * cycles < longer < 4 * cycles
    print(f"{cycles} cycles")
    print("SUCCESS!")


if __name__ == "__main__":
    main()
