"""Small files of DNA with epigenetic states, and of proteins with their folds."""

import numpy as np
from helpers.finetune_data import MODEL, write_lines

DNA = {  # two cell types of two sequences
    "genome.fa": [">chr1 the first", "ACGTac", "gtNN", "", ">chr2", "TTTTT"],
    "liver.bed": [
        "track name=liver",
        "# sequence start end state",
        "chr1\t2\t5\t1",
        "chr1\t0\t2\t0",
        "chr2\t0\t3\t2\tname\t0",
        "chr9\t0\t3\t2",
    ],
    "lung.bed": ["chr1 0 10 2", "chr2 1 5 0"],
}
FOLDS = {"a": "MKV", "b": "WWC"}  # a fold -> what its proteins are made of


def dna(folder):
    for name, lines in DNA.items():
        write_lines(folder / name, lines)


def proteins(folder, count=24):
    for stem, seed in (("train", 0), ("valid", 1)):
        rng = np.random.default_rng(seed)
        records, table = [], ["id\tlabel"]
        for i in range(count):
            letters = "".join(rng.choice(list(FOLDS["ab"[i % 2]]), rng.integers(4, 12)))
            records += [f">p{i} some protein", letters[:5], letters[5:]]
            table.append(f"p{i}\t{i % 2}")
        write_lines(folder / f"{stem}.fasta", records)
        write_lines(folder / f"{stem}.tsv", table)


def ebert(kmer_size=1, **keys):
    """A model for DNA in k-mers, with three states."""
    sizes = {"name": "ebert", "vocab_size": 5 + 4**kmer_size, "epigenetic_vocab_size": 3}
    return MODEL | sizes | keys
