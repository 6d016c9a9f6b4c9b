"""Rows in the vendor's forms: Transformer's pairs of lines, SQuAD as CSV, transforms of images."""

import h5py
import numpy as np
import pytest
from helpers.rows import device_batch
from helpers.runs import TINY, config
from PIL import Image

from wafer import models
from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.readers.image_transforms import transform_image
from wafer.data.registry import parse_input
from wafer.errors import ConfigError, DataError
from wafer.experiment import Experiment
from wafer.models.errors import SectionError

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "a", "b", "c"]


def read(section, config=None, **context):
    own = Context(training=True, **context) if config is None else Context.of(config, training=True)
    return build_dataset(parse_input(section), ".", own, 0)


def pairs(folder, sources, targets, **keys):
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "en.txt").write_text("\n".join(sources) + "\n")
    (folder / "de.txt").write_text("\n".join(targets) + "\n")
    (folder / "meta.dat").write_text(f"en.txt de.txt {len(sources)}\n")
    section = {"data_processor": "TransformerDynamicDataProcessor", "batch_size": 1}
    section |= {"src_data_dir": str(folder), "src_vocab_file": str(folder / "vocab.txt")}
    return section | {"src_max_sequence_length": 4, "tgt_max_sequence_length": 4, **keys}


def test_pairs_of_lines_are_sources_and_shifted_targets(tmp_path):
    data = read(pairs(tmp_path, ["a b", "a b c a", "z"], ["c", "a", "b a"]))
    rows = [data.source[i] for i in range(len(data.source))]
    assert len(rows) == 2  # the second source does not fit
    assert rows[0]["input_ids"].tolist() == [4, 5, 0, 0]
    assert rows[0]["attention_mask"].tolist() == [1, 1, 0, 0]
    assert rows[0]["decoder_input_ids"].tolist() == [1, 6, 0, 0]
    assert rows[0]["labels"].tolist() == [6, 2, 0, 0]
    assert rows[0]["decoder_attention_mask"].tolist() == [1, 1, 0, 0]
    assert rows[1]["input_ids"].tolist() == [3, 0, 0, 0]
    assert rows[1]["labels"].tolist() == [5, 4, 2, 0]


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        ("en.txt de.txt 2", "en.txt has 2 lines, .*de.txt 1"),
        ("en.txt fr.txt 2", "names fr.txt, which does not exist"),
        (None, "meta.dat: no such file"),
    ],
)
def test_files_of_pairs_must_be_there_and_of_one_length(tmp_path, meta, says):
    section = pairs(tmp_path, ["a", "b"], ["a"])
    (tmp_path / "meta.dat").unlink()
    if meta is not None:
        (tmp_path / "meta.dat").write_text(f"{meta}\n")
    with pytest.raises(DataError, match=says):
        read(section)


QUESTION = '1,"[1, 2, 3]","[1, 1, 1]","[0, 0, 1]",1,2'


def questions(folder, *rows, length=3):
    head = "unique_id,input_ids,input_mask,segment_ids,start_position,end_position"
    (folder / "a.csv").write_text("\n".join([head, *rows, ""]))
    section = {"data_processor": "BertQADataProcessor", "data_dir": str(folder)}
    section |= {"vocab_file": "unread", "max_sequence_length": length, "batch_size": 1}
    return read(section).source


def test_questions_as_csv_have_their_answers_places(tmp_path):
    rows = (QUESTION, '2,"[1, 2, 0]","[1, 1, 0]","[0, 1, 0]",,')
    source = questions(tmp_path, *rows)
    first, second = source[0], source[1]
    assert first["token_type_ids"].tolist() == [0, 0, 1]
    assert (int(first["start_positions"]), int(first["end_positions"])) == (1, 2)
    assert int(second["start_positions"]) == 3  # outside: no loss
    with pytest.raises(DataError, match="max_sequence_length is 4"):
        questions(tmp_path, *rows, length=4)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[1, 2, 3]", "[1, -2, 3]", r"input_ids\[1\] is -2; expected ids"),
        ("[1, 2, 3]", "[1, 2.5, 3]", r"input_ids\[1\] is 2.5; expected ids"),
        ("[1, 1, 1]", "[1, 7, 1]", r"input_mask\[1\] is 7; expected .*0 to 1"),
        ("[1, 1, 1]", "[0, 0, 0]", "input_mask is 0 everywhere"),
        ("[0, 0, 1]", "[0, 0, -1]", r"segment_ids\[2\] is -1; expected segments"),
        ("[0, 0, 1]", "[0, 0]", "expected equal lengths"),
        (",1,2", ",-3,2", r"start_position\[0\] is -3; expected .*0 to"),
        (",1,2", ",1.5,2", r"start_position\[0\] is 1.5; expected whole"),
        (",1,2", ",99999999999,2", r"start_position\[0\] is 99999999999; expected whole"),
        (",1,2", ",2,1", "end_position 1 is before start_position 2"),
        (",1,2", ",,2", r"end_position 2 is before start_position 3 \(none is 3\)"),
    ],
)
def test_questions_as_csv_with_a_wrong_cell_name_the_row(tmp_path, old, new, says):
    with pytest.raises(DataError, match=rf"a\.csv, row 3: .*{says}"):
        questions(tmp_path, QUESTION, QUESTION.replace(old, new))


