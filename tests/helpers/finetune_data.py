"""Small files in the formats users have, and the run files that learn from them."""

import pathlib

from helpers.data_sets.arrays import IMAGE_TOKEN
from helpers.data_sets.sets import DATA_SETS, SIZES, make_data, run_file
from helpers.data_sets.text import MNLI, VOCAB

__all__ = ["LLAVA_IMAGE", "MNLI", "MODEL", "VOCAB", "WRITERS", "params", "vocab", "write_lines"]

MODEL = SIZES
LLAVA_IMAGE = IMAGE_TOKEN
_TASKS = {
    "sst2": "SST2",
    "mnli": "MNLI",
    "squad": "Squad",
    "conll": "BertTokenClassifier",
    "bertsum": "BertSumCSV",
    "masked_lm": "BertCSVDynamicMask",
    "roberta": "BertCSVDynamicMask",
    "prompts": "PromptCompletion",
    "t5": "Seq2Seq",
    "dpr": "DPRJson",
    "mnist": "MNIST",
    "llava": "LlavaHDF5Map",
    "digits": "Digits",
}


def vocab(folder: pathlib.Path) -> str:
    write_lines(folder / "vocab.txt", VOCAB)
    return str(folder / "vocab.txt")


def write_lines(path: pathlib.Path, lines) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


def _processor(task: str) -> str:
    return f"{_TASKS[task]}DataProcessor"


def params(task: str, folder: pathlib.Path, **changes) -> dict:
    """A run file for files that ``WRITERS`` has written into ``folder``."""
    cfg = run_file(_processor(task), folder)
    if "vocab_file" in DATA_SETS[_processor(task)].keys:
        vocab(folder)
    cfg["runconfig"]["mode"] = "train_and_eval"
    if task == "roberta":
        cfg["model"]["name"] = "roberta"
        for name in ("train_input", "eval_input"):
            cfg[name] = cfg[name] | {"disable_nsp": True}
    for section, values in changes.items():
        cfg[section] = cfg.get(section, {}) | values
    return cfg


WRITERS = {task: lambda folder, task=task: make_data(_processor(task), folder) for task in _TASKS}
