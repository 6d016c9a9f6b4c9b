"""Readers of users' formats: rows and metrics by hand, errors that name the file and the row."""

import json
import re

import numpy as np
import pytest
from helpers.biology_data import dna, ebert, proteins
from helpers.finetune_data import LLAVA_IMAGE, VOCAB, WRITERS, params, vocab, write_lines
from helpers.rows import batches, restarted

from wafer import models, vsl
from wafer.commands.data import padding_stats
from wafer.config import parse_config
from wafer.data.batching.batches import feature_shapes, host_batch, to_batch
from wafer.data.batching.dataset import Context, build_dataset
from wafer.data.readers.llava import load_image
from wafer.data.readers.text.bertsum import oracle
from wafer.data.readers.text.rouge import rouge
from wafer.data.readers.text.squad import windows
from wafer.data.readers.text.squad_metrics import f1, normalize
from wafer.data.readers.text.token_labels import entities
from wafer.data.registry import parse_input
from wafer.data.text.wordpiece import load_vocabulary
from wafer.errors import ConfigError, DataError

ID = {token: index for index, token in enumerate(VOCAB)}


def ids(text):
    return [ID[token] for token in text.split()]


ANY = Context()


def data(task, folder, context=ANY, **keys):
    if not any(folder.glob("*")):
        WRITERS[task](folder)
    section = parse_config(params(task, folder, train_input=keys)).train_input
    assert section is not None
    return build_dataset(section, folder, context)


def real(row, name="input_ids"):
    return row[name][row["attention_mask"] != 0].tolist()


def test_wordpieces_of_a_vocab_txt(tmp_path):
    vocabulary = load_vocabulary(vocab(tmp_path), do_lower=True)
    assert vocabulary.encode("FilmS, café?") == [*ids("film ##s [UNK] [UNK]"), ID["?"]]
    assert load_vocabulary(vocab(tmp_path)).encode("Film") == [ID["[UNK]"]]
    assert (vocabulary.cls, vocabulary.sep, vocabulary.pad) == (2, 3, 0)
    vocabulary.tokenizer.save(str(tmp_path / "tokenizer.json"))
    again = load_vocabulary(str(tmp_path / "tokenizer.json"))
    assert again.encode("the Films") == vocabulary.encode("the Films") == ids("the film ##s")


def test_sst2_rows(tmp_path):
    write_lines(tmp_path / "train.tsv", ["sentence\tlabel", 'this " is good\t1', "a b c d e\t0"])
    dataset = data("sst2", tmp_path, max_sequence_length=6)
    row = dataset.source[0]
    assert real(row) == ids("[CLS] this [UNK] is good [SEP]")
    assert row["labels"] == 1
    assert row["row"] == 1
    assert real(dataset.source[1]) == ids("[CLS] a b c [UNK] [SEP]")  # cut


def test_mnli_rows_of_tsv_and_json(tmp_path):
    train = data("mnli", tmp_path)
    assert len(train.source) == 3  # the one without agreement is left out
    row = train.source[1]
    assert real(row) == ids("[CLS] bob lives in rome . [SEP] anna was in oslo . [SEP]")
    assert real(row, "token_type_ids") == [0] * 7 + [1] * 6
    assert [int(train.source[i]["labels"]) for i in range(3)] == [0, 1, 2]
    dev = data("mnli", tmp_path, Context(training=False, num_labels=3))
    scorer = dev.scorer()
    logits = np.zeros((5, 1, 3))
    logits[[0, 1, 2], 0, [0, 1, 1]] = 1  # right, right, wrong
    logits[[3, 4], 0, [2, 1]] = 1  # wrong, right
    scorer.add({"row": np.array([1, 2, 3, 4, 5])}, {"logits": logits})
    scores = scorer.result()
    assert scores == {"eval/accuracy_matched": 2 / 3, "eval/accuracy_mismatched": 1 / 2}


