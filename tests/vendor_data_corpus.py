"""Every preprocessing file of the vendor's releases: does it write rows?

``python tests/vendor_data_corpus.py FOLDER``: FOLDER is a clone of the vendor's model zoo, bare or
not. Inputs, tokenizers and output folders are replaced by small ones of the right form; all other
keys stay. Prints one line for each release and each reason; exits with 1 where a file of texts has
written nothing.
"""

import collections
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from wafer.data.preprocess.parts import preprocess_all
from wafer.data.rowfiles.verify import verify_folder
from wafer.errors import WaferError
from wafer.vendor.preprocess.load import load_settings

SENTENCES = [
    f"The {i}th story tells of a town by the sea, and of its {i} ships. " for i in range(99)
]
MARKS = ["<|endoftext|>", "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim-prefix>"]
MARKS += ["<fim-middle>", "<fim-suffix>", "<mask>", "<pad>", "<cls>", "<unk>", "<eos>", "[SEP]"]
IMAGE = "image.png"
IMAGES = ("Llava", "is_multimodal", "image_captions", "image_token")


def git(folder, *words):
    return subprocess.run(
        ["git", "-C", str(folder), *words], check=True, capture_output=True, text=True
    ).stdout


def preprocessing_files(folder):
    """(release, path, text) of the YAML files that have setup and processing."""
    for tag in sorted(git(folder, "tag").split(), key=lambda tag: [*map(_number, tag.split("."))]):
        for path in git(folder, "ls-tree", "-r", "--name-only", tag).splitlines():
            if path.endswith((".yaml", ".yml")):
                text = git(folder, "show", f"{tag}:{path}")
                if "\nsetup:" in f"\n{text}" and "\nprocessing:" in text:
                    yield tag, path, text


def _number(part):
    digits = "".join(c for c in part if c.isdigit())
    return int(digits or 0)


