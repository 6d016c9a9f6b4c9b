"""The engines as data: what a run file may name, its sections, and what may be asked of each.

An engine's code is imported when it is made (``wafer.engines.choose`` follows the row's string).
A new engine is a module with ``make``, a row here, and a page in the docs.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from wafer.errors import ConfigError, Problem
from wafer.models.errors import did_you_mean
from wafer.models.sections import Bool, Choice, Section


class EngineRow(NamedTuple):
    """An engine as the rest of the program sees it."""

    name: str  #: value of ``runconfig.execution_strategy``
    #: "module:object", called with an Experiment, returns the engine; where the module also has
    #: ``problems(experiment)``, that lists what the file asks for and the engine does not do
    make: str
    section: str = ""  #: key of ``runconfig`` that no other engine reads, or ''
    #: checkpoints are read branch by branch, as the whole may exceed memory
    lazy_restore: bool = False
    #: a step is one compiled program (``compiled_step``, ``compiled_evaluate``)
    whole_step_program: bool = False
    floor_plan: bool = False  #: it runs on a floor plan of the wafer, which the dry modes make
    several_processes: bool = False  #: its systems may lie in several processes
    distils: bool = False  #: a step takes the weights of a teacher, too (``distillation``)
    #: clips the norm of gradients of selected elements (``selective_grad``)
    clips_selected: bool = False
    #: several copies of the model share the batch of a system (``num_replicas``)
    copies: bool = False
    shards: bool = False  #: keeps a part of the state on each system (``shard_state``)


class MemoryX(Section):
    """Where weight streaming keeps parameters and optimizer state."""

    #: 'ram', or 'file' for states larger than RAM
    store: Annotated[Literal["ram", "file"], Choice] = "ram"
    path: str | None = None  #: the file's folder; None is ``model_dir``
    #: keep two copies in the file and wait for the disk at every step, so that a kill or a power
    #: cut in the middle of one leaves the step before. False halves the file
    durable: Bool = True
    #: memory on each system for products that the backward sweep then need not compute again; 0
    #: keeps the inputs of each layer only
    residual_mib: NonNegativeInt = 512

    def model_post_init(self, _: object) -> None:
        """A path means a file."""
        if self.path is not None and self.store == "ram":
            raise ConfigError([Problem(("path",), "is read only with store: file")])


class Pipeline(Section):
    """How pipelined execution lays the model out."""

    #: of the pipeline; None makes one of the embedding, of each layer and of the head. Fewer take
    #: several layers each, balanced by the weights they multiply by
    stages: PositiveInt | None = None
    devices: PositiveInt = 1  #: that the stages are spread over, for each system
    #: compute products in the backward pass again instead of keeping them for every micro-batch in
    #: flight
    recompute: Bool = False


class FabricSection(Section):
    """The part of the wafer that kernels are placed on; simulating fewer PEs takes less time.

    The fabric's lanes between the layers, its images and its loss come on top.
    """

    width: PositiveInt | None = None  #: PEs in x; None is the whole wafer's
    height: PositiveInt | None = None  #: PEs in y, likewise


_ROWS = (
    EngineRow(
        "resident",
        "wafer.engines.resident:make",
        whole_step_program=True,
        several_processes=True,
        distils=True,
        clips_selected=True,
        shards=True,
    ),
    EngineRow(
        "weight_streaming",
        "wafer.engines.stagewise.streaming.engine:make",
        lazy_restore=True,
        several_processes=True,
    ),
    EngineRow(
        "pipelined",
        "wafer.engines.stagewise.pipeline.engine:make",
        section="pipeline",
        floor_plan=True,
        copies=True,
    ),
    EngineRow("fabric", "wafer.engines.fabric.engine:make", floor_plan=True),
)
ENGINES: Mapping[str, EngineRow] = {row.name: row for row in _ROWS}
_OLDER = {"pipeline": "pipelined"}
STRATEGIES = (*_OLDER, "weight_streaming")  # what `wafer run` takes after the system


def engine_name(value: object) -> str | None:
    """Read ``execution_strategy``.

    Raises:
        ValueError: neither an engine's name nor 'module:object'.
    """
    if value is None or (isinstance(value, str) and all(value.partition(":"))):
        return value
    name = _OLDER.get(str(value).lower(), str(value).lower())
    if name not in ENGINES:
        known = ", ".join(map(repr, ENGINES))
        raise ValueError(
            f"expected {known} or 'module:object' of your own{did_you_mean(value, ENGINES)}"
        )
    return name


def engine_row(name: str) -> EngineRow:
    """Return the row of a checked ``execution_strategy``; a user's engine has no capabilities."""
    return ENGINES.get(name) or EngineRow(name, make=name)


def engines_with(capability: str) -> str:
    """Name the engines that have a capability, for messages: 'a or b'."""
    return " or ".join(name for name, row in ENGINES.items() if getattr(row, capability))
