"""The machine that runs an image here: in C++, or in JAX where that one is not built."""

from wafer.errors import CompileError
from wafer.machine.base import WaferMachine
from wafer.machine.engine import Machine, available, how_to_build
from wafer.machine.image import Image
from wafer.machine.tools.recording import Recording

__all__ = ["machine_for"]


def machine_for(
    image: Image, record: Recording | None = None, *, check_bounds: bool = False
) -> WaferMachine:
    """Load an image into the fastest machine of this install.

    Args:
        image: compiled.
        record: what ``trace`` is to hold; None: nothing.
        check_bounds: whether an operation that reads or writes beyond a variable is a fault.

    Raises:
        CompileError: code that cannot be run, or that the JAX machine does not run or record.
    """
    if available():
        return Machine(image, record=record, check_bounds=check_bounds)
    if record is not None or check_bounds:
        raise CompileError(
            "the JAX machine records nothing and checks no bounds; the C++ machine does:"
            f" {how_to_build()}"
        )
    from wafer.machine.reference.machine import ReferenceMachine  # takes JAX along

    return ReferenceMachine(image)
