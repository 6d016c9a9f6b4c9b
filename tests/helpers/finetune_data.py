"""Small files in the exact formats users have, and the run files that learn from them."""

import gzip
import json
import pathlib
import struct

import h5py
import numpy as np
from PIL import Image

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "</s>", "<|endoftext|>"]
GOOD, BAD = ["good", "fine", "great", "lovely"], ["bad", "poor", "dull", "awful"]
NAMES, PLACES = ["anna", "bob", "carl"], ["paris", "rome", "oslo"]
_OTHER = (
    "film very is was a the it this one who where lives in flew to saw . ? b c "
    "weather news sport says reports today nobody cares about lunch ##s ##ly"
)
WORDS = [*GOOD, *BAD, *NAMES, *PLACES, *_OTHER.split()]
VOCAB = [*SPECIAL, *dict.fromkeys(WORDS)]

MODEL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_heads": 2,
    "filter_size": 64,
    "max_position_embeddings": 64,
    "dropout_rate": 0.0,
}


def vocab(folder: pathlib.Path) -> str:
    path = folder / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    return str(path)


def write_lines(path: pathlib.Path, lines) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


def sst2(folder: pathlib.Path, count: int = 32) -> None:
    for stem, seed in (("train", 0), ("dev", 1)):
        rng = np.random.default_rng(seed)
        lines = ["sentence\tlabel"]
        for i in range(count):
            word = rng.choice(GOOD if i % 2 else BAD)
            lines.append(f"this film is {'very ' * int(rng.integers(3))}{word} .\t{i % 2}")
        write_lines(folder / f"{stem}.tsv", lines)


MNLI = [
    ("bob lives in rome .", "bob lives in rome .", "entailment"),
    ("bob lives in rome .", "anna was in oslo .", "neutral"),
    ("bob lives in rome .", "nobody lives in rome .", "contradiction"),
    ("the film was good .", "the film was fine .", "-"),
]


def mnli(folder: pathlib.Path) -> None:
    head = "index\tsentence1\tsentence2\tlabel1\tgold_label"
    lines = [f"{i}\t{a}\t{b}\tx\t{gold}" for i, (a, b, gold) in enumerate(MNLI)]
    write_lines(folder / "train.tsv", [head, *lines])
    write_lines(folder / "dev_matched.tsv", [head, *lines])
    rows = [{"sentence1": a, "sentence2": b, "gold_label": gold} for a, b, gold in MNLI[:2]]
    write_lines(folder / "multinli_1.0_dev_mismatched.jsonl", map(json.dumps, rows))


def squad(folder: pathlib.Path) -> None:
    for stem in ("train", "dev"):
        paragraphs = []
        for i, name in enumerate(NAMES):
            for j, place in enumerate(PLACES):
                other = NAMES[(i + 1) % 3]
                context = f"{other} saw the film . {name} lives in {place} . it was fine ."
                answers = [{"text": place, "answer_start": context.index(place)}]
                who = [{"text": name, "answer_start": context.index(name)}]
                qas = [
                    {"id": f"w{i}{j}", "question": f"where lives {name} ?", "answers": answers},
                    {"id": f"p{i}{j}", "question": f"who lives in {place} ?", "answers": who},
                ]
                paragraphs.append({"context": context, "qas": qas})
        whole = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
        (folder / f"{stem}-v1.1.json").write_text(json.dumps(whole))


def conll(folder: pathlib.Path) -> None:
    lines = ["-DOCSTART- -X- O O", ""]
    for name in NAMES:
        for place in PLACES:
            lines += [f"{name} N I-NP B-PER", "lives V O O", "in P O O"]
            lines += [f"{place} N I-NP B-LOC", ". . O O", ""]
    write_lines(folder / "train.txt", lines)
    write_lines(folder / "dev.txt", lines[: 2 + 3 * 6])


