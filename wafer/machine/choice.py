"""The machine that runs an image here: in C++, or in JAX where that one is not built."""

from typing import TYPE_CHECKING, Union

from wafer.errors import CompileError
from wafer.machine.engine import Machine, available, how_to_build
from wafer.machine.image import Image
from wafer.machine.tools.recording import Recording

if TYPE_CHECKING:  # it takes JAX along
    from wafer.machine.reference.machine import ReferenceMachine

__all__ = ["machine_for"]


def machine_for(
    image: Image, record: Recording | None = None, *, check_writes: bool = False
) -> Union[Machine, "ReferenceMachine"]:
    """Load an image into the fastest machine of this install.

    Args:
        image: compiled.
        record: what ``trace`` is to hold; None: nothing.
        check_writes: whether an operation that writes beyond its variable is a fault.

    Raises:
        CompileError: code that cannot be run, or that the JAX machine does not run or record.
    """
    if available():
        return Machine(image, record=record, check_writes=check_writes)
    if record is not None or check_writes:
        raise CompileError(
            "the JAX machine records nothing and checks no writes; the C++ machine does:"
            f" {how_to_build()}"
        )
    from wafer.machine.reference.machine import ReferenceMachine

    return ReferenceMachine(image)