def tokenizer_files(folder):
    """A small byte-level tokenizer as GPT-2's two files and as a Hugging Face folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=MARKS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    folder.mkdir()
    tokenizer.model.save(str(folder))
    ids = [(name, tokenizer.token_to_id(name)) for name in ("<cls>", "<eos>")]
    tokenizer.post_processor = processors.TemplateProcessing("<cls> $A <eos>", None, ids)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {f"{kind}_token": f"<{kind}>" for kind in ("cls", "pad", "eos", "unk", "mask")}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


def record(keys, number):
    """A record with the columns that a file names."""
    text = "".join(SENTENCES[number : number + 5])
    out = {"text": text, "article": text, "summary": SENTENCES[number], "article_content": text}
    out |= {"context": [5, 6, 7, 8], "completion": [9, 10, 11]}
    turns = [("user", SENTENCES[number]), ("assistant", text)]
    if "image_key" in keys:
        turns = [("human", f"<image>\n{SENTENCES[number]}"), ("gpt", text)]
    for key, column in keys.items():
        if not isinstance(column, str) or not key.endswith("_key"):
            continue
        role = keys.get("multi_turn_role_key") or ("from" if "image_key" in keys else "role")
        content = keys.get("multi_turn_content_key") or "content"
        if key == "multi_turn_key":
            out[column] = [{role: r, content: t} for r, t in turns]
        elif key == "image_key":
            out[column] = IMAGE
        elif key == "context_key" or (key == "completion_key" and "context_key" in keys):
            out[column] = [5, 6, 7, 8]
        elif not key.startswith("multi_turn_"):
            out[column] = f"Human: why? Assistant: {text}" if key == "chosen_key" else text
            if key == "rejected_key":
                out[column] = f"Human: why? Assistant: {SENTENCES[number]}"
    return out


def made_small(content, folder):
    """The file with inputs, tokenizers and output folders of this machine."""
    setup, processing = content["setup"], content["processing"]
    dataset = content.get("dataset") or {}
    for section in (setup, processing, dataset):
        for key in ("output_dir", "data_splits_dir", "image_dir"):
            if key in section:
                section[key] = str(folder / "out" / ("" if key == "output_dir" else key))
        for key, file in (("vocab_file", "merges.txt"), ("encoder_file", "vocab.json")):
            if key in section:
                section[key] = str(folder / "tokenizer" / file)
    setup.setdefault("output_dir", str(folder / "out"))
    (folder / "out" / "image_dir").mkdir(parents=True)
    (folder / "out" / "image_dir" / IMAGE).touch()  # its name alone is read here
    _tokenizer(processing, folder / "tokenizer")
    kwargs = processing.get("read_hook_kwargs") or {}
    keys = dataset | (dataset.get("data_keys") or {}) | kwargs | (kwargs.get("data_keys") or {})
    for place in (kwargs, kwargs.get("data_keys") or {}):
        for key, value in place.items():
            if isinstance(value, str) and value.startswith("<"):  # <prompt_key>
                place[key] = keys[key] = value.strip("<>")
    _inputs(setup, keys, folder / "texts")
    if isinstance(processing.get("max_seq_length"), str):  # <max_seq_length>
        processing["max_seq_length"] = 1024  # twice the usual max_prompt_length
    return content


def _tokenizer(processing, folder):
    if "huggingface_tokenizer" in processing:
        processing["huggingface_tokenizer"] = str(folder)
    params = processing.get("tokenizer_params") or {}
    files = {
        "vocab_file": "merges.txt",
        "encoder_file": "vocab.json",
        "pretrained_model_name_or_path": "",
    }
    kinds = (processing.get("custom_tokenizer"), processing.get("tokenizer_type"))
    if {"neoxtokenizer", "NeoXTokenizer"} & set(kinds):
        files["encoder_file"] = "tokenizer.json"
        if "encoder_file" in processing:
            processing["encoder_file"] = str(folder / "tokenizer.json")
    for key in params:
        if key in files:
            params[key] = str(folder / files[key])


def _inputs(setup, keys, folder):
    data = setup.get("data")
    folder.mkdir()
    if data is None:
        setup["input_dir"] = str(folder)
    fasta = data is not None and "fasta" in str(data.get("source"))
    if fasta:
        (folder / "a.fasta").write_text("".join(f">{i}\n{'MKVLAT' * 9}\n" for i in range(60)))
    else:
        lines = "".join(json.dumps(record(keys, i)) + "\n" for i in range(60))
        name = data.get("split", "a") if data is not None else "a"
        (folder / f"{name}.jsonl").write_text(lines)
    if data is not None:
        data["source"] = str(folder)
        data.pop("cache_dir", None)


def outcome(text):
    """Rows written, or what the error says."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tokenizer_files(folder / "tokenizer")
        path = folder / "file.yaml"
        path.write_text(yaml.safe_dump(made_small(yaml.safe_load(text), folder)))
        try:
            settings = load_settings(path, {"display_pbar": "false", "processes": 1})
            rows, problems = 0, []
            for summary in preprocess_all(settings):
                report = verify_folder(str(summary.folder), None)
                rows, problems = rows + summary.written.rows, [*problems, *report.problems]
            return (0, str(problems[0])) if problems else (rows, "")
        except WaferError as error:
            return 0, str(error).replace(name, "")
        finally:
            shutil.rmtree(folder / "out", ignore_errors=True)


def main(folder):
    """Print the table; 1 where a file of texts has written nothing."""
    known = {}
    table = collections.defaultdict(collections.Counter)
    reasons = collections.Counter()
    for tag, path, text in preprocessing_files(folder):
        if text not in known:
            known[text] = outcome(text)
        rows, reason = known[text]
        kind = "images" if any(word in text for word in IMAGES) else "texts"
        table[tag][kind, bool(rows)] += 1
        if not rows:
            reasons[f"{kind}: {path.rpartition('/')[2]}: {reason.splitlines()[-1].strip()}"] += 1
    print(f"{'release':<16} texts   rows  images   rows")
    for tag, counts in table.items():
        texts, images = (counts[k, True] + counts[k, False] for k in ("texts", "images"))
        made = counts["texts", True], counts["images", True]
        print(f"{tag:<16} {texts:>5} {made[0]:>6} {images:>7} {made[1]:>6}")
    for reason, count in reasons.most_common():
        print(f"{count:>4}  {reason[:300]}")
    total = {k: sum(c[k] for c in table.values()) for k in (("texts", True), ("texts", False))}
    print(f"{len(known)} contents; texts: {total['texts', True]} of {sum(total.values())} files")
    return int(total["texts", False] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
