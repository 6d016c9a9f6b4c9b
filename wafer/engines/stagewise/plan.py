"""Who reads which branch: what a step needs to know of a model besides its programs."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from models.base import Stage
from sparsity.topology import name_code
from wafer.engines.stagewise.branches import Branch

__all__ = ["Plan", "make_plan"]


class Plan(NamedTuple):
    """What does not change from step to step.

    stages: of the model, in order
    branches: by name, in tree order
    uses: branch -> indices of the stages that read it
    codes: branch -> relative name -> number of its random draws
    """

    stages: tuple[Stage, ...]
    branches: Mapping[str, Branch]
    uses: Mapping[str, tuple[int, ...]]
    codes: Mapping[str, Mapping[str, np.uint32]]

    def at(self, index: int) -> tuple[Stage, tuple[Branch, ...]]:
        """A stage and the branches it reads: what its programs are traced for."""
        stage = self.stages[index]
        return stage, tuple(self.branches[name] for name in stage.params)

    def completed_at(self, index: int) -> tuple[str, ...]:
        """Branches whose gradient is whole once the backward sweep has passed a stage."""
        return tuple(name for name, uses in self.uses.items() if uses and uses[0] == index)

    @property
    def unread(self) -> tuple[str, ...]:
        """Branches no stage reads: they decay all the same."""
        return tuple(name for name, uses in self.uses.items() if not uses)


def make_plan(stages: tuple[Stage, ...], branches: Mapping[str, Branch]) -> Plan:
    """Say who reads which branch, and what the random draws of each are numbered by."""
    return Plan(
        stages=stages,
        branches=branches,
        uses={
            name: tuple(i for i, stage in enumerate(stages) if name in stage.params)
            for name in branches
        },
        codes={
            name: {
                key: np.uint32(name_code(branch.full(key)))
                for key in (*branch.masks, *branch.patterns)
            }
            for name, branch in branches.items()
        },
    )
