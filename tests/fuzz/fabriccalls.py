"""The timing plane's handler with damaged headers and masks."""

import numpy as np
from helpers import fabric_rules

from fuzz.values import damaged_array
from wafer.fabric import native
from wafer.fabric.engines import planar
from wafer.fabric.errors import FabricError

_LIMIT, _AT_LIMIT = 2_000, 7  # cycles; where the header has them


def _limited(header):
    """No damage makes a run long."""
    header = np.array(header)
    if header.size > _AT_LIMIT and header.dtype == np.int32:
        header.reshape(-1)[_AT_LIMIT] = min(header.reshape(-1)[_AT_LIMIT], _LIMIT)
    return header


def plane_calls(rng):
    """Calls of the timing plane."""
    programs = []
    for program, _ in fabric_rules.CASES.values():
        try:
            programs.append(native.prepare_words(*planar.plane_program(program)))
        except FabricError:  # it has switches, or tasks that start others
            continue
    while True:
        header, words = rng.choice(programs)
        given = [header, words]
        at = rng.choice([0, 0, 0, 1])
        given[at] = damaged_array(given[at], rng)
        given[0] = _limited(given[0])
        yield lambda given=given: native.run_words(*given)
