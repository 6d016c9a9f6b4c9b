"""LLaVA's HDF5 rows: features of text and the path of an image.

Dataset ``data`` is int32 [N, F, S]. All begin with text_input_ids, loss_mask and labels:

* F = 4: key_padding_mask (1 where nothing attends); the image's slots are at one place in all rows
* F = 5: key_padding_mask, token_modality_idx; ``img_data_loc`` [N, images, slots] has the places
* F = 6: attention_span, position_ids, and a key_padding_mask that is 1 where tokens attend

``img_path`` [N, images] names the images below ``img_data_dir`` ('None' for none). The slots of an
image become the model's ``image_token_index``, unless rows of F = 6 hold it already.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import h5py
import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.readers.image_transforms import transform_image
from wafer.data.rowfiles.described import own_dataset, require_file
from wafer.data.rowfiles.files import StoredRows, folder_params
from wafer.data.text.textfiles import find_files
from wafer.errors import DataError
from wafer.models.errors import optional

# CLIP's own normalization (Radford et al. 2021).
_MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
_STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)
_FEATURES = (4, 5, 6)
# Others are read by programs of their own: Pillow starts Ghostscript for EPS.
_IMAGES = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


class ImageSlots(NamedTuple):
    """Where images are in a row."""

    first: int | None  #: first slot in every row; None: each row tells (F = 5)
    number: int  #: slots of an image
    token: int  #: id they take


def load_image(
    path: pathlib.Path,
    shape: tuple[int, int, int],
    steps: Sequence[Mapping[str, Any]] | None = None,
) -> np.ndarray:
    """Read a picture as the tower takes it: [C, h, w] float32.

    Args:
        path: of the picture.
        shape: (C, h, w).
        steps: the section's ``transforms``; None is resized, centre cut, normalized.

    Raises:
        DataError: not there, not an image, or of another shape after the steps.
    """
    pillow, (_, height, width) = optional("PIL.Image", "an image"), shape
    try:
        require_file(path, "an image")
        with pillow.open(path, formats=_IMAGES) as file:
            image = file.convert("RGB")
    except (OSError, DataError) as error:
        raise DataError(f"{path}: not a readable image ({error})") from None
    if steps is not None:
        pixels = transform_image(image, steps)
        if pixels.shape != shape:
            raise DataError(f"{path}: {pixels.shape} after transforms, the tower takes {shape}")
        return pixels
    scale = max(height / image.height, width / image.width)
    size = max(width, round(image.width * scale)), max(height, round(image.height * scale))
    image = image.resize(size, pillow.Resampling.BICUBIC)
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    pixels = np.asarray(image.crop((left, top, left + width, top + height)), np.float32) / 255
    return ((pixels - _MEAN) / _STD).transpose(2, 0, 1)


class LlavaSource(StoredRows):
    """Rows of text with their images.

    Args:
        paths: HDF5 files.
        images: folder of the images.
        shape: (C, h, w) of an image.
        steps: see ``load_image``.
        slots: that an image takes; None: rows have its id already.

    Raises:
        DataError: a file that is not of this format; names it.
    """

    def __init__(
        self,
        paths: Sequence[pathlib.Path],
        images: pathlib.Path,
        shape: tuple[int, int, int],
        steps: Sequence[Mapping[str, Any]] | None = None,
        slots: ImageSlots | None = None,
    ) -> None:
        if not images.is_dir():
            raise DataError(f"img_data_dir: {images} is not a folder")
        self._images, self._shape, self._steps, self._slots = images, shape, steps, slots
        counts, formats = zip(*map(self._check, paths), strict=True)
        if len(set(formats)) > 1:
            raise DataError(f"{paths[0].parent}: rows of different shapes; keep one format")
        self.features, self.row_length = formats[0]
        if slots is not None and slots.first is None:
            self._slots = self._placed(slots, paths[0].parent)
        located = ["img_data_loc"] if self.features == 5 else []
        super().__init__(paths, counts, ["data", "img_path", *located])

    def _check(self, path: pathlib.Path) -> tuple[int, tuple[int, int]]:
        """Rows of a file, and (F, S)."""
        try:
            require_file(path, "an HDF5 file")
            with h5py.File(path, "r") as file:
                data, names = own_dataset(file, "data"), own_dataset(file, "img_path")
                located = data.shape[1:2] == (5,)
                places = own_dataset(file, "img_data_loc") if located else None
                shape, count = data.shape, len(names)
                slots = None if places is None else places.shape[-1]
        except (OSError, KeyError, DataError) as error:
            raise DataError(
                f"{path}: not LLaVA rows ({error}); expected the datasets 'data' and 'img_path'"
            ) from None
        if len(shape) != 3 or shape[1] not in _FEATURES or count != shape[0]:
            raise DataError(
                f"{path}: 'data' has shape {shape} and 'img_path' {count} entries; expected "
                f"[N, 4, S], [N, 5, S] or [N, 6, S], and N"
            )
        if slots is not None and self._slots is not None and slots != self._slots.number:
            raise DataError(
                f"{path}: an image takes {slots} slots, but the model's tower gives "
                f"{self._slots.number}; preprocess with num_patches: {self._slots.number}"
            )
        return shape[0], (shape[1], shape[2])

    def _placed(self, slots: ImageSlots, folder: pathlib.Path) -> ImageSlots | None:
        """Slots at the place that ``data_params.json`` names."""
        if self.features != 4:
            return slots if self.features == 5 else None
        start = folder_params(folder).get("image_patch_info", {}).get("image_patch_start_idx")
        if start is None:
            raise DataError(
                f"{folder}: data_params.json has no image_patch_start_idx; give image_start_idx, "
                "the slot at which the image of every row begins"
            )
        return slots._replace(first=start)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        path, row, datasets = self.place(index)
        rows = datasets["data"][row].astype(np.int32)
        ids, loss_mask, labels = rows[:3]
        real = rows[5] if self.features == 6 else (rows[3] == 0).astype(np.int32)
        stored = np.asarray(datasets["img_path"][row]).reshape(-1).tolist()
        names = [one.decode() if isinstance(one, bytes) else str(one) for one in stored]
        if len(names) > 1 and names[1] != "None":
            raise DataError(
                f"{path}, row {row}: has several images, and the model takes one in a row; "
                "preprocess with max_num_img: 1"
            )
        name = names[0]
        features = {
            "input_ids": ids,
            "attention_mask": real,
            "loss_mask": loss_mask,
            "labels": labels,
            "pixel_values": np.zeros(self._shape, np.float32),
        }
        if name != "None":
            if self._slots is not None:
                first, number, token = self._slots
                places = slice(first or 0, (first or 0) + number)
                if first is None:
                    places = datasets["img_data_loc"][row][0]
                features["input_ids"] = ids.copy()
                features["input_ids"][places] = token
            try:
                image_path = pathlib.PurePath(name)
                if image_path.is_absolute() or ".." in image_path.parts:
                    raise DataError(f"{name!r} is no file below {self._images}")
                pixels = load_image(self._images / image_path, self._shape, self._steps)
                features["pixel_values"] = pixels
            except DataError as error:
                raise DataError(f"{path}, row {row}: {error}") from None
        return features


def llava(cfg: Any, context: Context) -> Dataset:
    """Read every .h5 of the folders.

    Raises:
        DataError: a file that is not of this format; names it.
        MissingPackageError: Pillow is not installed.
    """
    optional("PIL", "an image")  # it ends the run now
    shape: Any = cfg.image_data_size or context.input_shape or (3, 336, 336)
    if context.input_shape not in (None, tuple(shape)):
        raise DataError(
            f"image_data_size: {list(shape)}, but the model's tower takes "
            f"{list(context.input_shape)}; drop the key"
        )
    steps, slots = None, None
    if cfg.transforms is not None:
        steps = [step.to_dict() for step in cfg.transforms]
    if context.config is not None:
        model: Any = context.config
        patches = model.image_model.patches + (model.image_feature_select_mode == "cls_patch")
        slots = ImageSlots(cfg.image_start_idx, patches, model.image_token_index)
    files, images = find_files(cfg.data_dir, ["*.h5"]), pathlib.Path(cfg.img_data_dir)
    source = LlavaSource(files, images, tuple(shape), steps, slots)
    if cfg.max_sequence_length not in (None, source.row_length):
        raise DataError(
            f"{cfg.data_dir[0]}: rows are {source.row_length} tokens long, but "
            f"max_sequence_length is {cfg.max_sequence_length}; drop the key"
        )
    return Dataset(
        source=source,
        row_length=source.row_length,
        complete=True,
        summary=f"LLaVA: {len(source):,} rows of {source.row_length} tokens, images {shape}",
    )
