"""Translate ``config.json``: tables of key names, and what does not fit a table as two hooks."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from wafer.models.convert.tables.class_defaults import CLASS_ALIASES, CLASS_DEFAULTS, HARMLESS
from wafer.models.errors import did_you_mean
from wafer.models.layers.basic import GATED

Settings = dict[str, Any]
_NOTHING = object()  # null, where transformers needs a value
_LLAMA3 = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_YARN = ("beta_fast", "beta_slow", "attention_factor", "original_max_position_embeddings")

# Of every class: what transformers 4 writes into each configuration, and what alone is computed.
OF_ALL = {"pruned_heads": {}, "add_cross_attention": False, "tie_encoder_decoder": False}
# Values of the right type for keys that are absent by default.
_LIKE: Settings = {
    **{key: {} for key in ("alibi_scaling", "rope_scaling", "rope_parameters", "attn_config")},
    **dict.fromkeys(("n_inner", "rotary_dim", "head_dim", "num_key_value_heads"), 1),
    **dict.fromkeys(("num_kv_heads", "ffn_hidden_size", "num_decoder_layers", "num_labels"), 1),
    "word_embed_proj_dim": 1,
    **dict.fromkeys(("partial_rotary_factor", "rope_theta"), 1.0),
    "id2label": {},
    **{key: [] for key in ("architectures", "layer_types", "mlp_only_layers")},
}
# Keys whose null means something of its own: no window, no cap, as many key/value heads as heads.
_NULL_SAYS = {"sliding_window", "num_key_value_heads"}
_NULL_SAYS |= {"attn_logit_softcapping", "final_logit_softcapping"}
# Keys whose null is as if they were absent: transformers' code reads them in training, for one of
# several ids, or not at all; the base of rotary positions may stand in ``rope_parameters``.
_NULL_IS_ABSENT = re.compile(
    r".*(drop|_prob|token_i|jitter).*|rope_theta|vocab_size|seq_length|expansion_ratio|no_bias"
    r"|norm_type|max_window_layers"
)
# Whole numbers that are no sizes: ids of tokens, the first layer with a window.
_MAY_BE_ZERO = re.compile(r".*token.*|max_window_layers")


@dataclasses.dataclass(frozen=True)
class ConfigMap:
    """How one model_type spells our configuration."""

    model_type: str  #: of config.json
    name: str  #: our model name
    #: foreign key -> ours, or several of ours that have its value; the first is written
    keys: Mapping[str, str | tuple[str, ...]]
    #: our keys and the values that every such config.json means
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    #: foreign values where config.json lacks the key; of transformers' own classes those of
    #: ``class_defaults``
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    #: foreign key -> the only value our model computes
    required: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    #: foreign config -> further settings of ours
    read: Callable[[Settings], Settings] = lambda foreign: {}
    #: our configuration -> further foreign keys
    write: Callable[[Any], Settings] = lambda cfg: {}
    #: (settings, tensors) -> settings, for what only the weights tell
    refine: Callable[[Settings, Any], Settings] = lambda settings, tensors: settings
    classes: tuple[str, str] = ("", "")  #: foreign class names: (with language-model head, without)


def to_our_settings(map_: ConfigMap, foreign: Settings) -> Settings:
    """Build a ``model`` section from a foreign config.

    A key that is absent has the value of transformers' configuration class.

    Raises:
        ValueError: keys that are not known, unless null, and values that our model would compute
            differently; all in one message.
    """
    kind = map_.model_type
    defaults = {**CLASS_DEFAULTS.get(kind, {}), **map_.defaults}
    given, wrong = _canonical(foreign, CLASS_ALIASES.get(kind, {}))
    required = {**OF_ALL, **map_.required}
    nulls = {k for k, v in given.items() if v is None} - _NULL_SAYS
    meant = {key: _null_of(key, (required | defaults).get(key)) for key in nulls}
    merged = defaults | given | meant
    for key, value in required.items():
        if (found := merged.get(key)) not in (None, value, _NOTHING):
            wrong.append(f"{key}: {found!r}, only {value!r} is computed")
    read = {*defaults, *map_.keys, *required}
    known = read | {*HARMLESS.get(kind, given)}
    for key in given:
        if key not in known and given[key] is not None:
            hint = did_you_mean(key, read) or f"; it has {', '.join(sorted(map_.keys))}"
            wrong.append(f"{key}: {given[key]!r}, a key that {kind} does not have here{hint}")
    like = {**_LIKE, **{k: value for k, value in defaults.items() if value is not None}}
    wrong += [line for key in like if (line := _unfit(key, merged.get(key), like[key]))]
    wrong += [f"{key}: null, expected a value" for key in nulls if meant[key] is _NOTHING]
    if wrong:
        raise ValueError(f"config.json of {kind}: " + "; ".join(wrong))
    settings: Settings = {"name": map_.name, **map_.fixed}
    for key, names in map_.keys.items():
        if key in merged:
            ours = (names,) if isinstance(names, str) else names
            value: Any = merged[key]
            if ours[0].endswith("nonlinearity"):
                value = read_activation(value)
            settings |= dict.fromkeys(ours, value)
    return settings | map_.read(merged)


def _null_of(key: str, default: object) -> object:
    """Return what null means for a key, as transformers' code reads it: false of a truth value."""
    if default is None or isinstance(default, dict) or _NULL_IS_ABSENT.fullmatch(key):
        return default
    return False if isinstance(default, bool) else _NOTHING


