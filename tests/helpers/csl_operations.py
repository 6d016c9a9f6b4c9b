"""What operations on descriptors compute, element by element, in NumPy."""

import bisect

import numpy as np

D, F, H, U, I = np.float64, np.float32, np.float16, np.uint16, np.int16
# Operation -> types of destination and sources, and what an element is; None: a scalar as well.
RULES = {
    "FADDS": ((F, F, F), lambda a, b: a + b),
    "FSUBS": ((F, F, F), lambda a, b: a - b),
    "FMULS": ((F, F, F), lambda a, b: a * b),
    "FMAXS": ((F, F, F), np.maximum),
    "FADDH": ((H, H, H), lambda a, b: a + b),
    "FSUBH": ((H, H, H), lambda a, b: a - b),
    "FMULH": ((H, H, H), lambda a, b: a * b),
    "FMAXH": ((H, H, H), np.maximum),
    "FADDHS": ((F, H, F), lambda a, b: F(a) + b),
    "FMACS": ((F, F, F, F), lambda a, b, s: F(a + F(b * s))),
    "FMACH": ((H, H, H, H), lambda a, b, s: H(D(a) + D(b) * D(s))),  # rounded once
    "FMACHS": ((F, F, H, H), lambda a, b, s: F(a + F(b) * F(s))),
    "FMOVS": ((F, F), lambda a: a),
    "FMOVH": ((H, H), lambda a: a),
    "MOV16": ((U, U), lambda a: a),
    "MOV32": ((np.uint32, np.uint32), lambda a: a),
    "FNEGS": ((F, F), lambda a: -a),
    "FNEGH": ((H, H), lambda a: -a),
    "FABSS": ((F, F), np.abs),
    "FABSH": ((H, H), np.abs),
    "FS2H": ((H, F), H),
    "FH2S": ((F, H), F),
    "FS2XP16": ((I, F), lambda a: I(np.clip(np.trunc(a), -32768, 32767))),
    "FH2XP16": ((I, H), lambda a: I(np.clip(np.trunc(F(a)), -32768, 32767))),
    "XP162FS": ((F, I), F),
    "XP162FH": ((H, I), H),
    "ADD16": ((U, U, U), lambda a, b: U(int(a) + int(b) & 0xFFFF)),
    "SUB16": ((U, U, U), lambda a, b: U(int(a) - int(b) & 0xFFFF)),
    "AND16": ((U, U, U), lambda a, b: a & b),
    "OR16": ((U, U, U), lambda a, b: a | b),
    "XOR16": ((U, U, U), lambda a, b: a ^ b),
    "SLL16": ((U, U, U), lambda a, b: U(int(a) << min(int(b), 16) & 0xFFFF)),
    "SLR16": ((U, U, U), lambda a, b: U(int(a) >> min(int(b), 16))),
    "SAR16": ((I, I, U), lambda a, b: I(int(a) >> min(int(b), 15))),
    "CLZ": ((U, U), lambda a: U(16 - int(a).bit_length())),
    "CTZ": ((U, U), lambda a: U((int(a) & -int(a)).bit_length() - 1 if a else 16)),
    "POPCNT": ((U, U), lambda a: U(int(a).bit_count())),
}

# Sizes of halves in units of 2^-48, by their bits; the last one is too large.
_HALVES = [int(float(size) * 2.0**24) << 24 for size in np.arange(0x7C00, dtype=U).view(H)]
_HALVES.append(1 << 16 + 48)


def fused(a, b, s):
    """Bits of the half nearest to a + b s, even in a tie, by integers alone.

    Args:
        a, b, s: halves that are numbers; a + b s is not 0.
    """
    a, b, s = (int(float(value) * 2.0**24) for value in (a, b, s))
    exact = (a << 24) + b * s
    above = min(bisect.bisect_left(_HALVES, abs(exact)), 0x7C00)
    up, down = _HALVES[above] - abs(exact), abs(exact) - _HALVES[above - 1]
    size = above if up < down or (up == down and above % 2 == 0) else above - 1
    return size | 0x8000 * (exact < 0)


def triples(count):
    """a, b, s [count, 3] float16 whose sums need care: of near sizes, with ties, tiny and large."""
    rng = np.random.default_rng(19)
    bits = rng.integers(0, 0x7C00, (count, 3)) | rng.integers(0, 2, (count, 3)) << 15
    out = bits.astype(U).view(H)
    near = count // 2
    out[:near, 1:] = rng.integers(-63, 64, (near, 2)) / 64
    with np.errstate(over="ignore"):
        out[:near, 0] = -out[:near, 1] * out[:near, 2] * (1 + rng.integers(0, 2, near) * 2.0**9)
    out[0], out[1] = (2050, 1 + 2.0**-7, 1 - 2.0**-7), (-1 - 2.0**-9, 1 + 2.0**-10, 1 + 2.0**-10)
    exact = out[:, 0].astype(D) + out[:, 1].astype(D) * out[:, 2].astype(D)
    return out[exact != 0]


def after(name, memory, places, count):
    """The memory after an operation, and whether it reads or gives a NaN, whose bits may differ.

    Each element is read, computed and written before the next.

    Args:
        name: of the operation.
        memory: bytes.
        places: of destination and sources, the addresses of all elements; or a number.
        count: of elements.
    """
    (kind, *types), rule = RULES[name]
    out, nan = memory.copy(), False
    for k in range(count):
        read = [
            place if np.isscalar(place) else out[place[k] :][: np.dtype(of).itemsize].view(of)[0]
            for of, place in zip(types, places[1:], strict=True)
        ]
        with np.errstate(all="ignore"):
            result = np.array([rule(*read)], kind)
        nan |= bool(np.isnan([*map(float, read), float(result[0])]).any())
        out[places[0][k] :][: result.itemsize] = result.view(np.uint8)
    return out, nan
