"""Values without sense in a preprocessing file: refused by key, or what the vendor's tool reads."""

import functools
import json
import logging
import os

import pytest
import yaml
from helpers.records import write
from helpers.runs import write_yaml
from helpers.vendor_data import HOOKS, hook, hook_file

from wafer.data.preprocess.settings import HIDDEN, Settings
from wafer.errors import ConfigError, WaferError
from wafer.vendor.preprocess.keys import NO_EFFECT, OLDER_ALONE, HookKeys
from wafer.vendor.preprocess.load import load_settings
from wafer.vendor.preprocess.source import data_source, inputs_of

EMPTY = (False, 0, "", [], {})
# Key -> empty values that the vendor's tool reads, or that say the default
TAKEN = {
    **dict.fromkeys(("eos_id", "pad_id", "seed", "shuffle_seed", "split_seed"), (0,)),
    **dict.fromkeys(("min_sequence_len", "short_seq_prob", "mlm_fraction"), (0,)),
    **dict.fromkeys(("fim_rate", "spm_rate", "ignore_index"), (0,)),
    **dict.fromkeys(("semantic_loss_weight", "semantic_drop_mask"), ({},)),
    **dict.fromkeys(("semantic_attention_mask", "tokenizer_params", "data_splits"), ({},)),
    **dict.fromkeys(("sep_token", "end_of_turn_token", "chat_template"), ("",)),  # none
    "excluded_tokens": ([],),
    "token_limit": (False,),
    "truncate_to_msl": (False, {}),
}
SWITCHES = {
    name for name, field in Settings.model_fields.items() if isinstance(field.default, bool)
} | {"resume_from_checkpoint"}
KNOWN = {*Settings.model_fields, *HookKeys.model_fields}
KEYS = sorted(KNOWN - {*HIDDEN, *NO_EFFECT, *OLDER_ALONE, "input_dir"})


def place(key):
    """The group of a key; where it stands does not count."""
    return "setup" if key in ("mode", "output_dir", "image_dir") else "processing"


@pytest.mark.parametrize("key", KEYS)
def test_every_key_refuses_an_empty_value_or_the_vendor_reads_it(tmp_path, key):
    for value in EMPTY:
        content = yaml.safe_load(hook_file(tmp_path, []).read_text())
        content["setup"].pop(key, None)
        content[place(key)][key] = value
        path = write_yaml(tmp_path / "file.yaml", content)
        taken = (False,) if key in SWITCHES else TAKEN.get(key, ())
        if any(type(value) is type(one) and value == one for one in taken):
            load_settings(path, {})
            continue
        with pytest.raises(WaferError, match=key):
            load_settings(path, {})


@pytest.mark.parametrize("group", ["setup", "processing", "dataset", "setup.data"])
@pytest.mark.parametrize("value", [False, 0, "", [], "text", 7])
def test_a_group_is_keys_or_nothing(tmp_path, group, value):
    content = yaml.safe_load(hook_file(tmp_path, []).read_text())
    head, _, key = group.partition(".")
    content[head] = content[head] | {key: value} if key else value
    path = write_yaml(tmp_path / "file.yaml", content)
    with pytest.raises(ConfigError, match=rf"{group}: .*expected"):
        load_settings(path, {})


BERT = {"training_objective": "bert_pretraining"}
CASES = [
    ({"truncate_to_msl": {"max_turn_len": 2}}, r"truncate_to_msl.max_turn_len: unknown key; did"),
    ({"truncate_to_msl": {"prompt_truncation_mode": "start"}}, r"prompt_truncation_mode: 'start'"),
    ({"truncate_to_msl": {"max_turn_length": 0}}, r"truncate_to_msl.max_turn_length: 0"),
    ({"truncate_to_msl": True, "mode": "finetuning"}, r"truncate_to_msl: true: expected keys"),
    ({"truncate_to_msl": {}, **BERT}, r"truncate_to_msl: keys are for mode finetuning"),
    ({"tokenizer_params": {"encoder_fle": "a"}}, r"tokenizer_params.encoder_fle: unknown key; did"),
    ({"tokenizer_params": {"encoder_file": 3}}, r"tokenizer_params.encoder_file: 3"),
    ({"semantic_loss_weight": {"txt": 2}}, r"semantic_loss_weight.txt: no region .* 'text'"),
    ({"semantic_drop_mask": {"text": 1}}, r"semantic_drop_mask.text: 1: expected true or false"),
    ({"data_splits": {"a": {"split_fracton": 1}}}, r"split_fracton: unknown key; did you mean"),
    ({"data_splits": {"a": {"split_fraction": True}}}, r"data_splits.a.split_fraction: True"),
    ({"data_splits": {"a": 1}}, r"data_splits.a: 1: expected a mapping"),
    ({"context_splits": {"MSL_List": [8]}}, r"context_splits.split_fractions: missing"),
    ({"context_splits": {"MSL_List": [], "split_fractions": []}}, r"context_splits.MSL_List"),
    ({"read_hook_kwargs": {"data_keys": "text"}}, r"read_hook_kwargs: .*data_keys: expected"),
    ({"multimodal": "false"}, r"is_multimodal: 'false': expected true or false"),
]


@pytest.mark.parametrize(("keys", "message"), CASES)
def test_keys_of_keys_are_known_and_typed(tmp_path, keys, message):
    mode = {"mode": keys.pop("mode")} if "mode" in keys else {}
    with pytest.raises(ConfigError, match=message):
        load_settings(hook_file(tmp_path, [], processing=keys, **mode), {})