@pytest.mark.parametrize(("task", "least"), [("sst2", 3), ("mnli", 4)])
def test_the_shortest_row_has_room_for_one_token(tmp_path, task, least):
    """A shorter one was cut in a loop without end."""
    for length in range(1, least):
        with pytest.raises(
            ConfigError, match=f"max_sequence_length: {length}: expected .* {least}"
        ):
            data(task, tmp_path, max_sequence_length=length)
    row = data(task, tmp_path, max_sequence_length=least).source[0]
    assert sum(token not in ids("[CLS] [SEP]") for token in real(row)) == 1


def test_f1_of_the_positive_class(tmp_path):
    dataset = data("sst2", tmp_path, Context(num_labels=2))
    scorer = dataset.scorer()  # labels are 0 1 0 1
    logits = np.eye(2)[[0, 1, 1, 0]][:, None]
    scorer.add({"row": np.arange(1, 5)}, {"logits": logits})
    assert scorer.result()["eval/f1_score"] == pytest.approx(2 * 1 / (2 + 2))


SQUAD_FILE = "train-v1.1.json"
ANSWERS = [{"text": "in oslo", "answer_start": 29}, {"text": "oslo", "answer_start": 32}]
SQUAD = {
    "context": "bob was in rome . anna lives in oslo . it is fine .",
    "qas": [{"id": "q1", "question": "where lives anna ?", "answers": ANSWERS}],
}


def squad(folder):
    """14 context tokens; a row holds [CLS] 4 [SEP] 8 [SEP]: windows begin at 0, 4, 8."""
    whole = {"version": "1.1", "data": [{"title": "t", "paragraphs": [SQUAD]}]}
    (folder / SQUAD_FILE).write_text(json.dumps(whole))
    return data("squad", folder, max_sequence_length=15, doc_stride=4, max_query_length=4)


def test_squad_windows_by_hand(tmp_path):
    dataset = squad(tmp_path)
    rows = [dataset.source[i] for i in range(len(dataset.source))]
    assert [real(row)[6] for row in rows] == ids("bob . oslo")
    assert real(rows[1]) == ids("[CLS] where lives anna ? [SEP] . anna lives in oslo . it is [SEP]")
    spans = [(int(r["start_positions"]), int(r["end_positions"])) for r in rows]
    assert spans == [(0, 0), (9, 10), (0, 0)]  # 'in oslo' is whole in the middle window only


def test_squad_answers_come_back_as_text_from_the_window_with_most_context(tmp_path):
    dataset = squad(tmp_path)
    scorer = dataset.scorer()
    start, end = np.full((3, 15), -5.0), np.full((3, 15), -5.0)
    start[1, 9], end[1, 10] = 3.0, 3.0
    start[1, 12] = 4.0  # 'it' has more context in the last window, so it does not count here
    end[1, 13] = 4.0
    end[1, 2] = 9.0  # inside the question: never an answer
    scorer.add({"row": np.array([1, 2, 3])}, {"start": start, "end": end})
    assert scorer.answers[0][1] == "in oslo . it is"  # -5 + 4 < 3 + 4
    end[1, 13] = -5.0
    scorer = dataset.scorer()
    scorer.add({"row": np.array([1, 2, 3])}, {"start": start, "end": end})
    assert scorer.answers[0][1] == "in oslo"
    assert scorer.result() == {"eval/exact_match": 100.0, "eval/f1": 100.0}


def test_official_normalization():
    assert normalize("An  apple, a DAY.") == "apple day"
    assert f1("the cat sat", "cat sat down") == pytest.approx(0.8)
    assert f1("x", "y") == 0


def test_token_rows_and_entities(tmp_path):
    lines = ["anna\tB-PER", "films\tO", "rome\tB-LOC", "", "bob B-PER"]
    write_lines(tmp_path / "train.tsv", lines)
    dataset = data("conll", tmp_path)
    row = dataset.source[0]
    assert real(row) == ids("[CLS] anna film ##s rome [SEP]")
    assert row["loss_mask"][:6].tolist() == [0, 1, 1, 0, 1, 0]  # first pieces only
    assert row["labels"][:6].tolist() == [0, 2, 0, 0, 1, 0]  # O, B-LOC, B-PER
    found = entities(["O", "B-A", "I-A", "I-B", "O", "B", "I"])
    assert found == {("A", 1, 3), ("B", 3, 4), ("B/I", 5, 7)}


