"""No key of an input without effect: another value gives other rows, a refusal, or a listed key.

A small set of each processor is read with each key set to other legal values, one at a time.
"""

import contextlib
import functools
import hashlib
import itertools
import re

import numpy as np
import pytest
from helpers.data_sets.sets import DATA_SETS, make_data, run_file
from helpers.effects import legal_values

from wafer.config import parse_config
from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.registry import DATA_PROCESSORS
from wafer.experiment import Experiment, batch_shape
from wafer.models import registry

# Values that an annotation does not tell; {other} is a set of another seed, {none} is not there.
FOLDER, FILE, WORD = ["{other}", "{none}"], ["{words}", "{none}"], ["b", "nowhere"]
STEPS = [{"name": "to_tensor"}, {"name": "normalize", "mean": [0.5] * 3, "std": [0.5] * 3}]
OTHER = {
    **dict.fromkeys(["data_dir", "state_dir", "img_data_dir", "src_data_dir"], FOLDER),
    **dict.fromkeys(["tgt_data_dir", "source_dir", "story_urls"], FOLDER),
    **dict.fromkeys(["src_vocab_file", "tgt_vocab_file", "vocab_file", "label_vocab_file"], FILE),
    **dict.fromkeys(["oov_token", "sos_token", "eos_token", "pad_token"], WORD),
    **dict.fromkeys(["bos_token", "sep_token", "prompt_prefix", "completion_prefix"], WORD),
    **dict.fromkeys(["src_key", "tgt_key", "prompt_key", "completion_key"], WORD),
    **dict.fromkeys(["chosen_key", "rejected_key", "text_key", "multi_turn_key"], WORD),
    **dict.fromkeys(["multi_turn_content_key", "multi_turn_role_key"], WORD),
    "mixture": [[{"data_dir": "{other}", "weight": 1.0}]],
    "data_subset": ["0.0-0.5"],
    "data_transforms": [[{"name": "PrependSinkTokens", "num_sink_tokens": 1}]],
    "micro_batch_size": [1, 2, 4],
    "vocab_size": [8, 1000, 280],
    "mask_id": [3],
    "image_data_size": [[3, 8, 8]],
    "image_start_idx": [1],
    "transforms": [[{"name": "resize", "size": [4, 4]}, *STEPS]],
    "whole_word_masking": [True],
    "split": ["eval", "validation", "train"],
}
# Keys that these small sets do not show, and the tests that do.
ELSEWHERE = {
    "data_processor": "it chooses the class",
    "do_lower": "sets are in small letters: test_vendor_files.py",
    "doc_stride": "contexts fit into a window: test_finetuning.py",
    "split": "folders of several splits: test_saved_datasets.py",
    "num_classes": "of other tasks: test_random_rows.py",
    "image_size": "of other tasks: test_random_rows.py",
}
PARTS = ("train_input", "eval_input")
FAST = {"GptHDF5DataProcessor", "RemoteHomologyDataProcessor"}


@functools.cache
def made(name, root):
    """Folders of a processor's set and of another one."""
    for seed in (0, 1):
        make_data(name, root / name / str(seed), seed)
    return root / name / "0", root / name / "1"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    (folder / "words").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "b"]))
    return folder


def filled(value, places):
    if isinstance(value, str):
        return value.format(**places)
    if isinstance(value, list):
        return [filled(item, places) for item in value]
    if isinstance(value, dict):
        return {key: filled(item, places) for key, item in value.items()}
    return value


def digest(rows):
    """Hash of a batch of host rows."""
    out = hashlib.sha256()
    for name in sorted(rows):
        value = np.asarray(rows[name])
        out.update(f"{name}{value.dtype}{value.shape}".encode() + value.tobytes())
    return out.hexdigest()


def outcome(file, folder):
    """Rows, their shapes, the length of a pass, what scores see; None where it is refused."""
    try:
        cfg = parse_config(file)
        model = registry.parse_config(cfg.model)
        shown = []
        for part in PARTS:
            section = getattr(cfg, part)
            context = Context.of(model, training=part == "train_input")
            data = build_dataset(section, folder, context, cfg.runconfig.seed)
            loader = data.loader(section.batch_size, num_epochs=2)
            shown += [digest(rows) for rows in itertools.islice(loader, 9)]
            shown += [data.batches(section.batch_size), data.row_length, data.pack]
            shown += [batch_shape(section), data.summary, data.special_ids]
            scorer = data.scorer and data.scorer()
            shown.append(re.sub(r"0x\w+", "", repr(getattr(scorer, "__dict__", scorer))))
    except (ValueError, OSError):
        return None
    return repr(shown)


def refused(file):
    """Whether the sections do not fit together: rows that the model has no ids or slots for."""
    with contextlib.suppress(ValueError, OSError):
        Experiment.from_config(file)
        return False
    return True


def idle_keys(name, root):
    """Keys of which no value changes anything; each was tried with one at least."""
    folder, other = made(name, root)
    places = {"other": other, "words": root / "words", "none": root / "none"}
    base = run_file(name, folder)
    for part in PARTS:
        base[part]["batch_size"] = 2
    known = outcome(base, folder)
    assert known is not None
    idle = set()
    for key, field in DATA_PROCESSORS[name].model_fields.items():
        given = base["train_input"].get(key, field.default)
        values = OTHER[key] if key in OTHER else legal_values(field.annotation)
        for value in values:
            if value == given:
                continue
            own = {key: filled(value, places)} | ({"data_dir": None} if key == "mixture" else {})
            parts = {
                part: {k: v for k, v in (base[part] | own).items() if v is not None}
                for part in PARTS
            }
            if outcome(base | parts, folder) != known or refused(base | parts):
                break
        else:
            idle.add(key)
    return idle


def listed_keys(name, root, idle):
    """Those of the keys that a run lists as accepted without effect."""
    base = run_file(name, made(name, root)[0])
    values = {}
    for key in idle:
        annotation = DATA_PROCESSORS[name].model_fields[key].annotation
        values[key] = (legal_values(annotation) or ["x"])[-1]
    section = {"train_input": base["train_input"] | values}
    named = (key.partition(".") for key in parse_config(base | section).no_effect)
    return {key for part, _, key in named if part == "train_input"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in DATA_SETS]
)
def test_every_key_does_something_or_is_listed(name, root):
    if name == "DigitsDataProcessor":
        pytest.importorskip("sklearn")
    idle = idle_keys(name, root) - ELSEWHERE.keys()
    assert idle - listed_keys(name, root, idle) == set()
    assert idle >= {"num_workers", "drop_last"}
