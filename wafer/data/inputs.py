"""Keys of ``train_input`` and ``eval_input``: one class per data processor.

``DATA_PROCESSORS`` maps the YAML's ``data_processor`` to its class; a new processor adds one
class and one entry here (or in ``task_inputs``), and its reader in ``wafer.data``.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from models.errors import did_you_mean
from models.sections import Bool, parse
from wafer.data.row_inputs import ROW_PROCESSORS, GptHDF5DataProcessor
from wafer.data.section import InputSection, MicroBatchRange
from wafer.data.task_inputs import TASK_PROCESSORS
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


class PyStdlibDataProcessor(InputSection):
    """The functions of the Python standard library's sources, with a tokenizer trained on them.

    Attributes:
        vocab_size: V, byte-pair vocabulary.
        split: which part; the split is by function, after de-duplication.
        source_dir: folder of .py files; None is the running interpreter's library.
        max_bytes: longest function kept, in bytes.
    """

    vocab_size: Annotated[int, Field(ge=257)] = 2048
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
    **ROW_PROCESSORS,
    "PyStdlibDataProcessor": PyStdlibDataProcessor,
    "SyntheticDataProcessor": SyntheticDataProcessor,
    **TASK_PROCESSORS,
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
