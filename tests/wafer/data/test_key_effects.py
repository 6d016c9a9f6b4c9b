"""No key of a preprocessing file without effect: rows, files or a line of the log tell of each."""

import json
import logging

import h5py
import pytest
from helpers.runs import write_yaml
from helpers.vendor_data import END, HOOKS, characters, hook_file
from PIL import Image

from wafer.data.preprocess.parts import preprocess_all
from wafer.data.preprocess.settings import HIDDEN, Settings
from wafer.errors import WaferError
from wafer.vendor.preprocess.keys import NO_EFFECT, OLDER, OLDER_ALONE, HookKeys, OlderKeys
from wafer.vendor.preprocess.load import load_settings

RECORDS = [
    {
        "text": f"A bc \u00e9 {word} @-@ def. \u00e2\u20ac\u2122 {END} ghij",
        "prompt": word * 3,
        "completion": "xyz " + word,
        "system": "be kind",
        "m": [{"role": "user", "content": word}, {"role": "assistant", "content": word * 2}],
        "other": [{"speaker": "user", "words": word}, {"speaker": "assistant", "words": "no"}],
        "image": "a.png",
        "contexts": [word, "more"],
        "t": [{"from": "human", "value": "<img>ab"}, {"from": "gpt", "value": word}],
    }
    for word in ("klm", "nopq", "rstuv", "wx", "y", "zabcdefgh", "ijk lmn", "op", "q")
] * 4
PRE, TUNE = {"mode": "pretraining"}, {"mode": "finetuning"}
PAIR = TUNE | {
    "read_hook": HOOKS + "prompt_completion_text_read_hook",
    "read_hook_kwargs": {"prompt_key": "prompt", "completion_key": "completion"},
    "max_seq_length": 60,
}
CHAT_KEYS = {"multi_turn_key": "m", "multi_turn_role_key": "role"}
CHAT = TUNE | {
    "read_hook": HOOKS + "chat_read_hook",
    "read_hook_kwargs": CHAT_KEYS | {"multi_turn_content_key": "content"},
    "max_seq_length": 200,
}
ANSWERS = {"prompt_key": "text", "chosen_key": "completion", "rejected_key": "prompt"}
DPO = {"mode": "dpo", "read_hook": HOOKS + "dpo_read_hook", "read_hook_kwargs": ANSWERS}
DPO["max_seq_length"] = 90
MLM, FIM = {"training_objective": "mlm"}, {"training_objective": "fim"}
VSL = {"use_vsl": True}
IMAGE = TUNE | {
    "is_multimodal": True,
    "image_dir": "IMAGES",
    "num_patches": 2,
    "read_hook": HOOKS + "finetuning_llava_hook",
    "read_hook_kwargs": {"multi_turn_key": "t", "image_key": "image", "image_token": "<img>"},
    "max_seq_length": 80,
}
SPLITS = {"a": {"split_fraction": 0.5}, "b": {"split_fraction": 0.5}}
LENGTHS = {"MSL_List": ["8", "16"], "split_fractions": [1, 1]}
LONG = {"split_text_to_tokenize": True, "chunk_len_to_split": 6}
HOOKED = {
    "mode": ({}, "nlg"),
    "use_ftfy": ({}, True),
    "ftfy_normalizer": ({"use_ftfy": True}, "NFKD"),
    "metadata_files": ({}, "LIST"),
    "input_dir": ({}, "OTHER"),
    "output_dir": ({}, "OUT2"),
    "output_name": ({}, "rows"),
    "files_per_record": ({}, 2),
    "compression": ({}, "none"),
    "write_remainder": ({}, False),
    "resume_from_checkpoint": ({}, True),
    "encode_special_tokens": ({}, True),
    "skip_bad_records": ({"read_hook_kwargs": {"text_key": "none"}}, True),
    "split": ({}, [0.5, 0.5]),
    "seed": (MLM, 3),
    "huggingface_tokenizer": ({}, "BOS"),
    "eos_id": ({}, 5),
    "pad_id": ({}, 6),
    "max_seq_length": ({}, 7),
    "short_seq_prob": ({}, 0.9),
    "min_sequence_len": ({"pack_sequences": False}, 40),
    "wikitext_detokenize": ({}, True),
    "fim_rate": (FIM, 0.0),
    "spm_rate": (FIM, 1.0),
    "fim_prefix_tok": (FIM, "."),
    "fim_middle_tok": (FIM, "."),
    "fim_suffix_tok": (FIM, "."),
    "release": ({}, "2.10"),
    "read_hook": (PAIR, HOOKS + "prompt_completion_chat_read_hook"),
    "read_hook_kwargs": ({}, {"text_key": "prompt"}),
    "custom_tokenizer": ({}, "gpt2tokenizer"),
    "tokenizer_params": ({}, {"token": "x"}),
    "training_objective": ({}, "bert_pretraining"),
    "use_vsl": ({}, True),
    "pack_sequences": ({}, False),
    "split_text_to_tokenize": ({}, True),
    "chunk_len_to_split": (LONG | {"huggingface_tokenizer": "BOS"}, 9),
    "remove_bos_in_chunks": (LONG | {"huggingface_tokenizer": "BOS"}, True),
    "inverted_mask": ({}, True),
    "semantic_loss_weight": (PAIR, {"text": 2}),
    "semantic_drop_mask": ({}, {"text": True}),
    "end_of_turn_token": (CHAT, "|"),
    "truncate_to_msl": (PAIR | {"max_seq_length": 24}, {"max_turn_length": 2}),
    "sep_token": (PAIR, "|"),
    "chat_template": (CHAT, "{% for m in messages %}{{ m['content'] }}{% endfor %}"),
    "max_prompt_length": (DPO, 3),
    "response_delimiter": (DPO, "?"),
    "mlm_fraction": (MLM, 0.5),
    "mlm_with_gather": (MLM, True),
    "ignore_index": (MLM, -1),
    "excluded_tokens": (MLM | {"seed": 3, "mlm_fraction": 0.9}, list("abcdefghijklmnop")),
    "is_multimodal": (IMAGE | {"is_multimodal": False}, True),
    "image_dir": (IMAGE, "OTHER"),
    "image_token": (IMAGE | {"use_single_image_token": True}, "|"),
    "num_patches": (IMAGE, 3),
    "max_num_img": (IMAGE, 2),
    "register_special_image_token": (IMAGE, False),
    "use_single_image_token": (IMAGE, True),
    "semantic_attention_mask": (IMAGE, {"image": False}),
    "token_limit": ({}, 20),
    "read_chunk_size": (VSL, 1),
    "shard": ({}, "0/1"),
    "shards": ({}, 1),
    "shuffle": ({}, True),
    "shuffle_seed": ({"shuffle": True}, 5),
    "split_seed": ({"data_splits": SPLITS}, 5),
    "data_splits": ({}, SPLITS),
    "context_splits": ({}, LENGTHS),
}
SUMMARY = {"mode": "Summarization", "max_seq_length": 60}
OTHER = SUMMARY | {"multi_turn_key": "other"}
T5 = {"mode": "T5", "max_seq_length": 16, "tgt_max_sequence_length": 12}
FIM_OLD = {"mode": "FIM"}
TRAINED = {"tokenizer_type": "TrainBPE", "huggingface_tokenizer": None, "vocab_size": 300}
WORDS = {"tokenizer_type": "BertTokenizer", "huggingface_tokenizer": None, "vocab_file": "VOCAB"}
FLAT = {key: HOOKED[key] for key in set(HOOKED) & OLDER} | {
    "mode": ({}, "MLM_NSP"),
    "skip_bad_records": ({"jsonl_key": "m"}, True),
    "seed": (FIM_OLD, 3),
    "data_format": ({}, "corpus"),
    "tokenizer_type": ({}, "TrainBPE"),
    "vocab_file": (WORDS, "VOCAB2"),
    "encoder_file": ({}, "x"),
    "vocab_size": (TRAINED, 310),
    "do_lower": (WORDS, True),
    "fold_long_doc": ({"mode": "LMData_VSL"}, False),
    "jsonl_key": ({}, "prompt"),
    "prompt_key": (SUMMARY, "text"),
    "completion_key": (SUMMARY, "text"),
    "sep_token": (SUMMARY, "|"),
    "multi_turn_key": (SUMMARY, "m"),
    "multi_turn_content_key": (OTHER | {"multi_turn_role_key": "speaker"}, "words"),
    "multi_turn_role_key": (OTHER | {"multi_turn_content_key": "words"}, "speaker"),
    "contexts_key": (SUMMARY, "contexts"),
    "context_separator": (SUMMARY | {"contexts_key": "contexts"}, "|"),
    "prompt_prefix": (SUMMARY, "u"),
    "completion_prefix": (SUMMARY, "v"),
    "eos_after_prompt": (SUMMARY, True),
    "tgt_max_sequence_length": (T5, 14),
    "extra_ids": (T5, 30),
    "noise_density": (T5, 0.3),
    "mean_noise_span_length": (T5, 1.5),
    **{key: (FIM_OLD, value) for key, value in (("fim_rate", 0.0), ("spm_rate", 1.0))},
    **{f"fim_{part}_tok": (FIM_OLD, ".") for part in ("prefix", "middle", "suffix")},
    "write_in_batch": ({}, True),
    "split_text_to_tokenize": ({}, True),
    "chunk_len_to_split": ({}, 5),
    "remove_bos_in_chunks": ({}, True),
    "inverted_mask": ({}, True),
    "input_ids_dtype": ({}, "int16"),
    "input_mask_dtype": ({}, "int16"),
}
PLACES = {"LIST", "OTHER", "OUT2", "BOS", "CHARS", "IMAGES", "VOCAB", "VOCAB2"}
# What only an input can show that is not a plain one.
OF_THE_INPUT = {"skip_bad_records", "read_chunk_size"}
# Keys of how fast and how loudly.
FREE = {"processes", "display_pbar"}


