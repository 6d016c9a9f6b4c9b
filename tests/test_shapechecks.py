"""The default suite checks documented shapes and dtypes, and adds nothing to other calls."""

import jax.numpy as jnp
import jaxtyping
import pytest

from wafer import vsl
from wafer.compiler.slicing_floorplan import Piece


def test_an_argument_of_another_shape_or_dtype_is_refused():
    assert vsl.layout_from_lengths(jnp.array([2, 1]), 4).capacity == 4
    for lengths in (jnp.array([[2, 1]]), jnp.array([2.0, 1.0])):
        with pytest.raises(jaxtyping.TypeCheckError, match="layout_from_lengths"):
            vsl.layout_from_lengths(lengths, 4)


def test_what_names_no_shape_is_called_as_it_is_written():
    assert not hasattr(Piece.__init__, "__wrapped__")