PIECE_LABELS = {"[PAD]": 0, "B": 1, "I": 2, "O": 3, "X": 4, "[CLS]": 5, "[SEP]": 6}


def test_the_vendors_token_csv_is_in_pieces_already(tmp_path):
    (tmp_path / "label2id.json").write_text(json.dumps(PIECE_LABELS))
    lines = ["tokens,labels", "[CLS] film ##s in rome [SEP],[CLS] O X O B [SEP]"]
    write_lines(tmp_path / "train-1.csv", lines)
    write_lines(tmp_path / "train-2.csv", lines)
    (tmp_path / "meta.dat").write_text("train-1.csv 1\n")
    dataset = data("conll", tmp_path, Context(num_labels=7))
    row = dataset.source[0]
    assert len(dataset.source) == 1  # the files that meta.dat names
    assert real(row) == ids("[CLS] film ##s in rome [SEP]")
    assert row["loss_mask"].tolist() == row["attention_mask"].tolist()
    assert row["labels"][:6].tolist() == [5, 3, 4, 3, 1, 6]
    cut = data("conll", tmp_path, Context(num_labels=7), max_sequence_length=4).source[0]
    assert cut["input_ids"].tolist() == ids("[CLS] film ##s [SEP]")
    assert cut["labels"].tolist() == [5, 3, 4, 6]
    scorer = dataset.scorer()
    logits = np.eye(7)[[5, 3, 1, 3, 1, 6] + [0] * (len(row["labels"]) - 6)]
    scorer.add({k: v[None] for k, v in row.items()}, {"logits": logits[None]})
    # Every token counts for a class: B is predicted twice, once rightly. X begins no entity.
    assert scorer.result() == {"eval/f1_score": pytest.approx(2 / 3), "eval/entity_f1": 1.0}
    (tmp_path / "meta.dat").write_text("none.csv 1\n")
    with pytest.raises(DataError, match=r"meta.dat: names .*none.csv, which does not exist"):
        data("conll", tmp_path)


def test_padding_that_carries_loss_is_of_the_vendors_csv_alone(tmp_path):
    model = {"name": "bert-token-classifier", "num_labels": 7, "include_padding_in_loss": True}
    context = Context.of(models.registry.parse_config(model), training=True)
    (tmp_path / "label2id.json").write_text(json.dumps(PIECE_LABELS))
    write_lines(tmp_path / "train.csv", ["tokens,labels", "[CLS] film [SEP],[CLS] O [SEP]"])
    row = data("conll", tmp_path, context).source[0]
    assert row["labels"].tolist() == [5, 3, 6] + [0] * (len(row["labels"]) - 3)
    assert row["loss_mask"].all()
    assert row["attention_mask"].sum() == 3
    (tmp_path / "train.csv").unlink()
    write_lines(tmp_path / "train.txt", ["film O"])
    with pytest.raises(DataError, match="row 1: include_padding_in_loss is for CSV of pieces"):
        data("conll", tmp_path, context)


def test_evaluation_takes_the_classes_of_the_training_file(tmp_path):
    write_lines(tmp_path / "train.txt", ["anna B-PER", "in O", "rome B-LOC"])
    write_lines(tmp_path / "dev.txt", ["anna B-PER", "in O"])  # alone, B-PER would be class 1
    assert data("conll", tmp_path, Context(training=False)).source[0]["labels"][1] == 2