@pytest.fixture
def places(tmp_path):
    """Name in the tables -> path; the input, tokenizers, images."""
    hook_file(tmp_path, RECORDS)
    marks = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<mask>", "^")
    characters(tmp_path / "CHARS", extra=marks)
    characters(tmp_path / "BOS", bos="^", extra=("A", "^", *marks[:4]))
    (tmp_path / "OTHER").mkdir()
    (tmp_path / "OTHER" / "b.jsonl").write_text(json.dumps(RECORDS[0]) + "\n")
    (tmp_path / "LIST").write_text(str(tmp_path / "OTHER" / "b.jsonl"))
    (tmp_path / "IMAGES").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "IMAGES" / "a.png")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    (tmp_path / "VOCAB").write_text("\n".join(pieces))
    (tmp_path / "VOCAB2").write_text("\n".join([*pieces, *(f"##{c}" for c in "abcdefghijklm")]))
    return tmp_path


def outcome(places, keys, caplog, base):
    """Everything but time that a run of these keys shows."""
    out = places / "out"
    named = {
        key: str(places / value) if isinstance(value, str) and value in PLACES else value
        for key, value in (base | keys).items()
    }
    path = write_yaml(places / "file.yaml", {k: v for k, v in named.items() if v is not None})
    caplog.clear()
    shown = []
    try:
        with caplog.at_level(logging.INFO):
            settings = load_settings(path, {"display_pbar": "false"})
            shown += [str(summary) for summary in preprocess_all(settings)]
    except WaferError as error:
        shown.append(str(error))
    files = {}
    for file in sorted([*out.rglob("*.h5"), *places.glob("OUT2/*.h5")]):
        with h5py.File(file) as rows:
            files[str(file)] = {
                name: (rows[name][()].tolist(), rows[name].compression) for name in rows
            }
    for file in (*out.rglob("*"), *places.glob("OUT2/*")):
        if file.is_file():
            file.unlink()
    return files, shown, [record.getMessage() for record in caplog.records]


