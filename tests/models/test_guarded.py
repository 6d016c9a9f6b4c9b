"""Calls in another process: results, errors, crashes, what never ends."""

import pytest

from wafer.models import guarded as module
from wafer.models.guarded import call_in_subprocess


def test_results_errors_and_crashes_come_back():
    assert call_in_subprocess("math:gcd", 12, 18) == 6
    with pytest.raises(ValueError, match="math domain error"):
        call_in_subprocess("math:sqrt", -1)
    with pytest.raises(ValueError, match=r"crashes \(signal 11\)"):
        call_in_subprocess("ctypes:string_at", 0)
    assert call_in_subprocess("math:gcd", 4, 6) == 2
    with pytest.raises(ValueError, match="more memory"):
        call_in_subprocess("builtins:bytes", 1 << 40)


@pytest.mark.slow
def test_what_never_ends_is_ended():
    with pytest.raises(ValueError, match=f"not come to an end in {module._LIMIT} seconds"):
        call_in_subprocess("re:match", "(a+)+$", 40 * "a" + "b")
