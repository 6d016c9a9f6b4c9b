"""Variables of the program on a PE."""

from wafer.csl.host.errors import HostError
from wafer.machine.image import Image, Symbol
from wafer.models.errors import did_you_mean


def find_symbol(image: Image, x: int, y: int, name: str) -> Symbol:
    """Where a global of a PE's program lies, or what it exports under that name.

    Args:
        image: compiled.
        x: column in the program's rectangle.
        y: row.
        name: of the variable.

    Raises:
        HostError: no such PE, no program there, no such variable.
    """
    height, width = image.tiles.shape
    if not (0 <= x < width and 0 <= y < height):
        raise HostError(f"PE ({x}, {y}) is outside of the program's {width} x {height}")
    if image.tiles[y, x] < 0:
        raise HostError(f"PE ({x}, {y}) runs no program")
    program = image.programs[image.tiles[y, x]]
    known = program.exports | program.symbols
    if name not in known:
        hint = did_you_mean(name, known)
        raise HostError(f"PE ({x}, {y}): {program.name} has no variable '{name}'{hint}")
    return known[name]