CHAT = {"multi_turn_key": "m"}
LLAVA = CHAT | {"image_key": "i", "image_token": "<i>"}


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("text_read_hook", {"text_key": "t", "nonsense": 1}, "nonsense: unknown keyword; it takes"),
        ("text_read_hook", {"text_kye": "t"}, r"text_kye: .* did you mean 'text_key'"),
        ("text_read_hook", {"text_key": 7}, "text_key: 7: expected text, the name of a column"),
        ("text_read_hook", {"text_key": None}, "text_key: None: expected text"),
        ("dpo_read_hook", {"chosen_key": "c"}, "rejected_key: missing; the hook needs it"),
        ("dpo_read_hook", {"chosen_key": "c", "rejected_key": "r", "assistant_role": 1}, "string"),
        ("finetuning_llava_hook", LLAVA | {"phase": 3}, "phase: 3: expected 1 or 2"),
        ("finetuning_llava_hook", LLAVA | {"image_token": ""}, "image_token: ''"),
        ("finetuning_llava_hook_prompt_completion", LLAVA | {"phas": 1}, "did you mean 'phase'"),
        ("old_llava", CHAT | {"system_prompt_style": "vicuna"}, "system_prompt_style: 'vicuna'"),
    ],
)
@pytest.mark.parametrize("release", [(2, 3), (2, 10)])
def test_a_hook_gets_the_arguments_that_it_takes(name, keys, message, release):
    with pytest.raises(ConfigError, match=rf"read_hook_kwargs\.\S*.*{message}"):
        hook(HOOKS + name, keys, release)


def test_arguments_of_the_vendors_files_that_no_hook_reads_are_named(tmp_path, caplog):
    keys = {"text_key": "text", "system_prompt_style": "vicuna_v1"}
    with caplog.at_level(logging.INFO):
        read = load_settings(hook_file(tmp_path, [], processing={"read_hook_kwargs": keys}), {})
    line = "read_hook_kwargs.system_prompt_style: no effect: the hook does not read it"
    assert line in caplog.messages
    assert read.read_hook_kwargs == {"text_key": "text"}


def test_a_users_hook_is_asked_what_it_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hooks_of_values.py").write_text(
        "def closed(example, text_key, level=1): return []\n"
        "def open(example, **keys): return [keys]\n"
    )
    closed, free = (functools.partial(hook, f"hooks_of_values:{n}") for n in ("closed", "open"))
    closed({"text_key": "t", "level": "any"})
    with pytest.raises(ConfigError, match=r"levl: .*did you mean 'level'\?; it takes text_key"):
        closed({"text_key": "t", "levl": 2})
    with pytest.raises(ConfigError, match="text_key: missing"):
        closed({"level": 2})
    assert free({"a_key": "t", "copy": 2**40})({}) == [{"a_key": "t", "copy": 2**40}]
    with pytest.raises(ConfigError, match=r"a_key: \['t'\]: expected text"):
        free({"a_key": ["t"]})


def saved(folder, split=None):
    """A folder as ``save_to_disk`` writes it."""
    folder.mkdir(parents=True)
    write(folder / "data.arrow", [{"text": "abc"}])
    state = {"_data_files": [{"filename": "data.arrow"}], "_split": split}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def made(source, **keys):
    return inputs_of(data_source({"type": "huggingface", "source": str(source)} | keys))


def test_a_split_that_the_data_has_not_is_refused_with_those_it_has(tmp_path):
    one = saved(tmp_path / "one", "train")
    assert made(one) == made(one, split="train") == [str(one)]
    with pytest.raises(ConfigError, match=r"setup.data.split: 'nothere': .*; it has: train"):
        made(one, split="nothere")
    unnamed = saved(tmp_path / "dev")
    assert made(unnamed) == made(unnamed, split="dev") == made(unnamed, split="train")
    with pytest.raises(ConfigError, match=r"'deev': .* has no such split"):
        made(unnamed, split="deev")
    both = tmp_path / "both"
    for name in ("train", "validation"):
        saved(both / name, name)
    (both / "dataset_dict.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"'validation'\?; it has: train, validation"):
        made(both, split="validaton")
    files = tmp_path / "files"
    files.mkdir()
    write(files / "validation-0.jsonl", [{"text": "abc"}])
    with pytest.raises(ConfigError, match=r"named so; did you mean 'validation'\?; it has"):
        made(files, split="validaton")
    cache = tmp_path / "cache"
    (cache / "train" / "data").mkdir(parents=True)
    assert made("a/b", cache_dir=str(cache)) == [os.fspath(cache / "train" / "data")]
    with pytest.raises(ConfigError, match=r"'test': .*; it has: train"):
        made("a/b", cache_dir=str(cache), split="test")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"split": "nothere"}, r"setup.data.split: a local source is read whole"),
        ({"data_dir": "x"}, r"setup.data.data_dir: a local source is read whole"),
        ({"sourc": "x"}, r"setup.data.sourc: unknown key; did you mean 'source'"),
        ({"kwargs": {"a": 1}}, r"setup.data.kwargs: unknown key"),
        ({"data_files": "x"}, r"setup.data.data_files: unknown key"),
        ({"subsets": "x"}, r"setup.data.subsets: 'x': expected a list"),
        ({"subsets": []}, r"setup.data.subsets: "),
        ({"top_level_as_subsets": 1}, r"top_level_as_subsets: 1: expected true or false"),
        ({"type": "huggingface", "split": False}, r"setup.data.split: False: expected text"),
        ({"type": "huggingface", "split": ""}, r"setup.data.split: ''"),
        ({"type": "hub"}, r"setup.data.type: 'hub': expected 'local' or 'huggingface'"),
    ],
)
def test_the_input_section_is_closed(keys, message):
    with pytest.raises(ConfigError, match=message):
        data_source({"type": "local", "source": "texts"} | keys)
