"""The readers of fine-tuning data by the names a params YAML uses."""

from collections.abc import Callable, Mapping
from typing import Any

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.readers.bertsum import bertsum
from wafer.data.readers.classification import mnli, sst2
from wafer.data.readers.images import digits, mnist
from wafer.data.readers.llava import llava
from wafer.data.readers.masked_lm import masked_lm
from wafer.data.readers.pairs import prompts, seq2seq
from wafer.data.readers.preferences import preferences
from wafer.data.readers.retrieval import retrieval
from wafer.data.readers.squad import squad
from wafer.data.readers.token_labels import token_classification

__all__ = ["TASKS"]

TASKS: Mapping[str, Callable[[Any, Context], Dataset]] = {
    "SST2DataProcessor": sst2,
    "MNLIDataProcessor": mnli,
    "SquadDataProcessor": squad,
    "BertTokenClassifierDataProcessor": token_classification,
    "BertSumCSVDataProcessor": bertsum,
    "BertCSVDynamicMaskDataProcessor": masked_lm,
    "PromptCompletionDataProcessor": prompts,
    "Seq2SeqDataProcessor": seq2seq,
    "DPRJsonDataProcessor": retrieval,
    "LlavaHDF5MapDataProcessor": llava,
    "MNISTDataProcessor": mnist,
    "DigitsDataProcessor": digits,
    "PreferenceDataProcessor": preferences,
}
