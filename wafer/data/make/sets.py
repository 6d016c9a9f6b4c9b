"""The table of data sets: one row for each data processor, with a model that learns from it."""

import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import yaml

from wafer.data.make import arrays, text
from wafer.data.make.files import Files, write_files
from wafer.errors import ConfigError, Problem
from wafer.models.errors import did_you_mean
from wafer.models.files import made_folder, write_text

Columns = Callable[[np.random.Generator, int], Files]


class DataSet(NamedTuple):
    """A small data set of one processor."""

    columns: Columns  #: (generator, count) -> file name -> content
    model: Mapping[str, Any]  #: section of the smallest model that learns from it
    keys: Mapping[str, Any] = {}  #: of the input section besides data_dir and batch_size
    size: int = 24  #: rows, or what the format counts


SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_heads": 2,
    "filter_size": 64,
    "max_position_embeddings": 64,
    "dropout_rate": 0.0,
}


def _model(name: str, **keys: Any) -> dict[str, Any]:
    return SIZES | {"name": name} | keys


def _no_files(rng: np.random.Generator, count: int) -> Files:
    del rng, count
    return {}


_T5 = {
    "name": "t5",
    "src_vocab_size": 160,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_heads": 2,
    "encoder_num_hidden_layers": 1,
    "dropout_rate": 0.0,
}
_T5_WORDS = _T5 | {"src_vocab_size": len(text.VOCAB) - 3, "extra_ids": 4}
_DPR = {"name": "dpr", "q_encoder": SIZES, "ctx_encoder": SIZES}
_DPO = _model("gpt2", dpo={"beta": 0.1})
_WORDS = {"vocab_file": "{dir}/vocab.txt", "max_sequence_length": 32}
_LINES = {
    "src_data_dir": "{dir}",
    "src_vocab_file": "{dir}/tokens.vocab",
    "src_max_sequence_length": 16,
    "tgt_max_sequence_length": 16,
}
_NO_FILES = {"data_dir": None}
_ebert = functools.partial(_model, "ebert", epigenetic_vocab_size=3)