def test_summary_rows_oracle_and_rouge(tmp_path):
    src = ["a film .", "the news is good .", "bob lives in rome ."]
    assert oracle(src, "the news is good bob lives in rome", 2) == [0, 1, 1]
    assert oracle(src, "bob lives in rome", 2) == [0, 0, 1]  # more sentences would lower it
    rows = [{"src": src, "labels": [0, 1, 1]}, {"src": src, "tgt": "bob lives in rome"}]
    write_lines(tmp_path / "a.jsonl", map(json.dumps, rows))
    dataset = data("bertsum", tmp_path)
    row = dataset.source[0]
    text = "[CLS] a film . [SEP] [CLS] the news is good . [SEP] [CLS] bob lives in rome . [SEP]"
    assert real(row) == ids(text)
    assert real(row, "token_type_ids") == [0] * 5 + [1] * 7 + [0] * 7
    assert row["gather_positions"].tolist() == [0, 5, 12, 0, 0, 0]
    assert row["gather_labels"].tolist() == [0, 1, 1, 0, 0, 0]
    assert row["gather_weights"].tolist() == [1, 1, 1, 0, 0, 0]
    scores = rouge("the cat sat on the mat", "the cat ate the mat")
    assert scores["rouge1"] == pytest.approx(2 * 4 / (6 + 5))
    assert scores["rouge2"] == pytest.approx(2 * 2 / (5 + 4))
    assert scores["rougeL"] == pytest.approx(2 * 4 / (6 + 5))
    scorer = dataset.scorer()
    logits = np.array([[0.1, 0.9, 0.8, 9.0, 9.0, 9.0]])  # slots without a sentence do not count
    seen = {"row": np.array([1]), "gather_weights": row["gather_weights"][None]}
    scorer.add(seen, {"logits": logits})
    assert scorer.result()["eval/rouge1"] == 1.0


def test_the_vendors_bertsum_csv(tmp_path):
    tokens = ids("[CLS] a film . [SEP] [CLS] bob . [SEP]")
    head = "input_token_ids,labels,segment_ids,cls_indices"
    write_lines(tmp_path / "a.csv", [head, f'"{tokens}","[0, 1]","{[0] * 5 + [1] * 4}","[0, 5]"'])
    row = data("bertsum", tmp_path).source[0]
    assert real(row) == tokens
    assert row["gather_positions"][:2].tolist() == [0, 5]


def test_masks_are_drawn_anew_every_epoch_and_the_same_in_a_restored_run(tmp_path):
    dataset = data("masked_lm", tmp_path, shuffle=False)
    first, _ = restarted(dataset, 12)
    for r in range(12):  # put back, the labels give the text
        used = first["gather_weights"][r] != 0
        tokens = first["input_ids"][r].copy()
        tokens[first["gather_positions"][r][used]] = first["gather_labels"][r][used]
        np.testing.assert_array_equal(tokens, dataset.source[r]["input_ids"])
    assert first["next_sentence_label"].tolist() == [0, 1] * 6


def test_prompts_carry_no_loss(tmp_path):
    row = data("prompts", tmp_path, sep_token="[SEP]").source[0]
    assert row["input_ids"].tolist() == ids("where lives anna ? [SEP] in paris . <|endoftext|>")
    assert row["attention_mask"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 0]
    assert row["labels"].tolist()[4:8] == ids("in paris . <|endoftext|>")


def test_only_the_assistants_turns_carry_loss(tmp_path):
    turns = [("user", "where lives anna ?"), ("assistant", "in paris .")]
    turns += [("user", "bob saw a film ."), ("assistant", "paris saw anna"), ("user", "dull")]
    row = {"messages": [{"role": role, "content": text} for role, text in turns]}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    keys = {"multi_turn_key": "messages", "completion_prefix": "says"}
    tokens = data("prompts", tmp_path, **keys).source[0]
    text = "where lives anna ? says in paris . <|endoftext|>"
    text += " bob saw a film . says paris saw anna <|endoftext|>"
    assert tokens["input_ids"].tolist() == ids(text)
    assert tokens["attention_mask"].tolist() == [0] * 4 + [1] * 4 + [0] * 6 + [1] * 4 + [0]


def test_stats_of_images_say_that_nothing_is_padded(tmp_path):
    WRITERS["mnist"](tmp_path)
    stats = padding_stats(parse_config(params("mnist", tmp_path)), "train")
    assert "images of" in stats
    assert stats.endswith("no sequences): nothing is padded")


