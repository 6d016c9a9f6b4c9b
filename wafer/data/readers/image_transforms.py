"""The vendor's list of image transforms, on pictures of Pillow."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wafer.models.errors import optional

if TYPE_CHECKING:
    from PIL.Image import Image


def _expand_to_square(image: "Image", how: Mapping[str, Any]) -> "Image":
    """Centre the picture on a square of its longer side."""
    side = max(image.size)
    out = optional("PIL.Image", "an image").new("RGB", (side, side), tuple(how["background_color"]))
    out.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return out


def _resize(image: "Image", how: Mapping[str, Any]) -> "Image":
    """Bring the shorter side to a length, or the picture to [height, width]."""
    size = how["size"]
    if isinstance(size, int):
        short, long = sorted(image.size)
        longer = int(size * long / short)
        width, height = (size, longer) if image.width <= image.height else (longer, size)
    else:
        height, width = size
    filters = optional("PIL.Image", "an image").Resampling
    return image.resize((width, height), filters[how["interpolation"].upper()])


def _center_crop(image: "Image", how: Mapping[str, Any]) -> "Image":
    size = how["size"]
    height, width = (size, size) if isinstance(size, int) else size
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


_PICTURES = {
    "expand_to_square": _expand_to_square,
    "resize": _resize,
    "center_crop": _center_crop,
}


def transform_image(image: "Image", steps: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Apply the steps, in order.

    Args:
        image: RGB.
        steps: checked by ``wafer.data.sections.images.Transform``; 'to_tensor' makes floats from
            0 to 1, 'normalize' subtracts a mean and divides by a deviation per channel.

    Returns:
        [C, h, w] float32.
    """
    pixels = None
    for how in steps:
        if how["name"] in _PICTURES:
            image = _PICTURES[how["name"]](image, how)
        elif how["name"] == "to_tensor":
            pixels = np.asarray(image, np.float32) / 255
        else:
            assert pixels is not None  # the section checks the order
            mean, std = (np.array(how[key], np.float32) for key in ("mean", "std"))
            pixels = (pixels - mean) / std
    assert pixels is not None
    return pixels.transpose(2, 0, 1)
