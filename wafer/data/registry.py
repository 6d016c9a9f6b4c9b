"""Every data processor by the name a params YAML gives it; users name theirs ``module:name``.

A processor is one class: its keys, its task (``wafer.data.tasks``) and its reader, named as text
because readers import h5py, tokenizers and jax, and a wrong file must be reported without them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from wafer.data.sections import biology, images, rows, text
from wafer.data.sections.base import InputSection
from wafer.data.sections.own import parse_own
from wafer.data.tasks import TASKS
from wafer.errors import ConfigError, Problem
from wafer.models.errors import SectionError, did_you_mean
from wafer.models.sections import parse
from wafer.models.user.code import NOTEBOOK, find

DATA_PROCESSORS: dict[str, type[InputSection]] = {
    name: getattr(module, name)
    for module in (rows, text, biology, images)
    for name in sorted(vars(module))
    if name.endswith("DataProcessor")
}


def _processor(name: Any) -> Callable[..., Any]:
    """The class behind a name, or a user's loader."""
    if isinstance(name, str) and name in DATA_PROCESSORS:
        return DATA_PROCESSORS[name]
    if isinstance(name, str) and "TfRecords" in name and ":" not in name:
        raise ValueError(
            f"{name!r} reads TFRecords, which belong to the TensorFlow stack; write the rows as "
            "HDF5 (`wafer data preprocess`), or yield them from a loader of your own"
        )
    if not isinstance(name, str) or ":" not in name:
        raise ValueError(
            f"{name!r}: unknown data processor{did_you_mean(name, DATA_PROCESSORS)}; known: "
            f"{', '.join(DATA_PROCESSORS)}"
        )
    processor = find(name, DATA_PROCESSORS, "data")
    if isinstance(processor, type) and issubclass(processor, InputSection):
        if not processor.reader:
            raise ValueError(f"{name!r}: a subclass of InputSection needs a reader")
        _known_task(processor.task)
    return processor


def _known_task(name: Any) -> None:
    if not isinstance(name, str) or name not in TASKS:
        again = "; define it again: wafer.register_task" if str(name).startswith(NOTEBOOK) else ""
        hint = again or did_you_mean(name, TASKS)
        raise ValueError(f"unknown task {name!r}{hint}; known: {', '.join(TASKS)}")


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
    if "data_processor" not in value:
        known = ", ".join(DATA_PROCESSORS)
        raise ConfigError([Problem(("data_processor",), f"missing; known: {known}")])
    try:
        processor = _processor(value["data_processor"])
    except ValueError as error:
        raise ConfigError([Problem(("data_processor",), str(error))]) from error
    if processor is rows.RandomDataProcessor:
        _require_task(value)
    if isinstance(processor, type) and issubclass(processor, InputSection):
        section = parse(*processor.of(value))
    else:
        section = _own(processor, value)
    problems = _uneven(section, num_csx)
    if problems:
        raise ConfigError(problems)
    return section


def _require_task(value: Mapping[str, Any]) -> None:
    try:
        _known_task(value.get("task", "lm"))
    except ValueError as error:
        raise ConfigError([Problem(("task",), str(error))]) from error


def _own(loader: Callable[..., Any], value: Mapping[str, Any]) -> InputSection:
    _require_task(value)
    try:
        return parse_own(value["data_processor"], loader, value)
    except SectionError as error:
        raise ConfigError(error.problems) from None


def _uneven(section: InputSection, num_csx: int) -> list[Problem]:
    problems = []
    size = section.batch_size
    if size % num_csx:
        low = size // num_csx * num_csx
        nearest = f"{low} or {low + num_csx}" if low else str(num_csx)
        problems.append(
            Problem(
                ("batch_size",),
                f"{size} cannot be shared by num_csx = {num_csx} systems; nearest that can: "
                + nearest,
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
