"""The machine that runs an image here: in C++, or in JAX where that one is not built."""

from typing import TYPE_CHECKING, Union

from wafer.errors import CompileError
from wafer.machine.engine import Machine, available, how_to_build
from wafer.machine.image import Image
from wafer.machine.recording import Recording

if TYPE_CHECKING:  # it takes JAX along
    from wafer.machine.reference.machine import ReferenceMachine

__all__ = ["machine_for"]


def machine_for(
    image: Image, record: Recording | None = None, *, check_bounds: bool = False
) -> Union[Machine, "ReferenceMachine"]:
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
    from wafer.machine.reference.machine import ReferenceMachine

    return ReferenceMachine(image)
