"""The CE's arithmetic on 32-bit words, element type by element type.

Every product and sum is rounded separately. XLA contracts ``a * b + c`` on CPU whatever barrier
stands between; a zero that only the running program knows keeps the bits the same everywhere.
"""

from types import ModuleType

import jax
import jax.numpy as jnp

from wafer.fabric.program.arrays import AnyArray as Array
from wafer.fabric.program.codes import Dtype, Opcode
from wafer.fabric.program.tables import Meta

__all__ = ["compute", "from_bits", "to_bits"]

_TYPES = {"float32": jnp.float32, "float16": jnp.float16, "bfloat16": jnp.bfloat16}


def from_bits(bits: Array, dtype: str) -> Array:
    """Read uint32 words as elements; 16-bit types lie in the low half."""
    if dtype == "uint32":
        return bits
    if dtype == "float32":
        return jax.lax.bitcast_convert_type(bits, jnp.float32)
    return jax.lax.bitcast_convert_type(bits.astype(jnp.uint16), _TYPES[dtype])


def to_bits(value: Array, dtype: str, xp: ModuleType = jnp) -> Array:
    """Write elements as uint32 words with ``xp``; the inverse of :func:`from_bits`."""
    if dtype == "uint32":
        return xp.asarray(value).astype(xp.uint32)
    value = xp.asarray(value).astype(_TYPES[dtype])
    return value.view(xp.uint32 if dtype == "float32" else xp.uint16).astype(xp.uint32)


def compute(meta: Meta, opcode: Array, dtype: Array, sources: list[Array], zero: Array) -> Array:
    """Apply each PE's operation to its three source words.

    Args:
        meta: which operations and types occur.
        opcode: [H, W] int32 ``Opcode``.
        dtype: [H, W] int32 ``Dtype``.
        sources: [H, W] uint32 src0, src1, scalar (None where no operation multiplies).
        zero: [] int32, 0 at run time but unknown to the compiler.

    Returns:
        [H, W] uint32.
    """
    a_bits, b_bits, s_bits = sources
    unknown_zero = zero.astype(jnp.uint32)
    result = a_bits
    for kind in meta.dtypes:
        name = Dtype(kind).name.lower()
        a, b = from_bits(a_bits, name), from_bits(b_bits, name)
        out = a_bits
        values = {
            Opcode.ADD: a + b,
            Opcode.SUB: a - b,
            Opcode.MUL: a * b,
            Opcode.MAX: jnp.maximum(a, b),
        }
        for code, value in values.items():
            if code in meta.opcodes:
                out = jnp.where(opcode == code, to_bits(value, name), out)
        if Opcode.MAC in meta.opcodes and s_bits is not None:
            product = to_bits(b * from_bits(s_bits, name), name) ^ unknown_zero
            out = jnp.where(opcode == Opcode.MAC, to_bits(a + from_bits(product, name), name), out)
        result = jnp.where(dtype == kind, out, result)
    return result
