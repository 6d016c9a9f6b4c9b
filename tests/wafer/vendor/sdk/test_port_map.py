"""Port maps: where each element of an array goes."""

import numpy as np
import pytest

from wafer.csl.host.errors import HostError
from wafer.vendor.sdk.port_map import (
    convert_input_tensor,
    format_output_tensor,
    port_map,
    prepare_output_tensor,
)


def test_tiles_go_to_their_pes_and_come_back():
    """A 2 x 4 array in tiles of 1 x 2: row by row of PEs, and within one by index."""
    text = "{ A[j=0:1][i=0:3] -> [ PE[i//2, j] -> index[i mod 2, j % 1] ] }"
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    *where, words = convert_input_tensor(text, array)
    assert where == [0, 0, 2, 2, 2]
    assert words.view(np.float32).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    turned = "{ A[j=0:1, i=0:3] -> [ PE[1 + j, i//2] -> index[1 - i] ] }"
    *where, words = convert_input_tensor(turned, array)
    assert where == [1, 0, 2, 2, 2]  # PE (1, 0) gets A[0, 1] before A[0, 0]
    assert words.view(np.float32).tolist() == [1, 0, 5, 4, 3, 2, 7, 6]
    np.testing.assert_array_equal(format_output_tensor(turned, np.float32, words), array)


def test_half_words_and_axes_of_one():
    text = "{ y[i=0:3, 0] -> [PE[i//2, -1] -> index[i]] }"
    *where, words = prepare_output_tensor(text, np.int16)
    assert where == [0, -1, 2, 1, 2]
    assert words.tolist() == [0, 0, 0, 0]
    data = np.array([0x70001, 0xFFFF, 3, 4], np.uint32)
    assert format_output_tensor(text, np.int16, data).tolist() == [[1], [-1], [3], [4]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A[i=0:3] -> PE[i, 0]", "expected { NAME"),
        ("{ A[i=0:3] -> [PE[k, 0] -> index[i]] }", "'k' is no expression of i"),
        ("{ A[i=0:2] -> [PE[i//2, 0] -> index[i]] }", "PEs get 1 to 2 elements"),
    ],
)
def test_other_maps_are_refused(text, message):
    with pytest.raises(HostError, match=message):
        port_map(text)
    with pytest.raises(HostError, match="an array of 3 items for a port map of 2"):
        convert_input_tensor("{ A[i=0:1] -> [PE[i, 0] -> index[i]] }", np.zeros(3, np.float32))
