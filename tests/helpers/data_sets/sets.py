"""A small data set for every data processor, as ``wafer data make`` writes four of them."""

from typing import Any

from helpers.data_sets import arrays, text
from helpers.data_sets.files import write_files

from wafer.data import make
from wafer.data.make import DataSet

_GPT2 = make.DATA_SETS["GptHDF5DataProcessor"].model
SIZES = {key: value for key, value in _GPT2.items() if key != "name"}


def _model(name: str, **keys: Any) -> dict[str, Any]:
    return SIZES | {"name": name} | keys


def _ebert(**keys: Any) -> dict[str, Any]:
    return _model("ebert", epigenetic_vocab_size=3, **keys)


def _set(columns, model, keys=None, size=24) -> DataSet:
    """A set of (generator, count) -> file name -> content."""
    keys = {} if keys is None else keys
    keys = keys if "src_data_dir" in keys else keys | {"data_dir": "{dir}"}
    words = {"vocab.txt": text.VOCAB} if "vocab_file" in keys else {}
    write = lambda folder, rng: write_files(folder, columns(rng, size) | words)
    return DataSet(write, model, keys)


def _no_files(model, **keys) -> DataSet:
    return DataSet(lambda folder, rng: None, model, keys)


_T5 = make.DATA_SETS["Seq2SeqDataProcessor"].model | {"src_vocab_size": 160}
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

_TOWER = {"hidden_size": 16, "num_hidden_layers": 2, "num_heads": 2, "filter_size": 16}
_TOWER |= {"image_size": 4, "patch_size": 2}

DATA_SETS = make.DATA_SETS | {
    "GptHDF5MapDataProcessor": make.DATA_SETS["GptHDF5DataProcessor"],
    "BertHDF5DataProcessor": _set(arrays.bert_rows, _model("bert", disable_nsp=True)),
    "BertCSVDataProcessor": _set(arrays.bert_csv, _model("bert")),
    "DpoHDF5DataProcessor": _set(arrays.dpo_rows, _DPO),
    "DPRHDF5DataProcessor": _set(arrays.dpr_rows, _DPR),
    "T5HDF5DataProcessor": _set(arrays.t5_rows, _T5),
    "T5DynamicDataProcessor": _set(text.t5_lines, _T5_WORDS, _LINES | {"extra_ids": 4}),
    "TransformerDynamicDataProcessor": _set(
        text.transformer_lines,
        _T5
        | {"name": "transformer", "src_vocab_size": 64}
        | {"src_max_position_embeddings": 16, "tgt_max_position_embeddings": 16},
        _LINES,
    ),
    "SyntheticDataProcessor": _no_files(_model("gpt2"), vocab_size=64, max_sequence_length=16),
    "RandomDataProcessor": _no_files(_model("gpt2"), max_sequence_length=16, num_examples=24),
    "PyStdlibDataProcessor": _no_files(
        _model("gpt2", vocab_size=300), vocab_size=300, max_sequence_length=64
    ),
    "HuggingFaceDataProcessor": _set(text.saved_dataset, _model("gpt2"), _WORDS),
    "MNLIDataProcessor": _set(text.mnli, _model("bert-sequence-classifier", num_labels=3), _WORDS),
    "SquadDataProcessor": _set(
        text.squad,
        _model("bert-q&a"),
        _WORDS | {"max_query_length": 8, "doc_stride": 8, "max_sequence_length": 24},
    ),
    "BertQADataProcessor": _set(
        arrays.qa_csv, _model("bert-q&a"), _WORDS | {"max_sequence_length": arrays.LENGTH}
    ),
    "BertTokenClassifierDataProcessor": _set(
        text.conll, _model("bert-token-classifier", num_labels=3), _WORDS
    ),
    "BertSumCSVDataProcessor": _set(
        text.bertsum,
        _model("bert-summarization"),
        _WORDS | {"max_cls_tokens": 6, "summary_sentences": 2, "max_sequence_length": 64},
    ),
    "BertCSVDynamicMaskDataProcessor": _set(
        text.masked_lm, _model("bert"), _WORDS | {"max_predictions_per_seq": 3}, 12
    ),
    "PromptCompletionDataProcessor": _set(text.prompts, _model("gpt2"), _WORDS, 9),
    "DPRJsonDataProcessor": _set(
        text.retrieval,
        _DPR,
        _WORDS | {"questions_max_sequence_length": 8, "max_sequence_length": 16, "batch_size": 3},
        9,
    ),
    "PreferenceDataProcessor": _set(text.preferences, _DPO, _WORDS, 9),
    "EbertFastaDataProcessor": _set(
        text.dna,
        _ebert(vocab_size=9),
        {"state_dir": "{dir}", "kmer_size": 1, "max_sequence_length": 7, "batch_size": 2},
    ),
    "EbertHDF5DataProcessor": _set(arrays.epigenetic_rows, _ebert()),
    "EbertSyntheticDataProcessor": _no_files(
        _ebert(vocab_size=9), kmer_size=1, max_sequence_length=16, num_examples=24
    ),
    "RemoteHomologyDataProcessor": _set(
        text.proteins,
        _model("bert-sequence-classifier", vocab_size=33, num_labels=2),
        {"max_sequence_length": 16},
    ),
    "LlavaHDF5MapDataProcessor": _set(
        arrays.llava,
        {
            "name": "llava",
            "image_token_index": arrays.IMAGE_TOKEN,
            "image_model": _TOWER,
            "text_model": SIZES | {"name": "llama"},
            "freeze": ["^image_model"],
        },
        {"img_data_dir": "{dir}"},
        8,
    ),
    "DigitsDataProcessor": _no_files(
        {"name": "fc_mnist", "input_size": 64, "hidden_size": 64, "depth": 2}, batch_size=32
    ),
}


def run_file(name, folder):
    return make.run_file(name, DATA_SETS[name], folder)


def make_data(name, folder, seed=0):
    return make.write_set(name, DATA_SETS[name], folder, seed)
