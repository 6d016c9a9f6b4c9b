"""What keys and sections of the vendor's run files mean together, as small functions.

``begin`` comes before the table of ``keys``, and ``RULES`` after it; they change the sections in
place.
"""

from collections.abc import Iterator
from typing import Any

from wafer.models.names import MODELS
from wafer.models.user.yamlfile import YamlMapping
from wafer.vendor.keys import PARTS, table
from wafer.vendor.parts import tower_and_projector
from wafer.vendor.translation import Translation

_HALF = ("mixed_precision", "fp16_type", "compute_dtype")
# (family of the model, data processor, key of the model that the data take over, still the model's)
_MODEL_KEYS_OF_DATA = (
    ("encoder", "BertSum", "vocab_file", False),
    ("encoder", "BertTokenClassifier", "label_vocab_file", False),
    ("encoder", "BertCSV", "disable_nsp", True),
    ("llava", "Llava", "image_start_idx", False),
)
# (family, key of train_input, key of the model): as many positions as the longest rows
_LENGTHS = (
    ("seq2seq", "src_max_sequence_length", "src_max_position_embeddings"),
    ("seq2seq", "tgt_max_sequence_length", "tgt_max_position_embeddings"),
    ("encoder", "max_sequence_length", "max_position_embeddings"),
)
_T5 = ("t5", "t5-v1.1", "flan-t5", "ul2", "flan-ul2")


def _inputs(file: Translation) -> Iterator[tuple[str, YamlMapping]]:
    for part in ("train_input", "eval_input"):
        if isinstance(file.sections.get(part), dict):
            yield part, file.sections[part]


def _family(file: Translation) -> str:
    return getattr(MODELS.get(str(file.section("model").get("name"))), "family", "")


def begin(file: Translation) -> None:
    """Give models and parts their names and places here."""
    model, names = file.section("model"), table().names
    if "name" not in model and "model_name" in model:  # before release 2.4
        model["name"] = model.pop("model_name")
        file.note("renamed", ("model", "model_name"), ("model", "name"))
    if isinstance(model.get("name"), str):
        model["name"] = names.get(model["name"], model["name"])
    if model.get("name") == "fc_mnist":  # releases before 2.4 name no processor
        for _, section in _inputs(file):
            section.setdefault("data_processor", "MNISTDataProcessor")
    if isinstance(model.get("policy_model"), dict):  # until 2.3 its keys are beside ``dpo``
        policy = model.pop("policy_model")
        model |= policy
        for key in policy:
            file.note("renamed", ("model", "policy_model", key), ("model", key))
    if model.get("name") == "dpr" and isinstance(model.get("encoder"), dict):
        both = model.pop("encoder")  # two towers of one section
        model |= {"q_encoder": dict(both), "ctx_encoder": dict(both)} | model
    _name_parts(model)


def _name_parts(model: YamlMapping) -> None:
    if "projector" in model and isinstance(model.get("image_model"), dict):
        for part, usual in (("image_model", "clip-vit"), ("text_model", "llama")):
            if isinstance(own := model.get(part), dict):
                name = own.get("name", usual)
                own["name"] = table().names.get(str(name), name)


def _scale_by_masks(file: Translation) -> None:
    """``dynamic_mlm_scale`` divides by the masked tokens of the batch, whatever the weight."""
    model = file.section("model")
    for part, section in _inputs(file):
        if section.pop("dynamic_mlm_scale", False) and part == "train_input" and model:
            model["mlm_loss_scaling"] = "num_masked"
            model.pop("mlm_loss_weight", None)


def _copy_to_data(file: Translation) -> None:
    """Hand keys of the model on to the data, where releases have them in either place."""
    model, family = file.section("model"), _family(file)
    entry = MODELS.get(str(model.get("name")))
    known = {**entry.presets, **model} if entry else model  # RoBERTa has no next sentences
    for own, processor, key, stays in _MODEL_KEYS_OF_DATA:
        if family != own or key not in known:
            continue
        for _, section in _inputs(file):
            if str(section.get("data_processor")).startswith(processor):
                section.setdefault(key, known[key])
        if not stays:
            model.pop(key, None)


def _lengths(file: Translation) -> None:
    """Take the number of positions from the data's length where the model does not say it."""
    family, train = _family(file), file.section("train_input")
    for own, source, key in _LENGTHS:
        if family == own and isinstance(train.get(source), int):
            file.section("model").setdefault(key, train[source])


