"""The readers of fine-tuning data by the names a params YAML uses."""

from collections.abc import Callable, Mapping
from typing import Any

from wafer.data.bertsum import bertsum
from wafer.data.classification import mnli, sst2
from wafer.data.dataset import Context, Dataset
from wafer.data.images import digits, mnist
from wafer.data.llava_rows import llava
from wafer.data.masked_lm import masked_lm
from wafer.data.pairs import prompts, seq2seq
from wafer.data.preferences import preferences
from wafer.data.retrieval import retrieval
from wafer.data.squad import squad
from wafer.data.token_labels import token_classification

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
