"""Inputs that are no files, and small ones that would take all memory or never end."""

import concurrent.futures
import gzip
import json
import os
import pathlib
import struct

import h5py
import numpy as np
import pytest
from helpers.records import texts_of
from helpers.vendor_data import chat_file, hook_file, run
from tokenizers import Regex, Tokenizer, decoders, models as kinds, normalizers, processors
from tokenizers.pre_tokenizers import ByteLevel, Metaspace, Sequence, Split

from wafer.cli import main
from wafer.commands.prompts import encode_prompts
from wafer.data.preprocess.records import TEXT, batches
from wafer.data.preprocess.rows import chat
from wafer.data.readers.llava import load_image
from wafer.data.rowfiles.files import Hdf5Source
from wafer.data.rowfiles.verify import verify_folder
from wafer.data.text import tables
from wafer.data.text.textfiles import read_rows
from wafer.data.text.tokenizer import load_tokenizer
from wafer.data.text.wordpiece import Vocabulary
from wafer.errors import DataError
from wafer.models import guarded
from wafer.models.convert.tokenizer import TextMarks


@pytest.fixture
def save(tmp_path):
    """Write a tokenizer of two words with other parts; returns its file."""

    def write(**parts):
        tokenizer = Tokenizer(kinds.WordLevel({"a": 0, "?": 1}, unk_token="?"))
        for name, part in parts.items():
            setattr(tokenizer, name, part)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        return tmp_path / "tokenizer.json"

    return write


def arrow(path, table, form="stream", chunks=None, **options):
    """Write a table as an Arrow stream or file."""
    import pyarrow

    begin = pyarrow.ipc.new_stream if form == "stream" else pyarrow.ipc.new_file
    options = pyarrow.ipc.IpcWriteOptions(**options)
    with begin(str(path), table.schema, options=options) as file:
        file.write(table) if chunks is None else file.write_table(table, max_chunksize=chunks)
    return path


def no_file(path, kind):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path if kind == "loop" else "/dev/zero")


