"""<kernels/fft/fft3d_layout> against NumPy's transforms of the same numbers."""

from pathlib import Path

import numpy as np
import pytest

import wafer.csl
from wafer.csl.host.region import MemcpyDataType

LAYOUT = Path(__file__).parent / "programs" / "fft" / "layout.csl"
ITEMS = {np.float16: MemcpyDataType.MEMCPY_16BIT, np.float32: MemcpyDataType.MEMCPY_32BIT}


def words(array):
    """32-bit items that hold the numbers."""
    bits = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    return bits.astype(np.uint32).reshape(-1)


def program(arch, n, width, kind):
    """The transform of an array of complex numbers, indexed [z, y, x]."""
    params = {"N": n, "W": width, "half": kind == np.float16}
    image = wafer.csl.compile(LAYOUT, params, arch=arch)
    runtime = wafer.csl.Runtime(image)
    t, items = n // width, 2 * n**3 // width**2
    options = {"data_type": ITEMS[kind]}
    angles = 2 * np.pi * np.arange(n // 2) / n
    twiddle = np.stack([np.cos(angles), np.sin(angles)], 1).astype(kind)
    send = lambda name, array, count: runtime.memcpy_h2d(
        runtime.get_id(name), words(array), 0, 0, width, width, count, **options
    )
    send("twiddle_array", np.tile(twiddle.ravel(), (width, width, 1)), n)

    def transform(values, function, *arguments):
        blocks = values.reshape(n, width, t, width, t).transpose(1, 3, 0, 2, 4)
        send("X", np.stack([blocks.real, blocks.imag], -1).astype(kind), items)
        runtime.launch(function, *arguments)
        out = np.zeros(width * width * items, np.uint32)
        runtime.memcpy_d2h(out, runtime.get_id("X"), 0, 0, width, width, items, **options)
        parts = out.astype(f"u{np.dtype(kind).itemsize}").view(kind).astype(np.float64)
        parts = parts.reshape(width, width, n, t, t, 2).transpose(2, 0, 3, 1, 4, 5)
        return (parts[..., 0] + 1j * parts[..., 1]).reshape(n, n, n)

    return transform, runtime


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_all_norms_both_ways(arch):
    rng = np.random.default_rng(3)
    values = rng.normal(size=(4, 4, 4)) + 1j * rng.normal(size=(4, 4, 4))
    transform, runtime = program(arch, 4, 2, np.float32)
    for number, norm in enumerate(("backward", "ortho", "forward")):
        forward = transform(values, "csfftExecC2C", number, 0)
        np.testing.assert_allclose(forward, np.fft.fftn(values, norm=norm), rtol=0, atol=3e-5)
        back = transform(forward, "csfftExecC2C", number, 1)
        np.testing.assert_allclose(back, values, rtol=0, atol=3e-6)
    real = transform(values.real, "csfftExecR2C", 0)
    np.testing.assert_allclose(real, np.fft.fftn(values.real), rtol=0, atol=3e-5)
    np.testing.assert_allclose(transform(real, "csfftExecC2R", 0), values.real, atol=3e-6)
    stamps = np.zeros(2, np.uint32)
    runtime.memcpy_d2h(stamps, runtime.get_id("fft_time"), 0, 0, 1, 1, 2)
    assert 0 < stamps[0] < runtime.cycles
    assert stamps[1] == 0


def test_half_precision_moves_both_parts_as_one_word():
    values = np.zeros((4, 4, 4), complex)
    values[1, 2, 3] = 1 - 2j
    transform, _ = program("wse3", 4, 2, np.float16)
    found = transform(values, "csfftExecC2C", 0, 0)
    np.testing.assert_allclose(found, np.fft.fftn(values), rtol=0, atol=4e-3)


@pytest.mark.parametrize(("n", "width", "match"), [(6, 2, "power of 2"), (4, 3, "not a multiple")])
def test_sizes_that_do_not_fit(n, width, match):
    with pytest.raises(wafer.csl.CslError, match=match):
        program("wse3", n, width, np.float32)
