"""From a Hugging Face folder to a model and its parameters, and back."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree
from numpy.typing import ArrayLike, DTypeLike

from wafer.models.base import Model
from wafer.models.checkpoint.pruned import check_weight
from wafer.models.convert.config_map import ConfigMap, to_foreign_config, to_our_settings
from wafer.models.convert.engine import Table, export_tensors, has_own_head, import_tensors
from wafer.models.convert.files import open_tensors, read_config
from wafer.models.convert.same import require_same
from wafer.models.convert.shards import write_shards
from wafer.models.convert.standard import standard_form
from wafer.models.convert.tables.decoder_configs import DECODER_CONFIGS
from wafer.models.convert.tables.decoder_tables import DECODER_TABLES
from wafer.models.convert.tables.other_configs import OTHER_CONFIGS
from wafer.models.convert.tables.other_tables import OTHER_TABLES
from wafer.models.convert.tokenizer import (
    copy_files,
    special_ids,
    text_folder,
    with_ids,
    write_tokenizer_config,
)
from wafer.models.errors import did_you_mean_model
from wafer.models.factored.factors import factors_of
from wafer.models.factored.lora import lora_of
from wafer.models.families.decoder_config import DecoderConfig
from wafer.models.families.dpr import DprConfig
from wafer.models.families.encoder_config import EncoderConfig
from wafer.models.files import JsonObject, contained_file, require_path
from wafer.models.layers.initializers import make_initializer
from wafer.models.names import MODELS, ModelPreset, lookup
from wafer.models.paths import named_leaves, unflatten
from wafer.models.registry import build, settings_of
from wafer.models.schema import ModelConfig
from wafer.models.user.code import running_modules
from wafer.models.user.flags import own_flags
from wafer.models.user.trust import name_code

_LOG = logging.getLogger(__name__)
_TABLES: dict[str, Callable[[Any], Table]] = {**DECODER_TABLES, **OTHER_TABLES}
_CONFIGS: dict[str, ConfigMap] = {**DECODER_CONFIGS, **OTHER_CONFIGS}
_NO_WEIGHTS = {"embed/token/embedding": np.zeros((1, 1), np.float32)}
_TOWERS = {"question": "question_encoder", "context": "ctx_encoder"}  # DPR's folders
# Ends of classes' names whose heads are not computed, in families that know one head.
_OTHER_CLASSES = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "DoubleHeadsModel",
    "EncoderModel",
)
_MANY_HEADS = ("bert", "roberta")  # one trunk below many heads, which fine-tuning exchanges
_HEAD_KEYS = ("head", "disable_nsp", "use_pooler", "share_embedding_weights")
_HEAD_PARAMETERS = ("pooler/", "mlm_", "lm_head", "nsp/", "classifier/", "span/")
_OLD_TYPES = {"RefinedWeb": "falcon", "RefinedWebModel": "falcon"}


def _config_map(model_type: str) -> ConfigMap:
    model_type = _OLD_TYPES.get(model_type, model_type)
    if model_type not in _CONFIGS:
        hint = did_you_mean_model(model_type, _CONFIGS)
        raise ValueError(
            f"config.json: model_type {model_type!r} cannot be converted{hint}; "
            f"known: {sorted(_CONFIGS)}. Convert one of a family of your own first "
            "(docs/howto/model-family.md): wafer convert convert --model MODULE:NAME --src-fmt hf "
            "--tgt-fmt wafer -o OUT FOLDER"
        )
    return _CONFIGS[model_type]


def register(
    name: str,
    config: ConfigMap,
    table: Callable[[Any], Table],
    *,
    presets: Mapping[str, object],
    family: str = "decoder",
) -> None:
    """Add a model name and its Hugging Face form.

    Args:
        name: for ``model.name``.
        config: how config.json spells the configuration.
        table: configuration -> which tensor holds which parameters.
        presets: keys of ``model`` that the name sets unless the user does.
        family: whose code computes it; see ``wafer.models.names.ModelPreset``.

    Raises:
        ValueError: the name or the model_type belongs to another family.
    """
    if name in MODELS or config.model_type in _CONFIGS:
        raise ValueError(f"model {name!r} ({config.model_type}) is registered already")
    name_code("model", name)
    MODELS[name] = ModelPreset(family, presets, config.model_type, running_modules())
    _CONFIGS[config.model_type], _TABLES[config.model_type] = config, table


def hf_type(cfg: ModelConfig) -> str:
    """Return the Hugging Face model_type that holds a configuration.

    Raises:
        ValueError: the model has no Hugging Face form.
    """
    model_type = lookup(cfg.name).hf
    if not model_type:
        raise ValueError(f"{cfg.name}: Hugging Face has no format for this model")
    return model_type


def config_from_hf(
    foreign: Mapping[str, Any], name: str | None = None, *, add_head: bool = False
) -> JsonObject:
    """Turn config.json into a ``model`` section.

    Args:
        foreign: the parsed file, transformers v4 or v5 spelling.
        name: our model name, when several share a model_type; default the commonest.
        add_head: give a headless architecture a language-model head.

    Raises:
        ValueError: unknown model_type, or settings our model would compute differently.
    """
    map_ = _config_map(str(foreign.get("model_type")))
    settings = to_our_settings(map_, dict(foreign))
    architecture = str(next(iter(foreign.get("architectures") or [""])))
    if map_.classes[0] not in {"", architecture} and architecture.endswith(_OTHER_CLASSES):
        raise ValueError(
            f"config.json: architectures: {architecture!r} is not computed; write "
            f"{map_.classes[0]!r} there to load the weights that both classes have"
        )
    if architecture and architecture == map_.classes[1] != map_.classes[0] and not add_head:
        settings["with_lm_head"] = False
        settings["share_embedding_weights"] = True
    if name is not None:
        expected = lookup(name).hf
        if expected != map_.model_type:
            raise ValueError(
                f"model {name!r} is a {expected or 'non-Hugging-Face'} model, but config.json says "
                f"model_type {foreign.get('model_type')!r}"
            )
        if name != map_.name:  # the default name gives way to what the architecture says
            settings["name"] = name
    return settings


def config_to_hf(cfg: ModelConfig, dtype: str = "float32") -> JsonObject:
    """Turn a configuration into the content of config.json (both spellings).

    Raises:
        ValueError: no Hugging Face form, or one that would compute something else.
    """
    map_ = _config_map(hf_type(cfg))
    cfg, _ = standard_form(cfg, _NO_WEIGHTS, map_.model_type)
    foreign = to_foreign_config(map_, cfg, dtype)
    if isinstance(cfg, DecoderConfig):  # else transformers takes those of its first published model
        foreign = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")) | foreign
    require_same(cfg, build(config_from_hf(foreign)).config, map_.model_type)
    return foreign


def configs_to_hf(cfg: ModelConfig) -> dict[str, JsonObject]:
    """Map each folder a model is written to ('' is the folder itself) to its config.json."""
    if isinstance(cfg, DprConfig):
        pairs = zip(_TOWERS.values(), cfg.towers, strict=True)
        return {folder: config_to_hf(tower) for folder, tower in pairs}
    return {"": config_to_hf(cfg)}


def require_folded(cfg: ModelConfig) -> None:
    """Refuse adapters and factors, for which Hugging Face's files have no tensors.

    Raises:
        ValueError: the model has some.
    """
    for key, used in (("lora_params", lora_of(cfg)), ("factors", factors_of(cfg))):
        if used is not None:
            raise ValueError(
                f"{cfg.name}: model.{key} has no form of Hugging Face; expected plain kernels. "
                "Write them with `wafer finalize --fold_lora`, then use `wafer convert`"
            )


def section_from_hf(
    path: str | Path, name: str | None = None, *, add_head: bool = False
) -> JsonObject:
    """Read the ``model`` section of a config.json, its folder, or DPR's two folders."""
    if not _has_towers(Path(path), name):
        return config_from_hf(read_config(path), name, add_head=add_head)
    towers = (config_from_hf(read_config(tower)) for tower in _towers_in(Path(path)).values())
    return dict(zip(("q_encoder", "ctx_encoder"), towers, strict=True), name="dpr")