DATA_SETS: dict[str, DataSet] = {
    "GptHDF5DataProcessor": DataSet(arrays.gpt_rows, _model("gpt2")),
    "GptHDF5MapDataProcessor": DataSet(arrays.gpt_rows, _model("gpt2")),
    "BertHDF5DataProcessor": DataSet(arrays.bert_rows, _model("bert", disable_nsp=True)),
    "BertCSVDataProcessor": DataSet(arrays.bert_csv, _model("bert")),
    "DpoHDF5DataProcessor": DataSet(arrays.dpo_rows, _DPO),
    "DPRHDF5DataProcessor": DataSet(arrays.dpr_rows, _DPR),
    "T5HDF5DataProcessor": DataSet(arrays.t5_rows, _T5),
    "T5DynamicDataProcessor": DataSet(
        text.t5_lines, _T5_WORDS, _NO_FILES | _LINES | {"extra_ids": 4}
    ),
    "TransformerDynamicDataProcessor": DataSet(
        text.transformer_lines,
        _T5
        | {"name": "transformer", "src_vocab_size": 64}
        | {"src_max_position_embeddings": 16, "tgt_max_position_embeddings": 16},
        _NO_FILES | _LINES,
    ),
    "SyntheticDataProcessor": DataSet(
        _no_files, _model("gpt2"), _NO_FILES | {"vocab_size": 64, "max_sequence_length": 16}
    ),
    "RandomDataProcessor": DataSet(
        _no_files, _model("gpt2"), _NO_FILES | {"max_sequence_length": 16, "num_examples": 24}
    ),
    "PyStdlibDataProcessor": DataSet(
        _no_files,
        _model("gpt2", vocab_size=300),
        _NO_FILES | {"vocab_size": 300, "max_sequence_length": 64},
    ),
    "HuggingFaceDataProcessor": DataSet(text.saved_dataset, _model("gpt2"), _WORDS),
    "SST2DataProcessor": DataSet(text.sst2, _model("bert-sequence-classifier"), _WORDS, 32),
    "MNLIDataProcessor": DataSet(
        text.mnli, _model("bert-sequence-classifier", num_labels=3), _WORDS
    ),
    "SquadDataProcessor": DataSet(
        text.squad,
        _model("bert-q&a"),
        _WORDS | {"max_query_length": 8, "doc_stride": 8, "max_sequence_length": 24},
    ),
    "BertQADataProcessor": DataSet(
        arrays.qa_csv, _model("bert-q&a"), _WORDS | {"max_sequence_length": arrays.LENGTH}
    ),
    "BertTokenClassifierDataProcessor": DataSet(
        text.conll, _model("bert-token-classifier", num_labels=3), _WORDS
    ),
    "BertSumCSVDataProcessor": DataSet(
        text.bertsum,
        _model("bert-summarization"),
        _WORDS | {"max_cls_tokens": 6, "summary_sentences": 2, "max_sequence_length": 64},
    ),
    "BertCSVDynamicMaskDataProcessor": DataSet(
        text.masked_lm, _model("bert"), _WORDS | {"max_predictions_per_seq": 3}, 12
    ),
    "PromptCompletionDataProcessor": DataSet(text.prompts, _model("gpt2"), _WORDS, 9),
    "Seq2SeqDataProcessor": DataSet(
        text.pairs,
        _T5 | {"src_vocab_size": 64},
        _WORDS | {"tgt_max_sequence_length": 8},
        9,
    ),
    "DPRJsonDataProcessor": DataSet(
        text.retrieval,
        _DPR,
        _WORDS | {"questions_max_sequence_length": 8, "max_sequence_length": 16, "batch_size": 3},
        9,
    ),
    "PreferenceDataProcessor": DataSet(text.preferences, _DPO, _WORDS, 9),
    "EbertFastaDataProcessor": DataSet(
        text.dna,
        _ebert(vocab_size=9),
        {"state_dir": "{dir}", "kmer_size": 1, "max_sequence_length": 7, "batch_size": 2},
    ),
    "EbertHDF5DataProcessor": DataSet(arrays.epigenetic_rows, _ebert()),
    "EbertSyntheticDataProcessor": DataSet(
        _no_files,
        _ebert(vocab_size=9),
        _NO_FILES | {"kmer_size": 1, "max_sequence_length": 16, "num_examples": 24},
    ),
    "RemoteHomologyDataProcessor": DataSet(
        text.proteins,
        _model("bert-sequence-classifier", vocab_size=33, num_labels=2),
        {"max_sequence_length": 16},
    ),
    "LlavaHDF5MapDataProcessor": DataSet(
        arrays.llava,
        {
            "name": "llava",
            "image_token_index": arrays.IMAGE_TOKEN,
            "image_model": {
                "hidden_size": 16,
                "num_hidden_layers": 2,
                "num_heads": 2,
                "filter_size": 16,
                "image_size": 4,
                "patch_size": 2,
            },
            "text_model": SIZES | {"name": "llama"},
            "freeze": ["^image_model"],
        },
        {"img_data_dir": "{dir}"},
        8,
    ),
    "MNISTDataProcessor": DataSet(
        arrays.mnist,
        {"name": "fc_mnist", "input_size": 4, "hidden_size": 16, "depth": 2, "num_classes": 4},
        size=40,
    ),
    "DigitsDataProcessor": DataSet(
        _no_files,
        {"name": "fc_mnist", "input_size": 64, "hidden_size": 64, "depth": 2},
        _NO_FILES | {"batch_size": 32},
    ),
}


def run_file(name: str, folder: str | pathlib.Path) -> dict[str, Any]:
    """Return the sections of a short run on a data set.

    Args:
        name: of the processor.
        folder: of the files.
    """
    made = DATA_SETS[name]
    keys = {"data_processor": name, "data_dir": "{dir}", "batch_size": 8} | dict(made.keys)
    place = lambda value: value.format(dir=folder) if isinstance(value, str) else value
    data = {key: place(value) for key, value in keys.items() if value is not None}
    return {
        "train_input": data | {"shuffle": True},
        "eval_input": data,
        "model": dict(made.model),
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.01},
        "runconfig": {
            "max_steps": 4,
            "eval_frequency": 4,
            "checkpoint_steps": 4,
            "seed": 1,
            "model_dir": str(pathlib.Path(folder) / "run"),
        },
    }


def make_data(name: str, folder: str | pathlib.Path, seed: int = 0) -> pathlib.Path:
    """Write a small valid data set of a processor, and ``params.yaml``, which trains on it.

    Args:
        name: of the processor.
        folder: where to; it is made.
        seed: of what is drawn.

    Returns:
        The run file.

    Raises:
        ConfigError: an unknown name.
    """
    if name not in DATA_SETS:
        known = ", ".join(DATA_SETS)
        message = f"{name!r}: no such processor{did_you_mean(name, DATA_SETS)}; known: {known}"
        raise ConfigError([Problem(("data_processor",), message)])
    made, root = DATA_SETS[name], pathlib.Path(folder)
    files = dict(made.columns(np.random.default_rng(seed), made.size))
    if "vocab_file" in made.keys:
        files["vocab.txt"] = text.VOCAB
    path = root / "params.yaml"
    with made_folder(root):
        write_files(root, files)
        write_text(path, yaml.safe_dump(run_file(name, root), sort_keys=False))
    return path
