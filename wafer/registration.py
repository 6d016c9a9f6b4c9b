"""Names that Python gives to code of users; run files have them like names of ours.

    wafer.register_model("bigram", build)  # model: {name: bigram, …}
    wafer.register_optimizer("sign", make)  # optimizer: {optimizer_type: sign, …}
    wafer.register_task("speech", {"mel": (("S", 80), "float32")})

A module that registers when it is imported serves the command line: ``name: "my_pkg:bigram"``.
"""

from collections.abc import Callable, Mapping
from typing import Any

from wafer.data.tasks import TASKS, DataTask, RowSizes, TaskFeature
from wafer.errors import ConfigError, Problem
from wafer.models.names import MODELS
from wafer.models.user.code import call, give_name, register
from wafer.models.user.trust import SECTIONS
from wafer.models.user.yamlfile import YamlMapping
from wafer.optim.sections import OPTIMIZERS

_Shape = tuple[int | str, ...]
_ROW: dict[str, tuple[_Shape, str]] = dict.fromkeys(
    ("input_ids", "attention_mask"), (("S",), "int32")
)
_KINDS = ("int32", "float32")


def register_model(name: str, build: Callable[..., object]) -> None:
    """Let ``model: {name: NAME, …}`` mean a function.

    Args:
        name: no name of ours, no colon; or ``notebook:…`` as a record has it.
        build: takes the section's other keys, returns a model of ``wafer.models.user.model``.

    Raises:
        ConfigError: a name that is taken, or no function.
    """
    _register("model", name, build, MODELS)


def register_optimizer(name: str, make: Callable[..., object]) -> None:
    """Let ``optimizer: {optimizer_type: NAME, …}`` mean a function.

    Args:
        name: no name of ours, no colon; or ``notebook:…`` as a record has it.
        make: takes the section's other keys, returns an ``optax.GradientTransformation``: a
            direction, which is multiplied by minus the learning rate.

    Raises:
        ConfigError: a name that is taken, or no function.
    """
    _register("optimizer", name, make, OPTIMIZERS)


def register_task(
    name: str,
    features: Mapping[str, tuple[_Shape, str]],
    tags: Mapping[str, str] | None = None,
) -> None:
    """Let ``train_input: {task: NAME, …}`` mean rows of a form of their own.

    Every row has ``input_ids`` and ``attention_mask``, [S] int32; the model finds the others in
    ``Batch.extras``, or by name with ``own.plain(features=…)``.

    Args:
        name: no name of ours.
        features: of a row, (shape, 'int32' or 'float32'); "S" in a shape is the sequence.
        tags: metric of the model -> name it is shown under; the others are not shown.

    Raises:
        ConfigError: a name that is taken; shapes or dtypes that no feature has.
    """
    rows = _ROW | dict(features)
    if name in TASKS and name not in _OWN_TASKS:
        raise ConfigError([Problem((), f"{name!r} is a task of ours; choose another name")])
    for feature, (shape, dtype) in rows.items():
        sizes = all(size == "S" or (isinstance(size, int) and size > 0) for size in shape)
        if not sizes or dtype not in _KINDS:
            expected = f"whole numbers > 0 or 'S', and one of {', '.join(_KINDS)}"
            raise ConfigError(
                [Problem((name, feature), f"{shape}, {dtype!r}: expected {expected}")]
            )

    def of_length(sizes: RowSizes, config: object) -> dict[str, TaskFeature]:
        del config
        return {
            feature: TaskFeature(tuple(sizes.length if s == "S" else int(s) for s in shape), dtype)
            for feature, (shape, dtype) in rows.items()
        }

    TASKS[name] = DataTask(of_length, dict(tags or {}))
    _OWN_TASKS.add(name)


_OWN_TASKS: set[str] = set()


def named(sections: Mapping[str, object]) -> YamlMapping:
    """Register each class or function that stands where a run file has a name, and put its name.

    Args:
        sections: of a run, from a program.

    Returns:
        Sections that a file can hold; see ``wafer.models.user.code.give_name``. A function that
        ``train_input`` or ``eval_input`` have as ``task`` returns the features for
        ``register_task``.

    Raises:
        ConfigError: code without a name.
    """
    return {
        key: _named(value, (key,), *SECTIONS.get(key, ("", ()))) for key, value in sections.items()
    }


def _named(value: object, where: tuple[str | int, ...], kind: str, keys: tuple[str, ...]) -> object:
    if isinstance(value, Mapping):
        return {key: _named(part, (*where, key), kind, keys) for key, part in value.items()}
    if isinstance(value, list):
        return [_named(part, (*where, at), kind, keys) for at, part in enumerate(value)]
    if not callable(value):
        return value
    try:
        if where in (("train_input", "task"), ("eval_input", "task")):
            name = give_name("data", value)
            features: Any = call(name, value)  # which register_task checks
            register_task(name, features)
            return name
        last = next(key for key in reversed(where) if isinstance(key, str))
        return give_name(kind, value) if last in keys else value
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError([Problem(where, str(error))]) from error


def _register(
    kind: str, name: str, function: Callable[..., object], known: Mapping[str, object]
) -> None:
    try:
        register(kind, name, function, known)
    except ValueError as error:
        raise ConfigError([Problem((), str(error))]) from error