def _towers_in(folder: Path) -> dict[str, Path]:
    return {side: contained_file(folder / name) for side, name in _TOWERS.items()}


def _has_towers(path: Path, name: str | None) -> bool:
    return name in {None, "dpr"} and (path / _TOWERS["question"]).is_dir()


def without_head(cfg: ModelConfig) -> ModelConfig:
    """Return a decoder's configuration without its language-model head."""
    ends = {"with_lm_head": False, "share_embedding_weights": True, "use_bias_in_output": False}
    return cfg.model_copy(update=ends)


def convert_table(cfg: ModelConfig) -> Table:
    """Return the key table between a configuration and its Hugging Face form."""
    return _TABLES[hf_type(cfg)](cfg)


def _fresh_head(cfg: DecoderConfig, seed: int) -> Callable[[str], np.ndarray | None]:
    """Draw the untied head that a headless checkpoint lacks; complain about anything else."""

    def draw(name: str) -> np.ndarray | None:
        if name == "lm_head/kernel":
            init = make_initializer(cfg.init_of("head"))
            return np.asarray(init(jax.random.key(seed), (cfg.hidden_size, cfg.vocab_size)))
        if name == "lm_head/bias":
            return np.zeros((cfg.vocab_size,), np.float32)
        return None

    return draw