STEPS = [
    {"name": "expand_to_square", "background_color": [255, 0, 0]},
    {"name": "resize", "size": 4, "interpolation": "bicubic"},
    {"name": "center_crop", "size": 2},
    {"name": "to_tensor"},
    {"name": "normalize", "mean": [0.5, 0.0, 0.0], "std": [0.5, 1.0, 1.0]},
]


def test_transforms_square_shrink_cut_and_normalize():
    wide = Image.new("RGB", (8, 4), (0, 0, 255))  # becomes 8 x 8: two red rows above and below
    square = transform_image(wide, [STEPS[0], *STEPS[3:]])
    assert square.shape == (3, 8, 8)
    assert square[0, 0, 0] == 1.0  # (1 - 0.5) / 0.5
    assert square[2, 3, 3] == 1.0
    assert square[0, 3, 3] == -1.0
    cut = transform_image(wide, STEPS)
    assert cut.shape == (3, 2, 2)
    assert np.all(cut[2] > 0.9)  # the middle is blue


LLAVA = {"data_processor": "LlavaHDF5MapDataProcessor", "batch_size": 1, "data_dir": "x"}


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([{"name": "random_crop"}], "not computed here"),
        ([{"name": "resize"}], "size: resize needs it"),
        (STEPS[:3], "must end with to_tensor and normalize"),
    ],
)
def test_transforms_are_checked_with_the_run_file(steps, says):
    with pytest.raises(SectionError, match=says):
        parse_input(LLAVA | {"img_data_dir": "y", "transforms": steps})


def test_the_vendors_rows_hold_their_image_at_one_place(tmp_path):
    tower = {"hidden_size": 8, "num_heads": 2, "num_hidden_layers": 2, "filter_size": 8}
    tower |= {"image_size": 8, "patch_size": 4}
    text = {"vocab_size": 16, "hidden_size": 8, "num_heads": 2, "num_hidden_layers": 1}
    text |= {"filter_size": 8, "max_position_embeddings": 8}
    config = {"name": "llava", "image_model": tower, "text_model": text, "image_token_index": 15}
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["data"] = np.full((1, 6, 7), 3, np.int32)
        file["img_path"] = np.array([[b"a.png"]])
    section = LLAVA | {"data_dir": str(tmp_path), "img_data_dir": str(tmp_path)}
    section |= {"image_start_idx": 1, "transforms": STEPS[3:]}
    row = read(section, models.build(config).config).source[0]
    assert row["input_ids"].tolist() == [3, 15, 15, 15, 15, 3, 3]
    assert row["pixel_values"].shape == (3, 8, 8)


def proteins(folder, **section):
    """Two rows of packed proteins as the vendor writes them: [N, 4, S] and labels [N, 1, S]."""
    ids = [[0, 5, 32, 2, 0, 7, 2, 1], [0, 32, 2, 1, 1, 1, 1, 1]]
    mask = [[1] * 7 + [0], [1] * 3 + [0] * 5]
    span = [[3, 2, 1, 0, 2, 1, 0, 0], [2, 1, 0, 0, 0, 0, 0, 0]]
    place = [[0, 1, 2, 3, 0, 1, 2, 0], [0, 1, 2, 0, 0, 0, 0, 0]]
    labels = np.full((2, 1, 8), -100)
    labels[0, 0, [2, 5]], labels[1, 0, 1] = [6, 7], 8
    folder.mkdir(exist_ok=True)
    (folder / "data_params.json").write_text("{}")
    with h5py.File(folder / "rows.h5", "w") as file:
        file.attrs["n_examples"] = 2
        file["data"] = np.stack([ids, mask, span, place], axis=1).astype(np.int32)
        file["labels"] = labels.astype(np.int32)
    keys = {"data_processor": "BertHDF5DataProcessor", "data_dir": str(folder), "batch_size": 2}
    return keys | section


def test_packed_proteins_are_scored_by_their_places_in_the_row(tmp_path):
    data = read(proteins(tmp_path / "p", use_vsl=True, max_predictions_per_seq=2))
    rows = next(data.loader(2, num_epochs=1))
    batch = device_batch(rows)
    assert int(batch.layout.row_count) == 2
    assert sorted(batch.layout.lengths[batch.layout.lengths > 0].tolist()) == [3, 3, 4]
    used = batch.extras["masked_weights"] != 0
    assert batch.extras["masked_positions"][used].tolist() == [2, 5, 9]
    assert batch.extras["masked_labels"][used].tolist() == [6, 7, 8]
    plain = read(proteins(tmp_path / "q"))
    assert "attention_span" not in next(plain.loader(2, num_epochs=1))


def test_packed_rows_need_a_model_without_next_sentences(tmp_path):
    model = TINY | {"name": "bert", "vocab_size": 33}
    cfg = config(train_input=None, eval_input=None, model=None) | {"model": model}
    with pytest.raises(ConfigError, match="disable_nsp: true"):
        Experiment.from_config(cfg | {"train_input": proteins(tmp_path / "p", use_vsl=True)})
    csv = {"data_processor": "BertCSVDataProcessor", "data_dir": "x", "batch_size": 1}
    with pytest.raises(SectionError, match="not computed here: packing is for next-token"):
        read(csv | {"use_vsl": True})
