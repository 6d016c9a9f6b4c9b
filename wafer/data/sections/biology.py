"""Data processors of sequences: DNA with epigenetic states (EBERT), proteins with their folds."""

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from models.sections import Bool
from wafer.data.sections.base import Folders, InputSection
from wafer.data.sections.rows import BertHDF5DataProcessor

__all__ = [
    "EbertFastaDataProcessor",
    "EbertHDF5DataProcessor",
    "EbertSyntheticDataProcessor",
    "RemoteHomologyDataProcessor",
]

_SPECIAL_DNA = 5  # [PAD], [UNK], [CLS], [SEP], [MASK]


class _DnaInput(InputSection, task="epigenetic_mlm"):
    """DNA in k-mers that do not overlap, each with its epigenetic state.

    Attributes:
        max_sequence_length: S, with [CLS] and [SEP].
        kmer_size: k, bases of a token; the vocabulary is 5 special tokens and the 4^k k-mers.
        masked_lm_prob: share of the tokens that is masked.
        max_predictions_per_seq: M, most tokens masked in a row; None is that share of a row.
        mask_epigenetic: hide the states of masked tokens, too; else the model still sees them.
    """

    max_sequence_length: Annotated[int, Field(ge=3)]  # pyright: ignore[reportIncompatibleVariableOverride,reportGeneralTypeIssues]
    kmer_size: Annotated[int, Field(ge=1, le=8)] = 6
    masked_lm_prob: Annotated[float, Field(gt=0, lt=1)] = 0.15
    max_predictions_per_seq: PositiveInt | None = None
    mask_epigenetic: Bool = False

    @property
    def vocab_size(self) -> int:
        """V, which the model must hold."""
        return _SPECIAL_DNA + 4**self.kmer_size


class EbertFastaDataProcessor(_DnaInput, reader="wafer.data.readers.biology.genomics:fasta"):
    """DNA in FASTA files with the states of its segments in BED files.

    Every window of the DNA is an example once for each BED file.

    Attributes:
        data_dir: FASTA files, or folders of .fa, .fasta and .fna, gzipped or not.
        state_dir: BED files, or folders of .bed, gzipped or not, one for each cell type: lines of
            sequence, start, end, state from 0.
    """

    data_dir: Folders
    state_dir: Folders


class EbertSyntheticDataProcessor(
    _DnaInput, reader="wafer.data.readers.biology.genomics:synthetic"
):
    """Random DNA in which every state has a k-mer of its own; for tests and first steps.

    Attributes:
        num_examples: sequences per epoch.
        state_length: bases of a segment of one state.
        signal: share of the tokens that are their state's k-mer; the others are random.
    """

    num_examples: PositiveInt = 1024
    state_length: PositiveInt = 200
    signal: Annotated[float, Field(ge=0, le=1)] = 0.5


class EbertHDF5DataProcessor(
    BertHDF5DataProcessor,
    task="epigenetic_mlm",
    reader="wafer.data.readers.rows:epigenetic_rows",
):
    """BERT rows with a third feature ``epigenetic``: a state from 0 per token, -1 for none.

    Attributes:
        mask_epigenetic: hide the states of masked tokens, too; else the model still sees them.
    """

    packed_files: ClassVar[bool] = False

    mask_epigenetic: Bool = False


class RemoteHomologyDataProcessor(
    InputSection,
    task="classification",
    reader="wafer.data.readers.biology.proteins:remote_homology",
):
    """Proteins in FASTA files with their classes in a table beside each (TAPE's remote homology).

    Attributes:
        data_dir: FASTA files, or folders of train.fasta and valid.fasta; X.tsv beside X.fasta has
            the columns id and label.
        label_vocab_file: JSON, label -> class; None takes labels as the numbers of classes.
        max_sequence_length: S, with <cls> and <eos>; longer proteins are cut.
    """

    vocab_size: ClassVar[int] = 33

    data_dir: Folders
    label_vocab_file: str | None = None
    max_sequence_length: Annotated[int, Field(ge=3)]  # pyright: ignore[reportIncompatibleVariableOverride,reportGeneralTypeIssues]