KINDS = {
    "pipe": "this is no regular file",
    "folder": "this is no regular file",
    "device": "this is no regular file",
    "loop": "this link leads to itself",
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_of_rows_is_one_line_and_ends_no_check(tmp_path, kind, capsys):
    no_file(tmp_path / "b.h5", kind)
    for name in ("a.h5", "c.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            file["data"] = np.ones((2, 3, 4), np.int32)
    report = verify_folder(tmp_path)
    assert report.rows == 4
    assert report.problems == [f"{tmp_path / 'b.h5'}: {KINDS[kind]}; expected an HDF5 file"]
    assert main(["data", "verify", str(tmp_path)]) == 1
    assert KINDS[kind] in capsys.readouterr().out
    with pytest.raises(DataError, match=rf"b\.h5: {KINDS[kind]}; expected an HDF5 file"):
        Hdf5Source([tmp_path])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_image_is_one_line(tmp_path, kind):
    no_file(tmp_path / "a.png", kind)
    with pytest.raises(DataError, match=rf"a\.png: not a readable image \({KINDS[kind]}"):
        load_image(tmp_path / "a.png", (3, 4, 4))


def test_a_device_as_prompts_ends_at_the_longest_line():
    with pytest.raises(DataError, match="/dev/zero: line 1 has more than 268,435,456 bytes"):
        list(read_rows(pathlib.Path("/dev/zero")))


def test_rows_of_a_table_are_read_few_at_once(tmp_path, monkeypatch):
    """513 bytes of Parquet, or a dictionary of Arrow, with 5,000 times the same long text."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    monkeypatch.setattr(tables, "_UNPACKED", 1 << 22)
    indices = pyarrow.array(np.zeros(5000, np.int32))
    texts = pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array(["a" * 100_000]))
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "x.parquet", compression="zstd")
    assert (tmp_path / "x.parquet").stat().st_size < 1000
    with parquet.ParquetFile(tmp_path / "x.parquet") as file:
        assert tables.rows_at_once(file.metadata.row_group(0)) < 50
    lengths = [len(b.records) for b in batches([tmp_path / "x.parquet"], TEXT)]
    assert sum(lengths) == 5000
    assert max(lengths) < 20


def test_a_table_that_inflates_is_one_line(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    monkeypatch.setattr(tables, "_UNPACKED", 1 << 20)
    table = pyarrow.table({"text": ["a" * 10_000_000]})
    keys = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
    parquet.write_table(table, tmp_path / "x.parquet", **keys)
    with pytest.raises(DataError, match=r"x\.parquet: a row group of .* bytes inflates to 10,"):
        texts_of([tmp_path / "x.parquet"])


@pytest.mark.parametrize("form", ["stream", "file"])
@pytest.mark.parametrize("codec", ["zstd", "lz4", None])
@pytest.mark.parametrize("kind", ["text", "dictionary"])
def test_an_arrow_file_that_inflates_is_one_line(tmp_path, monkeypatch, form, codec, kind):
    pyarrow = pytest.importorskip("pyarrow")

    monkeypatch.setattr(tables, "_UNPACKED", 1 << 20)
    texts = pyarrow.array(["a" * 10_000_000])
    if kind == "dictionary":
        texts = texts.dictionary_encode()
    table = pyarrow.table({"n": [1], "text": texts})
    path = arrow(tmp_path / "x.arrow", table, form, compression=codec)
    if codec is None:  # as large as it says
        assert texts_of([path]) == ["a" * 10_000_000]
        return
    with pytest.raises(DataError, match=r"x\.arrow: a record batch of .* bytes inflates to 10,00"):
        texts_of([path])


MANY = 2_000_000_000
DECLARED = {  # values that no byte of the file holds, or one long text again and again
    "nulls": lambda pa: pa.nulls(MANY),
    "list": lambda pa: pa.ListArray.from_arrays(pa.array([0, MANY], pa.int32()), pa.nulls(MANY)),
    "fixed": lambda pa: pa.FixedSizeListArray.from_arrays(pa.nulls(MANY), MANY),
    "runs": lambda pa: pa.RunEndEncodedArray.from_arrays(pa.array([MANY], pa.int32()), ["ab"]),
    "dictionary": lambda pa: pa.DictionaryArray.from_arrays(
        pa.array([0] * 2500, pa.int16()), pa.array(["ab " * 400_000])
    ),
}


@pytest.mark.parametrize("kind", DECLARED)
def test_an_arrow_file_that_declares_more_than_it_holds_is_one_line(tmp_path, kind):
    pyarrow = pytest.importorskip("pyarrow")
    batch = pyarrow.record_batch([DECLARED[kind](pyarrow)], names=["text"])
    path = arrow(tmp_path / "x.arrow", batch)
    with pytest.raises(DataError, match=r"x\.arrow: a record batch of .* bytes inflates to \d+,"):
        texts_of([path])


@pytest.mark.parametrize("kind", ["dictionary", "runs", "view"])
def test_repeated_values_of_an_arrow_file_are_read(tmp_path, kind):
    pyarrow = pytest.importorskip("pyarrow")
    texts = pyarrow.array(["a"] * 20 + ["b c"] * 20)
    if kind == "runs":
        texts = pyarrow.RunEndEncodedArray.from_arrays([20, 40], ["a", "b c"])
    elif kind == "dictionary":
        texts = texts.dictionary_encode()
    else:
        texts = texts.cast(pyarrow.string_view())
    path = arrow(tmp_path / "x.arrow", pyarrow.record_batch([texts], names=["text"]))
    assert texts_of([path]) == ["a"] * 20 + ["b c"] * 20


@pytest.mark.parametrize("form", ["stream", "file"])
@pytest.mark.parametrize("codec", ["zstd", "lz4", None])
def test_an_arrow_file_is_read_whole(tmp_path, form, codec):
    pyarrow = pytest.importorskip("pyarrow")

    texts = [f"text {n}" * n for n in range(50)]
    table = pyarrow.table({"text": texts})
    assert texts_of([arrow(tmp_path / "x.arrow", table, form, 20, compression=codec)]) == texts


def charsmap(*texts):
    """SentencePiece's: the size of a trie, which has one node, and what it maps to."""
    return struct.pack("<II", 4, 0) + "".join(f"{text}\0" for text in texts).encode()


def replaces(steps, *pairs):
    """A sequence of replacements, of regular expressions or texts."""
    return steps.Sequence([steps.Replace(pattern, content) for pattern, content in pairs])


THERE = r"(?=[\s\S]*\x{4e8c})"  # matches only where the text goes on to a rare letter
MULTIPLYING = {  # -> the product of the steps at the first that is beyond 100
    "twice": (replaces(normalizers, *[("a", "aa")] * 14), "128"),
    "empty text": (replaces(normalizers, *[("", "b")] * 14), "128"),
    "half": (replaces(normalizers, *[("aa", "bbb")] * 14), "130"),  # 1.5 ** 12
    "ends": (replaces(normalizers, *[(Regex("$"), "b" * 9)] * 1200), "1,000"),
    "rare": (normalizers.Replace("\u0416", "b" * 10**6), "1,000,000"),
    "rare twice": (replaces(normalizers, ("\u0416", "\u0434" * 90), ("\u0434", "b" * 90)), "8,100"),
    "regex": (normalizers.Replace(Regex("[\u0400-\u04ff]"), "b" * 101), "101"),
    "looking ahead": (replaces(normalizers, *[(Regex(r"\x{4e00}" + THERE), "b" * 20)] * 3), "441"),
    "prefix": (normalizers.Prepend("b" * 101), "101"),
    "charsmap": (normalizers.Precompiled(charsmap("\u0416", "b" * 101)), "101"),
    "forms": (  # a ligature that becomes 18 letters, put back for each of them
        normalizers.Sequence([normalizers.Replace(Regex("."), "\ufdfa"), normalizers.NFKD()] * 3),
        "5,832",
    ),
    "bytes": (Sequence([ByteLevel()] * 20), "1,024"),
    "decoder": (replaces(decoders, ("t", "b" * 50), ("b", "c" * 50)), "2,500"),
    "decoder in another": (
        decoders.Sequence([decoders.Fuse(), replaces(decoders, ("t", "b" * 50), ("b", "c" * 50))]),
        "2,500",
    ),
    "spaces": (decoders.Sequence([decoders.BPEDecoder(suffix="")] * 30), "128"),
}


@pytest.mark.parametrize("kind", MULTIPLYING)
def test_steps_that_multiply_are_refused(save, kind):
    part, made = MULTIPLYING[kind]
    is_a = {"normalizer": normalizers.Normalizer, "decoder": decoders.Decoder}
    (place,) = [name for name, cls in is_a.items() if isinstance(part, cls)] or ["pre_tokenizer"]
    path = save(**{place: part})
    with pytest.raises(DataError, match=rf"tokenizer\.json: .*it makes {made} characters out of 1"):
        load_tokenizer(path)


def test_steps_of_published_tokenizers_are_read(save):
    """Llama's, BERT's, XLNet's, T5's: ligatures of 18 letters, marks of more letters than one."""
    replaced = [(" ", "\u2581"), ("``", '"'), *[(Regex(" {2,}"), "\u2581")] * 9]  # none is empty
    replaced += [(Regex(r"\s+"), " "), (Regex(r"(?:\A| )x"), " "), ("\n", "<newline>")]
    rest = [normalizers.BertNormalizer(), normalizers.NFKD()]
    rest.append(normalizers.Precompiled(charsmap("\u0416", "b" * 18)))
    first = [normalizers.Prepend("\u2581"), replaces(normalizers, *replaced)]
    back = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    back += [decoders.Strip(" ", 1, 0), decoders.BPEDecoder(), decoders.CTC()]
    path = save(
        normalizer=normalizers.Sequence([*first, *rest]),
        pre_tokenizer=Sequence([Metaspace(), ByteLevel()]),
        decoder=decoders.Sequence([*back, decoders.WordPiece(), decoders.ByteLevel()]),
    )
    load_tokenizer(path)


def test_a_regex_without_end_is_one_line(save):
    path = save(pre_tokenizer=Split(Regex("(x+x+)+y"), "isolated"))
    loaded, marks = load_tokenizer(path), TextMarks(None, ())
    assert encode_prompts(loaded, ["a"], marks) == [[0]]
    with pytest.raises(DataError, match=r"prompt 'xxx.*: the tokenizer cannot encode it") as error:
        encode_prompts(loaded, ["x" * 60], marks)
    assert "\n" not in str(error.value)
    vocabulary = Vocabulary(loaded, path)
    for encode, texts in (
        (vocabulary.encode, "x" * 60),
        (vocabulary.encode_spans, "x" * 60),
        (vocabulary.encode_all, ["a", "x" * 60]),
        (vocabulary.encode_words, ["a", "x" * 60]),
    ):
        with pytest.raises(DataError, match=r"tokenizer\.json: the tokenizer cannot encode a text"):
            encode(texts)


def test_a_tokenizer_that_multiplies_is_refused(save):
    single = "a " * 20_000 + "$A"
    path = save(post_processor=processors.TemplateProcessing(single, None, [("a", 0)]))
    with pytest.raises(DataError, match=r"tokenizer\.json: .*it makes 20,001 tokens out of 99 "):
        load_tokenizer(path)


@pytest.mark.parametrize(("text", "wrong", "own"), [("<s>", 9, 3), ("b", 2, 1)])
def test_a_tokenizer_whose_added_tokens_get_other_ids_is_refused(tmp_path, text, wrong, own):
    built, path = Tokenizer(kinds.WordLevel({"a": 0, "b": 1, "c": 5}, "a")), tmp_path / "t.json"
    built.add_special_tokens(["<s>", "b"])
    built.save(str(path))
    ids = load_tokenizer(path).get_vocab()
    assert ids == {"a": 0, "b": 1, "c": 5, "<s>": 3}
    content = json.loads(path.read_text())
    for token in content["added_tokens"]:
        token["id"] = wrong if token["content"] == text else token["id"]
    path.write_text(json.dumps(content))
    assert Tokenizer.from_file(str(path)).get_vocab() == ids  # the library reads over them
    with pytest.raises(DataError, match=rf"t\.json: .*'{text}' has id {wrong}, .* gets id {own};"):
        load_tokenizer(path)


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = "{% set x = namespace(t='abcdefgh') %}"
DOUBLED += "{% for a in range(50) %}{% set x.t = x.t ~ x.t %}{% endfor %}"
TIME, SPACE = "does not come to an end in 0.2 seconds", "asks for more than 1,073,741,824 bytes"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (LOOPS, TIME),
        ("{{ 9**(9**9) }}", TIME),  # one call of C
        ("{{ 'a' * 9999999999 }}", SPACE),
        ("{{ 'a' | center(9999999999) }}", SPACE),
        (DOUBLED, SPACE),
    ],
)
@pytest.mark.parametrize("thread", [False, True])
def test_endless_chat_templates_name_the_record(tmp_path, monkeypatch, template, problem, thread):
    pytest.importorskip("jinja2")
    if "0.2" in problem:
        chat.render_chat("", [], {})  # jinja2 is imported
        monkeypatch.setattr(guarded, "_LIMIT", 0.2)
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = chat_file(tmp_path, [{"m": turns}], template)
    with (
        concurrent.futures.ThreadPoolExecutor(1) as other,
        pytest.raises(DataError, match=rf"a\.jsonl: record 1: .*chat_template: .*{problem}"),
    ):
        (other.submit(run, path).result() if thread else run(path))
    monkeypatch.undo()
    assert chat.render_chat("{{ 'a' * 9 }}", [], {}) == "a" * 9  # no limit is left behind


