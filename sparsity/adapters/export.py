"""``jax.export``: trees of this package in its files; native products that it lets through."""

import jax.export

from wafer.sparsity.adapters.wrap import SparseOptState
from wafer.sparsity.kernels import native
from wafer.sparsity.kernels.pattern import Pattern
from wafer.sparsity.state import SparseState
from wafer.vsl.native.kernels import LIBRARY

for _tree in (Pattern, SparseState, SparseOptState):
    jax.export.register_namedtuple_serialization(
        _tree, serialized_name=f"sparsity.{_tree.__name__}"
    )


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """Register the native products, and return the checks that refuse them in an export.

    JAX exports only custom calls that every later version promises to run. The native products of
    ``sparsity`` and ``vsl`` run where this package is installed in the version that exported them:
    call this in the process that exports and in the one that calls the exported program.

    Returns:
        for ``jax.export.export(f, disabled_checks=...)``: one for each custom call.
    """
    for library in (native, LIBRARY):
        library.available()
    return [
        jax.export.DisabledSafetyCheck.custom_call(name)
        for name in (*native.HANDLERS, *LIBRARY.handlers)
    ]