def test_sources_and_targets(tmp_path):
    row = data("t5", tmp_path).source[0]
    assert real(row) == ids("anna flew to paris . </s>")
    assert row["labels"].tolist() == [*ids("paris saw anna </s>"), 0, 0, 0, 0]
    assert row["decoder_input_ids"].tolist() == [0, *ids("paris saw anna"), 0, 0, 0, 0]
    assert row["decoder_attention_mask"].tolist() == [1] * 4 + [0] * 4


def test_questions_with_their_contexts(tmp_path):
    row = data("dpr", tmp_path).source[0]
    assert real(row) == ids("[CLS] where lives anna ? [SEP]")
    masks = row["context_attention_mask"] != 0
    texts = [row["context_input_ids"][i][masks[i]].tolist() for i in range(2)]
    assert texts[0] == ids("[CLS] anna [SEP] anna lives in paris . [SEP]")
    assert texts[1] == ids("[CLS] bob [SEP] bob saw a film . [SEP]")


def test_idx_files_plain_and_gzipped(tmp_path):
    train, test = (data("mnist", tmp_path, Context(training=t)) for t in (True, False))
    assert (len(train.source), len(test.source)) == (40, 20)
    row = train.source[2]
    assert row["labels"] == 2
    high, low = (1 - 0.1307) / 0.3081, -0.1307 / 0.3081  # the vendor's normalization
    np.testing.assert_allclose(row["images"], [low, low, high, low], rtol=1e-5)


def test_llava_rows_and_pictures(tmp_path):
    dataset = data("llava", tmp_path, Context(input_shape=(3, 4, 4)))
    row = dataset.source[1]
    assert row["input_ids"][:6].tolist() == [LLAVA_IMAGE] * 4 + [10, 21]
    assert row["loss_mask"].tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    red = load_image(tmp_path / "1.png", (3, 4, 4))
    np.testing.assert_array_equal(row["pixel_values"], red)
    np.testing.assert_allclose(
        red[:, 0, 0], [(1 - 0.48145466) / 0.26862954, -1.7520971, -1.4802198], rtol=1e-5
    )


def _ebert(folder, k, processor="EbertSyntheticDataProcessor"):
    """An input section for DNA in k-mers, and the model that takes it."""
    keys = {"num_examples": 8, "max_sequence_length": 16}
    if processor == "EbertFastaDataProcessor":
        dna(folder)
        keys = {"data_dir": str(folder), "state_dir": str(folder), "max_sequence_length": 8}
    section = {"data_processor": processor, "batch_size": 4, "kmer_size": k, **keys}
    return parse_input(section), models.registry.parse_config(ebert(k))


@pytest.mark.parametrize("task", ["masked_lm", "conll", "t5", "bertsum", "dpr", 1, 2])
def test_stripped_rows_hold_what_padded_rows_hold(task, tmp_path):
    if isinstance(task, int):
        section, config = _ebert(tmp_path, task)
        dataset = build_dataset(section, tmp_path, Context.of(config, training=True))
    else:
        dataset = data(task, tmp_path)
    (rows,) = batches(dataset, 4)
    made = [host_batch(rows, 1, 1, ladder) for ladder in (None, vsl.Ladder(multiple=8))]
    padded, stripped = (to_batch({k: v[0, 0] for k, v in features.items()}) for features in made)
    assert stripped.layout.capacity < padded.layout.capacity

    def same(of):
        np.testing.assert_array_equal(*(np.asarray(of(x)) for x in (padded, stripped)))

    for part in ("tokens", "labels", "weights"):
        same(lambda x, part=part: np.asarray(getattr(x, part))[np.asarray(x.layout.valid)])
    extras = padded.extras.keys()
    for name in {"masked_labels", "masked_weights", "next_sentence_label"} & extras:
        same(lambda x, name=name: x.extras[name])
    if "epigenetic" in extras:
        same(lambda x: np.asarray(x.extras["epigenetic"])[np.asarray(x.layout.valid)])
    if "masked_positions" in extras:
        used = np.asarray(padded.extras["masked_weights"]) != 0
        same(lambda x: np.asarray(x.tokens)[np.asarray(x.extras["masked_positions"])][used])
    for other in {"source", "context"} & {name.split("_")[0] for name in extras}:
        tokens, layout = f"{other}_tokens", f"{other}_layout"
        of = lambda x, t=tokens, o=layout: np.asarray(x.extras[t])[np.asarray(x.extras[o].valid)]
        same(of)


