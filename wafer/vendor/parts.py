"""LLaVA as the vendor nests it: a tower of images, and the projector into the text."""

from wafer.models.user.yamlfile import YamlMapping
from wafer.vendor.keys import table
from wafer.vendor.translation import Translation

TOWER_SINCE = (2, 4)  # the vendor's defaults of a tower hold


def tower_and_projector(file: Translation, model: YamlMapping) -> None:
    """Bring the vendor's LLaVA into our form.

    Args:
        file: lists what is refused.
        model: its section, changed in place; the parts have names.
    """
    _tower(file, model["image_model"])
    _projector(file, model)
    text = model.get("text_model", {})
    for key in ("loss_scaling", "loss_weight", "label_smoothing"):  # the vendor's are above it
        if key in model:
            text.setdefault(key, model.pop(key))


def _tower(file: Translation, tower: dict[str, object]) -> None:
    path = ("model", "image_model")
    since = file.release is not None and file.release >= TOWER_SINCE
    for key, (value, default) in table().tower.items():
        given = tower.pop(key, default if since else value)
        if given != value:
            why = f"{given!r}: not computed here: a tower other than CLIP's, which has {value!r}"
            file.note("refused", (*path, key), why)
    for key in ("image_size", "patch_size"):
        size = tower.get(key)
        if isinstance(size, list) and len(set(map(str, size))) == 1:
            tower[key] = size[0]
        elif isinstance(size, list):
            why = f"{size}: not computed here: images or patches that are not square"
            file.note("refused", (*path, key), why)
            del tower[key]


def _projector(file: Translation, model: YamlMapping) -> None:
    """Read the one projector that is computed: two layers with biases, one activation."""
    whole, path = model.pop("projector"), ("model", "projector")
    image, text = model["image_model"], model.get("text_model") or {}
    projector = whole.get("image_model") if isinstance(whole, dict) else None
    if not isinstance(projector, dict) or set(whole) != {"image_model"}:
        file.note("refused", path, "not computed here: a projector of text, or none of images")
        return
    activations = projector.get("layers_activation") or [None, None]
    width = text.get("hidden_size")
    expected = {
        "name": "FeedForwardNetwork",
        "input_unit": image.get("hidden_size", 1024),
        "layers_units": [width, width],
        "layers_activation": [activations[0], None],
        "use_bias": True,
    }
    for key, value in (projector | {"use_bias": projector.get("use_bias", False)}).items():
        if expected.get(key) != value:
            why = f"{value!r}: not computed here: two layers with biases, {key} {expected.get(key)}"
            file.note("refused", (*path, "image_model", key), why)
            return
    if activations[0] is not None:
        model.setdefault("projector_nonlinearity", activations[0])