def open_hf(
    folder: str | Path,
    *,
    config: str | Path | None = None,
    dtype: DTypeLike | None = np.float32,
    name: str | None = None,
    add_head: bool = False,
    seed: int = 0,
    drop_unmatched: bool = False,
    heads_of: ModelConfig | None = None,
) -> tuple[Model, Iterator[tuple[str, np.ndarray]]]:
    """Open Hugging Face weights: the model, and (parameter path, array) one tensor at a time.

    Every name and shape is checked before this returns; values are read as they are asked for.
    Arguments and errors as ``from_hf``. ``heads_of``, a configuration: of BERT and RoBERTa its
    heads are read, as far as the file has them, instead of those that ``architectures`` names.
    """
    folder = Path(folder)
    require_path(folder)
    options = {"dtype": dtype, "drop_unmatched": drop_unmatched}
    if config is None and _has_towers(folder, name):
        return _open_towers(folder, options)
    beside = folder if folder.is_dir() else folder.parent
    foreign = read_config(config or beside)
    tensors = open_tensors(folder)
    settings = config_from_hf(foreign, name, add_head=add_head)
    settings = _config_map(str(foreign["model_type"])).refine(settings, tensors)
    exchanged = foreign["model_type"] in _MANY_HEADS and isinstance(heads_of, EncoderConfig)
    if exchanged:
        settings |= {key: getattr(heads_of, key) for key in _HEAD_KEYS}
    model = build(settings)
    table = convert_table(model.config)
    if has_own_head(table, tensors):  # as transformers 5: what the file holds counts
        _LOG.warning("%s: its head differs from its embedding; they are not tied", folder)
        part = settings.get("text_model", settings)
        part["share_embedding_weights"] = False
        model = build(settings)
        table = convert_table(model.config)
    arrays = import_tensors(
        model,
        table,
        tensors,
        dtype=dtype,
        optional=_fresh_head(model.config, seed) if add_head else lambda name: None,
        drop_unmatched=drop_unmatched,
        may_lack=_HEAD_PARAMETERS if exchanged else (),
    )
    # pruned weights are 0 in these files, so NaN is that of a diverged run
    return model, ((name, check_weight(folder, name, value, ())) for name, value in arrays)


def _open_towers(
    folder: Path, options: dict[str, Any]
) -> tuple[Model, Iterator[tuple[str, np.ndarray]]]:
    """Open both encoders of DPR, each a Hugging Face folder of its own."""
    opened = {side: open_hf(tower, **options) for side, tower in _towers_in(folder).items()}
    sections = [settings_of(model.config) for model, _ in opened.values()]
    model = build({"name": "dpr", "q_encoder": sections[0], "ctx_encoder": sections[1]})

    def arrays() -> Iterator[tuple[str, np.ndarray]]:
        for side, (_, own) in opened.items():
            yield from ((f"{side}_{name}", array) for name, array in own)

    return model, arrays()


