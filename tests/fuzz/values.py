"""Damage to arrays: values that lead elsewhere, other shapes, other types."""

import numpy as np

_EDGES = [-(2**31), -(2**15), -513, -2, -1, 0, 1, 2, 5, 24, 31, 64, 255, 513]
_EDGES += [2**15, 2**16, 2**31 - 1]


def other_values(array, rng):
    """A copy with one to four other elements, at times near those that were there."""
    out = np.array(array)
    flat = out.reshape(-1)
    for _ in range(rng.randrange(1, 5) if flat.size else 0):
        at = rng.randrange(flat.size)
        value = rng.choice([rng.choice(_EDGES), rng.randrange(-3, 40), flat[at : at + 1] + 1])
        flat[at : at + 1] = np.asarray(value).astype(flat.dtype)
    return out


def other_shape(array, rng):
    """The same array cut, repeated, turned or of another type."""
    array = np.asarray(array)
    flat = array.reshape(-1)
    kinds = [
        lambda: flat[: len(flat) // 2],
        lambda: flat[:0],
        lambda: np.append(flat, flat),
        lambda: array[None],
        lambda: array.T,
        lambda: np.repeat(flat, 2)[::2].reshape(array.shape),
        lambda: array[:-1] if array.ndim else flat,
        lambda: array[..., :-1] if array.ndim else flat,
        lambda: np.append(array, array, 0) if array.ndim else flat,
        lambda: array.astype(rng.choice([np.int8, np.float16, np.float32, np.uint32, np.bool_])),
    ]
    return rng.choice(kinds)()


@np.errstate(over="ignore", invalid="ignore")  # a cast to another type is damage too
def damaged_array(array, rng, shapes=0.2):
    """Other values or, less often, another shape."""
    return other_shape(array, rng) if rng.random() < shapes else other_values(array, rng)
