"""Data processors of sequences: DNA with epigenetic states (EBERT), proteins with their folds."""

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from wafer.data.sections.base import Folders, InputSection
from wafer.data.sections.rows import BertHDF5DataProcessor
from wafer.models.sections import Bool

_SPECIAL_DNA = 5  # [PAD], [UNK], [CLS], [SEP], [MASK]


class _DnaInput(InputSection, task="epigenetic_mlm"):
    """DNA in k-mers that do not overlap, each with its epigenetic state."""

    #: S, with [CLS] and [SEP]
    max_sequence_length: Annotated[int, Field(ge=3)]  # pyright: ignore[reportIncompatibleVariableOverride,reportGeneralTypeIssues]
    #: k, bases of a token; the vocabulary is 5 special tokens and the 4^k k-mers
    kmer_size: Annotated[int, Field(ge=1, le=8)] = 6
    #: share of the tokens that is masked
    masked_lm_prob: Annotated[float, Field(gt=0, lt=1)] = 0.15
    #: M, most tokens masked in a row; None is that share of a row
    max_predictions_per_seq: PositiveInt | None = None
    #: hide the states of masked tokens, too; else the model still sees them
    mask_epigenetic: Bool = False

    @property
    def vocab_size(self) -> int:
        """V, which the model must hold."""
        return _SPECIAL_DNA + 4**self.kmer_size


class EbertFastaDataProcessor(_DnaInput, reader="wafer.data.readers.biology.genomics:fasta"):
    """DNA in FASTA files with the states of its segments in BED files.

    Every window of the DNA is an example once for each BED file.
    """

    data_dir: Folders  #: FASTA files, or folders of .fa, .fasta and .fna, gzipped or not
    #: BED files, or folders of .bed, gzipped or not, one for each cell type: lines of sequence,
    #: start, end, state from 0
    state_dir: Folders


class EbertSyntheticDataProcessor(
    _DnaInput, reader="wafer.data.readers.biology.genomics:synthetic"
):
    """Random DNA in which every state has a k-mer of its own; for tests and first steps."""

    num_examples: PositiveInt = 1024  #: sequences per epoch
    state_length: PositiveInt = 200  #: bases of a segment of one state
    #: share of the tokens that are their state's k-mer; the others are random
    signal: Annotated[float, Field(ge=0, le=1)] = 0.5


class EbertHDF5DataProcessor(
    BertHDF5DataProcessor,
    task="epigenetic_mlm",
    reader="wafer.data.readers.rows:epigenetic_rows",
):
    """BERT rows with a third feature ``epigenetic``: a state from 0 per token, -1 for none."""

    packed_files: ClassVar[bool] = False

    #: hide the states of masked tokens, too; else the model still sees them
    mask_epigenetic: Bool = False


class RemoteHomologyDataProcessor(
    InputSection,
    task="classification",
    reader="wafer.data.readers.biology.proteins:remote_homology",
):
    """Proteins in FASTA files, their classes in a table beside each (TAPE's remote homology)."""

    vocab_size: ClassVar[int] = 33

    #: FASTA files, or folders of train.fasta and valid.fasta; X.tsv beside X.fasta has the columns
    #: id and label
    data_dir: Folders
    #: JSON, label -> class; None takes labels as the numbers of classes
    label_vocab_file: str | None = None
    #: S, with <cls> and <eos>; longer proteins are cut
    max_sequence_length: Annotated[int, Field(ge=3)]  # pyright: ignore[reportIncompatibleVariableOverride,reportGeneralTypeIssues]
