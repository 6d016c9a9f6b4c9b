"""Keys of ``train_input`` and ``eval_input``: one class per data processor.

``DATA_PROCESSORS`` maps the YAML's ``data_processor`` to its class; a new processor adds one
class and one entry here, and its reader in ``wafer.data``.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from wafer.config.base import (
    Bool,
    Int,
    NonNegativeInt,
    PositiveInt,
    Section,
    did_you_mean,
    parse,
)
from wafer.errors import ConfigError, Problem

__all__ = [
    "DATA_PROCESSORS",
    "GptHDF5DataProcessor",
    "InputSection",
    "MicroBatchRange",
    "PyStdlibDataProcessor",
    "SyntheticDataProcessor",
    "parse_input",
]


class _Ignored(Section):
    """Host settings of the vendor's cluster; here the data pipeline sets itself up."""

    num_workers: NonNegativeInt | None = None
    prefetch_factor: NonNegativeInt | None = None
    persistent_workers: Bool | None = None
    use_worker_cache: Bool | None = None
    repeat: Bool | None = None  # training data always repeats here, evaluation data never
    sort_files: Bool | None = None  # files are always read in the order of their names


class _Range(Section):
    min: PositiveInt | None = None
    max: PositiveInt | None = None

    def model_post_init(self, _: Any) -> None:
        if self.min and self.max and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")


class MicroBatchRange(Section):
    """``{explore: {min, max}}``: micro-batch sizes the compiler may choose between."""

    explore: Annotated[_Range, BeforeValidator(lambda v: parse(_Range, v))]


def _micro_batch(value: Any) -> Any:
    if value is None or value in ("auto", "explore"):
        return value
    if isinstance(value, Mapping | MicroBatchRange):
        return parse(MicroBatchRange, value)
    allowed = "expected a whole number > 0, 'auto', 'explore', {explore: {min, max}} or null"
    if isinstance(value, bool | float):
        raise ValueError(allowed)
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise ValueError(allowed) from None
    if number < 1:
        raise ValueError(allowed)
    return number


def _folders(value: Any) -> Any:
    folders = (value,) if isinstance(value, str) else value
    if not isinstance(folders, list | tuple) or not folders:
        raise ValueError("expected a folder or a list of folders")
    if not all(isinstance(f, str) and f for f in folders):
        raise ValueError("every folder must be text")
    return tuple(folders)


class InputSection(_Ignored):
    """What every data processor takes.

    Attributes:
        data_processor: its name in ``DATA_PROCESSORS``.
        batch_size: sequences per step over all systems (the effective batch).
        micro_batch_size: sequences computed at once per system; 'auto' lets the run choose.
        max_sequence_length: S; longer examples are cut.
        use_vsl: variable sequence length: pack examples, compute no padding.
        shuffle: whether the order is shuffled each epoch.
        shuffle_seed: of that order; None takes ``runconfig.seed``.
        drop_last: leave out the last, incomplete batch of an epoch.
    """

    data_processor: str
    batch_size: PositiveInt
    micro_batch_size: Annotated[
        int | Literal["auto", "explore"] | MicroBatchRange | None, BeforeValidator(_micro_batch)
    ] = "auto"
    max_sequence_length: PositiveInt | None = None
    use_vsl: Bool = False
    shuffle: Bool = False
    shuffle_seed: Int | None = None
    drop_last: Bool = True

    @property
    def no_effect(self) -> tuple[str, ...]:
        """Keys the file sets that mean nothing on this machine."""
        return tuple(k for k in _Ignored.model_fields if k in self.model_fields_set)


class GptHDF5DataProcessor(InputSection):
    """Pre-tokenised HDF5 rows, also as ``GptHDF5MapDataProcessor``.

    Attributes:
        data_dir: folders of .h5 files.
    """

    data_dir: Annotated[tuple[str, ...], BeforeValidator(_folders)]


class PyStdlibDataProcessor(InputSection):
    """The functions of the Python standard library's sources, with a tokenizer trained on them.

    Attributes:
        vocab_size: V, byte-pair vocabulary.
        split: which part; the split is by function, after de-duplication.
        source_dir: folder of .py files; None is the running interpreter's library.
        max_bytes: longest function kept, in bytes.
    """

    vocab_size: Annotated[Int, Field(ge=257)] = 2048
    max_sequence_length: PositiveInt = 512  # pyright: ignore[reportIncompatibleVariableOverride]
    split: Literal["train", "eval"] = "train"
    source_dir: str | None = None
    max_bytes: PositiveInt = 1024
    shuffle: Bool = True


class SyntheticDataProcessor(InputSection):
    """Random token sequences of random lengths, for timing and tests.

    Attributes:
        vocab_size: V.
        num_examples: sequences per epoch.
    """

    vocab_size: PositiveInt
    max_sequence_length: PositiveInt = 512  # pyright: ignore[reportIncompatibleVariableOverride]
    num_examples: PositiveInt = 1024


DATA_PROCESSORS: dict[str, type[InputSection]] = {
    "GptHDF5DataProcessor": GptHDF5DataProcessor,
    "GptHDF5MapDataProcessor": GptHDF5DataProcessor,
    "PyStdlibDataProcessor": PyStdlibDataProcessor,
    "SyntheticDataProcessor": SyntheticDataProcessor,
}


def parse_input(value: Any, num_csx: int = 1) -> InputSection:
    """Read an input section with the class its ``data_processor`` names.

    Args:
        value: the mapping from the YAML.
        num_csx: systems that share the batch.

    Raises:
        ConfigError: unknown processor or key; a batch that cannot be shared out evenly.
    """
    if isinstance(value, InputSection):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError([Problem((), f"{value!r}: expected a mapping of keys")])
    known = ", ".join(DATA_PROCESSORS)
    if "data_processor" not in value:
        raise ConfigError([Problem(("data_processor",), f"missing; known: {known}")])
    name = value["data_processor"]
    cls = DATA_PROCESSORS.get(name) if isinstance(name, str) else None
    if cls is None:
        hint = did_you_mean(name, DATA_PROCESSORS)
        message = f"{name!r}: unknown data processor{hint}; known: {known}"
        raise ConfigError([Problem(("data_processor",), message)])
    section = parse(cls, value)
    problems = _uneven(section, num_csx)
    if problems:
        raise ConfigError(problems)
    return section


def _uneven(section: InputSection, num_csx: int) -> list[Problem]:
    problems = []
    size = section.batch_size
    if size % num_csx:
        problems.append(
            Problem(
                ("batch_size",),
                f"{size} cannot be shared by num_csx = {num_csx} systems; nearest that can: "
                f"{_nearest(size, num_csx)}",
            )
        )
    micro = section.micro_batch_size
    share = section.batch_size // num_csx
    if isinstance(micro, int) and not problems and share % micro:
        divisors = [d for d in range(1, share + 1) if share % d == 0]
        problems.append(
            Problem(
                ("micro_batch_size",),
                f"{micro} does not divide the {share} sequences of each system "
                f"(batch_size {section.batch_size} / num_csx {num_csx}); "
                f"allowed: {', '.join(map(str, divisors[:12]))}",
            )
        )
    return problems


def _nearest(size: int, num_csx: int) -> str:
    low = size // num_csx * num_csx
    return f"{low} or {low + num_csx}" if low else str(num_csx)
