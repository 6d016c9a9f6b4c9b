"""T5 and Transformer as the vendor trains them: vocabulary, scales, norms and initial values.

Hugging Face's forms differ: its models are presets of ``models.names``; a run file gets these.
"""

from typing import Any

_PRE_NORM = "use_pre_encoder_decoder_layer_norm"
_T5 = ("t5", "t5-v1.1", "flan-t5", "ul2", "flan-ul2")


def translate_seq2seq(
    model: dict[str, Any], release: tuple[int, int] | None = None
) -> list[tuple[str, str]]:
    """Say in our keys what the vendor's defaults are; given keys win.

    Args:
        model: the section, changed in place.
        release: of the file, where it says so.

    Returns:
        (key, why) of what is refused.
    """
    refused: list[tuple[str, str]] = []
    if model.get("mup_base_d_model") is not None and model.get("use_transformer_initialization"):
        why = "not computed here: muP draws its own initial values; write false"
        refused = [("use_transformer_initialization", why)]
    if model.get("position_embedding_type") == "learned_absolute":
        model["position_embedding_type"] = "learned"
    refused += _norm_first(model, release)
    if model.get("name") == "transformer" and "d_model" in model:  # Marian's are the presets
        given = {"scale_embedding": False, "scale_logits": True, "final_norm": True} | model
        model |= given
    if model.get("name") in (*_T5, "transformer"):
        _initial_values(model)
    return refused


def _norm_first(model: dict[str, Any], release: tuple[int, int] | None) -> list[tuple[str, str]]:
    """Write ``norm_first`` for the key that release 1.8 negated; refuse it without a release."""
    pre = model.pop(_PRE_NORM, None)
    if pre is None:
        return []
    if release is None:
        why = "true is post-LN in releases before 1.8 and pre-LN since, false the other way round; "
        why += "write norm_first, or the file's `release` above its sections"
    elif not isinstance(pre, bool):
        why = f"{pre!r}: expected true or false"
    elif model.setdefault("norm_first", now := pre is (release >= (1, 8))) != now:
        why = f"{pre}: norm_first is {model['norm_first']!r}; keep one"
    else:
        return []
    return [(_PRE_NORM, why)]


def _initial_values(model: dict[str, Any]) -> None:
    """Set the initializers that the vendor derives from the sizes, where the file has its keys."""
    sizes: list[Any] = [model.get(key) for key in ("d_model", "d_kv", "d_ff")]
    xavier = model.pop("use_transformer_initialization", None)
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return
    width, head, filters = sizes
    if xavier:
        model.setdefault("attention_type", "scaled_dot_product")
        fan = {"name": "variance_scaling", "mode": "fan_avg", "distribution": "uniform"}
        attention = fan | {"scale": 1 / 9}
        drawn = {
            "embedding": {"name": "truncated_normal", "std": 1.0, "a": -2.0, "b": 2.0},
            "attention_q": fan | {"scale": 1 / (9 * head)},
            "attention": attention,
            "ffn": {"name": "xavier_uniform"},
            "ffn_output_layer": {"name": "xavier_uniform"},
        }
    else:
        model.setdefault("attention_type", "dot_product")
        normal = lambda std: {"name": "normal", "std": std}
        attention = normal(width**-0.5)
        drawn = {
            "embedding": normal(1.0),
            "attention_q": normal((width * head) ** -0.5),
            "attention": attention,
            "ffn": normal(width**-0.5),
            "ffn_output_layer": normal(filters**-0.5),
        }
    drawn |= {"output_layer": attention, "head": {"name": "normal", "std": 1.0}}
    for part, how in drawn.items():
        model.setdefault(f"{part}_initializer", how)
