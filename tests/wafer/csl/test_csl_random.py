"""Random CSL programs: the values of a NumPy model, and both machines alike in every cycle."""

import jax
import pytest
from helpers.csl_random_programs import random_programs
from helpers.csl_random_runs import check_program
from hypothesis import HealthCheck, given, settings

_LARGE = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.native
@settings(_LARGE, max_examples=30)
@given(random_programs())
def test_random_programs_leave_what_their_model_does(program):
    check_program(program)


@pytest.mark.slow
@pytest.mark.native
@settings(_LARGE, max_examples=40)
@given(random_programs())
def test_both_machines_run_random_programs_alike(program):
    with jax.enable_x64(True):
        check_program(program, reference=True)
