"""Random CSL programs by thousands: values as the model's, a tenth on the JAX machine as well.

``WAFER_FUZZ_PROGRAMS`` is how many.
"""

import os

import jax
import pytest
from helpers.csl_random_programs import random_programs
from helpers.csl_random_runs import check_program
from hypothesis import HealthCheck, Phase, given, seed, settings

PROGRAMS = int(os.environ.get("WAFER_FUZZ_PROGRAMS", "10000"))
PARTS = 20


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.parametrize("part", range(PARTS))
def test_thousands_of_programs(part):
    """The JAX machine needs a second for each program of two of the parts."""

    @seed(part)
    @settings(
        max_examples=PROGRAMS // PARTS,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(random_programs())
    def run(program):
        with jax.enable_x64(True):
            check_program(program, reference=part < 2)

    run()