@own_flags()
def from_hf(folder: str | Path, **options: Any) -> tuple[Model, dict[str, PyTree]]:
    """Read Hugging Face weights.

    Args:
        folder: holds config.json and safetensors (single or sharded) or .bin weights; or a weight
            file or index, with ``config`` (default: config.json beside it). For DPR's two towers:
            holds such folders named question_encoder and ctx_encoder.
        **options: ``config``, the configuration when it lies elsewhere; ``dtype`` of the
            parameters, default float32, None keeps the file's; ``name``, our model name when
            several share a model_type; ``add_head``, a headless checkpoint gets a fresh
            language-model head, drawn from ``seed``; ``drop_unmatched``, ignore tensors that the
            model does not have.

    Returns:
        The model and its parameters (numpy arrays).

    Raises:
        ValueError: a config or tensors that do not fit; all complaints in one message.
    """
    model, arrays = open_hf(folder, **options)
    return model, unflatten({name: np.require(x, None, "W") for name, x in arrays})


def to_hf(
    model: Model,
    params: PyTree,
    folder: str | Path,
    *,
    dtype: DTypeLike | None = None,
    max_shard_bytes: int = 10 * 2**30,
    headless: bool = False,
    text_from: str | Path | None = None,
    pruned: Collection[str] = (),
) -> list[Path]:
    """Write a Hugging Face folder: config.json, safetensors, and the tokenizer's files.

    Args:
        model: of ``params``.
        params: dense parameters, a tree or path -> array. Arrays that read themselves
            (``reader.open_params``) are read one at a time.
        folder: created when missing; must not hold weights.
        dtype: of the tensors; None keeps the parameters'.
        max_shard_bytes: larger models are split, with an index.
        headless: leave the language-model head out (the base class of the family).
        text_from: weights, or a folder, whose tokenizer and special ids are written, too.
        pruned: names of the parameters whose NaN mark pruned weights, such as the keys of their
            masks; these become 0.

    Returns:
        The weight files.

    Raises:
        ContentError: an infinity, or a NaN that marks no pruned weight; names the parameter.
        ValueError: a model without a form of Hugging Face, such as one with adapters.
    """
    leaves: Mapping[str, Any] = dict(named_leaves(params))
    if isinstance(model.config, DprConfig):
        options = {"dtype": dtype, "max_shard_bytes": max_shard_bytes, "text_from": text_from}
        return _write_towers(model.config, leaves, Path(folder), options, pruned)
    require_folded(model.config)
    cfg, leaves = standard_form(model.config, leaves, hf_type(model.config))
    model = build(cfg)
    if headless:
        model = build(without_head(cfg))
        leaves = {k: leaf for k, leaf in leaves.items() if not k.startswith("lm_head/")}
    config = config_to_hf(model.config)  # refuses what Hugging Face does not compute
    table = convert_table(model.config)
    tensors = export_tensors(model, table, leaves, dtype=dtype, pruned=pruned)
    config |= dict.fromkeys(("dtype", "torch_dtype"), tensors[0].dtype.name)
    text = None if text_from is None else text_folder(text_from)
    if text is not None:
        config = with_ids(config, special_ids(text))
    written = write_shards(tensors, folder, max_shard_bytes, config)
    if text is not None:
        copy_files(text, Path(folder))
        write_tokenizer_config(folder, getattr(model.config, "max_position_embeddings", None))
    return written


def _write_towers(
    cfg: DprConfig,
    leaves: Mapping[str, ArrayLike],
    folder: Path,
    options: dict[str, Any],
    pruned: Collection[str],
) -> list[Path]:
    written = []
    for (side, name), tower in zip(_TOWERS.items(), cfg.towers, strict=True):
        prefix = f"{side}_"
        own = {k.removeprefix(prefix): x for k, x in leaves.items() if k.startswith(prefix)}
        marked = {k.removeprefix(prefix) for k in pruned if k.startswith(prefix)}
        written += to_hf(build(tower), own, folder / name, **options, pruned=marked)
    return written
