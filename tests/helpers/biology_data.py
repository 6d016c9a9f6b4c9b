"""Small files of DNA with epigenetic states, and of proteins with their folds."""

import numpy as np
from helpers.data_sets import text
from helpers.data_sets.files import write_files
from helpers.finetune_data import MODEL


def dna(folder):
    write_files(folder, text.dna(np.random.default_rng(0), 0))


def proteins(folder, count=24):
    write_files(folder, text.proteins(np.random.default_rng(0), count))


def ebert(kmer_size=1, **keys):
    """A model for DNA in k-mers, with three states."""
    sizes = {"name": "ebert", "vocab_size": 5 + 4**kmer_size, "epigenetic_vocab_size": 3}
    return MODEL | sizes | keys
