"""Small files of DNA with epigenetic states, and of proteins with their folds."""

import numpy as np
from helpers.finetune_data import MODEL

from wafer.data.make import text
from wafer.data.make.files import write_files


def dna(folder):
    write_files(folder, text.dna(np.random.default_rng(0), 0))


def proteins(folder, count=24):
    write_files(folder, text.proteins(np.random.default_rng(0), count))


def ebert(kmer_size=1, **keys):
    """A model for DNA in k-mers, with three states."""
    sizes = {"name": "ebert", "vocab_size": 5 + 4**kmer_size, "epigenetic_vocab_size": 3}
    return MODEL | sizes | keys
