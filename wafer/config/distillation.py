"""The ``distillation`` section: a student that also learns from a trained model's outputs."""

from typing import Annotated

from pydantic import Field

from wafer.models.sections import Section


class Distillation(Section):
    """A loss of (1 - w) * objective + w * T^2 * KL(teacher || student), softened by T."""

    #: folder of the teacher's checkpoint; its model may be another one with the same vocabulary. It
    #: is read when a run starts, and never changed
    checkpoint_path: Annotated[str, Field(min_length=1)]
    #: T, by which the logits of both are divided
    temperature: Annotated[float, Field(gt=0, le=1000)] = 2.0
    #: w, from 0 (no teacher is read) to 1 (the teacher alone)
    weight: Annotated[float, Field(ge=0, le=1)] = 0.5
