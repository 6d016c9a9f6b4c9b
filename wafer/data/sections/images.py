"""Data processors of images: with text (LLaVA), or with classes."""

from typing import Literal

from pydantic import PositiveInt

from models.sections import Bool
from wafer.data.sections.base import Folders, InputSection

__all__ = ["DigitsDataProcessor", "LlavaHDF5MapDataProcessor", "MNISTDataProcessor"]


class LlavaHDF5MapDataProcessor(
    InputSection, task="image_text", reader="wafer.data.readers.llava:llava"
):
    """HDF5 rows with an image each.

    Attributes:
        data_dir: folders or files.
        img_data_dir: folder of the images that ``img_path`` names.
        image_data_size: (C, h, w) the tower takes; None is the model's.
    """

    data_dir: Folders
    img_data_dir: str
    image_data_size: tuple[PositiveInt, PositiveInt, PositiveInt] | None = None


class MNISTDataProcessor(
    InputSection,
    task="image",
    reader="wafer.data.readers.images:mnist",
    legacy={"drop_last_batch": "drop_last"},
):
    """IDX files as published, gzipped or not.

    Attributes:
        data_dir: folders or files.
        to_float16: accepted; images are float32 and the model casts.
    """

    data_dir: Folders
    to_float16: Bool | None = None


class DigitsDataProcessor(
    InputSection,
    task="image",
    reader="wafer.data.readers.images:digits",
    legacy={"drop_last_batch": "drop_last"},
):
    """The 1,797 digits of 8 x 8 pixels that scikit-learn brings.

    Attributes:
        split: which part; the last fifth is held out.
    """

    split: Literal["train", "eval"] | None = None
