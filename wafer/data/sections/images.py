"""Data processors of images: with text (LLaVA), or with classes."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from wafer.data.sections.base import Folders, InputSection
from wafer.models.sections import Bool, Section

_Size = PositiveInt | tuple[PositiveInt, PositiveInt]
_Byte = Annotated[int, Field(ge=0, le=255)]
_TRANSFORMS: dict[str, tuple[str, ...]] = {  # name -> keys it needs
    "expand_to_square": ("background_color",),
    "resize": ("size",),
    "center_crop": ("size",),
    "to_tensor": (),
    "normalize": ("mean", "std"),
}


class Transform(Section):
    """One step of ``transforms``."""

    name: str  #: expand_to_square, resize, center_crop, to_tensor or normalize
    #: RGB of 0 to 255, of expand_to_square
    background_color: tuple[_Byte, _Byte, _Byte] | None = None
    size: _Size | None = None  #: of resize (the shorter side, or height and width) and center_crop
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bilinear"  #: of resize
    mean: tuple[float, float, float] | None = None  #: per channel, of normalize
    #: per channel, of normalize
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.name not in _TRANSFORMS:
            known = ", ".join(_TRANSFORMS)
            raise ValueError(f"name: {self.name!r}: not computed here: the steps are {known}")
        for key in _TRANSFORMS[self.name]:
            if getattr(self, key) is None:
                raise ValueError(f"{key}: {self.name} needs it")
        return self


class LlavaHDF5MapDataProcessor(
    InputSection, task="image_text", reader="wafer.data.readers.llava:llava"
):
    """HDF5 rows with an image each."""

    data_dir: Folders  #: folders or files
    img_data_dir: str  #: folder of the images that ``img_path`` names
    #: (C, h, w) the tower takes; None is the model's
    image_data_size: tuple[PositiveInt, PositiveInt, PositiveInt] | None = None
    #: steps from a picture to what the tower takes, normalization last; None is resizing, cutting
    #: out the centre and CLIP's normalization
    transforms: tuple[Transform, ...] | None = None
    #: slot at which every row's image begins; None is where the rows hold the model's
    #: ``image_token_index``
    image_start_idx: NonNegativeInt | None = None

    @model_validator(mode="after")
    def _ends_as_numbers(self) -> Self:
        names = [step.name for step in self.transforms or ()]
        if self.transforms is not None and names[-2:] != ["to_tensor", "normalize"]:
            raise ValueError(f"transforms: {names} must end with to_tensor and normalize")
        return self


class _PixelInput(InputSection, task="image"):
    unread = (*InputSection.unread, "max_sequence_length")


class MNISTDataProcessor(_PixelInput, reader="wafer.data.readers.images:mnist"):
    """IDX files as published, gzipped or not."""

    unread = (*_PixelInput.unread, "to_float16")

    data_dir: Folders  #: folders or files
    to_float16: Bool | None = None  #: accepted; images are float32 and the model casts


class DigitsDataProcessor(_PixelInput, reader="wafer.data.readers.images:digits"):
    """The 1,797 digits of 8 x 8 pixels that scikit-learn brings."""

    split: Literal["train", "eval"] | None = None  #: which part; the last fifth is held out