def test_a_process_that_dies_names_the_file(tmp_path, monkeypatch):
    """The hook ends its process, as the kernel does when memory is short."""
    (tmp_path / "dying_hook.py").write_text("import os\nhook = lambda example, **_: os._exit(9)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    keys = {"read_hook_kwargs": {"text_key": "text"}}
    path = hook_file(tmp_path, [{"text": "a"}], "dying_hook:hook", processing=keys)
    with pytest.raises(DataError, match=r"a\.jsonl: a process that encodes records from number 1"):
        run(path, processes="2")


@pytest.mark.parametrize(
    ("verb", "error", "told"),
    [
        ("run", RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), True),
        ("run", MemoryError(), False),
        ("data", MemoryError(), False),
        ("data", RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), False),
    ],
)
def test_a_smaller_batch_is_advised_where_it_helps(verb, error, told, monkeypatch, capsys):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("wafer.config.load_all", fail)
    monkeypatch.setattr("wafer.data.rowfiles.verify.verify_folder", fail)
    words = ["run", "--params", "p.yaml", "--mode", "train"]
    assert main(words if verb == "run" else ["data", "verify", "x"]) == 1
    assert ("batch_size" in capsys.readouterr().err) == told


def test_a_packed_line_is_read_in_bounds(tmp_path):
    """300 MB of one line in 300 KB."""
    path = tmp_path / "x.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(json.dumps({"text": "ok"}).encode() + b'\n{"text": "')
        for _ in range(300):
            file.write(b"a" * (1 << 20))
    read = batches([path], TEXT)
    with pytest.raises(DataError, match="line 2 has more than 268,435,456 bytes"):
        next(read)