COMMON = {"output_dir": "out", "processes": 1, "max_seq_length": 13, "min_sequence_len": 2}
HOOKED_BASE = COMMON | {
    "mode": "pretraining",
    "huggingface_tokenizer": "CHARS",
    "read_hook": HOOKS + "text_read_hook",
    "read_hook_kwargs": {"text_key": "text"},
    "use_ftfy": False,
}
FLAT_BASE = COMMON | {"tokenizer_type": "HuggingFaceTokenizer", "huggingface_tokenizer": "CHARS"}
FORMS = {"hooked": (HOOKED, HOOKED_BASE), "flat": (FLAT, FLAT_BASE)}
NEWER = (set(Settings.model_fields) | set(HookKeys.model_fields)) - OLDER_ALONE - set(NO_EFFECT)
IGNORED = {"write_in_batch", "split_text_to_tokenize", "chunk_len_to_split"}
IGNORED |= {"remove_bos_in_chunks", "input_ids_dtype", "input_mask_dtype"}


def test_the_tables_have_every_key():
    assert set(HOOKED) == NEWER - FREE - set(HIDDEN)
    assert set(FLAT) == (OLDER | set(OlderKeys.model_fields) | IGNORED) - FREE


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_key_does_something(form, places, caplog):
    table, base = FORMS[form]
    data = {"data": {"type": "local", "source": str(places / "texts")}}
    base |= data if form == "hooked" else {"input_dir": str(places / "texts")}
    base |= {"output_dir": str(places / "out")}
    silent = []
    for key, (context, value) in table.items():
        without = outcome(places, context, caplog, base)
        if outcome(places, context | {key: value}, caplog, base) == without:
            silent.append(key)
        plain = outcome(places, {}, caplog, base)
        if outcome(places, {key: value}, caplog, base) == plain and key not in OF_THE_INPUT:
            silent.append(f"{key} in a plain file")
    assert not silent, " ".join(silent)