def bertsum(folder: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(24):
        news = [f"the news says it is {rng.choice(GOOD)} .", f"today {rng.choice(NAMES)} reports ."]
        rest = [f"nobody cares about {word} ." for word in ("lunch", "sport", "weather")]
        order = rng.permutation(5)
        src = [[*news, *rest][i] for i in order]
        rows.append({"src": src, "tgt": " ".join(news)})
    write_lines(folder / "train.jsonl", map(json.dumps, rows))


def masked_lm(folder: pathlib.Path) -> None:
    lines = ["tokens,segment_ids,is_random_next"]
    for i, name in enumerate(NAMES * 4):
        a, b = f"{name} lives in {PLACES[i % 3]}".split(), f"{name} saw a film".split()
        if i % 2:
            b = ["the", "weather", "is", "dull"]
        tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
        segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        lines.append(f'"{tokens}","{segments}",{i % 2}')
    write_lines(folder / "part-1.csv", lines)


def prompts(folder: pathlib.Path) -> None:
    rows = [
        {"prompt": f"where lives {name} ?", "completion": f"in {place} ."}
        for name, place in zip(NAMES * 3, PLACES * 3, strict=True)
    ]
    for stem in ("train", "dev"):
        write_lines(folder / f"{stem}.jsonl", map(json.dumps, rows))


def pairs(folder: pathlib.Path) -> None:
    both = [(name, place) for name in NAMES for place in PLACES]
    texts = [f"{name} flew to {place} .\t{place} saw {name}" for name, place in both]
    lines = ["source\ttarget", *texts]
    for stem in ("train", "dev"):
        write_lines(folder / f"{stem}.tsv", lines)


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def mnist(folder: pathlib.Path) -> None:
    """Bright pixel number c is class c; the training files are gzipped."""
    for stem, count in (("train", 40), ("t10k", 20)):
        labels = np.arange(count) % 4
        images = np.zeros((count, 2, 2), np.uint8)
        images.reshape(count, 4)[np.arange(count), labels] = 255
        files = {"images-idx3-ubyte": images, "labels-idx1-ubyte": labels}
        for name, array in files.items():
            if stem == "train":
                (folder / f"{stem}-{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (folder / f"{stem}-{name}").write_bytes(idx(array))


LLAVA_IMAGE = 50  # image_token_index of the tests' model


def llava(folder: pathlib.Path) -> None:
    """Rows [<image> x 4, question, colour]: red pictures say token 20, blue ones 21."""
    count, length = 8, 8
    data = np.zeros((count, 6, length), np.int32)
    names = []
    for i in range(count):
        colour = (255, 0, 0) if i % 2 else (0, 0, 255)
        Image.new("RGB", (6, 9), colour).save(folder / f"{i}.png")
        names.append([f"{i}.png".encode()])
        tokens = [*[LLAVA_IMAGE] * 4, 10, 20 + i % 2]
        data[i, 0, :6] = tokens
        data[i, 1, 4] = 1
        data[i, 2, :5] = tokens[1:]
        data[i, 5, :6] = 1
    with h5py.File(folder / "rows.h5", "w") as file:
        file["data"] = data
        file["img_path"] = np.array(names, dtype="S16")


def retrieval(folder: pathlib.Path) -> None:
    def context(name, place):
        return {"title": name, "text": f"{name} lives in {place} ."}

    rows = []
    for name, place in zip(NAMES * 3, PLACES * 3, strict=True):
        other = NAMES[(NAMES.index(name) + 1) % 3]
        row = {"question": f"where lives {name} ?", "answers": [place]}
        row["positive_ctxs"] = [context(name, place)]
        row["hard_negative_ctxs"] = [{"title": other, "text": f"{other} saw a film ."}]
        rows.append(row)
    for stem in ("train", "dev"):
        (folder / f"{stem}.json").write_text(json.dumps(rows))


def params(task: str, folder: pathlib.Path, **changes) -> dict:
    """A run file for files this module has written into ``folder``."""
    processor, keys, model = _TASKS[task]
    data = {"data_processor": processor, "data_dir": str(folder), "batch_size": 8} | keys
    if task not in {"mnist", "llava", "digits"}:
        data |= {"vocab_file": vocab(folder), "max_sequence_length": 32} | keys
    if task == "llava":
        data["img_data_dir"] = str(folder)
    if task == "digits":
        del data["data_dir"]
    cfg = {
        "train_input": data | {"shuffle": True},
        "eval_input": dict(data),
        "model": dict(model),
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.01},
        "runconfig": {
            "max_steps": 4,
            "eval_frequency": 4,
            "checkpoint_steps": 4,
            "seed": 1,
            "model_dir": str(folder / "run"),
            "mode": "train_and_eval",
        },
    }
    for section, values in changes.items():
        cfg[section] = cfg.get(section, {}) | values
    return cfg


def _encoder(name: str, **keys) -> dict:
    return MODEL | {"name": name} | keys


_TASKS = {
    "sst2": ("SST2DataProcessor", {}, _encoder("bert-sequence-classifier")),
    "mnli": ("MNLIDataProcessor", {}, _encoder("bert-sequence-classifier", num_labels=3)),
    "squad": (
        "SquadDataProcessor",
        {"max_query_length": 8, "doc_stride": 8, "max_sequence_length": 24},
        _encoder("bert-q&a"),
    ),
    "conll": (
        "BertTokenClassifierDataProcessor",
        {},
        _encoder("bert-token-classifier", num_labels=3),
    ),
    "bertsum": (
        "BertSumCSVDataProcessor",
        {"max_cls_tokens": 6, "summary_sentences": 2, "max_sequence_length": 64},
        _encoder("bert-summarization"),
    ),
    "masked_lm": (
        "BertCSVDynamicMaskDataProcessor",
        {"max_predictions_per_seq": 3},
        _encoder("bert"),
    ),
    "roberta": (
        "BertCSVDynamicMaskDataProcessor",
        {"max_predictions_per_seq": 3, "disable_nsp": True},
        _encoder("roberta"),
    ),
    "prompts": ("PromptCompletionDataProcessor", {}, _encoder("gpt2")),
    "t5": (
        "Seq2SeqDataProcessor",
        {"tgt_max_sequence_length": 8},
        {
            "name": "t5",
            "src_vocab_size": 64,
            "d_model": 32,
            "d_kv": 16,
            "d_ff": 64,
            "num_heads": 2,
            "encoder_num_hidden_layers": 1,
            "dropout_rate": 0.0,
        },
    ),
    "dpr": (
        "DPRJsonDataProcessor",
        {"questions_max_sequence_length": 8, "max_sequence_length": 16, "batch_size": 3},
        {"name": "dpr", "q_encoder": MODEL, "ctx_encoder": MODEL},
    ),
    "mnist": (
        "MNISTDataProcessor",
        {},
        {"name": "fc_mnist", "input_size": 4, "hidden_size": 16, "depth": 2, "num_classes": 4},
    ),
    "digits": (
        "DigitsDataProcessor",
        {"batch_size": 32},
        {"name": "fc_mnist", "input_size": 64, "hidden_size": 64, "depth": 2},
    ),
    "llava": (
        "LlavaHDF5MapDataProcessor",
        {},
        {
            "name": "llava",
            "image_token_index": LLAVA_IMAGE,
            "image_model": {
                "hidden_size": 16,
                "num_hidden_layers": 2,
                "num_heads": 2,
                "filter_size": 16,
                "image_size": 4,
                "patch_size": 2,
            },
            "text_model": MODEL | {"name": "llama"},
            "freeze": ["^image_model"],
        },
    ),
}

WRITERS = {
    "sst2": sst2,
    "mnli": mnli,
    "squad": squad,
    "conll": conll,
    "bertsum": bertsum,
    "masked_lm": masked_lm,
    "roberta": masked_lm,
    "prompts": prompts,
    "t5": pairs,
    "dpr": retrieval,
    "mnist": mnist,
    "llava": llava,
    "digits": lambda folder: None,
}
