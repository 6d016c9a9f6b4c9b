"""FASTA, BED, and the table of classes beside proteins."""

import gzip
import types

import numpy as np

from fuzz.mutations import EDGES, damaged
from wafer.data.batching.dataset import Context
from wafer.data.readers.biology.genomics import kmer_ids
from wafer.data.readers.biology.proteins import remote_homology
from wafer.data.text.fasta import letter_codes, read_fasta
from wafer.data.text.segments import read_segments

_CODES = letter_codes({letter: code for code, letter in enumerate("ACGTN")})
_FASTA = b">chr1 the first\nACGTACGT\nacgtnnnn\n\n>chr2\n" + b"GATTACA\n" * 6
_BED = b"track name=x\nchr1\t0\t8\t3\nchr1\t8\t16\t1\tname\nchr2\t0\t40\t2\n# end\nchr9 1 2 3\n"
_TABLE = b"id\tlabel\np1\t0\np2\t1\n"


def fasta_files(rng, folder):
    """Damaged sequences, gzipped or not."""
    while True:
        content = gzip.compress(_FASTA) if rng.random() < 0.3 else _FASTA
        yield "a.fa", damaged(content, rng), None


def read_sequences(path):
    """All records, and what tokens they make."""
    records = read_fasta(path, _CODES, "DNA")
    for record in records:
        assert record.codes.max() < 5
        kmer_ids(record.codes, 3)
    return records


def segment_files(rng, folder):
    """Damaged segments, and numbers at the edges."""
    while True:
        content = _BED
        if rng.random() < 0.5:
            line = f"chr1\t{rng.choice(EDGES)}\t{rng.choice(EDGES)}\t{rng.choice(EDGES)}\n"
            content += line.encode()
        yield "a.bed", content if rng.random() < 0.2 else damaged(content, rng), None


def read_states(path):
    """The state of every base."""
    lengths = {"chr1": 16, "chr2": 42}
    segments = read_segments(path, lengths)
    states = [segments[name].of_bases(0, size) for name, size in lengths.items()]
    assert all(np.all(part >= -1) for part in states)
    return states


def table_files(rng, folder):
    """Damaged classes beside sound proteins."""
    (folder / "train.fasta").write_bytes(b">p1\nMKV\n>p2\nWWC\n")
    while True:
        yield "train.tsv", damaged(_TABLE, rng), None


def read_table(path):
    """The rows of the folder, which hold classes of the model."""
    section = types.SimpleNamespace(
        data_dir=(str(path.parent),), label_vocab_file=None, max_sequence_length=8
    )
    source = remote_homology(section, Context(num_labels=2)).source
    rows = [source[i] for i in range(len(source))]
    assert all(row["labels"] in (0, 1) for row in rows)
    return rows
