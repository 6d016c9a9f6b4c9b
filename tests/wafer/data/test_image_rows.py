"""Rows of texts and images of the vendor's preprocessing files, and LLaVA trained on them.

Rows stand here as the vendor's own generators have written them.
"""

import json
import re

import h5py
import numpy as np
import pytest
from helpers.runs import write_yaml
from helpers.vendor_data import characters, hook as hook_of, hook_file, run
from PIL import Image

from wafer import models
from wafer.cli import main
from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.preprocess.parts import preprocess_all
from wafer.data.preprocess.rows.images import ImagePacker, ImageSequence
from wafer.data.registry import parse_input
from wafer.data.rowfiles.verify import verify_folder
from wafer.errors import ConfigError, DataError
from wafer.vendor.preprocess.load import load_settings

TEMPLATE = (
    "{% for m in messages %}{{ '>' if m['role'] == 'user' else '<' }}{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)
ASKED = {"image_key": "image", "multi_turn_key": "turns", "image_token": "<img>", "phase": 2}
LLAVA, PAIRS = "finetuning_llava_hook", "finetuning_llava_hook_prompt_completion"
PLAIN = {"turns": [{"from": "human", "value": "ab"}, {"from": "gpt", "value": "cd"}]}
TALK = {"image": "a.png", "turns": [{"from": "human", "value": "<img>\nab"}, PLAIN["turns"][1]]}


def image_file(tmp_path, records, hook=LLAVA, columns=ASKED, *, dataset=(), processing=(), **setup):
    """A file for rows with the images a.png and b.png."""
    images = tmp_path / "images"
    images.mkdir(exist_ok=True)
    for name, color in (("a.png", "red"), ("b.png", "blue")):
        Image.new("RGB", (6, 9), color).save(images / name)
    processing = {"max_seq_length": 12, "read_hook_kwargs": columns} | dict(processing)
    dataset = {"is_multimodal": True, "num_patches": 3, "chat_template": TEMPLATE} | dict(dataset)
    setup = {"mode": "finetuning", "image_dir": str(images)} | setup
    return hook_file(tmp_path, records, hook, processing=processing, dataset=dataset, **setup)


def stored(folder):
    """The arrays of a folder's first file; paths as texts."""
    with h5py.File(folder / "examples_00000.h5") as file:
        rows = {name: file[name][()] for name in file}
    return {n: v.astype(str) if v.dtype == object else v for n, v in rows.items()}


def test_a_conversation_about_an_image(tmp_path):
    summary = run(image_file(tmp_path, [TALK]))
    rows = stored(tmp_path / "out")
    (row,) = rows["data"].tolist()
    assert row == [
        [29, 0, 0, 0, 1, 2, 30, 3, 4, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 2, 30, 3, 4, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1],
        [0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    assert rows["img_path"].tolist() == [["a.png"]]
    assert rows["img_data_loc"].tolist() == [[[1, 2, 3]]]
    assert rows["has_img"].tolist() == [[True]]
    named = ["text_input_ids", "loss_mask", "labels", "key_padding_mask", "token_modality_idx"]
    assert summary.params["features"] == named
    assert summary.written.tokens == 9
    assert not verify_folder(tmp_path / "out").problems
    run(image_file(tmp_path, [TALK]), release="2.3", output_dir=str(tmp_path / "old"))
    assert stored(tmp_path / "old")["data"].tolist() == rows["data"].tolist()


def test_a_record_without_an_image_and_phase_1(tmp_path):
    run(image_file(tmp_path, [TALK, PLAIN], columns=ASKED | {"phase": 1}))
    rows = stored(tmp_path / "out")
    assert rows["data"][0, 0].tolist() == [29, 0, 0, 0, 30, 3, 4, 0, 0, 0, 0, 0]  # no ab
    assert rows["data"][1, 0].tolist() == [29, 1, 2, 30, 3, 4, 0, 0, 0, 0, 0, 0]
    assert rows["img_path"].tolist() == [["a.png"], ["None"]]
    assert rows["img_data_loc"].tolist() == [[[1, 2, 3]], [[12, 12, 12]]]


def test_a_prompt_with_an_image_and_weights_of_regions(tmp_path):
    weights = {"semantic_loss_weight": {"image": 1}, "semantic_attention_mask": {"image": False}}
    keys = {"dataset": {"sep_token": "|"}, "processing": weights}
    run(image_file(tmp_path, [TALK], PAIRS, ASKED | {"phase": 1}, **keys))
    (row,) = stored(tmp_path / "out")["data"].tolist()
    assert row == [
        [0, 0, 0, 33, 3, 4, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0],
        [0, 0, 33, 3, 4, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ]


def caption_file(tmp_path, records, **keys):
    columns = {"image_key": "image", "caption_key": "text"}
    hook = "pretraining_image_captions_hook"
    return image_file(tmp_path, records, hook, columns, mode="pretraining", **keys)


def test_captions_are_cut_and_no_image_is(tmp_path):
    """Eight slots: an image of three and five letters, and what is left of the text."""
    record = {"image": {"path": "b.png", "bytes": None}, "text": "abcdefgh"}
    run(caption_file(tmp_path, [record], processing={"max_seq_length": 7}))
    rows = stored(tmp_path / "out")
    assert rows["data"][:, 0].tolist() == [[0, 0, 0, 1, 2, 3, 4], [6, 7, 8, 0, 0, 0, 0]]
    assert rows["data"][:, 1].tolist() == [[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]]
    assert rows["data"][:, 2].tolist() == [[0, 0, 1, 2, 3, 4, 5], [7, 8, 0, 0, 0, 0, 0]]
    assert rows["img_path"].tolist() == [["b.png"], ["None"]]


def test_one_token_for_an_image(tmp_path):
    one = {"use_single_image_token": True, "image_token": "?"}
    run(image_file(tmp_path, [TALK], dataset=one))
    rows = stored(tmp_path / "out")
    assert rows["data"][0, 0].tolist() == [29, 32, 1, 2, 30, 3, 4, 0, 0, 0, 0, 0]
    assert rows["img_data_loc"].tolist() == [[[1]]]


def test_records_whose_images_are_missing_or_too_many_are_counted(tmp_path):
    turns = TALK["turns"]
    records = [TALK, TALK | {"image": "c.png"}, TALK | {"turns": turns * 2}]
    summary = run(image_file(tmp_path, records, processing={"max_seq_length": 30}))
    assert summary.written.rows == 1
    assert "2 records left out: an image is missing in image_dir, or there" in str(summary)
    path = image_file(tmp_path, records[1:], output_dir=str(tmp_path / "none"))
    with pytest.raises(DataError, match="2 records have no image in image_dir, or too many"):
        run(path)


def test_shuffled_rows_keep_their_images(tmp_path):
    talks = [TALK | {"image": name} for name in ("a.png", "b.png")] * 4
    turns = [{"from": "human", "value": "<img>"}, {"from": "gpt", "value": "z"}]
    talks = [t | {"turns": turns} if t["image"] == "b.png" else t for t in talks]
    path = image_file(tmp_path, talks, processing={"shuffle": True})
    list(preprocess_all(load_settings(path, {"display_pbar": "false"})))
    rows = stored(tmp_path / "out")
    asks_of_b = (rows["data"][:, 0] == 26).any(axis=1)
    assert (rows["img_path"][:, 0] == "b.png").tolist() == asks_of_b.tolist()
    assert 0 < asks_of_b[:4].sum() < 4


def numbered(numbers):
    tokens = np.ones((4, len(numbers)), np.int32)
    tokens[0], tokens[3] = np.arange(1, len(numbers) + 1), numbers
    return ImageSequence(tokens, tuple(f"{i}.png" for i in range(1, max(numbers) + 1)))


def test_the_packer_goes_on_where_it_stood(tmp_path):
    keys = {"pack_sequences": True, "max_num_img": 2}
    path = caption_file(tmp_path, [], dataset=keys)
    settings = load_settings(path, {"max_seq_length": 6, "min_sequence_len": 2})
    documents = [numbered(n) for n in ([0, 1, 1, 0], [1, 1, 0], [0, 0, 1, 1, 2, 2])]

    def pieces(restart):
        packer, made = ImagePacker(settings, 0), []
        for document in documents:
            made += packer.add(document)
            if restart:
                state = packer.state()
                packer = ImagePacker(settings, 0)
                packer.restore(state)
        return [(piece.tokens.tolist(), piece.paths) for piece in made + packer.finish()]

    assert pieces(True) == pieces(False)
    held = [(len(tokens[0]), paths) for tokens, paths in pieces(False)]
    assert held == [(5, ("1.png",)), (6, ("1.png",)), (5, ("1.png", "2.png"))]


@pytest.mark.parametrize(
    ("dataset", "setup", "message"),
    [
        ({"use_vsl": True}, {}, "rows of images hold no sequences side by side"),
        ({"num_patches": 12}, {}, "an image of 12 slots needs rows of more than 12 tokens"),
        ({"truncate_to_msl": {"max_turn_length": 2}}, {}, "images cannot be shortened"),
        ({}, {"image_dir": None}, "image_dir: missing; name the folder of the images"),
        ({"is_multimodal": False}, {}, "gives an image, and is_multimodal is false"),
        ({"register_special_image_token": False}, {}, "has no token '<special_image_token>'"),
    ],
)
def test_what_rows_of_images_cannot_be(tmp_path, dataset, setup, message):
    with pytest.raises((ConfigError, DataError), match=message):
        run(image_file(tmp_path, [TALK], dataset=dataset, **setup))


def test_texts_and_images_in_turn_by_their_addresses(tmp_path):
    (tmp_path / "ca978112ca.png").touch()  # sha256 of 'a', ten digits
    arguments = {"image_dir": str(tmp_path), "image_key": "i", "caption_key": "t"}
    hook = hook_of("hooks:obelics_hook", arguments)
    example = {"i": [None, "http://x.org/p/a?w=1", "http://x.org/b"], "t": ["one", None, None]}
    assert hook(example) == [{"content": [{"text": "one"}, {"image": "ca978112ca.png"}]}]


OLD_TALK = TALK | {"turns": [{"value": "<img>ab"}, {"value": "cd"}]}


def run_old(tmp_path, processor, records, *, length=10, **dataset):
    """Make the rows of a file of release 2.2 with the images a.png and b.png."""
    image_file(tmp_path, records)
    characters(tmp_path / "bos", bos="^", extra=("^", "#", "\u2581"), config={"pad_token": "#"})
    keys = {"multi_turn_key": "turns", "multi_turn_content_key": "value", "image_key": "image"}
    keys |= {"image_token": "<img>", "image_dir": str(tmp_path / "images"), "num_patches": 2}
    setup = {"input_dir": str(tmp_path / "texts"), "output_dir": str(tmp_path / "old")}
    processing = {"tokenizer_type": "HuggingFaceTokenizer", "max_seq_length": length}
    processing |= {"huggingface_tokenizer": str(tmp_path / "bos"), "processes": 1}
    groups = {"setup": setup | {"dataset_processor": processor}, "dataset": keys | dataset}
    return run(write_yaml(tmp_path / "old.yaml", groups | {"processing": processing}))


def test_rows_of_the_older_files(tmp_path):
    """^ is 35, # 36 (padding) and the blank 37."""
    plain = {"turns": TALK["turns"][1:] * 2}
    summary = run_old(tmp_path, "LlavaPhaseOnePreprocessor", [OLD_TALK, plain])
    rows = stored(tmp_path / "old")
    ids, labels = [35, 36, 36, 3, 4, *[36] * 5], [36, 36, 3, 4, 0, *[36] * 5]
    first, second = rows["data"].tolist()
    assert first == [ids, [0, 0, 1, 1, 1] + [0] * 5, labels, [0] * 5 + [1] * 5]
    assert second == [ids, [1, 0, 0, 1, 1] + [0] * 5, labels, [0, 1, 1, 0, 0] + [1] * 5]
    assert rows["img_path"].tolist() == [["a.png"], ["None"]]
    assert summary.params["image_patch_info"] == {"image_patch_start_idx": 1}


def test_rows_of_the_older_files_phase_2(tmp_path):
    keys = {"prompt_prefix": "u", "completion_prefix": "wx"}
    summary = run_old(tmp_path, "LlavaPhaseTwoPreprocessor", [OLD_TALK], length=12, **keys)
    (row,) = stored(tmp_path / "old")["data"].tolist()
    assert row == [
        [35, 21, 37, 36, 36, 1, 2, 23, 24, 3, 4, 36],
        [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0],
        [21, 37, 36, 36, 1, 2, 23, 24, 3, 4, 0, 36],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    ]
    assert summary.params["image_patch_info"] == {"image_patch_start_idx": 3}


def params(tmp_path, rows, side=2):
    """A run of two steps of a LLaVA whose images take ``side * side`` slots."""
    tower = {"hidden_size": 8, "num_heads": 2, "num_hidden_layers": 2, "filter_size": 8}
    tower |= {"image_size": 2 * side, "patch_size": 2}
    text = {"vocab_size": 64, "hidden_size": 8, "num_heads": 2, "num_hidden_layers": 1}
    data = {"data_processor": "LlavaHDF5MapDataProcessor", "batch_size": 2}
    data |= {"data_dir": str(tmp_path / rows), "img_data_dir": str(tmp_path / "images")}
    text |= {"filter_size": 8, "max_position_embeddings": 16}
    model = {"name": "llava", "image_token_index": 63, "image_model": tower, "text_model": text}
    return {
        "train_input": data | {"shuffle": False},
        "model": model,
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.01},
        "runconfig": {"max_steps": 2, "seed": 1, "model_dir": str(tmp_path / "run")},
    }


def source_of(keys):
    config = models.build(keys["model"]).config
    context = Context.of(config, training=True)
    return build_dataset(parse_input(keys["train_input"]), ".", context).source


def test_llava_reads_these_rows(tmp_path):
    run(image_file(tmp_path, [TALK, PLAIN], dataset={"num_patches": 4}))
    keys = params(tmp_path, "out")
    row, without = source_of(keys)[0], source_of(keys)[1]
    assert row["input_ids"][:7].tolist() == [29, 63, 63, 63, 63, 1, 2]
    assert row["attention_mask"].tolist() == [1] * 10 + [0] * 2
    assert row["pixel_values"].any()
    assert 63 not in without["input_ids"]
    with pytest.raises(DataError, match="an image takes 4 slots, but the model's tower gives 9"):
        source_of(params(tmp_path, "out", side=3))


@pytest.mark.slow
def test_llava_trains_on_these_rows(tmp_path, capsys):
    run(image_file(tmp_path, [TALK] * 4, dataset={"num_patches": 4}))
    keys = params(tmp_path, "out")
    keys["runconfig"]["log_steps"] = 1
    path = write_yaml(tmp_path / "params.yaml", keys)
    assert main(["run", "CSX", "-p", str(path), "-m", "train"]) == 0
    said = capsys.readouterr().out
    first, second = (float(loss) for loss in re.findall(r"Step=[12], Loss=([\d.]+)", said))
    assert second < first  # the same rows again


def test_llava_reads_rows_of_the_older_files(tmp_path):
    records = [TALK, {"turns": TALK["turns"][1:] * 2}]
    run_old(tmp_path, "LlavaPhaseOnePreprocessor", records, num_patches=4)
    source = source_of(params(tmp_path, "old"))
    assert source[0]["input_ids"][:6].tolist() == [35, 63, 63, 63, 63, 3]
    assert source[1]["input_ids"][:6].tolist() == [35, 36, 36, 36, 36, 3]
    assert source[1]["attention_mask"][:6].tolist() == [1, 0, 0, 0, 0, 1]
    params_file = tmp_path / "old" / "data_params.json"
    written = json.loads(params_file.read_text())
    del written["image_patch_info"]
    params_file.write_text(json.dumps(written))
    with pytest.raises(DataError, match="has no image_patch_start_idx; give image_start_idx"):
        source_of(params(tmp_path, "old"))


def test_two_images_in_a_row_are_refused_when_read(tmp_path):
    talk, keys = TALK | {"turns": TALK["turns"] * 2}, {"max_num_img": 2, "num_patches": 4}
    run(image_file(tmp_path, [talk], dataset=keys, processing={"max_seq_length": 25}))
    with pytest.raises(DataError, match=r"row 0: has several images, and the model takes one"):
        source_of(params(tmp_path, "out"))[0]