def _unfit(key: str, value: Any, like: Any) -> str:
    """Say what is wrong with a value's type, or its sign; '' where nothing is."""
    if value is None or value is _NOTHING:
        return ""
    number = isinstance(like, int | float) and not isinstance(like, bool)
    kinds = (int, float) if number else (type(like),)
    if not isinstance(value, kinds) or isinstance(value, bool) is not isinstance(like, bool):
        return f"{key}: {value!r}, expected {'a number' if number else type(like).__name__}"
    size = isinstance(like, int) and number and like > 0 and not _MAY_BE_ZERO.fullmatch(key)
    return f"{key}: {value!r}, expected a positive number" if size and value <= 0 else ""


def _canonical(foreign: Settings, aliases: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Return the config under the keys of its class, and what it gives twice and differently."""
    given, wrong = {k: v for k, v in foreign.items() if k not in aliases}, []
    for alias, key in aliases.items():
        value = foreign.get(alias)
        if value is None:
            continue
        if given.get(key) not in (None, value):
            wrong.append(f"{alias}: {value!r}, but {key}: {given[key]!r}; both mean the same")
        given[key] = value
    return given, wrong


# Activations of transformers -> ours. The first of several is the one that is written.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_python_tanh": "gelu_new",
    "gelu_accurate": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_10": "gelu_10",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "squared_relu",
    "relu6": "relu6",
    "leaky_relu": "leaky_relu",
    "silu": "silu",
    "swish": "silu",
    "hardswish": "hardswish",
    "mish": "mish",
    "laplace": "laplace",
    "sqrtsoftplus": "sqrtsoftplus",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "linear": "linear",
    "swiglu": "swiglu",  # of BTLM's code and its kin
}


def read_activation(name: str) -> str:
    """Translate the name that transformers has for an activation.

    Raises:
        ValueError: one that is not computed, because it is not known or has weights of its own.
    """
    if name not in _ACTIVATIONS:
        hint = did_you_mean(str(name), _ACTIVATIONS)
        raise ValueError(
            f"config.json: activation {name!r} is not computed{hint}; known: {[*_ACTIVATIONS]}"
        )
    return _ACTIVATIONS[name]


def read_gated(name: object) -> str:
    """Return the gated unit whose gate has an activation of transformers.

    Raises:
        ValueError: an activation that no gated unit has.
    """
    act = read_activation(str(name))
    units = {own: unit for unit, own in GATED.items()}
    if act not in units:
        raise ValueError(f"config.json: activation {name!r} of a gate; expected {[*units]}")
    return units[act]


def write_activation(name: str | None) -> str:
    """Return transformers' name of an activation; ours where it has none, which is then refused."""
    ours = {"swish": "silu", "gelu_fast": "gelu_new", None: "linear"}.get(name, name)
    return next((theirs for theirs, own in _ACTIVATIONS.items() if own == ours), str(ours))


def to_foreign_config(map_: ConfigMap, cfg: Any, dtype: str) -> Settings:
    """Build config.json from our configuration, in both the v4 and the v5 spelling."""
    foreign: Settings = {"model_type": map_.model_type, "dtype": dtype, "torch_dtype": dtype}
    architecture = map_.classes[0 if getattr(cfg, "with_lm_head", True) else 1]
    if architecture:
        foreign["architectures"] = [architecture]
    foreign |= map_.required
    for key, ours in map_.keys.items():
        name = ours if isinstance(ours, str) else ours[0]
        value = getattr(cfg, name)
        if name.endswith("nonlinearity"):
            value = write_activation(value)
        elif value is None and name.endswith("_dropout_rate"):  # then it is the general one
            value = cfg.dropout_rate
        foreign[key] = value
    return foreign | map_.write(cfg)


def read_rope(foreign: Settings, head_dim: int) -> Settings:
    """Read rotary settings in either spelling (transformers v4 and v5).

    v5 has ``rope_parameters {rope_theta, rope_type, partial_rotary_factor, factor}``; v4
    ``rope_theta``, ``rope_scaling {type | rope_type, factor}``, NeoX ``rotary_pct``.

    Raises:
        ValueError: an interpolation we do not compute; two spellings that differ.
    """
    old, new = (foreign.get(key) or {} for key in ("rope_scaling", "rope_parameters"))
    v4, v5, rope = (_canonical_rope(x, foreign) for x in (old, new, {**old, **new}))
    keys = {*v4, *v5} - {"partial_rotary_factor"}  # it may stand elsewhere
    if old and new and any(v4.get(key) != v5.get(key) for key in keys):
        raise ValueError(
            f"rope_scaling: {old}, but rope_parameters: {new}; both mean the same. Remove one, and "
            "give rope_theta in the other"
        )
    kind = rope["rope_type"]
    shares = (rope.get("partial_rotary_factor"), foreign.get("partial_rotary_factor"))
    part = next((x for x in (*shares, foreign.get("rotary_pct")) if x is not None), 1.0)
    settings: Settings = {
        "position_embedding_type": "rotary",
        "rope_theta": rope["rope_theta"],
        "rotary_dim": int(head_dim * part),
        "rotary_interleaved": False,
    }
    if kind == "default":
        return settings
    needed = ("factor", *(_LLAMA3 if kind == "llama3" else ()))
    if missing := [key for key in needed if rope.get(key) is None]:
        raise ValueError(f"rope_scaling: type {kind!r} needs {', '.join(missing)}")
    settings |= {"pos_scaling_type": kind, "pos_scaling_factor": rope["factor"]}
    if kind == "linear":
        return settings
    if kind == "llama3":
        return settings | {"pos_scaling_extra_args": {key: rope[key] for key in _LLAMA3}}
    if kind == "yarn":
        variant = next((key for key in ("mscale", "mscale_all_dim") if rope.get(key)), None)
        if variant is not None:
            raise ValueError(
                f"rope_scaling.{variant}: a DeepSeek variant of yarn that is not computed"
            )
        if not rope.get("truncate", True):
            raise ValueError("rope_scaling.truncate: only true is computed")
        extra = {key: rope[key] for key in _YARN if rope.get(key) is not None}
        context = rope.get("original_max_position_embeddings") or foreign["max_position_embeddings"]
        extra["original_max_position_embeddings"] = context
        return settings | {"pos_scaling_extra_args": extra}
    raise ValueError(
        f"rope type {kind!r} is not computed: its frequencies change with the batch's longest "
        "position, which packed batches do not have; known: default, linear, llama3, yarn"
    )


def _canonical_rope(rope: Settings, foreign: Settings) -> Settings:
    """Return rotary settings with their type and base, under the newer keys."""
    theta = rope.get("rope_theta") or foreign.get("rope_theta") or foreign.get("rotary_emb_base")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    rest = {key: value for key, value in rope.items() if key != "type"}
    return rest | {"rope_type": kind, "rope_theta": float(theta or 10000.0)}


def write_rope(cfg: Any, *, partial: bool = False) -> Settings:
    """Write rotary settings in both spellings; transformers 5 reads such a file correctly."""
    scaling: Settings | None = None
    if cfg.pos_scaling_type == "llama3":
        extra = {key: getattr(cfg.pos_scaling_extra_args, key) for key in _LLAMA3}
        scaling = {"rope_type": "llama3", "factor": cfg.pos_scaling_factor, **extra}
    elif cfg.pos_scaling_type == "yarn":
        rule = cfg.pos_scaling_extra_args
        extra = {key: getattr(rule, key) for key in _YARN if getattr(rule, key) is not None}
        scaling = {"rope_type": "yarn", "type": "yarn", "factor": cfg.pos_scaling_factor, **extra}
    elif cfg.pos_scaling_factor != 1.0:
        scaling = {"rope_type": "linear", "type": "linear", "factor": cfg.pos_scaling_factor}
    parameters = {"rope_theta": cfg.rope_theta, **(scaling or {"rope_type": "default"})}
    out: Settings = {"rope_theta": cfg.rope_theta, "rope_scaling": scaling}
    if partial:
        parameters["partial_rotary_factor"] = cfg.rotary_features / cfg.head_dim
    return out | {"rope_parameters": {k: v for k, v in parameters.items() if k != "type"}}
