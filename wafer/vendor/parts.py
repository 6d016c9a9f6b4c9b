"""Models of several parts as the vendor nests them: LLaVA, DPR."""

from typing import Any

from wafer.vendor.defaults import Release, changed_defaults, code_of, set_defaults

# Keys of the vendor's ViT -> the one value that CLIP's tower has; the vendor's default
_TOWER = {
    "use_post_embed_layer_norm": (True, False),
    "use_embed_proj_bias": (False, True),
    "use_encoder_pooler_layer": (False, False),
    "use_final_layer_norm": (True, True),
    "prepend_cls_token": (True, True),
    "position_embedding_type": ("learned", "learned"),
    "image_layer_idx": (None, None),
    "layerscale_value": (None, None),
    "interpolate_position_embedding": (None, None),
    "stochastic_depth_drop_prob": (0.0, 0.0),
    "use_masked_patches": (False, False),
    "cls_token_initializer": (None, None),
    "position_embedding_initializer": (None, None),
    "projection_initializer": (None, None),
}
_TOWER_SINCE: Release = (2, 4)  # the defaults hold
# Keys that change no result of that tower
_IDLE = (
    *("use_conv_patchified_embedding", "pooler_initializer"),
    *("stochastic_depth_drop_prob_schedule", "stochastic_depth_mode"),
)
_NAMES = {"ViTModel": "clip-vit", "LlamaModel": "llama"}
_HALF = ("mixed_precision", "fp16_type", "use_bfloat16", "compute_dtype")
PARTS = ("image_model", "text_model", "q_encoder", "ctx_encoder")

Refused = list[tuple[tuple[str, ...], str]]


def translate_parts(model: dict[str, Any], release: Release | None = None) -> Refused:
    """Bring the vendor's LLaVA and DPR into our form, and hand the precision on to every part.

    Args:
        model: the section, changed in place; its parts are replaced.
        release: of the file, where it says so.

    Returns:
        (path below ``model``, why) of what is refused.
    """
    if model.get("name") == "dpr" and isinstance(model.get("encoder"), dict):
        both = model.pop("encoder")  # two towers of one section
        model |= {"q_encoder": both, "ctx_encoder": both} | model
    parts = {name: dict(model[name]) for name in PARTS if isinstance(model.get(name), dict)}
    model |= parts
    refused: Refused = []
    if "image_model" in parts and "projector" in model:
        refused = _tower(parts["image_model"], release) + _projector(model)
        _text(model, parts.get("text_model", {}))
    for part in parts.values() if model.get("mixed_precision") is True else ():
        for key in set(_HALF) & set(model):
            part.setdefault(key, model[key])
    for name, part in parts.items():
        set_defaults(part, _code(name, part), release)
    return refused


def keep_defaults(model: dict[str, Any], source: Release, target: Release) -> None:
    """Write out defaults of a release that another has otherwise, in the model and its parts.

    Args:
        model: the section with its name, changed in place.
        source: release of the file.
        target: a later release.
    """
    model |= changed_defaults(model, code_of(model["name"]), source, target)
    usual = {"image_model": "clip-vit", "text_model": "llama"}
    for name in PARTS:
        if isinstance(part := model.get(name), dict):
            known = {"name": usual.get(name, "bert")} | part
            known["name"] = _NAMES.get(known["name"], known["name"])
            part |= changed_defaults(known, _code(name, part), source, target)
    if "projector" in model and source < _TOWER_SINCE <= target:
        tower = {key: value for key, (value, default) in _TOWER.items() if value != default}
        model["image_model"] = tower | model.get("image_model", {})


def _code(name: str, part: dict[str, Any]) -> str:
    """Return the vendor's code that computes a part."""
    if name == "text_model":
        return code_of(str(part.get("name", "llama")))
    return "vision" if name == "image_model" else "encoder"


def _text(model: dict[str, Any], text: dict[str, Any]) -> None:
    """Name the decoder, and give it the loss's keys, which the vendor has above it."""
    text["name"] = _NAMES.get(str(text.get("name")), text.get("name", "llama"))
    if "embd_pdrop" in text:
        text.setdefault("embedding_dropout_rate", text.pop("embd_pdrop"))
    for key in ("loss_scaling", "loss_weight", "label_smoothing"):
        if key in model:
            text.setdefault(key, model.pop(key))


def _tower(tower: dict[str, Any], release: Release | None) -> Refused:
    refused: Refused = []
    tower["name"] = _NAMES.get(str(tower.get("name")), tower.get("name", "clip-vit"))
    for key in _IDLE:
        tower.pop(key, None)
    for key, (value, default) in _TOWER.items():
        since = release is not None and release >= _TOWER_SINCE
        given = tower.pop(key, default if since else value)
        if given != value:
            why = f"{given!r}: not computed here: a tower other than CLIP's, which has {value!r}"
            refused.append((("image_model", key), why))
    for key in ("image_size", "patch_size"):
        size = tower.get(key)
        if isinstance(size, list) and len(set(map(str, size))) == 1:
            tower[key] = size[0]
        elif isinstance(size, list):
            why = f"{size}: not computed here: images or patches that are not square"
            refused.append((("image_model", key), why))
            del tower[key]
    return refused


def _projector(model: dict[str, Any]) -> Refused:
    """Read the one projector that is computed: two layers with biases, one activation."""
    whole = model.pop("projector")
    image, text = model["image_model"], model.get("text_model") or {}
    own = whole.get("image_model") if isinstance(whole, dict) else None
    if not isinstance(own, dict) or set(whole) != {"image_model"}:
        return [(("projector",), "not computed here: a projector of text, or none of images")]
    activations = own.get("layers_activation") or [None, None]
    width = text.get("hidden_size")
    expected = {
        "name": "FeedForwardNetwork",
        "input_unit": image.get("hidden_size", 1024),
        "layers_units": [width, width],
        "layers_activation": [activations[0], None],
        "use_bias": True,
    }
    for key, value in (own | {"use_bias": own.get("use_bias", False)}).items():
        if expected.get(key) != value:
            why = f"{value!r}: not computed here: two layers with biases, {key} {expected.get(key)}"
            return [(("projector", "image_model", key), why)]
    if activations[0] is not None:
        model.setdefault("projector_nonlinearity", activations[0])
    return []
