"""Damage to arrays accepts every number that an earlier damage may have left."""

import numpy as np
import pytest

from fuzz.mutations import generator
from fuzz.values import damaged_array, other_values

_NUMBERS = {
    "b": np.array([False, True]),
    "i": np.array([-(2**63), -1, 0, 2**63 - 1]),
    "u": np.array([0, 2**63, 2**64 - 1], np.uint64),
}
_ODD = [-np.inf, np.inf, np.nan, 1.5, -65504, 0]
_NUMBERS |= {kind: np.array(_ODD, kind) for kind in ("f2", "f4", "f8")}


@pytest.mark.parametrize("numbers", _NUMBERS.values(), ids=_NUMBERS)
@pytest.mark.parametrize("shape", [(24,), (2, 3, 4), (0,)])
def test_any_number_can_be_damaged(numbers, shape):
    array = np.resize(numbers, shape)
    before = array.copy()
    for seed in range(100):
        rng = generator(seed, "values")
        once = damaged_array(array, rng)
        damaged_array(once, rng)
    np.testing.assert_array_equal(array, before)


def test_up_to_four_elements_are_others():
    array = np.full(24, np.inf, np.float32)
    changed = {int((other_values(array, generator(seed, "")) != array).sum()) for seed in range(50)}
    assert changed == {0, 1, 2, 3, 4}  # infinity plus 1 is infinity
