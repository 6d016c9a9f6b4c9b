"""Other legal values of a declared key, for the tests that no key is without effect."""

import typing

UNSTRUCTURED = (1, 2, 3, 7)


def legal_values(annotation, whole=UNSTRUCTURED):
    """List values that an annotation allows: choices, booleans, some numbers."""
    out, kinds = [], [annotation]
    while kinds:
        kind = kinds.pop()
        kinds += [k for k in typing.get_args(kind) if isinstance(k, type) or typing.get_args(k)]
        if typing.get_origin(kind) is typing.Literal:
            out += [value for value in typing.get_args(kind) if value is not None]
        elif kind is bool:
            out += [True, False]
        elif kind is int:
            out += whole
        elif kind is float:
            out += [0.25, 0.75, 2.5]
    return out
