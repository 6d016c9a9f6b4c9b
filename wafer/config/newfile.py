"""A complete, commented run file for a model and a folder of rows."""

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from wafer.data.rowfiles.files import Hdf5Source, folder_params, is_corpus
from wafer.errors import ConfigError, DataError, Problem
from wafer.models.registry import config_class, list_models, parse_config
from wafer.models.user.yamlfile import YamlMapping

_PROCESSORS = {
    "lm": "GptHDF5DataProcessor",
    "mlm": "BertHDF5DataProcessor",
    "epigenetic_mlm": "EbertHDF5DataProcessor",
}
_SIZES = ("hidden_size", "num_hidden_layers", "num_heads", "filter_size")

_FILE = """\
# {model} on {data}
#
#   wafer run --params FILE --mode {mode} --model_dir runs/{model}
#
# `wafer config keys` lists every key; `wafer run ... --validate_only` checks this file.

train_input:
{train_input}
{eval_input}\
{model_section}
{sparsity}\
optimizer:
  optimizer_type: AdamW
  betas: [0.9, 0.95]
  weight_decay: 0.1         # not on biases and norms
  max_gradient_norm: 1.0
  learning_rate:            # rises for a tenth of the steps, then falls
    - scheduler: Linear
      initial_learning_rate: 0.0
      end_learning_rate: {rate}
      total_iters: 100
    - scheduler: CosineDecay
      initial_learning_rate: {rate}
      end_learning_rate: {last_rate}
      total_iters: 900

runconfig:
  mode: {mode}
{start}\
  max_steps: 1000           # the schedule above ends there, too
{evaluation}\
  checkpoint_steps: 200     # a stopped run goes on from the last one
  log_steps: 10
  seed: 1
"""

_MODEL = """\
model:
  name: {model}
  vocab_size: {vocab_size:<14}# ids in the rows are below it
  max_position_embeddings: {length}   # longest sequence
{sizes}
  mixed_precision: false    # true: compute in half precision (fp16_type)
"""
_START = """\
  checkpoint_path: {path}
  is_pretrained_checkpoint: true    # its weights and masks; step, optimizer and data begin anew
"""
_COMMENTS = {"batch_size": "rows per step", "use_vsl": "rows hold several sequences"}

_SPARSITY = """\
sparsity:
  algorithm: static         # a fixed random mask; rigl and set move it, gmp prunes step by step
  sparsity: {level}             # share of the weights that is 0; embeddings, norms, biases: none

"""


class Start(NamedTuple):
    """Checkpoint that a run file starts from."""

    path: pathlib.Path  #: its folder
    model: Mapping[str, Any]  #: its ``model`` section
    #: section that keeps its masks; None where it has none
    sparsity: Mapping[str, Any] | None = None


def rows_section(model: Mapping[str, object], data: pathlib.Path) -> YamlMapping:
    """Return an input section for a folder of rows; sizes are those of the rows.

    Args:
        model: the ``model`` section that reads them.
        data: folder of HDF5 rows.

    Raises:
        ConfigError: the model learns from rows of another kind, or has fewer token ids.
        DataError: the folder holds no rows.
    """
    return _rows_section(model, data)[0]


def _rows_section(model: Mapping[str, object], data: pathlib.Path) -> tuple[YamlMapping, int]:
    """The section, and the number of token ids in the rows."""
    tasks = parse_config(model).tasks
    task = next((task for task in tasks if task in _PROCESSORS), None)
    if task is None:
        message = (
            f"{model['name']!r} learns from data of its own kind, not from "
            f"{' or '.join(_PROCESSORS)} rows; begin with a file of models/configs"
        )
        raise ConfigError([Problem(("model", "name"), message)])
    vocab_size, length, packed, count = _rows(data)
    return {
        "data_processor": _PROCESSORS[task],
        "data_dir": str(data),
        "batch_size": min(8, count),
        "max_sequence_length": length,
        "use_vsl": packed,
    }, vocab_size


