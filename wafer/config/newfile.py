"""A complete, commented run file for a model's name and a folder of rows."""

import pathlib
from typing import Any

import yaml

from models.registry import config_class, list_models, parse_config
from wafer.data.rowfiles.files import Hdf5Source, folder_params, is_corpus
from wafer.errors import ConfigError, DataError, Problem

__all__ = ["run_file"]

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
model:
  name: {model}
  vocab_size: {vocab_size:<14}# ids in the rows are below it
  max_position_embeddings: {length}   # longest sequence
{sizes}
  mixed_precision: false    # true: compute in half precision (fp16_type)

{sparsity}\
optimizer:
  optimizer_type: AdamW
  betas: [0.9, 0.95]
  weight_decay: 0.1         # not on biases and norms
  max_gradient_norm: 1.0
  learning_rate:            # rises for a tenth of the steps, then falls
    - scheduler: Linear
      initial_learning_rate: 0.0
      end_learning_rate: 0.0006
      total_iters: 100
    - scheduler: CosineDecay
      initial_learning_rate: 0.0006
      end_learning_rate: 0.00006
      total_iters: 900

runconfig:
  mode: {mode}
  max_steps: 1000           # the schedule above ends there, too
{evaluation}\
  checkpoint_steps: 200     # a stopped run goes on from the last one
  log_steps: 10
  seed: 1
"""

_INPUT = """\
  data_processor: {processor}
  data_dir: {data}
  batch_size: {batch_size:<14}# rows per step
  max_sequence_length: {length}
  use_vsl: {use_vsl}            # rows hold several sequences; no padding is computed
  shuffle: {shuffle}
"""

_SPARSITY = """\
sparsity:
  algorithm: static         # a fixed random mask; rigl and set move it, gmp prunes step by step
  sparsity: {level}             # share of the weights that is 0; embeddings, norms, biases: none

"""


def run_file(
    model: str,
    data: pathlib.Path,
    eval_data: pathlib.Path | None = None,
    sparsity: float | None = None,
) -> str:
    """Return the file's text; sizes of vocabulary, rows and batch are those of the data.

    Args:
        model: a name of ``models.list_models``.
        data: folder of HDF5 rows.
        eval_data: rows kept for evaluation; None only trains.
        sparsity: share of the weights that is 0; None is dense.

    Raises:
        ConfigError: the model learns from rows of another kind.
        DataError: no rows there, or nobody says how large the vocabulary is.
    """
    config = parse_config({"name": model})
    task = next((task for task in config.tasks if task in _PROCESSORS), None)
    if task is None:
        message = (
            f"{model!r} learns from data of its own kind, not from {' or '.join(_PROCESSORS)} "
            "rows; begin with a file of models/configs"
        )
        raise ConfigError([Problem(("model", "name"), message)])
    vocab_size, length, packed, count = _rows(data)

    def section(folder: pathlib.Path, shuffle: str) -> str:
        return _INPUT.format(
            processor=_PROCESSORS[task],
            data=_scalar(str(folder)),
            batch_size=min(8, count),
            length=length,
            use_vsl=_scalar(packed),
            shuffle=shuffle,
        )

    presets = list_models()[model].presets
    known = [key for key in _SIZES if key in config_class(model).model_fields]
    sizes = {key: getattr(config, key) for key in dict.fromkeys([*known, *presets])}
    left_out = ("vocab_size", "max_position_embeddings")
    return _FILE.format(
        model=model,
        data=data,
        mode="train" if eval_data is None else "train_and_eval",
        train_input=section(data, "true"),
        eval_input="" if eval_data is None else f"eval_input:\n{section(eval_data, 'false')}\n",
        vocab_size=vocab_size,
        length=length,
        sizes="\n".join(f"  {k}: {_scalar(v)}" for k, v in sizes.items() if k not in left_out),
        sparsity="" if sparsity is None else _SPARSITY.format(level=sparsity),
        evaluation="" if eval_data is None else "  eval_frequency: 200\n",
    )


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


def _scalar(value: Any) -> str:
    """One value as YAML writes it."""
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
