"""Preprocessing files of the vendor's form, and a tokenizer of characters to write rows down by."""

import json

import yaml
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from wafer.data.preprocess.rows.hooks import load_hook
from wafer.data.preprocess.run import preprocess
from wafer.vendor.preprocess.load import hook_name, load_settings

HOOKS = "cerebras.modelzoo.data_preparation.data_preprocessing.hooks:"
END = "<|endoftext|>"
IDS = {END: 0} | {chr(96 + i): i for i in range(1, 27)}
IDS |= {" ": 27, "\n": 28, ">": 29, "<": 30, ".": 31, "?": 32, "|": 33, "_": 34}


def characters(folder, *, bos=None, extra=(), config=None):
    """A folder with a tokenizer whose tokens are characters; ``bos`` begins every text."""
    vocabulary = IDS | {token: len(IDS) + i for i, token in enumerate(extra)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([END, *extra])
    if bos:
        special = [(bos, vocabulary[bos])]
        tokenizer.post_processor = processors.TemplateProcessing(f"{bos} $A", None, special)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"eos_token": END, "pad_token": END} | (config or {})
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def hook_file(tmp_path, records, hook="text_read_hook", *, processing=None, dataset=None, **setup):
    """A preprocessing YAML beside its input and its tokenizer."""
    source = tmp_path / "texts"
    source.mkdir(exist_ok=True)
    if records is not None:
        text = "".join(json.dumps(record) + "\n" for record in records)
        (source / "a.jsonl").write_text(text)
    tokenizer = tmp_path / "characters"
    if not tokenizer.exists():
        characters(tokenizer)
    kwargs = {"text_read_hook": {"text_key": "text"}}.get(hook)
    given = {"data": {"type": "local", "source": str(source)}, "mode": "pretraining"}
    given |= {"output_dir": str(tmp_path / "out"), "processes": 1}
    rows = {"huggingface_tokenizer": str(tokenizer), "max_seq_length": 6, "min_sequence_len": 2}
    rows |= {"use_ftfy": False, "read_hook": hook if ":" in hook else HOOKS + hook}
    rows |= ({"read_hook_kwargs": kwargs} if kwargs else {}) | (processing or {})
    content = {"setup": given | setup, "processing": rows, "dataset": dataset or {}}
    path = tmp_path / "file.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


CHAT_KEYS = {"multi_turn_key": "m"} | {f"multi_turn_{n}_key": n for n in ("role", "content")}


def chat_file(tmp_path, records, template):
    """A file of conversations by the field ``m``."""
    processing = {"max_seq_length": 12, "read_hook_kwargs": CHAT_KEYS}
    keys = {"mode": "finetuning", "dataset": {"chat_template": template}}
    return hook_file(tmp_path, records, "chat_read_hook", processing=processing, **keys)


def hook(name, keys, release=(2, 10)):
    """A hook by the name that a file gives it."""
    return load_hook(hook_name(name, release), keys)


def run(path, **flags):
    """Make the rows of a file."""
    return preprocess(load_settings(path, {"display_pbar": "false", **flags}))