WRONG = [
    ("sst2", "train.tsv", "sentence\t", "text\t", r"train\.tsv, row 2: no column 'sent"),
    ("sst2", "train.tsv", "\t1\n", "\t7\n", r"row 3: label 7 is outside .* 2 classes"),
    ("sst2", "train.tsv", "\t1\n", "\tgood\n", r"row 3: label 'good'; expected a whole"),
    ("sst2", "train.tsv", "\t1\n", "\n", r"row 3: 1 columns, the header has 2"),
    ("mnli", "train.tsv", "\tneutral", "\tmaybe", r"row 3: label 'maybe'; .*entailment"),
    ("squad", SQUAD_FILE, '_start": 3', '_start": 9', "'w00': the answer 'paris' is not at"),
    ("squad", SQUAD_FILE, '"qas"', '"questions"', r"not SQuAD version 1: KeyError"),
    ("conll", "train.txt", "lives V O O", "lives", r"train\.txt, row 4: 'lives'; expected a word"),
    ("conll", "train.txt", "I-NP B-PER", "I-NP B-X", r"outside the model's 3 classes"),
    ("bertsum", "train.jsonl", '"src"', '"source"', r"train\.jsonl, row 1: no column 'src'"),
    ("bertsum", "train.jsonl", "{", "", r"train\.jsonl, row 1: not JSON"),
    ("masked_lm", "part-1.csv", "[0, 0, ", "[0, ", r"row 2: \d+ segment_ids for \d+ tokens"),
    ("prompts", "train.jsonl", '"prompt"', '"question"', r"row 1: no column 'prompt'"),
    ("dpr", "train.json", '"positive_ctxs"', '"ctxs"', r"row 1: KeyError\('positive_ctxs'\)"),
    ("dpr", "train.json", '"hard_', '"soft_', r"row 1: 1 positive and 0 negative"),
    ("t5", "train.tsv", "\ttarget", "\ttgt", r"row 2: no column 'target'"),
]


@pytest.mark.parametrize(("task", "name", "old", "new", "message"), WRONG)
def test_wrong_files_are_named_with_the_row(task, name, old, new, message, tmp_path):
    WRITERS[task](tmp_path)
    text = (tmp_path / name).read_text()
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new, 1))
    classes = {"mnli": 3, "conll": 3}.get(task, 2)
    with pytest.raises(DataError, match=message):
        data(task, tmp_path, Context(num_labels=classes))