def _loss_scaling(file: Translation) -> None:
    """Decide what a decoder's ``loss_weight`` without ``loss_scaling: batch_size`` means.

    Until 1.7 every loss was divided by rows; 1.8 did so where a weight is given; since 1.9 the
    weight is dropped. So any weight asks for the release, 1 as well.
    """
    model = file.section("model")
    if _family(file) != "decoder" or model.get("loss_scaling", "num_tokens") != "num_tokens":
        return
    weighted = model.get("loss_weight", 1.0) not in (1, "1", "1.0")
    if file.release and (file.release < (1, 8) or (weighted and file.release == (1, 8))):
        model["loss_scaling"] = "batch_size"
    elif file.release:
        if weighted:
            file.note("dropped", ("model", "loss_weight"))
        model.pop("loss_weight", None)
    elif "loss_weight" in model:
        why = (
            "needs loss_scaling: batch_size until 1.8, and has no effect since 1.9; drop it, write "
            "loss_scaling: batch_size, or add the release, such as `release: '1.7'`"
        )
        file.note("refused", ("model", "loss_weight"), why)


def _several_models(file: Translation) -> None:
    """Read LLaVA's tower and projector; hand the precision on to every part."""
    model = file.section("model")
    submodels = [model[name] for name in PARTS if isinstance(model.get(name), dict)]
    if "projector" in model and isinstance(model.get("image_model"), dict):
        tower_and_projector(file, model)
    for part in submodels if model.get("mixed_precision") is True else ():
        part |= {key: model[key] for key in _HALF if key in model and key not in part}


def encoder_decoder(file: Translation) -> None:
    """Say in our keys what T5's and the Transformer's sizes mean; given keys win."""
    model, written = file.section("model"), file.written.get(("model",), frozenset())
    if _family(file) != "seq2seq":
        return
    xavier = model.pop("use_transformer_initialization", None)
    if xavier and model.get("mup_base_hidden_size") is not None:
        why = "not computed here: muP draws its own initial values; write false"
        file.note("refused", ("model", "use_transformer_initialization"), why)
    if model["name"] == "transformer" and "d_model" in written:  # Marian's are the presets
        given = {"scale_embedding": False, "scale_logits": True, "final_norm": True} | model
        model |= given
    if "d_kv" not in model:
        return
    head, heads = model.pop("d_kv"), model.get("num_heads", 8)
    sizes: list[Any] = [model.get("hidden_size"), head, model.get("filter_size")]
    if not (isinstance(head, int) and isinstance(heads, int)):
        why = f"{head!r}, num_heads: {heads!r}: expected integers"
        file.note("refused", ("model", "d_kv"), why)
        return
    model["attention_inner_dim"] = head * heads
    all_given = {"d_model", "d_ff"} <= written and all(isinstance(s, int) and s > 0 for s in sizes)
    if all_given and model["name"] in (*_T5, "transformer"):
        for key, value in _initial_values(*sizes, xavier=bool(xavier)).items():
            model.setdefault(key, value)


def _initial_values(width: int, head: int, filters: int, *, xavier: bool) -> YamlMapping:
    """Return the initializers that the vendor derives from the sizes."""
    if xavier:
        fan = {"name": "variance_scaling", "mode": "fan_avg", "distribution": "uniform"}
        attention = fan | {"scale": 1 / 9}
        drawn = {
            "embedding": {"name": "truncated_normal", "std": 1.0, "a": -2.0, "b": 2.0},
            "attention_q": fan | {"scale": 1 / (9 * head)},
            "ffn": {"name": "xavier_uniform"},
            "ffn_output_layer": {"name": "xavier_uniform"},
        }
    else:
        normal = lambda std: {"name": "normal", "std": std}
        attention = normal(width**-0.5)
        drawn = {
            "embedding": normal(1.0),
            "attention_q": normal((width * head) ** -0.5),
            "ffn": normal(width**-0.5),
            "ffn_output_layer": normal(filters**-0.5),
        }
    drawn |= {"attention": attention, "output_layer": attention}
    drawn |= {"head": {"name": "normal", "std": 1.0}}
    values: YamlMapping = {f"{part}_initializer": how for part, how in drawn.items()}
    return values | {"attention_type": "scaled_dot_product" if xavier else "dot_product"}


RULES = (
    _scale_by_masks,
    _copy_to_data,
    _lengths,
    _loss_scaling,
    _several_models,
    encoder_decoder,
)