def run_file(
    model: str | Start,
    data: pathlib.Path,
    eval_data: pathlib.Path | None = None,
    sparsity: float | None = None,
) -> str:
    """Return the file's text; sizes of vocabulary, rows and batch are those of the data.

    Args:
        model: a name of ``models.list_models``, or a checkpoint to fine-tune, whose model and
            masks are kept.
        data: folder of HDF5 rows.
        eval_data: rows kept for evaluation; None only trains.
        sparsity: share of the weights that is 0; None is dense, or as the checkpoint is.

    Raises:
        ConfigError: the model learns from rows of another kind, or has fewer token ids.
        DataError: no rows there, or nobody says how large the vocabulary is.
    """
    start = model if isinstance(model, Start) else None
    base = {"name": model} if start is None else start.model
    section, vocab_size = _rows_section(base, data)
    known = getattr(parse_config(base), "vocab_size", vocab_size)
    if start is not None and vocab_size > known:
        message = (
            f"{known} in {start.path}, but the rows of {data} have {vocab_size} token ids; make "
            "them with the tokenizer of the checkpoint"
        )
        raise ConfigError([Problem(("model", "vocab_size"), message)])
    if start is None:
        written = _model(str(model), vocab_size, section["max_sequence_length"])
    else:
        written = f"# as in the checkpoint\n{_yaml({'model': dict(start.model)})}"
    masks = ""
    if sparsity is not None:
        masks = _SPARSITY.format(level=sparsity)
    elif start is not None and start.sparsity is not None:
        masks = f"# keeps the masks of the checkpoint\n{_yaml({'sparsity': start.sparsity})}\n"
    evals = "" if eval_data is None else f"eval_input:\n{_input(section, eval_data, False)}\n"
    return _FILE.format(
        model=base["name"],
        data=data,
        mode="train" if eval_data is None else "train_and_eval",
        train_input=_input(section, data, True),
        eval_input=evals,
        model_section=written,
        sparsity=masks,
        rate="0.0006" if start is None else "0.00006",
        last_rate="0.00006" if start is None else "0.000006",
        start="" if start is None else _START.format(path=_scalar(str(start.path))),
        evaluation="" if eval_data is None else "  eval_frequency: 200\n",
    )


def _model(name: str, vocab_size: int, length: int) -> str:
    config, presets = parse_config({"name": name}), list_models()[name].presets
    known = [key for key in _SIZES if key in config_class(name).model_fields]
    sizes = {key: getattr(config, key) for key in dict.fromkeys([*known, *presets])}
    left_out = ("vocab_size", "max_position_embeddings")
    return _MODEL.format(
        model=name,
        vocab_size=vocab_size,
        length=length,
        sizes="\n".join(f"  {k}: {_scalar(v)}" for k, v in sizes.items() if k not in left_out),
    )


def _input(section: Mapping[str, object], folder: pathlib.Path, shuffle: bool) -> str:
    values = {**section, "data_dir": str(folder), "shuffle": shuffle}
    lines = (f"{key}: {_scalar(value)}" for key, value in values.items())
    noted = (
        f"  {line:<26}# {_COMMENTS[key]}" if key in _COMMENTS else f"  {line}"
        for key, line in zip(values, lines, strict=True)
    )
    return "\n".join(noted) + "\n"


def _yaml(value: Mapping[str, object]) -> str:
    return yaml.safe_dump(value, sort_keys=False, default_flow_style=None)


def _rows(folder: pathlib.Path) -> tuple[int, int, bool, int]:
    """Vocabulary, tokens of a row, whether rows hold several sequences, number of rows."""
    if is_corpus(folder):
        message = "a corpus of tokens, not rows; `wafer data preprocess LMData_VSL` makes rows"
        raise DataError(f"{folder}: {message}")
    source = Hdf5Source([folder])
    features, length = source.row_shape
    vocab_size = folder_params(folder).get("post-process", {}).get("vocab_size")
    if vocab_size is None:
        read = range(0, len(source), max(1, len(source) // 1000))
        vocab_size = 1 + max(int(source[i]["input_ids"].max()) for i in read)
    return vocab_size, length, features == 5, len(source)


def _scalar(value: object) -> str:
    """One value as YAML writes it."""
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