def test_missing_files_say_what_was_looked_for(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(DataError, match=re.escape(f"{tmp_path} holds none of train.tsv")):
        data("sst2", tmp_path)
    with pytest.raises(DataError, match="nowhere does not exist"):
        data("sst2", tmp_path, data_dir="nowhere")
    WRITERS["sst2"](tmp_path)
    with pytest.raises(DataError, match=r"vocab_file: no\.txt does not exist"):
        data("sst2", tmp_path, vocab_file="no.txt")
    with pytest.raises(DataError, match=r"vocab\.txt: \d+ tokens, but model\.vocab_size is 9"):
        data("sst2", tmp_path, Context(vocab_size=9))


def test_wrong_images(tmp_path):
    WRITERS["mnist"](tmp_path)
    with pytest.raises(DataError, match=r"images of 4 pixels, but model\.input_size is 784"):
        data("mnist", tmp_path, Context(input_shape=(784,)))
    with pytest.raises(DataError, match=r"row 4: label 3 is outside the model's 3 classes"):
        data("mnist", tmp_path, Context(num_labels=3))
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8bbroken")
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: not an IDX file"):
        data("mnist", tmp_path)


def test_a_missing_picture_is_named_with_its_row(tmp_path):
    dataset = data("llava", tmp_path, Context(input_shape=(3, 4, 4)))
    (tmp_path / "3.png").unlink()
    with pytest.raises(DataError, match=r"rows\.h5, row 3: .*3\.png: not a readable image"):
        dataset.source[3]


def test_rows_and_models_that_do_not_go_together(tmp_path):
    from wafer.experiment import Experiment

    cfg = params("sst2", tmp_path)
    cfg["model"]["name"] = "bert-q&a"
    with pytest.raises(ConfigError, match=r"rows are for 'classification'; .*SquadDataProcessor"):
        Experiment.from_config(parse_config(cfg))
    cfg["model"]["name"] = "dpr-question-encoder"
    with pytest.raises(ConfigError, match="no loss of its own"):
        Experiment.from_config(parse_config(cfg))
    cfg = params("dpr", tmp_path, runconfig={"num_csx": 3}, train_input={"micro_batch_size": 1})
    with pytest.raises(ConfigError, match=r"(?s)num_csx: 3: the negatives.*micro_batch_size"):
        Experiment.from_config(parse_config(cfg))
    with pytest.raises(ConfigError, match=r"enable_vts: true"):
        parse_config(params("sst2", tmp_path, train_input={"use_vsl": True}))


def test_long_questions_leave_room_for_the_context(tmp_path):
    vocabulary = load_vocabulary(vocab(tmp_path))
    with pytest.raises(DataError, match="leaves no room"):
        windows([], vocabulary, length=10, stride=4, query=7)


def _section(task, folder):
    """An input section, its files, and the model that takes them."""
    if isinstance(task, tuple):
        return _ebert(folder, *task)
    raw = params(task if task in WRITERS else "prompts", folder, train_input={"batch_size": 8})
    if task in WRITERS:
        WRITERS[task](folder)
    if task == "llava":
        raw["train_input"]["max_sequence_length"] = 8
    if task == "preferences":
        raw["train_input"]["data_processor"] = "PreferenceDataProcessor"
        raw["model"]["dpo"] = {}
        pair = {"prompt": "who ?", "chosen": "anna", "rejected": "bob"}
        pair |= {"reference_chosen_logp": -1.0, "reference_rejected_logp": -2.0}
        write_lines(folder / "train.jsonl", [json.dumps(pair)] * 8)
    if task == "proteins":
        proteins(folder)
        keys = {"data_processor": "RemoteHomologyDataProcessor", "data_dir": str(folder)}
        raw["train_input"] = keys | {"max_sequence_length": 8, "batch_size": 8}
        raw["model"] |= {"name": "bert-sequence-classifier", "vocab_size": 33, "num_labels": 2}
    if task in {"synthetic", "packed"}:
        keys = {"batch_size": 8, "max_sequence_length": 32, "use_vsl": task == "packed"}
        keys |= {"data_processor": "SyntheticDataProcessor", "vocab_size": 64}
        raw["train_input"] = keys
    cfg = parse_config(raw)
    return cfg.train_input, models.registry.parse_config(cfg.model)


DNA = [(k, f"Ebert{kind}DataProcessor") for k in (1, 2) for kind in ("Fasta", "Synthetic")]


@pytest.mark.parametrize("task", [*WRITERS, "preferences", "synthetic", "packed", "proteins", *DNA])
def test_a_tasks_shapes_are_those_of_its_rows(task, tmp_path):
    """What is compiled before the data is read must be what the data then gives."""
    section, config = _section(task, tmp_path)
    assert section is not None
    assert section.decides_shapes
    assert section.task in config.tasks
    dataset = build_dataset(section, tmp_path, Context.of(config, training=True))
    features = host_batch(batches(dataset, section.batch_size)[0], 2, 2)
    given = {name: (value.shape, value.dtype) for name, value in features.items()}
    said = feature_shapes(section, config, (2, 2, section.batch_size // 4))
    assert {name: (value.shape, value.dtype) for name, value in said.items()} == given


def test_adapters_dropout_counts_as_the_models():
    settings = {"name": "llama", "lora_params": {"r": 2, "dropout": 0.1}}
    assert models.registry.parse_config(settings).uses_dropout
    assert not models.registry.parse_config({"name": "llama"}).uses_dropout
