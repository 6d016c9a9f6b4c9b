"""The readers of fine-tuning data by the names a params YAML uses."""

from collections.abc import Callable, Mapping
from typing import Any

from wafer.data.classification import mnli, sst2
from wafer.data.dataset import Context, Dataset

__all__ = ["TASKS"]

TASKS: Mapping[str, Callable[[Any, Context], Dataset]] = {
    "SST2DataProcessor": sst2,
    "MNLIDataProcessor": mnli,
}
